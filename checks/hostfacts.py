"""What the solver knows of hosts: read from their probe records, or taken from `[assume]` in pins.toml."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from checks.catalogue import PLATFORMS
from checks.driver import parse_gpus, parse_loaded
from fleet.choice import Assume
from fleet.probe import reading
from fleet.problem import Problem


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One host as far as versions depend on it; an empty text or list says that it could not be read."""

    name: str
    platform: str
    driver: str
    capabilities: tuple[str, ...]
    open_modules: bool
    glibc: str
    pythons: tuple[str, ...]
    """Minor versions of the interpreters on it, such as 3.12."""
    simulated: bool = False


def of_probe(probe: Mapping[str, Any]) -> HostFacts:
    """The facts of a host from its probe record."""
    gpus = parse_gpus(reading(probe, "driver.gpus").out)
    loaded, is_open = parse_loaded(reading(probe, "driver.loaded").out)
    lines = reading(probe, "host.platform").out.splitlines()
    libc = lines[1].split() if len(lines) > 1 else []
    found = (line.rpartition(" ")[2].split(".") for line in reading(probe, "wheels.pythons").out.splitlines())
    return HostFacts(
        name=str(probe.get("host", "")),
        platform=PLATFORMS.get(lines[0].strip(), "") if lines else "",
        driver=loaded or (gpus[0].driver if gpus else ""),
        capabilities=tuple(sorted({gpu.capability for gpu in gpus})),
        open_modules=is_open,
        glibc=libc[1] if len(libc) == 2 and libc[0] == "glibc" else "",
        pythons=tuple(sorted({".".join(parts[:2]) for parts in found if len(parts) == 3})),
        simulated=reading(probe, "host.lab").ok,
    )


def of_assumption(assume: Assume) -> HostFacts:
    """The host that pins.toml describes, for when no probe record is at hand."""
    return HostFacts(
        name="the assumed host", **{name: _frozen(getattr(assume, name)) for name in assume.__struct_fields__}
    )


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def read_probes(paths: Iterable[Path]) -> list[HostFacts]:
    """The facts of the hosts whose probe records are named, or lie under the folders named.

    Raises Problem for a file that is missing or no probe record, and for a folder without any.
    """
    return [of_probe(_record(file)) for path in paths for file in _files(path)]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("**/probe.json"))
    if not files:
        raise Problem(f"{path}: no probe.json in it", "name a run's folder: reports/<run>")
    return files


def _record(path: Path) -> dict[str, Any]:
    try:
        record = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise Problem(f"{path}: unreadable: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise Problem(f"{path}: not JSON: {error}") from None
    if not isinstance(record, dict) or not isinstance(record.get("reads"), dict):
        raise Problem(f"{path}: not a probe record: want an object with `reads`")
    return record
