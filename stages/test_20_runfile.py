"""The pinned runfile is really published, reachable from here and from the host, and fits on it. Leaves: nothing."""

from collections.abc import Iterator

from checks import record, runfile
from fleet.model import Check, Command
from fleet.pins import Pins
from fleet.plugin import StageCall
from fleet.view import View

READS = runfile.READS


def plan(host: View, pins: Pins) -> Iterator[Command]:
    """Nothing: asking is enough."""
    del host, pins
    yield from ()


def verify(host: View, pins: Pins) -> Iterator[Check]:
    """The release's list, the file itself from both sides, and the room it needs."""
    host.facts["told"] = runfile.title(host, pins)
    yield from runfile.published(host, pins)
    record.keep(host, pins, record.CUDA)
    if host.mode != "validate":
        yield from runfile.room(host, pins)
        yield from runfile.permission(host)


def test_runfile_is_published(stage: StageCall) -> None:
    """The pinned runfile exists and can be fetched."""
    stage(plan, verify)
