"""What each stage did on each host, as plain HTML that needs no script."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fleet.clock import sized, spoken
from fleet.grid import Results, hints_of, summary
from fleet.model import GOOD, Check, Ran, RunRecord, StageResult
from fleet.report_decisions import decisions_html, decisions_of
from fleet.report_table import table
from fleet.report_text import anchor, command, counted, escaped, link, plain, with_code
from fleet.run import LOG_TAIL_BYTES, Run

LOGS_BUDGET_BYTES = 8 * 1024 * 1024
FEW_HOSTS = 2
OPEN = ("failed", "unreachable", "interrupted", "would change", "would run")
SHOWN_ELSEWHERE = ("arms", "floor", "told", "decisions")


def badge(status: str) -> str:
    """A status as a word in its colour."""
    return f'<span class="badge s-{escaped(status).replace(" ", "-")}">{escaped(status)}</span>'


def host_details(run: Run, record: RunRecord, results: Results, host: str, simulated: bool) -> str:
    """A host's stages, each folded; what is not green stands open."""
    mine = [results[host, stage] for stage in record.stages]
    green = all(result.status in GOOD for result in mine)
    opened = " open" if not green or len(record.hosts) <= FEW_HOSTS else ""
    address = record.addresses.get(host, "")
    marks = [f"<strong>{escaped(host)}</strong>", escaped(address) if address != host else ""]
    marks += [badge("SIMULATED") if simulated else "", f'<span class="soft">{summary(mine)}</span>']
    limit = log_limit(results)
    return (
        f'<details class="host"{opened}><summary>{" ".join(mark for mark in marks if mark)}</summary>'
        f'<div id="{escaped(anchor(host))}">{_files(run, host)}'
        f"{''.join(_stage(run, result, limit) for result in mine)}</div></details>"
    )


