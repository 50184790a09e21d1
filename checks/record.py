"""The decision record beside pins.toml: why these versions, as `nox -s pins -- --write` found it."""

from collections.abc import Container
from pathlib import Path

import msgspec

from checks.hostfacts import HostFacts
from fleet.decision import Decision
from fleet.pins import Pins
from fleet.view import View, plain

CUDA = ("cuda",)
WHEELS = ("sglang", "torch", "kernel", "flashinfer", "python")
"""What a decision of the record can be about, by the stage that installs it."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided, when, and for which hosts."""

    schema: int
    on: str
    hosts: list[HostFacts]
    decisions: list[Decision]

    @property
    def timeless(self) -> list[str]:
        """What was decided and where its grounds are found, without when they were asked."""
        told = [f"{one.subject} {one.chosen} {one.reason} {one.rejected}" for one in self.decisions]
        grounds = [row for one in self.decisions for named in one.candidates for row in named.evidence]
        return [*told, *(f"{row.source} {row.url} {row.checksum}" for row in grounds)]


def record_path(pins: Path) -> Path:
    """Where the record of these pins lies: pins.decision.json for pins.toml."""
    return pins.with_suffix(".decision.json")


def read_record(pins: Path) -> Record | None:
    """The record of these pins; None when there is none that can be read."""
    try:
        return msgspec.json.decode(record_path(pins).read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None


def keep(host: View, pins: Pins, subjects: Container[str]) -> None:
    """Puts the decisions about these subjects among the facts of the stage, beside those it made itself."""
    about = [plain(one) for one in recorded(pins) if one.subject in subjects]
    host.facts["decisions"] = [*host.facts.get("decisions", []), *about]


def recorded(pins: Pins) -> list[Decision]:
    """The decisions behind these pins; none when the record is missing or of other versions."""
    record = read_record(pins.path)
    names = {f"{name} {version}" for name, version in pins.wheels.packages.items()} | {f"CUDA {pins.cuda.version}"}
    parts = [one for one in record.decisions if one.subject in ("cuda", "sglang", "torch", "kernel")] if record else []
    return record.decisions if record and parts and all(one.chosen in names for one in parts) else []
