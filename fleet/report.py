"""Turns a run directory into report.html (through pytest-html) and into properties of junit.xml.

Registered by the plugin in mode replay; every hook reads the run directory and nothing else.
"""

import base64
import hashlib
import html
import importlib
import re
from collections.abc import Generator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from fleet.clock import spoken
from fleet.grid import cell_of, settled, simulated_hosts
from fleet.model import GOOD, RunRecord, StageResult
from fleet.report_details import checks_table, log_box, reason_html
from fleet.report_page import page
from fleet.report_text import anchor, escaped, link, one_line, with_code
from fleet.run import Run

EXTRA_LOG_BYTES = 8 * 1024
NO_LOG = "No log output captured."
COLUMNS = ("host", "stage", "status", "reason", "took")
HEADS = {"took": "Duration"}


def junit_properties(result: StageResult) -> list[tuple[str, str]]:
    """What a junit.xml test case says beside its outcome; append to `item.user_properties` before it runs."""
    return [
        ("host", one_line(result.host)),
        ("stage", one_line(result.stage)),
        ("status", result.status),
        ("reason", one_line(result.reason, 2000)),
        ("simulated", "true" if result.simulated else "false"),
    ]


def junit_suite_properties(config: pytest.Config, run: Run) -> None:
    """Adds run, mode and SIMULATED to the test suite in junit.xml; nothing without --junit-xml.

    Does what the fixture record_testsuite_property does, for callers without a test, from
    pytest_sessionstart on.
    """
    from _pytest.junitxml import xml_key  # noqa: PLC0415

    xml = config.stash.get(xml_key, None)
    if xml is None:
        return
    record = run.record
    simulated = simulated_hosts(record, settled(run))
    xml.add_global_property("run", one_line(record.id))
    xml.add_global_property("mode", record.mode)
    if simulated:
        xml.add_global_property("SIMULATED", one_line(" ".join(simulated), 2000))


class HtmlReport:
    """The pytest-html side of a replay: `config.pluginmanager.register(HtmlReport(run))`."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def record(self) -> RunRecord:
        """run.json, read once."""
        return self.run.record

    @cached_property
    def results(self) -> dict[tuple[str, str], StageResult]:
        """All cells in story order, read once."""
        return settled(self.run)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Replaces the table of the controller's environment: CI variables in it are nobody's business."""
        try:
            key = importlib.import_module("pytest_metadata.plugin").metadata_key
        except ImportError:
            return
        metadata = session.config.stash.get(key, None)
        if metadata is not None:
            metadata.clear()
            # pytest-html puts these values into the page unescaped.
            metadata.update(
                Run=escaped(self.record.id),
                Mode=escaped(self.record.mode),
                Pins=escaped(f"{self.record.pins_file} {self.record.pins_digest}"),
            )

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_report_title(self, report: Any) -> None:
        """Names the page, and keeps its table in the order of the story."""
        report.title = one_line(f"GPU stack upgrade: {self.record.mode} {self.record.id}")
        report.set_data("initialSort", "original")
        report.set_data("renderCollapsed", ["passed", "skipped"])

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(self, prefix: list[str]) -> None:
        """Puts the plain part of the page above pytest-html's table."""
        prefix.append(page(self.run, self.record, self.results))

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_header(self, cells: list[str]) -> None:
        """Result stays first and as it is: filters and colours depend on it."""
        names = [HEADS.get(name, name.capitalize()) for name in COLUMNS]
        made = [
            f'<th class="sortable" data-column-type="{column}">{name}</th>'
            for column, name in zip(COLUMNS, names, strict=True)
        ]
        cells[1:] = [*made, "<th>Links</th>"]

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_row(self, report: pytest.TestReport, cells: list[str]) -> None:
        """The cells of one host × stage; the key for sorting stands hidden before the text."""
        result = self._result(report.nodeid)
        if result is None:
            shown = ["", "", "", escaped(report.nodeid), "", ""]
        else:
            shown = [*self._shown(result), self._links(result)]
        names = (*COLUMNS, "links")
        cells[1:] = [f'<td class="col-{n}">{cell}</td>' for n, cell in zip(names, shown, strict=True)]

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_html(self, report: pytest.TestReport, data: list[str]) -> None:
        """Leaves out what stands above it: the reason as pytest's own text, and that nothing was captured."""
        result = self._result(report.nodeid)
        if result is None:
            return
        known = {NO_LOG, html.escape(report.longreprtext)} if result.reason in report.longreprtext else {NO_LOG}
        data[:] = [text for text in data if text.rstrip("\n") not in known]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gives pytest-html what unfolds below a row."""
        shown_row = report.when == "call" or (report.when == "setup" and not report.passed)
        result = self._result(report.nodeid) if shown_row else None
        if result is not None:
            extras = [*getattr(report, "extras", []), _extra(self._unfolded(result))]
            report.extras = extras  # type: ignore[attr-defined]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Completes the head of the file that pytest-html has just written."""
        outcome = yield
        name = session.config.getoption("htmlpath", None)
        path = Path(name) if name else None
        if path is not None and path.is_file():
            text = path.read_text(encoding="utf-8")
            scratch = path.with_name(f".{path.name}.head")
            scratch.write_text(with_head(text), encoding="utf-8")
            scratch.replace(path)
        return outcome

    def _result(self, nodeid: str) -> StageResult | None:
        cell = cell_of(nodeid)
        return self.results.get(cell) if cell else None

    def _shown(self, result: StageResult) -> list[str]:
        order = self.record.stages.index(result.stage)
        seconds = spoken(result.seconds) if result.seconds else ""
        mark = " (SIMULATED)" if result.simulated else ""
        return [
            escaped(result.host) + mark,
            f"<span hidden>{order:03d}</span>{escaped(result.stage)}",
            escaped(result.status),
            with_code(result.reason, 300).replace("\n", " "),
            f"<span hidden>{result.seconds:012.3f}</span>{seconds}",
        ]

    def _links(self, result: StageResult) -> str:
        places = [link("#" + anchor(result.host, result.stage), "details")]
        record = f"{result.host}/{result.stage}.json"
        places += [link(record, "record")] if (self.run.path / record).is_file() else []
        logs = dict.fromkeys(ran.log for ran in result.commands if ran.log and "/" not in ran.log)
        places += [link(f"{result.host}/{name}", escaped(name)) for name in logs]
        return " ".join(places)

    def _unfolded(self, result: StageResult) -> str:
        checks = result.checks if result.status in GOOD else result.failed_checks
        logs = [ran.log for ran in result.commands if ran.log][-1:]
        parts = [reason_html(result), checks_table(checks)]
        parts += [log_box(self.run, result.host, name, EXTRA_LOG_BYTES) for name in logs]
        return f'<div class="fleet">{"".join(parts)}</div>'


def with_head(page_html: str) -> str:
    """The page with language, viewport and a policy that lets nothing run or load but pytest-html's script."""
    script = re.search(r"<script>(.*)</script>\s*</footer>", page_html, re.DOTALL)
    if script is None:
        return page_html
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<head>\n    <meta http-equiv="Content-Security-Policy" content="{policy}"/>\n'
        '    <meta name="viewport" content="width=device-width, initial-scale=1"/>'
    )
    return page_html.replace("<html>", '<html lang="en">', 1).replace("<head>", head, 1)


def _extra(content: str) -> dict[str, str | None]:
    return {"name": None, "format_type": "html", "content": content, "mime_type": None, "extension": None}
