"""Asks whether the pinned runfile is really published, and whether there is room for it.

Presence is read from the release's own md5sum.txt, never from a guessed name: a 404 on a name proves only that this
name does not exist. The file itself is proved by status, type, size and first bytes, from here and from the host.
"""

import re
import shlex
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import requests

from fleet.clock import sized
from fleet.hosts import HostSpec
from fleet.model import Check
from fleet.pins import Pins, Runfile
from fleet.view import View

TIMEOUT_S = (10.0, 20.0)
LIST_LIMIT_BYTES = 256 * 1024
HEAD_BYTES = 512
PLATFORMS = {"x86_64": "linux-x86_64", "aarch64": "linux-sbsa"}
NEXT = "`nox -s runfile` asks again"


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


def url_of(pins: Pins, runfile: Runfile) -> str:
    """Where the release's runfile is served."""
    return f"{pins.cuda.mirror}/{pins.cuda.version}/local_installers/{runfile.file}"


def list_url_of(pins: Pins) -> str:
    """Where the release lists its files with their MD5."""
    return f"{pins.cuda.mirror}/{pins.cuda.version}/docs/sidebar/md5sum.txt"


def _from_host(spec: HostSpec, pins: Pins) -> str:
    """Fetches the first bytes of the runfile on the host, with its headers, whatever its platform is."""
    del spec
    cases = " ".join(
        f"{machine}) u={shlex.quote(url_of(pins, pins.cuda.runfile[platform]))};;"
        for machine, platform in PLATFORMS.items()
        if platform in pins.cuda.runfile
    )
    agent = "curl -sSL --max-time 20 --max-filesize 999999999999"
    python = (
        "import sys,urllib.request as r\n"
        "q=r.Request(sys.argv[1],headers={'Range':'bytes=0-511'})\n"
        "try: a=r.urlopen(q,timeout=20)\n"
        "except r.HTTPError as e: a=e\n"
        "print('HTTP/1.1',a.status);print(a.headers);sys.stdout.flush();sys.stdout.buffer.write(a.read(512))"
    )
    return (
        f"case $(uname -m) in {cases} *) exit 3;; esac\n"
        "if command -v curl >/dev/null; then\n"
        f'  {agent} -r 0-{HEAD_BYTES - 1} -D - "$u" | head -c 8192\n'
        f'else timeout 25 python3 -c {shlex.quote(python)} "$u"; fi'
    )


READS: Mapping[str, Any] = {
    "runfile.from_host": _from_host,
    # A path that does not exist yet lies on the file system of its nearest ancestor that does.
    "runfile.space": 'for p in "$TMP" "$BASE"; do while [ ! -d "$p" ]; do p=$(dirname "$p"); done; '
    'df -Pk "$p" | tail -n 1; df -Pi "$p" | tail -n 1; done',
    "runfile.tmp_options": 'findmnt -no OPTIONS -T "$TMP"',
    "runfile.installed": 'ls "$STACK"/cuda-*/.complete',
}


class Served(NamedTuple):
    """What a server said about one address: `error` when it said nothing."""

    url: str
    status: int
    content_type: str
    size_bytes: int
    head: bytes
    error: str = ""


class Listing(NamedTuple):
    """A release's md5sum.txt: file name -> MD5, or why it could not be read."""

    served: Served
    files: dict[str, str]


_locks: dict[str, threading.Lock] = {}
_guard = threading.Lock()


def _lock(url: str) -> threading.Lock:
    with _guard:
        return _locks.setdefault(url, threading.Lock())


def listing(url: str) -> Listing:
    """The release's list; asked once per process, however many hosts want it."""
    with _lock(url):
        return _listing(url)


@cache
def _listing(url: str) -> Listing:
    served = fetch_head(url, LIST_LIMIT_BYTES, ranged=False)
    return Listing(served, parse_md5sums(served.head.decode("utf-8", "replace")) if served.status == 200 else {})


def served_runfile(url: str) -> Served:
    """Status, type, size and first bytes of the runfile, as seen from here; asked once per process."""
    with _lock(url):
        return _served(url)


