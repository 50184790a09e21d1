"""The former stack is in use again, half-made parts are gone. Leaves: <base>/current as before the switch."""

from collections.abc import Iterator

from checks import stack, switch
from fleet.model import Check, Command
from fleet.pins import Pins
from fleet.plugin import StageCall
from fleet.view import View

READS = stack.READS


def plan(host: View, pins: Pins) -> Iterator[Command]:
    """One rename back; parts of the pinned stack that were never finished are removed."""
    yield from switch.back(host, pins)


def verify(host: View, pins: Pins) -> Iterator[Check]:
    """The stack in use is not the pinned one."""
    yield from switch.is_back(host, pins)


def test_former_stack_is_in_use(stage: StageCall) -> None:
    """The stack that was in use before the switch is in use."""
    stage(plan, verify)
