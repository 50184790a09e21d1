"""Asks whether the pinned runfile is really published, and whether there is room for it.

Which file a release has is resolved from lists, never from a guessed name: a 404 on a name proves only that this
name does not exist. The file itself is proved by status, type, size and first bytes, from here and from the host.
"""

import re
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from checks import from_host, lists, release, verdict
from checks.catalogue import PLATFORMS, shipped
from checks.mirror import mirror
from checks.reply import Reply, nothing
from checks.resolved import Resolved, with_proof
from checks.verdict import HEAD_BYTES, Finding
from checks.web import PATIENT, Web
from fleet.clock import sized
from fleet.decision import Rejected
from fleet.hosts import HostSpec
from fleet.model import Check
from fleet.pins import Pins, Runfile
from fleet.view import View

DISCOVERY_DEADLINE_S = 45.0
PATIENCE = PATIENT


def platform_of(host: View) -> str:
    """The host's platform as CUDA names it: linux-x86_64, linux-sbsa; empty for any other."""
    words = host.read("host.platform").out.split()
    return PLATFORMS.get(words[0], "") if words else ""


def pinned_runfile(host: View, pins: Pins) -> Runfile | None:
    """The pinned runfile for the host's platform."""
    return pins.cuda.runfile.get(platform_of(host))


def title(host: View, pins: Pins) -> str:
    """The pinned runfile in a line: name and size."""
    runfile = pinned_runfile(host, pins)
    return f"{runfile.file}, {sized(runfile.size_bytes)}" if runfile else "none pinned for this platform"


def url_of(pins: Pins, runfile: Runfile, mirror: str = "") -> str:
    """Where the release's runfile is served: by the first mirror, or by the one that is named."""
    return f"{mirror or pins.cuda.mirror}/{lists.file_path(pins.cuda.version, runfile.file)}"


def _from_host(spec: HostSpec, pins: Pins) -> str:
    del spec
    return from_host.script({name: url_of(pins, runfile) for name, runfile in pins.cuda.runfile.items()})


def _may_change(spec: HostSpec, pins: Pins) -> str:
    del pins
    if spec.sudo:
        return "sudo -n true"
    return (
        'p=$BASE; while [ ! -d "$p" ]; do p=$(dirname "$p"); done\n'
        '[ -w "$p" ] || { echo "$p is not writable"; exit 1; }'
    )


READS: Mapping[str, Any] = {
    "runfile.from_host": _from_host,
    # A path that does not exist yet lies on the file system of its nearest ancestor that does.
    "runfile.space": 'for p in "$TMP" "$BASE"; do while [ ! -d "$p" ]; do p=$(dirname "$p"); done; '
    'df -Pk "$p" | tail -n 1; df -Pi "$p" | tail -n 1; done',
    "runfile.tmp_options": 'findmnt -no OPTIONS -T "$TMP"',
    # As the jobs of a run will try it: under sudo, or by writing beside the stacks.
    "runfile.may_change": _may_change,
    "runfile.installed": 'ls "$STACK"/cuda-*/.complete',
}


class _Question(NamedTuple):
    """What all hosts of one platform have in common."""

    release: str
    platform: str
    file: str
    mirrors: tuple[str, ...]
    beside: Path


class Discovered(NamedTuple):
    """What is known of the pinned runfile from here: what the release has, and what the file's address says."""

    resolved: Resolved
    served: Reply


_guard = threading.Lock()
_locks: dict[_Question, threading.Lock] = {}


def discovered(pins: Pins, platform: str) -> Discovered:
    """What is known from here; asked once per process, however many hosts want it."""
    runfile = pins.cuda.runfile.get(platform)
    places = (pins.cuda.mirror, *pins.cuda.mirrors)
    beside = pins.path.absolute().parent
    question = _Question(pins.cuda.version, platform, runfile.file if runfile else "", places, beside)
    with _guard:
        lock = _locks.setdefault(question, threading.Lock())
    with lock:
        return _discovered(question)


def forget() -> None:
    """The next question is asked anew, as by another process."""
    _discovered.cache_clear()


