"""The kernels of the stack compute what float64 computes, on every GPU. Leaves: nothing; the numbers are in the run."""

from collections.abc import Iterator

from checks import accuracy, driver, measured, stack
from fleet.model import Check, Command
from fleet.pins import Pins
from fleet.plugin import StageCall
from fleet.view import View

READS = {**driver.READS, **stack.READS}


def plan(host: View, pins: Pins) -> Iterator[Command]:
    """The measurement, unless one from equal inputs is there."""
    yield from measured.missing(host, accuracy.measurements(host, pins), accuracy.STAGE)


def verify(host: View, pins: Pins) -> Iterator[Check]:
    """Identity of torch and its kernels, then accuracy per kernel, element type and batch size."""
    yield from accuracy.judged(host, pins)


def test_kernels_are_correct(stage: StageCall) -> None:
    """The kernels of the stack are right."""
    stage(plan, verify)
