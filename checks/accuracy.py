"""Which kernels are measured on a host, and what must hold for the numbers."""

from collections.abc import Iterator

from checks import driver, kernels, measured, stack
from checks.measured import Measurement
from checks.stack import Stack
from fleet.model import Check
from fleet.pins import Pins
from fleet.view import View

STAGE = "kernels"


def measurements(host: View, pins: Pins) -> list[Measurement]:
    """The one measurement of the stack at hand; none where there is no stack to measure."""
    target = stack.target(host, pins)
    return [_measurement(target, pins)] if target is not None and target.python else []


def _measurement(target: Stack, pins: Pins) -> Measurement:
    return Measurement(
        name="kernels",
        why="compute kernels against float64",
        script="kernels.py",
        settings=kernels.settings(pins),
        stack=target,
        timeout_s=pins.kernels.timeout_s,
    )


def judged(host: View, pins: Pins) -> Iterator[Check]:
    """Identity of torch and its kernels, then accuracy per kernel, element type and batch size."""
    target = stack.target(host, pins)
    if target is None or not target.python:
        yield stack.none_found()
        return
    found = measured.result(host, _measurement(target, pins), STAGE)
    if found is None:
        yield measured.unmeasured(host, "kernels", STAGE)
        return
    host.facts["told"] = kernels.title(found.result)
    own, seen = stack.as_pins(target, pins), driver.gpus(host)
    capability = host.spec.compute_capability or (seen[0].capability if seen else "")
    yield from kernels.identity(found.result, own, host.spec.gpus or len(seen), capability)
    yield from kernels.accuracy(found.result, own)
