"""Makes the lock: the whole closure of the chosen packages at exact versions, with the hashes of every file.

uv resolves; here its answer is compared with what was asked, since it may take an older release without a word.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import uv
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from checks.indexes import ARCHITECTURES
from checks.together import clashes
from fleet.choice import Extra, Override
from fleet.pins import locked_versions
from fleet.problem import Problem

TIMEOUT_S = 600


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the lock is made for. `packages`: name -> version, an empty one where uv may choose."""

    packages: dict[str, str]
    overrides: dict[str, Override] = {}
    extras: dict[str, Extra] = {}
    python: str
    glibc: str
    platforms: tuple[str, ...]
    index: str = ""
    cuda_major: int


class Locked(NamedTuple):
    """A lock that holds what was asked: its text, and name -> version of all of it."""

    text: str
    versions: dict[str, str]


def make_lock(wanted: Wanted, timeout_s: float = TIMEOUT_S) -> Locked:
    """The lock for what is wanted; writes nothing.

    Raises Problem when nothing fits, an index does not answer, uv chose otherwise than asked, a hash is missing, or
    packages are in it that exclude each other.
    """
    texts = {platform: _compile(wanted, platform, timeout_s) for platform in wanted.platforms}
    if len(set(texts.values())) > 1:
        differing = _differing([locked_versions(text) for text in texts.values()])
        hint = "keep a pins.toml for each platform, and solve for the hosts of one at a time"
        raise Problem(f"the lock differs between {' and '.join(texts)}: {', '.join(differing)}", hint)
    text = next(iter(texts.values()))
    versions = locked_versions(text)
    _require_asked(wanted, versions)
    _require_hashes(text, versions)
    for conflict in clashes(versions, wanted.cuda_major):
        raise Problem(f"the lock holds two that exclude each other: {conflict}", f"source: {conflict.source}")
    return Locked(text, versions)


def _differing(locks: Sequence[Mapping[str, str]]) -> list[str]:
    names = sorted({name for lock in locks for name in lock})
    return [name for name in names if len({lock.get(name) for lock in locks}) > 1]


def _compile(wanted: Wanted, platform: str, timeout_s: float) -> str:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        asked = {**wanted.packages, **{name: extra.version for name, extra in wanted.extras.items()}}
        (here / "pins.in").write_text(_lines(asked))
        (here / "overrides.txt").write_text(_lines({name: one.version for name, one in wanted.overrides.items()}))
        return _indexes(wanted) + _run(_command(wanted, platform), here, timeout_s)


def _lines(versions: Mapping[str, str]) -> str:
    return "".join(f"{name}=={version}\n" if version else f"{name}\n" for name, version in versions.items())


def _indexes(wanted: Wanted) -> str:
    # An index is named, its files' addresses are not, so that any mirror serves.
    return "".join(f"--extra-index-url {url}\n" for url in dict.fromkeys(one.index for one in wanted.extras.values()))


def _command(wanted: Wanted, platform: str) -> list[str]:
    tags = f"{ARCHITECTURES.get(platform, platform)}-manylinux_{wanted.glibc.replace('.', '_')}"
    command = [
        uv.find_uv_bin(),
        "pip",
        "compile",
        "pins.in",
        "--quiet",
        "--no-config",
        "--no-header",
        "--generate-hashes",
    ]
    # Reading the metadata of a source archive would run its code here.
    command += ["--only-binary", ":all:", "--no-python-downloads", "--no-annotate"]
    command += ["--python-version", wanted.python, "--python-platform", tags, "--override", "overrides.txt"]
    command += ["--default-index", wanted.index] if wanted.index else []
    for index in dict.fromkeys(one.index for one in wanted.extras.values()):
        command += ["--index", index]
    return command


def _run(command: list[str], folder: Path, timeout_s: float) -> str:
    environment = {**os.environ, "NO_COLOR": "1", "UV_HTTP_TIMEOUT": "30"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise Problem(f"uv pip compile: no answer in {timeout_s:.0f} s", "is the index slow? try again") from None
    if done.returncode:
        raise _explained(done.stderr.decode("utf-8", "replace"))
    return done.stdout.decode("utf-8")


def _explained(said: str) -> Problem:
    text = re.sub(r"//[^/@\s]+@", "//", said.strip())[-2000:]
    lines = [line.strip() for line in text.splitlines()]
    if "No solution found" in text:
        return Problem("uv found no solution", "the wishes contradict the packages' own metadata: see [wishes]", lines)
    if "Failed to fetch" in text or "client error" in text or "timed out" in text.lower():
        return Problem("the index does not answer", "check network, proxy and `wheels.index`", lines)
    return Problem("uv pip compile failed", "nothing was written", lines)


def _require_asked(wanted: Wanted, chosen: Mapping[str, str]) -> None:
    asked = {**wanted.packages, **{name: extra.version for name, extra in wanted.extras.items()}}
    asked |= {name: one.version for name, one in wanted.overrides.items() if name in asked}
    for name, want in asked.items():
        got = chosen.get(str(canonicalize_name(name)), "")
        if not got or (want and not _same(got, want)):
            hint = "what is chosen must be what is asked: look at the index, `wheels.python` and the hosts' glibc"
            raise Problem(f"{name}: asked for {want or 'any version'}, uv chose {got or 'none'}", hint)


def _same(got: str, want: str) -> bool:
    try:
        return Version(got) == Version(want)
    except InvalidVersion:
        return got == want


def _require_hashes(text: str, versions: Mapping[str, str]) -> None:
    blocks = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)
    bare = [block.split("==")[0] for block in blocks if "==" in block and "--hash=sha256:" not in block]
    if not versions:
        raise Problem("uv pip compile: an empty lock")
    if bare:
        hint = "the index gives none (nightly pages do not): take the package from another index"
        raise Problem(f"no hashes for {', '.join(bare[:5])}", hint)


def same_requirements(one: str, other: str) -> bool:
    """Two locks ask for the same, comments aside."""
    return _bare(one) == _bare(other)


def _bare(lock: str) -> list[str]:
    return [line for line in lock.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def write_together(files: Mapping[Path, str]) -> None:
    """Writes some files by rename, all or none: each is first written aside, and put back when a later one fails.

    Raises Problem when one cannot be written; then all are as they were.
    """
    before = {target: target.read_bytes() if target.is_file() else None for target in files}
    aside: dict[Path, Path] = {}
    moved: list[Path] = []
    try:
        for target, text in files.items():
            aside[target] = _aside(target, text)
        for target, source in aside.items():
            source.replace(target)
            moved.append(target)
    except OSError as error:
        for target in moved:
            _restore(target, before[target])
        raise Problem(f"{target}: cannot be written: {error.strerror}", "nothing was changed") from None
    finally:
        for source in aside.values():
            source.unlink(missing_ok=True)


def _aside(target: Path, text: str) -> Path:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(name).chmod(target.stat().st_mode & 0o777 if target.exists() else 0o644)
    return Path(name)


def _restore(target: Path, content: bytes | None) -> None:
    if content is None:
        target.unlink(missing_ok=True)
    else:
        target.write_bytes(content)
