"""What a run came to in one sentence, and what to do next."""

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from fleet.clock import spoken
from fleet.grid import Results, hints_of, summary
from fleet.model import GOOD, RunRecord, StageResult
from fleet.report_text import counted

WORDS = {"plan": "Planned", "validate": "Valid", "rollback": "Rolled back"}
AFTER = {
    "plan": "`nox -s upgrade` makes these changes; the stack in use stays until the last stage",
    "apply": "`nox -s rollback` goes back to the former stack, which was kept",
}
NAMED_HOSTS = 4
NAMED_STAGES = 3


@dataclass(frozen=True)
class Verdict:
    """`green` only when every cell is; `text` is one sentence."""

    green: bool
    text: str


@dataclass(frozen=True)
class Step:
    """Something to do, and the cells it is for: (host, stage) each; none when it is for the whole run."""

    text: str
    cells: list[tuple[str, str]]


def verdict(record: RunRecord, results: Results) -> Verdict:
    """The sentence on top of the report; a blocked, interrupted or missing cell is never green."""
    if not results:
        return Verdict(False, "Nothing was looked at: this run has no host or no stage.")
    if any(result.status not in GOOD for result in results.values()):
        return Verdict(False, _not_green(record, results))
    if record.outcome in ("failed", "interrupted"):
        return Verdict(False, f"Not done: every recorded stage is green, but the run itself {_ended(record)}.")
    return Verdict(True, _green(record, results))


def next_steps(record: RunRecord, results: Results) -> list[Step]:
    """The hints of all cells that are not green, each once; with none, what comes after such a run."""
    steps: dict[str, list[tuple[str, str]]] = {}
    for cell, result in results.items():
        for hint in hints_of(result) if result.status not in GOOD else []:
            steps.setdefault(hint, []).append(cell)
    if steps:
        return [Step(text, cells) for text, cells in steps.items()]
    return _after(record, results)


def took(record: RunRecord, results: Results) -> str:
    """How long the run took for people; up to its last recorded stage when its end is missing."""
    start, end = moment(record.started), moment(record.finished)
    if start is None:
        return "unknown"
    if end is not None:
        return spoken(max(0.0, (end - start).total_seconds()))
    ends = [stop for result in results.values() if (stop := _end(result)) is not None]
    if not ends:
        return "unknown: the end of the run is not recorded"
    return f"{spoken(max(0.0, (max(ends) - start).total_seconds()))} up to its last recorded stage"


def moment(stamp: str) -> datetime | None:
    """The time of an ISO stamp in UTC; None when it is none."""
    try:
        # Before Python 3.11 fromisoformat does not know the letter Z.
        found = datetime.fromisoformat(stamp.replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _green(record: RunRecord, results: Results) -> str:
    where = f"{_stages(record)} of {_hosts(record)}"
    if record.mode == "plan":
        return f"Planned: {summary(results.values())} ({where}); no host was changed."
    if record.mode == "apply" and all(result.status == "ok" for result in results.values()):
        return f"Nothing to change: {where} {_are(record)} ok."
    return f"{_done(record)}: {where} {_are(record)} green ({summary(results.values())})."


def _not_green(record: RunRecord, results: Results) -> str:
    by_host = {host: [results[host, stage] for stage in record.stages] for host in record.hosts}
    bad = {host: rows for host, rows in by_host.items() if any(row.status not in GOOD for row in rows)}
    named = [f"{host} ({_trouble(rows)})" for host, rows in list(bad.items())[:NAMED_HOSTS]]
    more = [f"and {counted(len(bad) - NAMED_HOSTS, 'more host')}"] if len(bad) > NAMED_HOSTS else []
    if len(by_host) == 1:
        return f"{_undone(record)}: {_trouble(bad[record.hosts[0]])} on {record.hosts[0]}."
    is_are = "is" if len(bad) == 1 else "are"
    return f"{_undone(record)}: {len(bad)} of {len(by_host)} hosts {is_are} not green: {', '.join(named + more)}."


def _trouble(rows: list[StageResult]) -> str:
    stages: dict[str, list[str]] = {}
    for row in rows:
        if row.status not in GOOD:
            stages.setdefault(row.status, []).append(row.stage)
    causes_first = sorted(stages, key=lambda status: status in ("blocked", "not run"))
    return "; ".join(f"{_listed(stages[status])} {status}" for status in causes_first)


def _listed(names: list[str]) -> str:
    if len(names) > NAMED_STAGES:
        names = [", ".join(names[: NAMED_STAGES - 1]), f"{len(names) - NAMED_STAGES + 1} more"]
    return ", ".join(names[:-1]) + (" and " if names[1:] else "") + names[-1]


def _done(record: RunRecord) -> str:
    # Without the last stage nobody was moved onto the new stack: then "upgraded" would be untrue.
    switched = record.mode == "apply" and "switch" in record.stages
    return "Upgraded" if switched else WORDS.get(record.mode, "Done")


def _undone(record: RunRecord) -> str:
    word = _done(record)
    return f"Not {word[0].lower()}{word[1:]}"


def _ended(record: RunRecord) -> str:
    return "was interrupted" if record.outcome == "interrupted" else "failed"


def _stages(record: RunRecord) -> str:
    count = len(record.stages)
    return f"all {count} stages" if count > 1 else f"stage {record.stages[0]}"


def _are(record: RunRecord) -> str:
    return "are" if len(record.stages) > 1 else "is"


def _hosts(record: RunRecord) -> str:
    return record.hosts[0] if len(record.hosts) == 1 else f"all {len(record.hosts)} hosts"


def _after(record: RunRecord, results: Results) -> list[Step]:
    text = AFTER.get(record.mode, "")
    green = bool(results) and all(result.status in GOOD for result in results.values())
    changes = any(result.status != "ok" for result in results.values())
    return [Step(text, [])] if text and green and changes else []


def _end(result: StageResult) -> datetime | None:
    start = moment(result.started)
    return start + timedelta(seconds=result.seconds) if start else None
