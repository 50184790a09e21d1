"""Reads pins.toml, and writes the derived one that points a run at the lab's mirror and index."""

import json
import platform
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import tomli
import tomlkit
from packaging.utils import canonicalize_name
from tomlkit.exceptions import TOMLKitError

from lab import toolkit
from lab.cache import HERE
from lab.errors import LabError
from lab.runfile import Runfile
from lab.wheels import Stack, Wheel


def read(path: Path) -> dict[str, Any]:
    """The pins the lab serves stand-ins for; LabError where it cannot."""
    try:
        pins = tomli.loads(path.read_text())
        pins["cuda"]["version"], pins["cuda"]["runfile"][toolkit.platform_name()]["file"]
        dict(pins["wheels"]["packages"])
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}\nhint: --pins names another file") from error
    except tomli.TOMLDecodeError as error:
        raise LabError(f"{path}: {error}") from error
    except KeyError as error:
        raise LabError(f"{path}: no key {error}, which the lab needs") from error
    return pins


def stack(pins: Mapping[str, Any]) -> Stack:
    """The pinned set of packages."""
    branch = ".".join(str(pins["cuda"]["version"]).split(".")[:2])
    return Stack(branch, {name: str(version) for name, version in pins["wheels"]["packages"].items()})


def lock(wheels: list[Wheel]) -> str:
    """Text of the lab's own pins.lock: the stand-ins, by hash."""
    ordered = sorted(wheels, key=lambda one: canonicalize_name(one.name))
    lines = [f"{one.name}=={one.version} \\\n    --hash=sha256:{one.sha256}\n" for one in ordered]
    return "# SIMULATED: hashes of the lab's stand-in wheels. Never use with a real index.\n" + "".join(lines)


def derived(text: str, url: str, runfile: Runfile, change: Mapping[str, Any]) -> str:
    """Text of the derived pins.toml; `change` is what a fault writes over it last."""
    document = tomlkit.parse(text)
    replaced: list[str] = []
    size = {"size_bytes": runfile.size_bytes, "md5": runfile.md5, "sha256": runfile.sha256}
    served: dict[str, dict[str, Any]] = {
        "cuda": {"mirror": f"{url}/cuda", "runfile": {toolkit.platform_name(): size}},
        "wheels": {"index": f"{url}/simple", "lock": "pins.lock"},
        "assume": _this_machine(),
    }
    if "mirrors" in document["cuda"]:
        served["cuda"]["mirrors"] = []
    last = tomli.loads(tomlkit.dumps(change).replace("{version}", str(document["cuda"]["version"])))
    for table in (served, tomli.loads((HERE / "data/scale.toml").read_text()), last):
        _lay_over(document, table, replaced, "")
    return _heading(replaced) + tomlkit.dumps(document)


def _this_machine() -> dict[str, Any]:
    """What the stand-in wheels were built for: the interpreter and the C library that the lab's hosts have."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    name, glibc = platform.libc_ver()
    known = {"glibc": glibc} if name == "glibc" else {}
    return {"platform": toolkit.platform_name(), "pythons": [python]} | known


def decisions(text: str) -> str:
    """Text of the decisions beside pins, without the one on Python: the lab's hosts have another."""
    try:
        record = json.loads(text)
        record["decisions"] = [one for one in record["decisions"] if one["subject"] != "python"]
    except (ValueError, KeyError, TypeError):
        return text
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def derive(path: Path, url: str, runfile: Runfile, change: Mapping[str, Any]) -> str:
    """Text of the pins derived from the file at `path`."""
    try:
        return derived(path.read_text(), url, runfile, change)
    except TOMLKitError as error:
        raise LabError(f"{path}: {error}") from error


def _heading(replaced: list[str]) -> str:
    lines = ["# SIMULATED: written by the lab for its own hosts, mirror and index; not for real hosts. Replaced here:"]
    lines += [f"#   {name}" for name in dict.fromkeys(replaced)]
    return "\n".join(lines) + "\n"


def _lay_over(table: MutableMapping[str, Any], change: Mapping[str, Any], replaced: list[str], at: str) -> None:
    for key, value in change.items():
        name = f"{at}{key}"
        if isinstance(value, Mapping):
            if key in table:
                _lay_over(table[key], value, replaced, f"{name}.")
        else:
            table[key] = value
            replaced.append(name)