@cache
def _discovered(question: _Question) -> Discovered:
    web = Web(limits=PATIENCE).within(DISCOVERY_DEADLINE_S)
    mirrors = [mirror(place, web, question.beside) for place in question.mirrors]
    resolved = release.resolve(question.release, question.platform, mirrors)
    # Hosts download from the first mirror only: the others are asked what is published, not for the file.
    path = lists.file_path(question.release, question.file)
    served = mirrors[0].first(path, HEAD_BYTES) if question.file else nothing("", "no runfile pinned")
    return Discovered(resolved, served)


def published(host: View, pins: Pins) -> Iterator[Check]:
    """Whether the pinned runfile is what its release has, and is served as itself, here and on the host."""
    platform, runfile = platform_of(host), pinned_runfile(host, pins)
    if runfile is None:
        yield _none_pinned(host, pins, platform)
        return
    resolved, from_here = discovered(pins, platform)
    listed = _listed(resolved, runfile)
    seen = from_host.parse(host.read("runfile.from_host").out, url_of(pins, runfile))
    here, there = (_served(reply, runfile, resolved, listed) for reply in (from_here, seen))
    _record(host, resolved, runfile, listed, [("here", from_here, here), (host.name, seen, there)])
    want = f"{runfile.file} in md5sum.txt of {pins.cuda.version}"
    yield _listed_check(want, resolved, runfile, listed)
    yield _served_check("runfile from here", from_here, here, runfile)
    yield _served_check(f"runfile from {host.name}", seen, there, runfile)


def _none_pinned(host: View, pins: Pins, platform: str) -> Check:
    want = f"one for {platform or 'this platform'}"
    if not platform:
        hint = f"CUDA has runfiles for {' and '.join(PLATFORMS.values())}"
        return Check(name="runfile", want=want, got="none pinned", ok=False, hint=hint)
    resolved = discovered(pins, platform).resolved
    _keep(host, resolved)
    hint = f"add [cuda.runfile.{platform}] to pins.toml"
    hint += f' with file = "{resolved.file}"' if resolved.file else f"; {resolved.finding.told}"
    return Check(name="runfile", want=want, got="none pinned", ok=False, hint=hint)


def _listed(resolved: Resolved, runfile: Runfile) -> Finding:
    """What the release's lists say of the pinned name and sum."""
    if resolved.finding.verdict != "published":
        return resolved.finding
    if resolved.file != runfile.file:
        return verdict.wrong_name(resolved.release, resolved.file, runfile.file, shipped())
    if runfile.md5 and resolved.md5 and resolved.md5 != runfile.md5:
        return verdict.checksum_differs(resolved.sources[0], resolved.md5, runfile.md5)
    return resolved.finding


def _listed_check(want: str, resolved: Resolved, runfile: Runfile, listed: Finding) -> Check:
    name = "listed by its release"
    read = next((one.url for candidate in resolved.decision.candidates for one in candidate.evidence), "")
    if listed.verdict != "published":
        # Refused is a fact about the file's address; about a list it says nothing.
        ok = None if listed.verdict == "forbidden" else listed.ok
        return Check(name=name, want=want, got=listed.told, ok=ok, hint=listed.hint, read=read)
    if resolved.held or resolved.answered:
        sum_told = f", md5 {resolved.md5}" if resolved.md5 == runfile.md5 and runfile.md5 else ""
        return Check(name=name, want=want, got=f"listed in {resolved.sources[0]}{sum_told}", ok=True, read=read)
    whys = "; ".join(one.says for c in resolved.decision.candidates for one in c.evidence if one.source == "md5sum.txt")
    got = f"no list could be read ({whys}); {resolved.sources[0]} names it"
    hint = "unknown is not absent: check network and proxy, or name a mirror in pins.toml"
    return Check(name=name, want=want, got=got, ok=None, hint=hint, read=read)


def _served(reply: Reply, runfile: Runfile, resolved: Resolved, listed: Finding) -> Finding:
    named = resolved.file == runfile.file and bool(resolved.sources)
    listed_by = resolved.sources[0] if named else ""
    return verdict.served(reply, runfile.file, runfile.size_bytes, listed_by, listed if not named else None)


def _served_check(name: str, reply: Reply, finding: Finding, runfile: Runfile) -> Check:
    want = f"200 or 206, {sized(runfile.size_bytes)}, a shell archive"
    return Check(name=name, want=want, got=finding.told, ok=finding.ok, hint=finding.hint, read=reply.url)


