"""report.html and junit.xml of a replay, made by a small plugin that stands for the engine's own."""

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from report_samples import (
    HOSTILE,
    STAGES,
    TEST_FILES,
    Page,
    new_run,
    rendered,
    result,
    two_hosts,
    write_green,
)

from fleet.model import Check, Measured, Ran, StageResult
from fleet.report import with_head
from fleet.run import Run

pytest_plugins = ["pytester"]

PLUGIN = """
import sys
from pathlib import Path
import pytest
from fleet.model import GOOD
from fleet.report import HtmlReport, junit_properties, junit_suite_properties
from fleet.grid import cell_of
from fleet.run import Run

RUN = Run(Path({run!r}))

def pytest_configure(config):
    config.pluginmanager.register(HtmlReport(RUN))

def pytest_sessionstart(session):
    junit_suite_properties(session.config, RUN)

def pytest_generate_tests(metafunc):
    metafunc.parametrize("host", RUN.record.hosts)

def pytest_collection_modifyitems(items):
    for item in items:
        item.user_properties += junit_properties(RUN.results()[cell_of(item.nodeid)])

@pytest.fixture
def found(request):
    return RUN.results()[cell_of(request.node.nodeid)]
"""
STAGE = """
import pytest
from fleet.model import GOOD

def test_stage(host, found):
    if found.status == "blocked":
        pytest.skip(found.reason)
    if found.status not in GOOD:
        pytest.fail(found.reason, pytrace=False)
"""


def replay(pytester: pytest.Pytester, run: Run) -> tuple[Path, Path]:
    """Replays a run; gives report.html and junit.xml."""
    pytester.makeconftest(PLUGIN.format(run=str(run.path)))
    for name in TEST_FILES.values():
        pytester.path.joinpath(name).write_text(STAGE)
    html, xml = run.path / "report.html", run.path / "junit.xml"
    options = ("-p", "no:cacheprovider", "--self-contained-html", f"--html={html}", f"--junit-xml={xml}")
    outcome = pytester.runpytest_inprocess(*options, "-W", "error")
    assert outcome.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), outcome.outlines
    return html, xml


def blob(text: str) -> dict[str, Any]:
    """The data that pytest-html draws its table from."""
    found = json.loads(Page(text).values("data-jsonblob")[0])
    assert isinstance(found, dict)
    return found


def rows(text: str) -> list[dict[str, Any]]:
    """The rows of pytest-html's table, in the order it shows them."""
    return [row for listed in blob(text)["tests"].values() for row in listed]


