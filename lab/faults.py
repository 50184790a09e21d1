"""Faults as data: what lab/faults/*.toml lay over hosts, mirror, index and pins."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli

from lab.cache import HERE
from lab.errors import LabError
from lab.state import State, merged
from lab.wheels import Change

FOLDER = HERE / "faults"
TABLES = {"what", "state", "ssh", "http", "index", "mirror", "pins", "files"}


@dataclass(frozen=True)
class Rule:
    """What the HTTP server does to requests for paths that match a glob, for the first `times` of them."""

    path: str
    status: int = 0
    location: str = ""
    retry_after: str = ""
    html200: bool = False
    ignore_range: bool = False
    delay_s: float = 0.0
    truncate: int = -1
    """The body ends at this offset of the file, whatever the headers promised."""
    reset_after: int = -1
    """The connection is reset after so many bytes of a response."""
    short: int = -1
    """The file has so many bytes, and the headers say so."""
    method: str = ""
    times: int = -1


@dataclass
class Faults:
    """All faults in force, added up."""

    state: State = field(default_factory=dict)
    host_state: dict[str, State] = field(default_factory=dict)
    http: list[Rule] = field(default_factory=list)
    index: dict[str, Change] = field(default_factory=dict)
    unlisted: list[str] = field(default_factory=list)
    pins: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def state_of(self, host: str) -> State:
        """What the faults change in the state of one host."""
        return merged(self.state, self.host_state.get(host, {}))


def names() -> list[str]:
    """All faults there are."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def load(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """One fault; LabError with the nearest name when there is none of that name."""
    file = folder / f"{name}.toml"
    if not file.is_file():
        known = sorted(one.stem for one in folder.glob("*.toml"))
        near = difflib.get_close_matches(name, known, 1, 0.4)
        hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(known)}"
        raise LabError(f"unknown fault `{name}`; {hint}")
    table = tomli.loads(file.read_text())
    if unknown := set(table) - TABLES:
        raise LabError(f"{file.name}: unknown table `{min(unknown)}`")
    return table


def collect(wanted: Iterable[str]) -> Faults:
    """The sum of named faults; `name@host` changes the state of one host only."""
    total = Faults()
    for word in wanted:
        name, _, host = word.partition("@")
        _add(total, load(name), host)
    return total


def state_change(table: dict[str, Any]) -> State:
    """What a fault changes in the state of a host."""
    ssh = {"ssh": table["ssh"]} if "ssh" in table else {}
    return merged(table.get("state", {}), ssh)


def _add(total: Faults, table: dict[str, Any], host: str) -> None:
    change = state_change(table)
    if host:
        total.host_state[host] = merged(total.host_state.get(host, {}), change)
    else:
        total.state = merged(total.state, change)
    total.http += [Rule(**rule) for rule in table.get("http", [])]
    total.index |= {package: Change(**entry) for package, entry in table.get("index", {}).items()}
    total.unlisted += table.get("mirror", {}).get("unlisted", [])
    total.pins = merged(total.pins, table.get("pins", {}))
    total.files |= table.get("files", {})
