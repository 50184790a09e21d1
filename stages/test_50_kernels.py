"""The kernels of the stack compute what float64 computes, on every GPU. Leaves: nothing; the numbers are in the run."""

from collections.abc import Iterator

from checks import kernels, measured, stack
from checks.driver import READS as DRIVER_READS
from fleet.model import Check, Command
from fleet.pins import Pins
from fleet.plugin import StageCall
from fleet.view import View

READS = {**DRIVER_READS, **stack.READS}


def _measurement(target: stack.Stack, pins: Pins) -> measured.Measurement:
    return measured.Measurement(
        name="kernels",
        why="compute kernels against float64",
        script="kernels.py",
        settings=kernels.settings(pins),
        stack=target,
        timeout_s=pins.kernels.timeout_s,
    )


def plan(host: View, pins: Pins) -> Iterator[Command]:
    """The measurement, unless one from equal inputs is there."""
    target = stack.target(host, pins)
    if target is not None and target.python:
        yield from measured.missing(host, [_measurement(target, pins)])


def verify(host: View, pins: Pins) -> Iterator[Check]:
    """Identity of torch and its kernels, then accuracy per kernel, element type and batch size."""
    target = stack.target(host, pins)
    if target is None or not target.python:
        yield stack.none_found()
        return
    found = measured.result(host, _measurement(target, pins))
    if found is None:
        yield measured.unmeasured(host, "kernels", "kernels")
        return
    host.facts["told"] = kernels.title(found.result)
    own = stack.as_pins(target, pins)
    yield from kernels.identity(found.result, own, host.spec.gpus, host.spec.compute_capability)
    yield from kernels.accuracy(found.result, own)


def test_kernels_are_correct(stage: StageCall) -> None:
    """The kernels of the stack are right."""
    stage(plan, verify)