def test_replay_makes_a_page_and_a_junit_file(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """One row and one test case a cell, with the run's own words, and green only where the stage was."""
    html, xml = replay(pytester, two_hosts(tmp_path))
    text = html.read_text(encoding="utf-8")
    assert '<title id="head-title">GPU stack upgrade: apply 20261130T020501Z-apply-9f3a</title>' in text
    assert (
        "Not upgraded: 1 of 2 hosts is not green: lab-02 (toolkit failed; wheels, kernels and 2 more blocked)."
        in Page(text).text
    )
    found = rows(text)
    assert [row["result"] for row in found].count("Passed") == 9
    assert [row["result"] for row in found].count("Skipped") == 4
    assert [re.sub("<.*?>", "", row["stage"]) for row in found[::2]] == [f"{i:03}{s}" for i, s in enumerate(STAGES)]
    assert blob(text)["initialSort"] == "original"
    cases = ET.parse(xml).getroot().iter("testcase")  # noqa: S314
    said = [{p.attrib["name"]: p.attrib["value"] for p in case.iter("property")} for case in cases]
    assert {tuple(properties) for properties in said} == {("host", "stage", "status", "reason", "simulated")}
    assert [p["status"] for p in said if p["host"] == "lab-02"] == ["ok", "ok", "failed", *["blocked"] * 4]


def test_result_cell_is_left_alone(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """pytest-html filters and colours by its first cell; a header goes with every cell."""
    html, _ = replay(pytester, two_hosts(tmp_path))
    text = html.read_text(encoding="utf-8")
    heads = re.findall(r"<th[^>]*>(\w+)</th>", text[text.index('<thead id="results-table-head">') :])
    assert heads == ["Result", "Host", "Stage", "Status", "Reason", "Duration", "Links"]
    for row in rows(text):
        assert row["resultsTableRow"][0] == f'<td class="col-result">{row["result"]}</td>'
        assert len(row["resultsTableRow"]) == len(heads)
        assert row["log"] == ""


def test_simulated_hosts_are_marked_everywhere(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """Banner, grid, drawing, rows and junit.xml say it; a real run nowhere does."""
    html, xml = replay(pytester, two_hosts(tmp_path))
    text = html.read_text(encoding="utf-8")
    assert "SIMULATED every host of this run" in Page(text).text
    assert ">lab-01 (SIMULATED)</text>" in text
    assert all("(SIMULATED)" in row["host"] for row in rows(text))
    assert '<property name="SIMULATED" value="lab-01 lab-02" />' in xml.read_text()


def test_real_hosts_are_not_called_simulated(tmp_path: Path) -> None:
    """No banner where nothing is simulated."""
    run = new_run(tmp_path, ["gpu-01"])
    write_green(run, "gpu-01", simulated=False)
    assert "SIMULATED" not in Page(rendered(run)).text


def test_page_needs_no_script_and_no_network(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """The plain part has no script; nothing in the whole file is loaded from elsewhere."""
    html, _ = replay(pytester, two_hosts(tmp_path))
    text = html.read_text(encoding="utf-8")
    whole, plain = Page(text), Page(rendered(two_hosts(tmp_path)))
    assert [tag for tag, _ in plain.tags if tag in ("script", "img", "iframe", "link")] == []
    assert [name for _, attrs in plain.tags for name in attrs if name.startswith("on")] == []
    assert [value for value in whole.values("src") if value] == []
    assert re.findall(r"@import|url\((?!#)", text) == []
    outside = {value for value in whole.values("href") if ":" in value}
    assert outside == {"https://pypi.python.org/pypi/pytest-html"}


def test_only_the_known_script_may_run(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """The page's policy names the hash of pytest-html's script; a phone gets a viewport."""
    html, _ = replay(pytester, two_hosts(tmp_path))
    text = html.read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'" in text
    assert '<html lang="en">' in text
    assert 'name="viewport"' in text
    assert with_head("<html><head></head></html>") == "<html><head></head></html>"


def test_every_link_leads_somewhere(tmp_path: Path) -> None:
    """Links inside the page have a target, links to files a file beside the page."""
    run = two_hosts(tmp_path)
    shown = Page(rendered(run))
    ids = shown.values("id")
    assert sorted(ids) == sorted(set(ids))
    inside = [value[1:] for value in shown.values("href") if value.startswith("#") and not value.startswith("#plot")]
    assert set(inside) <= set(ids)
    assert {f"{host}.{stage}" for host in ("lab-01", "lab-02") for stage in STAGES} <= set(inside)
    files = [value for value in shown.values("href") if not value.startswith("#")]
    assert "lab-02/toolkit.1.log" in files
    assert [name for name in files if not (run.path / name).is_file()] == []


def test_hostile_output_stays_text(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """Markup, quotes, escapes, NUL, invalid UTF-8, templates and a megabyte from a host are shown, never obeyed."""
    run = new_run(tmp_path, ["lab-01"], argv=[HOSTILE], pins_file=HOSTILE, versions={HOSTILE: HOSTILE})
    for stage in STAGES:
        run.write_result(hostile(stage))
    run.log_path("lab-01", "x.log").write_bytes(b"\xff\xfe\x00" + HOSTILE.encode("utf-8", "replace") + b"A" * 10**6)
    html, xml = replay(pytester, run)
    text = html.read_text(encoding="utf-8")
    whole = Page(text)
    assert len(re.findall("<script", text)) == 1
    assert [attrs for tag, attrs in whole.tags if tag == "img"] == [{"src": ""}]
    assert "\x00" not in text
    assert "\x1b" not in text
    assert "{{ 7*7 }}{% x %}__class__" in whole.text
    assert len(rows(text)) == 7
    for row in rows(text):
        drawn = Page("".join(row["resultsTableRow"]) + "".join(extra["content"] for extra in row["extras"]))
        assert {tag for tag, _ in drawn.tags} & {"script", "img"} == set()
    assert ET.parse(xml).getroot().tag == "testsuites"  # noqa: S314
    assert len(text) < 4_000_000


def hostile(stage: str) -> StageResult:
    """A failed cell in which every text is hostile."""
    long = HOSTILE + "x" * 10**6
    check = Check(name=HOSTILE, want=HOSTILE, got=long, ok=False, hint=HOSTILE, read=HOSTILE)
    ran = Ran(why=HOSTILE, shell=long, undo=HOSTILE, reversible=False, rc=1, log="x.log")
    facts = {HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE]}, "arms": [{"stack": HOSTILE, "tokens_per_s": [1]}]}
    return result(
        "lab-01",
        stage,
        "failed",
        reason=HOSTILE,
        hint=HOSTILE,
        reused=HOSTILE,
        checks=[check],
        commands=[ran],
        facts=facts,
        measured={HOSTILE: Measured(inputs=HOSTILE, at=HOSTILE, result={HOSTILE: HOSTILE})},
    )


def test_environment_table_keeps_secrets_out(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables of a CI system, which pytest-metadata collects, are not in the page."""
    monkeypatch.setenv("BUILD_URL", "https://user:hunter2@ci.example.org")
    html, _ = replay(pytester, two_hosts(tmp_path))
    text = html.read_text(encoding="utf-8")
    assert sorted(blob(text)["environment"]) == ["Mode", "Pins", "Run"]
    assert "hunter2" not in text


def test_failed_stage_stands_open_with_its_evidence(tmp_path: Path) -> None:
    """Want and got, command with undo and exit code, log and hint are in the plain part."""
    shown = Page(rendered(two_hosts(tmp_path))).text
    for words in (
        "differs toolkit 13.0.2 13.0.2 in version.json 12.8.1",
        "sudo -n rm -rf /opt/fleet/stacks/5b1f/cuda-13.0.2 exit code 0 1 min 1 s undone",
        "Extracting Installer finished",
        "lab-02 toolkit : another toolkit owns the symlink",
    ):
        assert words in shown


def test_commands_wrap_between_words_and_copy_whole(tmp_path: Path) -> None:
    """Options are not torn at their hyphens, and the text is the command."""
    text = rendered(two_hosts(tmp_path))
    assert "<span>--toolkitpath=/opt/fleet/stacks/5b1f</span>" in text
    found = re.findall(r'<pre class="command">(.*?)</pre>', text)
    assert "".join(Page(found[0]).words) == installer_command()


def installer_command() -> str:
    """What the sample's toolkit stage ran."""
    return "sudo -n sh cuda_13.0.2_580.95.05_linux.run --silent --toolkit --toolkitpath=/opt/fleet/stacks/5b1f"


def test_warnings_of_a_run_are_shown_once(tmp_path: Path) -> None:
    """What was noticed on the way stands in the page, a repetition does not."""
    run = two_hosts(tmp_path)
    for _ in range(2):
        run.event("lab-01", "driver", "warning", "start-up files of the shell took 0.3 s <b>")
    run.event("lab-01", "driver", "finished", "ok")
    text = rendered(run)
    assert text.count("start-up files of the shell took 0.3 s &lt;b&gt;") == 1
    assert "Warnings" not in rendered(two_hosts(tmp_path / "other"))


def test_log_of_carriage_returns_becomes_lines(tmp_path: Path) -> None:
    """A progress bar in a log is readable."""
    assert "<pre>progress 1 of 2\nprogress 2 of 2\ninstalled" in rendered(two_hosts(tmp_path))


def test_a_large_fleet_gives_a_page_of_bounded_size(tmp_path: Path) -> None:
    """Green logs share a budget; a failed one is always there in full."""
    hosts = [f"gpu-{number:03}" for number in range(100)]
    run = new_run(tmp_path, hosts)
    for host in hosts:
        write_green(run, host)
        run.log_path(host, "toolkit.1.log").write_text("line of a log\n" * 10_000)
    run.write_result(
        result("gpu-007", "toolkit", "failed", commands=[Ran(why="", shell="", undo="", log="toolkit.1.log")])
    )
    text = rendered(run)
    assert len(text) < 12_000_000
    assert max(box.count("line of a log") for box in text.split("<pre>")) > 4000
    assert "Drawings are left out" in text
