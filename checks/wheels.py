"""Asks what is installed in a stack's venv, and whether every file of it is as its wheel's RECORD says."""

import hashlib
import platform
import re
import secrets
import shlex
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import uv
from packaging.specifiers import SpecifierSet

from checks.stack import Stack, anew
from fleet.hosts import HostSpec
from fleet.model import Check, Command, Refused
from fleet.pins import Pins, digest_of
from fleet.view import View
from fleet.work import q, sh

SCRIPT = Path(__file__).parent / "remote" / "wheels.py"
VERSION = "import sys; print('%d.%d.%d' % sys.version_info[:3])"


def _pythons(spec: HostSpec, pins: Pins) -> str:
    """Prints `<path> <version>` of the interpreter that hosts.toml names, else of each python3 on the host."""
    del pins
    names = shlex.quote(spec.python) if spec.python else "python3.13 python3.12 python3.11 python3.10 python3"
    ask = f'"$p" -c {shlex.quote(VERSION)}'
    return f'for n in {names}; do p=$(command -v "$n") || continue; v=$({ask}) && echo "$p $v"; done'


READS: Mapping[str, Any] = {
    "wheels.complete": 'cat "$STACK/venv/.complete"',
    "wheels.pythons": _pythons,
    "wheels.uv": 'command -v uv && uv --version; ls "$BASE"/tools/*/uv',
}


def interpreter(host: View, pins: Pins) -> tuple[str, str]:
    """Path and version of the first interpreter of the host that fits the pins; two empty texts when none does."""
    wanted = SpecifierSet(pins.wheels.python)
    for line in host.read("wheels.pythons").out.splitlines():
        path, _, found = line.rpartition(" ")
        if path.startswith("/") and re.fullmatch(r"\d+\.\d+\.\d+", found) and wanted.contains(found):
            return path, found
    return "", ""


def require_interpreter(host: View, pins: Pins) -> None:
    """Raises Refused when no interpreter of the host fits the pins."""
    if not interpreter(host, pins)[0]:
        seen = ", ".join(line.rpartition(" ")[2] for line in host.read("wheels.pythons").out.splitlines()) or "none"
        raise Refused(
            f"no Python {pins.wheels.python} on the host; found: {seen}",
            "install one, or name it: `python` in hosts.toml",
        )


def mark(pins: Pins) -> str:
    """What the venv's mark of completeness must say: the digest of the lock it was made from."""
    return digest_of(pins.lock)


def is_complete(host: View, pins: Pins) -> bool:
    """The venv was made to its end from this lock."""
    return host.read("wheels.complete").out.strip() == mark(pins)


def uv_on_host(host: View) -> str:
    """The uv to use: the host's own, else one we brought earlier; empty when there is none."""
    found = [line.strip() for line in host.read("wheels.uv").out.splitlines()]
    return next((line for line in found if line.startswith("/") and line.endswith("/uv")), "")


def brought_uv(host: View) -> str:
    """Where a uv that we bring along is put."""
    return f"{host.spec.base}/tools/uv-{uv_version()}/uv"


def uv_version() -> str:
    """The version of the uv that comes with this tool."""
    return version("uv")


_finding = threading.Lock()


def uv_here() -> tuple[Path, str]:
    """The uv that comes with this tool, and its SHA-256; worked out once, however many hosts are planned."""
    with _finding:
        return _uv_here()


@cache
def _uv_here() -> tuple[Path, str]:
    path, hasher = Path(uv.find_uv_bin()), hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            hasher.update(chunk)
    return path, hasher.hexdigest()


def bring_uv(host: View) -> Command:
    """Copies this tool's uv to the host. Raises Refused when it cannot run there."""
    machine = (host.read("host.platform").out.split() or [""])[0]
    if machine != platform.machine():
        raise Refused(
            f"no uv here that runs on {machine or 'this host'}", "install uv on the host, then `nox -s wheels`"
        )
    here, sha256 = uv_here()
    target, there = brought_uv(host), f"{host.spec.tmp}/fleet-uv-{secrets.token_hex(8)}"
    # The upload lay in a folder that others can write to: what is kept is checked where only its owner can.
    return Command(
        why=f"bring uv {uv_version()} along",
        shell=sh(
            f"mkdir -p {q(str(Path(target).parent))}",
            f"cp {q(there)} {q(target + '.new')}",
            f"printf '%s  %s\\n' {sha256} {q(target + '.new')} | sha256sum -c - >/dev/null",
            f"chmod 755 {q(target + '.new')}",
            f"mv {q(target + '.new')} {q(target)}",
            f"rm -f {q(there)}",
        ),
        undo=f"rm -rf {q(str(Path(target).parent))}",
        size_bytes=here.stat().st_size,
        keep=True,
        uploads={there: str(here)},
    )