@cache
def _served(url: str) -> Served:
    return fetch_head(url, HEAD_BYTES, ranged=True)


def fetch_head(url: str, limit_bytes: int, ranged: bool) -> Served:
    """The first `limit_bytes` of an address: a bounded read, redirects followed."""
    headers = {"Range": f"bytes=0-{limit_bytes - 1}"} if ranged else {}
    try:
        with requests.get(url, headers=headers, timeout=TIMEOUT_S, stream=True) as answer:
            head = answer.raw.read(limit_bytes, decode_content=True) or b""
            return Served(url, answer.status_code, answer.headers.get("Content-Type", ""), _size(answer.headers), head)
    except (requests.RequestException, OSError) as error:
        return Served(url, 0, "", 0, b"", f"{type(error).__name__}: {error}"[:300])


def _size(headers: Mapping[str, str]) -> int:
    total = re.search(r"/(\d+)$", headers.get("Content-Range", ""))
    length = headers.get("Content-Length", "")
    return int(total[1]) if total else int(length) if length.isdigit() else 0


def parse_md5sums(text: str) -> dict[str, str]:
    """File name -> MD5 of each well-formed line; blank and malformed lines are skipped."""
    rows = [line.split() for line in text.splitlines()]
    return {row[1]: row[0] for row in rows if len(row) == 2 and re.fullmatch(r"[0-9a-f]{32}", row[0])}


def parse_from_host(text: str, url: str) -> Served:
    """What curl -D - printed on the host: the headers of each answer, then the first bytes of the last one."""
    head, _, body = text.replace("\r\n", "\n").partition("\n\n")
    while body.startswith("HTTP/"):
        head, _, body = body.partition("\n\n")
    status = re.match(r"HTTP/\S+ (\d{3})", head)
    if status is None:
        lines = text.strip().splitlines()
        return Served(url, 0, "", 0, b"", lines[-1][:200] if lines else "no answer")
    headers = {
        key.strip().title(): value.strip() for key, _, value in (row.partition(":") for row in head.splitlines())
    }
    return Served(url, int(status[1]), headers.get("Content-Type", ""), _size(headers), body.encode())


def published(host: View, pins: Pins) -> Iterator[Check]:
    """Whether the pinned runfile is listed by its release and served as itself, here and on the host."""
    runfile = pinned_runfile(host, pins)
    platform = platform_of(host) or "this platform"
    if runfile is None:
        hint = f"add [cuda.runfile.{platform}] to pins.toml"
        yield Check(name="runfile", want=f"one for {platform}", got="none pinned", ok=False, hint=hint)
        return
    listed = listing(list_url_of(pins))
    yield _listed(listed, runfile, pins, platform)
    yield _served_as_itself("runfile from here", served_runfile(url_of(pins, runfile)), runfile, listed)
    answer = host.read("runfile.from_host")
    seen = parse_from_host(answer.out, url_of(pins, runfile))
    yield _served_as_itself(f"runfile from {host.name}", seen, runfile, listed)


def _listed(listed: Listing, runfile: Runfile, pins: Pins, platform: str) -> Check:
    name, want, read = (
        "listed by its release",
        f"{runfile.file} in md5sum.txt of {pins.cuda.version}",
        listed.served.url,
    )
    if listed.served.error:
        got, hint = (
            f"unreachable: {listed.served.error}",
            "unknown is not absent: check the network or proxy, ask again",
        )
        return Check(name=name, want=want, got=got, ok=None, hint=hint, read=read)
    if listed.served.status == 404:
        hint = f"no release {pins.cuda.version} there: correct `cuda.version` or `cuda.mirror` in pins.toml"
        return Check(name=name, want=want, got="404 for md5sum.txt itself", ok=False, hint=hint, read=read)
    if not listed.files:
        got = f"no list: status {listed.served.status}, {listed.served.content_type or 'no type'}"
        return Check(name=name, want=want, got=got, ok=None, hint=f"the mirror is not one of CUDA; {NEXT}", read=read)
    if runfile.file not in listed.files:
        return _misnamed(listed, name, want, platform)
    md5 = listed.files[runfile.file]
    same = not runfile.md5 or md5 == runfile.md5
    hint = "" if same else "the release was replaced, or the pin is wrong: compare both before anything is installed"
    got = f"listed, md5 {md5}" if same else f"md5 {md5}, pinned {runfile.md5}"
    return Check(name=name, want=want, got=got, ok=same, hint=hint, read=read)


