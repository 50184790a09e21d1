"""The throughput measurements of a stage result, read without trusting their shape."""

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

from fleet.model import StageResult
from fleet.report_text import one_line


@dataclass(frozen=True)
class Arm:
    """One server that was measured: a stack, without or with EAGLE-3."""

    stack: str
    cuda: str
    speculation: str
    tokens_per_s: tuple[float, ...]
    acceptance_length: float | None
    measured_at: str

    @property
    def median(self) -> float:
        """The middle of the samples, output tokens/s."""
        return statistics.median(self.tokens_per_s)

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """Between which the middle half of the samples lies; None with fewer than three."""
        if len(self.tokens_per_s) < 3:
            return None
        low, _, high = statistics.quantiles(self.tokens_per_s, n=4, method="inclusive")
        return low, high

    @property
    def group(self) -> str:
        """The stack and its CUDA version, as shown."""
        return f"{self.stack}, CUDA {self.cuda}" if self.cuda else self.stack


@dataclass(frozen=True)
class Throughput:
    """What one host's measurements say; `faults` names what was missing or unreadable."""

    host: str
    arms: list[Arm]
    floor_tokens_per_s: float | None
    floor_speedup: float | None
    faults: list[str]
    simulated: bool = False

    @property
    def name(self) -> str:
        """The host, marked where it is simulated: drawings and rows are copied out of their page."""
        return f"{self.host} (SIMULATED)" if self.simulated else self.host

    def find(self, stack: str, speculation: str) -> Arm | None:
        """The arm of that stack, if it was measured."""
        arms = [arm for arm in self.arms if (arm.stack, arm.speculation) == (stack, speculation)]
        return arms[0] if arms else None

    def speedup(self, arm: Arm) -> float | None:
        """How many times as fast as the same stack without EAGLE-3; None when that is not known."""
        if arm.speculation != "with":
            return None
        plain = [a for a in self.arms if a.group == arm.group and a.speculation == "without"]
        return arm.median / plain[0].median if plain and plain[0].median > 0 else None


def throughput(result: StageResult) -> Throughput | None:
    """The arms and the floor in the facts of a stage; None when it claims to hold none."""
    if "arms" not in result.facts:
        return None
    listed = result.facts["arms"]
    rows = listed if isinstance(listed, list) else []
    read = [(_arm(row), row) for row in rows]
    arms = [arm for arm, _ in read if arm]
    faults = [f"unreadable measurement: {one_line(str(row), 120)}" for arm, row in read if arm is None]
    floor = result.facts.get("floor")
    floor = floor if isinstance(floor, dict) else {}
    missing = _missing(arms)
    if any(arm.stack == "new" for arm in arms):
        # By the time this is read, what was in use is what was there before.
        arms = [replace(arm, stack="before") if arm.stack == "in use" else arm for arm in arms]
    return Throughput(
        host=result.host,
        arms=sorted(arms, key=lambda arm: (arm.stack == "new", arm.cuda, arm.speculation != "without")),
        floor_tokens_per_s=_number(floor.get("tokens_per_s")),
        floor_speedup=_number(floor.get("speedup")),
        faults=faults + missing,
        simulated=result.simulated,
    )


def _missing(arms: list[Arm]) -> list[str]:
    if not arms:
        return ["no measurement"]
    present = {(arm.stack, arm.speculation) for arm in arms}
    stacks = sorted({arm.stack for arm in arms})
    wanted = [(stack, way) for stack in stacks for way in ("without", "with")]
    return [f"no measurement of the stack {s} {w} EAGLE-3" for s, w in wanted if (s, w) not in present]


def _arm(row: Any) -> Arm | None:
    if not isinstance(row, dict):
        return None
    listed = row.get("tokens_per_s")
    samples = [_number(value) for value in listed] if isinstance(listed, list) else []
    known = tuple(value for value in samples if value is not None)
    speculation = row.get("speculation")
    if not known or len(known) < len(samples) or speculation not in ("without", "with"):
        return None
    return Arm(
        stack=one_line(str(row.get("stack") or "unnamed"), 40),
        cuda=one_line(str(row.get("cuda") or ""), 20),
        speculation=speculation,
        tokens_per_s=known,
        acceptance_length=_number(row.get("acceptance_length")),
        measured_at=one_line(str(row.get("measured_at") or ""), 40),
    )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and 0 <= number < 1e9 else None
