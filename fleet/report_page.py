"""The part of report.html that is plain HTML: verdict, run, grid, what to do next, throughput, details."""

import shlex
import threading
from pathlib import Path

from fleet.clock import spoken
from fleet.grid import Results, short_reason, simulated_hosts
from fleet.model import RunRecord, StageResult
from fleet.report_details import badge, host_details
from fleet.report_table import table
from fleet.report_text import anchor, counted, escaped, link, with_code
from fleet.report_throughput import throughput_section
from fleet.report_verdict import Step, next_steps, took, verdict
from fleet.run import Run, follow

FILES = ("run.json", "pins.toml", "events.log", "junit.xml")
NAMED_CELLS = 6
NAMED_WARNINGS = 20


def page(run: Run, record: RunRecord, results: Results) -> str:
    """Everything above pytest-html's own table; it needs neither script nor network."""
    simulated = simulated_hosts(record, results)
    parts = (
        f"<style>{Path(__file__).with_name('report.css').read_text(encoding='utf-8')}</style>",
        '<main class="fleet">',
        _banner(record, simulated),
        _verdict(record, results),
        _grid(record, results, simulated),
        _next(next_steps(record, results)),
        throughput_section(results),
        _run(run, record, results),
        _warnings(run),
        "<section><h2>Details</h2>",
        *(host_details(run, record, results, host, host in simulated) for host in record.hosts),
        "</section></main>",
        '<h2 class="fleet">All stages as pytest tests</h2>',
        "<p>The same results, to filter and sort (needs JavaScript). The time below is that of the report.</p>",
    )
    return "\n".join(part for part in parts if part)


def _banner(record: RunRecord, simulated: list[str]) -> str:
    if not simulated:
        return ""
    names = ", ".join(simulated[:NAMED_CELLS]) + (" …" if len(simulated) > NAMED_CELLS else "")
    which = "every host" if len(simulated) == len(record.hosts) else f"{len(simulated)} of {len(record.hosts)} hosts"
    return (
        f'<p class="banner" role="note"><strong>SIMULATED</strong> {which} of this run ({escaped(names)}) is '
        "simulated: no GPU was involved, and what was measured there says nothing about real ones.</p>"
    )


def _verdict(record: RunRecord, results: Results) -> str:
    found = verdict(record, results)
    lead, colon, rest = found.text.partition(":")
    return f'<p class="verdict {"good" if found.green else "bad"}"><b>{escaped(lead)}{colon}</b>{with_code(rest)}</p>'


def _grid(record: RunRecord, results: Results, simulated: list[str]) -> str:
    rows = [
        f'<tr><th scope="row">{link("#" + anchor(host), escaped(host))}'
        f"{'<br>' + badge('SIMULATED') if host in simulated else ''}</th>"
        f"{''.join(_cell(results[host, stage]) for stage in record.stages)}</tr>"
        for host in record.hosts
    ]
    return f'<section class="grid"><h2>Hosts and stages</h2>{table(("Host", *record.stages), rows, GRID)}</section>'


GRID = "What each stage came to on each host; a status leads to its details"


def _cell(result: StageResult) -> str:
    target = link("#" + anchor(result.host, result.stage), badge(result.status))
    time = f' <span class="soft">{spoken(result.seconds)}</span>' if result.seconds else ""
    reused = f'<div class="why">reused, measured {escaped(result.reused, 40)}</div>' if result.reused else ""
    why = f'<div class="why">{with_code(short_reason(result), 90)}</div>' if result.reason else ""
    return f"<td>{target}{time}{why}{reused}</td>"


def _next(steps: list[Step]) -> str:
    if not steps:
        return ""
    items = "".join(f"<li>{_cells(step)}{with_code(step.text)}</li>" for step in steps)
    return f"<section><h2>What to do next</h2><ul>{items}</ul></section>"


def _cells(step: Step) -> str:
    links = [link("#" + anchor(*cell), escaped(" ".join(cell))) for cell in step.cells[:NAMED_CELLS]]
    more = len(step.cells) - NAMED_CELLS
    links += [f"{more} more"] if more > 0 else []
    return f"{', '.join(links)}: " if links else ""


def _warnings(run: Run) -> str:
    written = threading.Event()
    written.set()  # the run is over: read to the end of the file and stop
    events = follow(run.path / "events.log", written)
    told = dict.fromkeys((e.host, e.stage, e.text) for e in events if e.kind == "warning")
    items = "".join(
        f"<li>{escaped(f'{host} {stage}'.strip(), 100)}: {with_code(text, 500)}</li>"
        for host, stage, text in list(told)[:NAMED_WARNINGS]
    )
    more = len(told) - NAMED_WARNINGS
    rest = f"<li>{more} more in {link('events.log', 'events.log')}</li>" if more > 0 else ""
    return f"<section><h2>Warnings</h2><ul>{items}{rest}</ul></section>" if items else ""


def _run(run: Run, record: RunRecord, results: Results) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    facts = {
        "Run": escaped(record.id),
        "Mode": escaped(record.mode),
        "Started": escaped(record.started),
        "Took": escaped(took(record, results)),
        "Hosts": escaped(counted(len(record.hosts), "host")),
        "Pins": f"{escaped(record.pins_file)} <code>{escaped(record.pins_digest)}</code>",
        "Stack": f"<code>{escaped(record.stack)}</code>",
        "Command": f"<code>{escaped(shlex.join(record.argv), 4000)}</code>",
        "Versions": escaped(versions),
        "Files": ", ".join(link(name, escaped(name)) for name in FILES if (run.path / name).is_file()),
    }
    rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items() if value)
    return f'<section><h2>Run</h2><dl class="facts">{rows}</dl></section>'