def _misnamed(listed: Listing, name: str, want: str, platform: str) -> Check:
    ending = "_linux_sbsa.run" if platform == "linux-sbsa" else "_linux.run"
    right = [file for file in listed.files if file.startswith("cuda_") and file.endswith(ending)]
    if right:
        got, hint = (
            f"wrong name: the release lists {right[0]}",
            f'set `file = "{right[0]}"` in pins.toml, with its sums',
        )
    else:
        got, hint = f"no runfile for {platform} in this release", "choose another release in pins.toml"
    return Check(name=name, want=want, got=got, ok=False, hint=hint, read=listed.served.url)


def _served_as_itself(name: str, seen: Served, runfile: Runfile, listed: Listing) -> Check:
    want = f"200 or 206, {sized(runfile.size_bytes)}, a shell archive"
    if seen.error:
        hint = "unknown is not absent: check network, proxy and firewall on that side"
        return Check(name=name, want=want, got=f"unreachable: {seen.error}", ok=None, hint=hint, read=seen.url)
    got, hint = _fault(seen, runfile, runfile.file in listed.files)
    told = got or f"{seen.status}, {sized(seen.size_bytes)}, {seen.content_type}"
    return Check(name=name, want=want, got=told, ok=not got, hint=hint, read=seen.url)


def _fault(seen: Served, runfile: Runfile, is_listed: bool) -> tuple[str, str]:
    """What is wrong with an answer, and what to do; two empty texts when it is the pinned runfile."""
    if seen.status not in (200, 206):
        return _refusal(seen.status, is_listed)
    if not seen.head.startswith(b"#!/bin/sh"):
        kind = seen.content_type or "unknown type"
        return f"not a runfile: {kind}, begins {seen.head[:24]!r}", "a proxy or login page answers in its place"
    if seen.size_bytes != runfile.size_bytes:
        got = f"{seen.size_bytes} bytes, pinned {runfile.size_bytes}"
        return got, "the file was replaced or cut, or the pin is wrong"
    return "", ""


def _refusal(status: int, is_listed: bool) -> tuple[str, str]:
    if status == 404 and is_listed:
        return "404, although the release lists it", f"the mirror lags behind its list: wait, then {NEXT}"
    if status == 404:
        return "404: no file of this name", "a 404 on a name is no proof that the release has none: see what it lists"
    if status == 403:
        return "403: refused by the CDN", "a rule of the CDN (region, proxy), not absence: use a mirror in pins.toml"
    return f"status {status}", f"the server is in trouble: wait, then {NEXT}"


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


class Space(NamedTuple):
    """Free bytes and inodes of a file system; -1 when unknown (some file systems count no inodes)."""

    free_bytes: int
    inodes: int


def parse_space(text: str) -> tuple[Space, Space]:
    """The four df lines of the space read: bytes and inodes for tmp, then for base."""
    numbers = [re.findall(r"\s(\d+|-)(?=\s)", line) for line in text.splitlines()]
    free = [int(row[2]) if len(row) >= 3 and row[2] != "-" else -1 for row in numbers]
    free += [-1] * (4 - len(free))
    return Space(free[0] * 1024 if free[0] >= 0 else -1, free[1]), Space(
        free[2] * 1024 if free[2] >= 0 else -1, free[3]
    )


def _space(name: str, wanted: int, space: Space, hint: str) -> Check:
    unknown = space.free_bytes < 0
    enough = space.free_bytes >= wanted and space.inodes != 0
    got = "unknown" if unknown else f"{sized(space.free_bytes)} free" + (", no inodes" if space.inodes == 0 else "")
    return Check(
        name=name, want=f">= {sized(wanted)} free", got=got, ok=None if unknown else enough, hint="" if enough else hint
    )
