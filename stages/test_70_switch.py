"""The new stack is in use; the former one is kept and named. Leaves: <base>/{current,former}, stack.json, env.sh."""

from collections.abc import Iterator

from checks import driver, stack, switch, toolkit, wheels
from fleet.model import Check, Command
from fleet.pins import Pins
from fleet.plugin import StageCall
from fleet.view import View

READS = {**driver.READS, **stack.READS, **toolkit.READS, **wheels.READS}


def plan(host: View, pins: Pins) -> Iterator[Command]:
    """Describes the stack, adopts what was in use before, then one rename."""
    yield from switch.forward(host, pins)


def verify(host: View, pins: Pins) -> Iterator[Check]:
    """What `current` points at, and that there is a way back."""
    yield from switch.is_in_use(host, pins)


def test_new_stack_is_in_use(stage: StageCall) -> None:
    """The pinned stack is in use."""
    stage(plan, verify)
