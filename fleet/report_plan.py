"""What a run would do, for the terminal: the steps of each stage, said once for all hosts they are the same on."""

from collections.abc import Iterable

from fleet.clock import sized
from fleet.model import Ran, StageResult
from fleet.report_text import one_line, wrapped

PLANNED = ("would change", "would run")
NAMED_HOSTS = 3


def planned(results: Iterable[StageResult], width: int) -> list[list[str]]:
    """A block of lines for each stage and group of hosts with equal steps, in the order of the story."""
    groups: dict[tuple[str, ...], list[StageResult]] = {}
    for result in results:
        if result.status in PLANNED and result.commands:
            steps = (one_line(_step(ran)) for ran in result.commands)
            groups.setdefault((result.stage, result.status, *steps), []).append(result)
    return [_block(group, width) for group in groups.values()]


def _block(group: list[StageResult], width: int) -> list[str]:
    first = group[0]
    lines = wrapped(f"{_hosts(group)} {first.stage}: {first.status}", width, "  ")
    for number, ran in enumerate(first.commands):
        lines += wrapped(one_line(_step(ran)), width, "    ", "  ")
        lines += wrapped(_undo(ran, {other.commands[number].undo for other in group}), width, "      ", "    ")
    return lines


def _hosts(group: list[StageResult]) -> str:
    names = [one_line(result.host, 60) for result in group]
    more = len(names) - NAMED_HOSTS
    return ", ".join(names[:NAMED_HOSTS]) + (f" and {more} more" if more > 0 else "")


def _step(ran: Ran) -> str:
    size = f" ({sized(ran.size_bytes)})" if ran.size_bytes else ""
    return f"{ran.why}{size}"


def _undo(ran: Ran, texts: set[str]) -> str:
    if ran.measures:
        return "measures only: nothing to undo"
    if len(texts) > 1:
        return "undo: differs by host, see the report"
    text = one_line(ran.undo)
    return f"undo: {text or 'nothing'}" if ran.reversible else f"cannot be undone: {text}"