def _record(
    host: View, resolved: Resolved, runfile: Runfile, listed: Finding, seen: list[tuple[str, Reply, Finding]]
) -> None:
    """Lays the decision into the stage's facts: what the release has, and what became of the pinned name."""
    decision = resolved.decision
    for side, reply, finding in seen:
        decision = with_proof(decision, runfile.file, reply, finding, side)
    if listed.verdict == "wrong name":
        rejected = Rejected(name=runfile.file, reason=f"pinned, but {listed.told}")
        decision = replace(decision, rejected=[*decision.rejected, rejected])
    _keep(host, replace(resolved, decision=decision))


def _keep(host: View, resolved: Resolved) -> None:
    host.facts["decisions"] = [msgspec.to_builtins(resolved.decision)]


def room(host: View, pins: Pins) -> Iterator[Check]:
    """Whether there is space for download, unpacking and installing, and tmp may execute; nothing once installed."""
    if pins.cuda.version in host.read("runfile.installed").out:
        return
    runfile = pinned_runfile(host, pins)
    size = runfile.size_bytes if runfile else 0
    tmp, base = parse_space(host.read("runfile.space").out)
    # Archive, unpacked copy and installed tree exist at the same time; 13.0.3 takes 6.6 GiB out of 4.1 GiB.
    yield _space(f"space in {host.spec.tmp}", 2 * size, tmp, "free it, or set `tmp` in hosts.toml to a larger folder")
    wanted = 3 * size + pins.wheels.disk_bytes
    yield _space(f"space in {host.spec.base}", wanted, base, "free it, or set `base` in hosts.toml to a larger disk")
    options = host.read("runfile.tmp_options")
    if options.ok:
        noexec = "noexec" in options.out.strip().split(",")
        hint = "set `tmp` in hosts.toml to a folder that may execute: the installer starts from there" if noexec else ""
        yield Check(
            name=f"{host.spec.tmp} may execute",
            want="exec",
            got="noexec" if noexec else "exec",
            ok=not noexec,
            hint=hint,
        )


def permission(host: View) -> Iterator[Check]:
    """Whether the jobs of a run may change the host; a plan does without."""
    if host.mode != "apply":
        return
    answer = host.read("runfile.may_change")
    want = "`sudo -n` without a password" if host.spec.sudo else f"the login user may write {host.spec.base}"
    said = answer.out.strip().splitlines()
    hint = "give the login user that right; or set `sudo` and `base` in hosts.toml to what it has"
    got = "yes" if answer.ok else (said[-1][:200] if said else f"exit {answer.rc}")
    yield Check(name="may change the host", want=want, got=got, ok=answer.ok, hint="" if answer.ok else hint)


class Space(NamedTuple):
    """Free bytes and inodes of a file system; -1 when unknown (some file systems count no inodes)."""

    free_bytes: int
    inodes: int


def parse_space(text: str) -> tuple[Space, Space]:
    """The four df lines of the space read: bytes and inodes for tmp, then for base."""
    rows = [found for found in map(_DF.match, text.splitlines()) if found]
    # With a line missing, nobody knows which.
    free = [_free(row[1], row[2]) for row in rows] if len(rows) == 4 else [-1] * 4
    tmp, base = (Space(kib * 1024 if kib >= 0 else -1, inodes) for kib, inodes in (free[:2], free[2:]))
    return tmp, base


# Name of the device (blanks and all), then size, used, free, share used, place. btrfs counts no inodes: 0 of 0.
_DF = re.compile(r".*?\s(\d{1,18}|-)\s+(?:-?\d{1,18}|-)\s+(-?\d{1,18}|-)\s+(?:\d{1,9}%|-)\s+/", re.ASCII)


def _free(size: str, free: str) -> int:
    return -1 if size in ("0", "-") or free == "-" else max(0, int(free))


def _space(name: str, wanted: int, space: Space, hint: str) -> Check:
    unknown = space.free_bytes < 0
    enough = space.free_bytes >= wanted and space.inodes != 0
    got = "unknown" if unknown else f"{sized(space.free_bytes)} free" + (", no inodes" if space.inodes == 0 else "")
    return Check(
        name=name, want=f">= {sized(wanted)} free", got=got, ok=None if unknown else enough, hint="" if enough else hint
    )