def log_limit(results: Results) -> int:
    """How many bytes of a green stage's log go into the page, so that a large fleet's page stays readable."""
    logs = sum(len(result.commands) for result in results.values() if result.status in GOOD)
    return min(LOG_TAIL_BYTES, LOGS_BUDGET_BYTES // max(1, logs))


def checks_table(checks: Iterable[Check]) -> str:
    """Want and got of each check; empty when there is none."""
    rows = [
        f'<tr class="{_word(check).replace(" ", "-")}"><td>{_word(check)}</td><th scope="row">'
        f"{escaped(check.name, 300)}</th><td>{_value(check.want)}</td><td>{_value(check.got)}</td>"
        f"<td>{_code(check.read)}</td></tr>"
        for check in checks
    ]
    return table(("", "Check", "Want", "Got", "Read from"), rows, "Checks")


def log_box(run: Run, host: str, name: str, limit_bytes: int) -> str:
    """The end of a log, folded, with a link to the whole file; empty when there is no log."""
    if not name or "/" in name:
        return ""
    tail = plain(run.log_tail(host, name, limit_bytes), limit_bytes)
    lines = counted(len(tail.splitlines()), "line")
    shown = f"<pre>{escaped(tail)}</pre>" if tail.strip() else "<p>The log is empty.</p>"
    whole = link(f"{host}/{name}", escaped(name))
    return f"<details><summary>Log, last {lines}</summary><p>Whole log: {whole}</p>{shown}</details>"


def reason_html(result: StageResult) -> str:
    """Reason and hints of a cell."""
    hints = [f'<p class="hint"><b>hint:</b> {with_code(hint)}</p>' for hint in hints_of(result)]
    reason = f"<p>{with_code(result.reason)}</p>" if result.reason else ""
    return reason + ("".join(hints) if result.status not in GOOD else "")


def _stage(run: Run, result: StageResult, limit: int) -> str:
    green = result.status in GOOD
    summed = f"<b>{escaped(result.stage)}</b> {badge(result.status)} {_when(result)}"
    short = f'<span class="why">{with_code(result.reason, 160)}</span>' if result.reason else ""
    parts = (
        reason_html(result),
        checks_table(result.checks),
        _commands(run, result, limit if green else LOG_TAIL_BYTES),
        decisions_html(decisions_of(result.facts)),
        _facts(result.facts),
        _measured(result),
    )
    return (
        f'<details class="stage"{" open" if result.status in OPEN else ""}><summary>{summed} {short}</summary>'
        f'<div id="{escaped(anchor(result.host, result.stage))}">{"".join(parts) or NOTHING}</div></details>'
    )


NOTHING = "<p>Nothing was recorded.</p>"


def _when(result: StageResult) -> str:
    words = [spoken(result.seconds)] if result.seconds else []
    words += [f"reused, measured {escaped(result.reused, 40)}"] if result.reused else []
    return f'<span class="soft">{", ".join(words)}</span>' if words else ""


def _files(run: Run, host: str) -> str:
    names = [name for name in ("probe.json",) if (run.path / host / name).is_file()]
    links = [link(f"{host}/{name}", escaped(name)) for name in names]
    return f"<p>What the host said of itself: {', '.join(links)}</p>" if links else ""


def _word(check: Check) -> str:
    return {True: "ok", False: "differs", None: "cannot tell"}[check.ok]


def _value(text: str) -> str:
    return (
        f'<div class="value"><code>{escaped(text, 2000)}</code></div>' if text else '<span class="soft">nothing</span>'
    )


def _code(text: str) -> str:
    return f"<code>{escaped(text, 2000)}</code>" if text else ""


def _commands(run: Run, result: StageResult, limit: int) -> str:
    # One log may serve several commands; it is embedded once, below the table.
    logs = dict.fromkeys(ran.log for ran in result.commands if ran.log)
    boxes = "".join(log_box(run, result.host, name, limit) for name in logs)
    heads = ("Command", "Undo", "Result")
    return table(heads, [_command(ran) for ran in result.commands], "Commands") + boxes


def _command(ran: Ran) -> str:
    size = f' <span class="soft">({sized(ran.size_bytes)})</span>' if ran.size_bytes else ""
    undo = (
        f'<code class="command">{command(ran.undo)}</code>'
        if ran.reversible
        else f"cannot be undone: {with_code(ran.undo)}"
    )
    shell = f'<pre class="command">{command(ran.shell)}</pre>' if ran.shell else ""
    none = "measures only: nothing to undo" if ran.measures else '<span class="soft">none</span>'
    return (
        f"<tr><td>{with_code(ran.why, 500)}{size}{shell}</td>"
        f"<td>{undo if ran.undo else none}</td><td>{_ended(ran)}</td></tr>"
    )


def _ended(ran: Ran) -> str:
    if ran.rc is None:
        return "would be run" if not ran.started and not ran.log else "no exit code"
    words = [f"<b>exit code {ran.rc}</b>", spoken(ran.seconds)]
    words += ["was already running: attached to"] if ran.attached else []
    words += ["undone"] if ran.undone else []
    words += [escaped(ran.started)] if ran.started else []
    return "<br>".join(words)


def _facts(facts: Mapping[str, Any]) -> str:
    rows = [
        f'<tr><th scope="row">{escaped(name.replace("_", " "), 200)}</th><td>{_fact(value)}</td></tr>'
        for name, value in facts.items()
        if name not in SHOWN_ELSEWHERE
    ]
    return table(("Fact", "Value"), rows, "Facts")


def _fact(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(item, str | int | float) for item in value):
        return escaped(", ".join(map(str, value)), 2000)
    if isinstance(value, dict | list):
        return f"<pre>{escaped(json.dumps(value, indent=1, ensure_ascii=False), 4000)}</pre>" if value else "none"
    return escaped(str(value), 2000)


def _measured(result: StageResult) -> str:
    return "".join(
        f"<details><summary>Measurement <b>{escaped(name, 200)}</b>, {escaped(found.at)}</summary>"
        f"<p>Inputs: <code>{escaped(found.inputs, 200)}</code></p>"
        f"<pre>{escaped(json.dumps(found.result, indent=1, ensure_ascii=False), 16000)}</pre></details>"
        for name, found in result.measured.items()
    )
