"""The text of pins.toml with another choice in it; comments and everything else stay as they are."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from packaging.utils import canonicalize_name
from tomlkit.exceptions import TOMLKitError

from checks.catalogue import Row, shipped
from checks.facts import Torch, twins
from checks.solve import Stack
from fleet.pins import PinsFile, Runfile
from fleet.problem import Problem


def python_range(minor: str) -> str:
    """The interpreters of one minor version: 3.12 -> >=3.12,<3.13."""
    major, number = minor.split(".")
    return f">={minor},<{major}.{int(number) + 1}"


def runfiles(stack: Stack, today: PinsFile) -> dict[str, Runfile]:
    """Platform -> its runfile, for each platform pinned today that the release has one for with a SHA-256.

    Sums that are pinned for the right file stay: a mirror may serve its own build, and it is asked for them.
    """
    if stack.cuda.version == today.cuda.version and _rightly_named(stack, today):
        return dict(today.cuda.runfile)
    rows = {platform: stack.cuda.files.get(platform) for platform in today.cuda.runfile}
    return {platform: _runfile(row) for platform, row in rows.items() if row and row.sha256 and row.size_bytes}


def _rightly_named(stack: Stack, today: PinsFile) -> bool:
    rows = [(stack.cuda.files.get(platform), pinned) for platform, pinned in today.cuda.runfile.items()]
    return all(row is None or row.file == pinned.file for row, pinned in rows)


def _runfile(row: Row) -> Runfile:
    source = f"{', '.join(one.partition(':')[0] for one in row.sources)}; read {shipped().read}"
    return Runfile(file=row.file, size_bytes=row.size_bytes, md5=row.md5, sha256=row.sha256, source=source)


def followers(today: Mapping[str, str], stack: Stack) -> dict[str, str]:
    """Packages pinned today that follow from the chosen ones -> their version, empty where uv is to choose."""
    own = {str(canonicalize_name(name)) for name in (*stack.packages, "sgl-kernel", "sglang-kernel")}
    others = [name for name in today if str(canonicalize_name(name)) not in own]
    named = [_of_major(name, stack.lane) for name in others]
    return {name: _by_torch(name, stack.torch) for name in dict.fromkeys(named)}


def _of_major(name: str, major: int) -> str:
    """The twin of this CUDA major: nvidia-nccl-cu13 for nvidia-nccl-cu12 and 13."""
    paired = {one for row in twins() for one in row.packages}
    return re.sub(r"-cu\d+$", f"-cu{major}", name) if name in paired else name


def _by_torch(name: str, torch: Torch) -> str:
    exact = torch.triton.removeprefix("==") if torch.triton.startswith("==") else ""
    return exact if name == "triton" else torch.twins.get(name, "")


def edited(text: str, stack: Stack, packages: Mapping[str, str], files: Mapping[str, Runfile], path: Path) -> str:
    """pins.toml with the chosen stack; `packages` are all that are to be pinned.

    Raises Problem when the text is not TOML or lacks a table.
    """
    try:
        document: Any = tomlkit.parse(text)
        cuda, wheels = document["cuda"], document["wheels"]
        _set(cuda, "version", stack.cuda.version)
        _set_runfiles(cuda["runfile"], files)
        if wheels["python"] != python_range(stack.python):
            _set(wheels, "python", python_range(stack.python))
        _set_all(wheels["packages"], packages)
    except (TOMLKitError, KeyError) as error:
        raise Problem(f"{path}: cannot be edited: {error}") from None
    return str(tomlkit.dumps(document))


def _set(table: Any, key: str, value: Any) -> None:
    if table.get(key) != value:
        table[key] = value


def _set_runfiles(tables: Any, files: Mapping[str, Runfile]) -> None:
    for platform in [one for one in tables if one not in files]:
        del tables[platform]
    for platform, runfile in files.items():
        for key in ("file", "size_bytes", "md5", "sha256", "source"):
            _set(tables[platform], key, getattr(runfile, key))


def _set_all(table: Any, values: Mapping[str, str]) -> None:
    for name in [one for one in table if one not in values]:
        del table[name]
    for name, version in values.items():
        _set(table, name, version)
