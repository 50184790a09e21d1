"""The host × stage grid of a run as plain text, and the words a run is summed up in."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby

from msgspec.structs import replace

from fleet.model import GOOD, Check, RunRecord, StageResult, Status
from fleet.problem import Problem
from fleet.report_plan import planned
from fleet.report_text import one_line, wrapped
from fleet.run import Run

Results = Mapping[tuple[str, str], StageResult]

NODE_ID = re.compile(r"(?:^|[/\\])test_\d+_(?P<stage>\w+)\.py::.*\[(?P<host>[^\[\]]+)\](?:@\S*)?$")
ORDER: tuple[Status, ...] = (
    "ok",
    "changed",
    "would change",
    "would run",
    "running",
    "failed",
    "unreachable",
    "interrupted",
    "blocked",
    "not run",
)
COLOURS = {
    "ok": "32",
    "changed": "36",
    "would change": "33",
    "would run": "33",
    "blocked": "2",
    "not run": "2",
}


def cell_of(nodeid: str) -> tuple[str, str] | None:
    """Host and stage of a collected item: `stages/test_30_toolkit.py::test_…[lab-01]` is lab-01's toolkit."""
    found = NODE_ID.search(nodeid)
    return (found["host"], found["stage"]) if found else None


def settled(run: Run) -> dict[tuple[str, str], StageResult]:
    """`run.results()` for showing: an unreadable file costs its own cell only, a simulated host is so in each cell."""
    record = run.record
    try:
        results = run.results()
    except Problem:
        results = {(host, stage): _cell(run, host, stage) for host in record.hosts for stage in record.stages}
    simulated = simulated_hosts(record, results)
    return {cell: replace(row, simulated=cell[0] in simulated) for cell, row in results.items()}


def summary(results: Iterable[StageResult]) -> str:
    """How many cells have which status: `5 ok, 2 changed`."""
    counts = Counter(result.status for result in results)
    return ", ".join(f"{counts[status]} {status}" for status in ORDER if counts[status]) or "no stage"


def simulated_hosts(record: RunRecord, results: Results) -> list[str]:
    """The hosts that said of themselves, in this run or to a stage, that they are simulated."""
    marked = {*record.simulated, *(host for (host, _), result in results.items() if result.simulated)}
    return [host for host in record.hosts if host in marked]


def grid(run: Run, *, width: int = 100, colour: bool = False) -> str:
    """The grid; below it what would be done, and why each cell that is not green is not."""
    record, results = run.record, settled(run)
    if not results:
        return "no host or no stage in this run"
    parts = [_table(record, results, width, colour)]
    parts += ["\n".join(_reused(results, width))] if any(result.reused for result in results.values()) else []
    parts += ["\n".join(block) for block in (*planned(results.values(), width), *_blocks(results, width))]
    return "\n\n".join(parts)


def _cell(run: Run, host: str, stage: str) -> StageResult:
    try:
        found = run.result(host, stage)
    except Problem as problem:
        return StageResult(host=host, stage=stage, status="failed", reason=str(problem))
    return found or StageResult(host=host, stage=stage, status="not run", reason="nothing was recorded")


def _table(record: RunRecord, results: Results, width: int, colour: bool) -> str:
    simulated = simulated_hosts(record, results)
    mark = ["", *("SIMULATED" if host in simulated else "" for host in record.hosts)]
    by_host = [[host, *(results[host, stage].status for stage in record.stages)] for host in record.hosts]
    rows = [["host", *record.stages], *by_host]
    rows = [[*row, note] for row, note in zip(rows, mark, strict=True)] if simulated else rows
    for shape in (rows, [list(column) for column in zip(*rows, strict=True)]):
        lines = _aligned(shape, colour)
        if max(_shown(line) for line in lines) <= width:
            return "\n".join(lines)
    return "\n".join(line for row in rows[1:] for line in _listed(rows[0], row, width))


def _aligned(rows: list[list[str]], colour: bool) -> list[str]:
    rows = [[one_line(word, 60) for word in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_row(row, widths, colour) for row in rows]


def _row(words: list[str], widths: list[int], colour: bool) -> str:
    last = max((index for index, word in enumerate(words) if word), default=0)
    padded = [word.ljust(size) for word, size in zip(words[:last], widths, strict=False)] + [words[last]]
    return "  ".join(_coloured(cell) if colour and index else cell for index, cell in enumerate(padded))


def _coloured(cell: str) -> str:
    word = cell.rstrip()
    known = word in ORDER
    return cell.replace(word, f"\x1b[{COLOURS.get(word, '31')}m{word}\x1b[0m") if known else cell


def _shown(line: str) -> int:
    return len(re.sub(r"\x1b\[\d+m", "", line))


def _listed(head: list[str], row: list[str], width: int) -> list[str]:
    words = [f"{stage} {status}".strip() for stage, status in zip(head[1:], row[1:], strict=True) if status]
    return wrapped(f"{one_line(row[0], 60)}: {', '.join(words)}", width, "  ")


def _reused(results: Results, width: int) -> list[str]:
    return [
        line
        for result in results.values()
        if result.reused
        for line in wrapped(
            one_line(f"{result.host} {result.stage}: measured {result.reused}, reused: its inputs are unchanged"),
            width,
            "  ",
        )
    ]


def _blocks(results: Results, width: int) -> list[list[str]]:
    bad = [result for result in results.values() if result.status not in GOOD]
    return [_block(list(group), width) for _, group in groupby(bad, key=_cause)]


def _cause(result: StageResult) -> tuple[str, ...]:
    # Cells blocked by the same thing are one block: four times the same sentence hides the cause above it.
    own = "" if result.status in ("blocked", "not run") else result.stage
    return result.host, result.status, result.reason, result.hint, own


def _block(group: list[StageResult], width: int) -> list[str]:
    result = group[0]
    where = f"{result.host} {', '.join(each.stage for each in group)}"
    head = ": ".join(part for part in (where, result.status, short_reason(result)) if part)
    checks = [line for check in result.failed_checks for line in _check(check, result.reason, width)]
    hints = [line for hint in hints_of(result) for line in wrapped(f"hint: {one_line(hint, 600)}", width, "      ")]
    return [*wrapped(one_line(head, 500), width, "  "), *checks, *hints]


def _check(check: Check, reason: str, width: int) -> list[str]:
    doubt = "" if check.ok is False else " (the host could not tell)"
    text = f"{one_line(check.name)}: want {one_line(check.want)}, got {one_line(check.got) or 'nothing'}{doubt}"
    # A stage's reason is often its first wrong check: once is enough.
    told = reason.startswith(f"{check.name}: want {check.want}")
    lines = [] if told else wrapped(text, width, "    ", "  ")
    # A script of ours is no place to look: what it read is in the record.
    shown = check.read and not check.read.startswith("checks/remote/")
    return lines + (wrapped(f"read: {one_line(check.read)}", width, "    ", "  ") if shown else [])


def short_reason(result: StageResult) -> str:
    """Why, as short as it can be said: a blocked cell names what blocks it, which has its own words."""
    return result.reason.split(":")[0] if result.status == "blocked" else result.reason


def hints_of(result: StageResult) -> list[str]:
    """What to do about a cell that is not green, each hint once: the stage's own, then those of its checks."""
    hints = [result.hint, *(check.hint for check in result.failed_checks)]
    return list(dict.fromkeys(hint for hint in hints if hint))
