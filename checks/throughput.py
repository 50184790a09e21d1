"""Which servers are measured on a host, and how their numbers stand side by side: before, after, without, with."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

from checks import eagle3, measured, stack
from checks.measured import Measurement
from checks.stack import Stack
from fleet.model import Check, Measured, Refused
from fleet.pins import Pins
from fleet.view import View

STAGE = "eagle3"
PROMPTS = Path(__file__).parent / "data" / "prompts.json"


class Side(NamedTuple):
    """A stack that is measured, and its place in the report."""

    place: Literal["in use", "new"]
    stack: Stack


@cache
def prompts() -> tuple[str, ...]:
    """The shipped prompts: real text, because random tokens inflate the acceptance length."""
    return tuple(json.loads(PROMPTS.read_text("utf-8"))["prompts"])


def sides(host: View, pins: Pins) -> list[Side]:
    """The stacks to measure: the one before, where there is one, and the new one; when validating, the one in use."""
    target = stack.target(host, pins)
    former = None if host.mode == "validate" else stack.before(host, pins)
    found = [Side("in use", former)] if former is not None and former.python else []
    if target is not None and target.python:
        found.append(Side("new" if target.name == pins.stack else "in use", target))
    return found


def _measurement(side: Side, arm: str, pins: Pins) -> Measurement:
    cuda_home = side.stack.cuda_dir or None
    return Measurement(
        name=f"CUDA {side.stack.cuda_version or '?'} of {side.stack.python}, {arm} EAGLE-3",
        why=f"measure CUDA {side.stack.cuda_version or '?'} {arm} EAGLE-3",
        script="eagle3.py",
        settings=eagle3.settings(pins, arm, prompts(), cuda_home),
        stack=side.stack,
        timeout_s=pins.eagle3.timeout_s,
    )


def arms(host: View, pins: Pins) -> list[Measurement]:
    """Every server to measure. Raises Refused when the pins ask for more prompts than there are."""
    if pins.eagle3.prompts > len(prompts()):
        text = f"eagle3.prompts in pins.toml: want at most {len(prompts())}, got {pins.eagle3.prompts}"
        raise Refused(text, f"{PROMPTS.name} holds no more")
    return [_measurement(side, arm, pins) for side in sides(host, pins) for arm in eagle3.ARMS]


def judged(host: View, pins: Pins) -> Iterator[Check]:
    """The checks of the pinned stack; another stack's numbers are shown, and need only have been measured."""
    found = sides(host, pins)
    if not found:
        yield stack.none_found()
        return
    results = {(side.place, arm): _result(host, side, arm, pins) for side in found for arm in eagle3.ARMS}
    host.facts.update(_for_plot(found, results, pins))
    for side in found:
        without, with_ = results[side.place, "without"], results[side.place, "with"]
        if without is None or with_ is None:
            yield measured.unmeasured(host, f"EAGLE-3, {side.place}", STAGE)
        elif side.place == "new":
            yield from eagle3.arm_checks("without", without.result, pins)
            yield from eagle3.arm_checks("with", with_.result, pins)
            yield from eagle3.comparison(without.result, with_.result, pins)
            host.facts["told"] = _told(without, with_)
        else:
            yield from _shown(side, without, with_)
            host.facts.setdefault("told", f"shown, not judged: {_told(without, with_)}")


def _result(host: View, side: Side, arm: str, pins: Pins) -> Measured | None:
    return measured.result(host, _measurement(side, arm, pins), STAGE)


def _shown(side: Side, without: Measured, with_: Measured) -> Iterator[Check]:
    for arm, one in (("without", without), ("with", with_)):
        read = eagle3.arm_of(one.result)
        rate = f"{median(read.samples):.1f} tokens/s" if read is not None and read.samples else "no throughput"
        length = read.acceptance_length if read is not None else None
        told = f", acceptance length {length:.2f}" if length is not None else ""
        yield Check(name=f"{side.stack.title}, {arm} EAGLE-3", want="shown, not judged", got=rate + told, ok=True)


def _told(without: Measured, with_: Measured) -> str:
    plain, eagle = eagle3.arm_of(without.result), eagle3.arm_of(with_.result)
    if plain is None or eagle is None or not plain.samples or not eagle.samples:
        return ""
    return f"{median(eagle.samples):.1f} tokens/s with EAGLE-3, {median(plain.samples):.1f} without"


def _for_plot(
    found: list[Side], results: dict[tuple[Literal["in use", "new"], str], Measured | None], pins: Pins
) -> dict[str, object]:
    rows = []
    for side in found:
        for arm in eagle3.ARMS:
            one = results[side.place, arm]
            if one is not None:
                rows.append(eagle3.PlotArm(side.place, side.stack.cuda_version, one.at, one.result))
    return eagle3.arms_for_plot(rows, pins)