def make_venv(host: View, pins: Pins, stack: Stack, tool: str) -> Command:
    """Makes the venv at its final path and installs exactly the lock into it."""
    venv = str(Path(stack.python).parent.parent)
    python, _ = interpreter(host, pins)
    index = ["--default-index", pins.wheels.index] if pins.wheels.index else []
    cache = f"{host.spec.base}/cache/uv"
    sync = [tool, "pip", "sync", "--no-config", "--cache-dir", cache, "--require-hashes", *index]
    # Hard links to the cache would carry an edited file of one stack into all others, past every hash.
    sync += ["--link-mode", "copy"]
    sync += ["--python", stack.python, "lock.txt"]
    # A venv cannot be moved, and a half-made one looks whole: it is made anew, in place, and marked at the end.
    return Command(
        why=f"install {len(pins.wheels.packages)} pinned packages and what they need",
        shell=sh(
            # Another run may have made it since the plan, and may use it by now.
            f'[ "$(cat {q(venv)}/.complete 2>/dev/null)" != {q(mark(pins))} ] || exit 0',
            f"rm -rf {q(venv)}",
            shlex.join(
                [tool, "venv", "--no-config", "--cache-dir", cache, "--no-python-downloads", "--python", python, venv]
            ),
            shlex.join(sync),
            f"printf %s {q(mark(pins))} > {q(venv)}/.complete",
        ),
        undo=f"rm -rf {q(venv)}",
        timeout_s=5400,
        files={"lock.txt": pins.lock},
    )


class Installed(msgspec.Struct, frozen=True):
    """What checks/remote/wheels.py prints."""

    packages: dict[str, str]
    files: int
    wrong: list[str]
    wrong_count: int
    leftovers: list[str]


def listed(host: View, stack: Stack) -> dict[str, Any]:
    """What the venv holds, as checks/remote/wheels.py prints it; `error` instead when it could not be asked."""
    script = SCRIPT.read_text("utf-8")
    # When only planning, sizes are enough: hashing ten gigabytes is for whoever is about to rely on them.
    sizes = " --sizes-only" if host.mode == "plan" else ""
    answer = host.ask(f"{q(stack.python)} -B -I -c {q(script)}{sizes}", timeout_s=900)
    try:
        return msgspec.structs.asdict(msgspec.json.decode(answer.out, type=Installed))
    except (msgspec.MsgspecError, RecursionError):
        said = (answer.err.strip() or answer.out.strip() or f"exit {answer.rc}").splitlines()[-1]
        return {"error": said[:200]}


def installed(host: View, stack: Stack) -> Iterator[Check]:
    """Every package at the asked version, and every file as its RECORD says."""
    if not stack.python:
        hint = "name its interpreter: in_use.python in hosts.toml"
        yield Check(name="interpreter", want="that of the stack in use", got="none found", ok=None, hint=hint)
        return
    found = listed(host, stack)
    if "error" in found:
        yield Check(
            name="venv", want="an interpreter that answers", got=found["error"], ok=False, hint="`nox -s wheels`"
        )
        return
    host.facts["packages"] = found["packages"]
    host.facts["told"] = title(found)
    for name, want in stack.packages.items():
        yield _version(name, want, found["packages"])
    yield _intact(found, anew(host, stack.name, str(Path(stack.python).parent.parent), "wheels"))


def title(found: dict[str, Any]) -> str:
    """What is installed in a line: torch and sglang, and how much was compared."""
    named = [f"{name} {found['packages'][name]}" for name in ("torch", "sglang") if name in found["packages"]]
    return ", ".join([*named, f"{found.get('files', 0)} files compared with their RECORD"])


def _version(name: str, want: str, packages: dict[str, str]) -> Check:
    got = packages.get(re.sub(r"[-_.]+", "-", name).lower(), "")
    # The label of an index (+cu130) is not always in the metadata: both forms are the same release.
    ok = got == want or got.partition("+")[0] == want
    hint = "" if ok else "what was chosen is not what was asked: look at the index and pins.lock, then `nox -s wheels`"
    return Check(name=name, want=want, got=got or "not installed", ok=ok, hint=hint)


def _intact(found: dict[str, Any], hint: str) -> Check:
    files, wrong, leftovers = found.get("files", 0), found.get("wrong", []), found.get("leftovers", [])
    ok = files > 0 and not wrong and not leftovers
    got = f"{files} files compared, {found.get('wrong_count', 0)} differ"
    if wrong or leftovers:
        got += f": {', '.join(map(str, [*wrong[:3], *leftovers[:3]]))}"
    return Check(name="files as in RECORD", want="all", got=got, ok=ok, hint="" if ok else hint)


def explain(rc: int, log: str) -> tuple[str, str]:
    """The cause behind uv's exit code and log, and what to do: two empty texts when unknown."""
    del rc
    named = re.search(r"[Hh]ash mismatch for `([^`\n]{1,200})`", log)
    if named:
        advice = "compare the index with pins.lock; `nox -s pins -- --write` makes the lock anew; then `nox -s wheels`"
        return f"the index serves another file than the lock names for {named[1]}", advice
    for words, cause, advice in _KNOWN:
        if words in log:
            return cause, advice
    return "", ""


_KNOWN = [
    ("Hash mismatch", "the index serves another file than the lock names", "compare the index with pins.lock"),
    (
        "No solution found",
        "a locked package is not to be had for this host",
        "see `wheels.index` and the host's Python",
    ),
    ("inconsistent version", "a wheel's metadata says another version than its name", "report it to the index's owner"),
    (
        "does not match filename",
        "a wheel's metadata says another version than its name",
        "the index serves a malformed wheel: pin another release in pins.toml, then `nox -s wheels`",
    ),
    (
        "Bad CRC",
        "a wheel is damaged, on its way or at the index",
        "`nox -s wheels` fetches it again; if it comes the same, compare the index with pins.lock",
    ),
    ("No space left on device", "the disk is full", "free space under `base`, then `nox -s wheels`"),
    (
        "Failed to fetch",
        "the index cannot be reached from the host",
        "check proxy and `wheels.index`, then `nox -s wheels`",
    ),
]
