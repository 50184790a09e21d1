"""EAGLE-3 of the stack is active, and faster than the same server without it. Leaves: nothing on the host."""

from collections.abc import Iterator

from checks import measured, stack, throughput
from checks.driver import READS as DRIVER_READS
from fleet.model import Check, Command
from fleet.pins import Pins
from fleet.plugin import StageCall
from fleet.view import View

READS = {**DRIVER_READS, **stack.READS}


def plan(host: View, pins: Pins) -> Iterator[Command]:
    """One measurement an arm, of the new stack and the one before it, unless one from equal inputs is there."""
    yield from measured.missing(host, throughput.arms(host, pins), throughput.STAGE)


def verify(host: View, pins: Pins) -> Iterator[Check]:
    """The new stack's arms and their ratio are judged; those of the former stack are shown beside them."""
    yield from throughput.judged(host, pins)


def test_eagle3_is_faster(stage: StageCall) -> None:
    """EAGLE-3 pays on this host."""
    stage(plan, verify)
