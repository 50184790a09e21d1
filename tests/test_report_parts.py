"""The sentences, drawings and colours that report.html is made of."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from report_samples import ARMS, FLOOR, Page, new_run, rendered, result, two_hosts

from fleet import plot, report_page
from fleet.model import RunRecord, StageResult
from fleet.report_arms import throughput
from fleet.report_decisions import decisions_html, decisions_of
from fleet.report_throughput import throughput_section
from fleet.report_verdict import next_steps, verdict
from fleet.run import Run


def measured(folder: Path, hosts: list[str], arms: Any, floor: Any = FLOOR) -> Run:
    """A run whose hosts' EAGLE-3 stage has these facts."""
    run = new_run(folder, hosts, stages=["eagle3"])
    for host in hosts:
        run.write_result(result(host, "eagle3", facts={"arms": arms, "floor": floor}))
    return run


@pytest.mark.parametrize(
    ("changes", "statuses", "expected"),
    [
        ({}, ["ok", "changed"], "Done: all 2 stages of a are green (1 ok, 1 changed)."),
        (
            {"stages": ["toolkit", "switch"]},
            ["ok", "changed"],
            "Upgraded: all 2 stages of a are green (1 ok, 1 changed).",
        ),
        ({}, ["ok", "ok"], "Nothing to change: all 2 stages of a are ok."),
        (
            {"mode": "plan"},
            ["ok", "would change"],
            "Planned: 1 ok, 1 would change (all 2 stages of a); no host was changed.",
        ),
        ({"mode": "validate"}, ["ok", "ok"], "Valid: all 2 stages of a are green (2 ok)."),
        ({"mode": "rollback"}, ["ok", "changed"], "Rolled back: all 2 stages of a are green (1 ok, 1 changed)."),
        ({}, ["failed", "blocked"], "Not done: driver failed; runfile blocked on a."),
        ({}, ["ok", "not run"], "Not done: runfile not run on a."),
        ({}, ["ok", "blocked"], "Not done: runfile blocked on a."),
        ({}, ["interrupted", "not run"], "Not done: driver interrupted; runfile not run on a."),
        (
            {"outcome": "interrupted"},
            ["ok", "ok"],
            "Not done: every recorded stage is green, but the run itself was interrupted.",
        ),
    ],
)
def test_verdict_is_green_only_when_everything_is(changes: dict[str, Any], statuses: list[Any], expected: str) -> None:
    """One sentence; blocked, interrupted and missing cells are never green."""
    record = cells_record(**changes)
    cells = {("a", s): StageResult(host="a", stage=s, status=w) for s, w in zip(record.stages, statuses, strict=True)}
    found = verdict(record, cells)
    assert found.text == expected
    assert found.green == (not expected.startswith("Not "))


def cells_record(**changes: Any) -> RunRecord:
    """The record of a run over host `a`."""
    known: dict[str, Any] = {"id": "r", "mode": "apply", "started": "", "hosts": ["a"], "stages": ["driver", "runfile"]}
    return RunRecord(**{**known, "pins_file": "", "pins_digest": "", "stack": "", **changes})


def test_verdict_of_nothing_is_not_green() -> None:
    """A run that looked at nothing proved nothing."""
    assert not verdict(cells_record(hosts=[]), {}).green


def test_verdict_names_a_few_hosts_and_counts_the_rest() -> None:
    """A sentence stays a sentence with many hosts."""
    hosts = [f"h{number}" for number in range(30)]
    cells = {(h, s): StageResult(host=h, stage=s, status="unreachable") for h in hosts for s in ("driver", "runfile")}
    assert verdict(cells_record(hosts=hosts), cells).text.endswith(
        "h3 (driver and runfile unreachable), and 26 more hosts."
    )


def test_equal_hints_are_one_step(tmp_path: Path) -> None:
    """The same advice for many cells is given once, with the cells."""
    cells = {(h, "driver"): result(h, "driver", "failed", hint="do this") for h in ("a", "b")}
    assert [(step.text, step.cells) for step in next_steps(cells_record(), cells)] == [
        ("do this", [("a", "driver"), ("b", "driver")])
    ]
    assert next_steps(two_hosts(tmp_path).record, {}) == []


@pytest.mark.parametrize(
    ("arms", "floor"),
    [
        (None, None),
        ("fast", "high"),
        ([], {}),
        ([None, 3, [], {}], FLOOR),
        ([{"stack": "new", "speculation": "with", "tokens_per_s": []}], FLOOR),
        ([{"stack": "new", "speculation": "with", "tokens_per_s": ["x", None]}], FLOOR),
        ([{"stack": "new", "speculation": "maybe", "tokens_per_s": [1.0]}], FLOOR),
        ([{"stack": "new", "speculation": "with", "tokens_per_s": [10**400, 1.0]}], FLOOR),
        ([{"speculation": "with", "tokens_per_s": [0, 0]}], {"tokens_per_s": True, "speedup": "x"}),
        ([{"stack": "$\\frac{$", "speculation": "with", "tokens_per_s": [1.0], "acceptance_length": "x"}], FLOOR),
        (ARMS[:1], None),
    ],
)
def test_malformed_measurements_are_named_not_fatal(arms: Any, floor: Any) -> None:
    """Whatever the facts hold, there is a section, and it says what is missing."""
    text = throughput_section({("a", "eagle3"): result("a", "eagle3", facts={"arms": arms, "floor": floor})})
    assert re.search("no measurement|unreadable measurement", text)
    assert "No drawing" not in text


def test_a_run_that_measured_nothing_says_so(tmp_path: Path) -> None:
    """The section is there when the stage was asked for, and only then."""
    run = new_run(tmp_path, ["a"])
    assert "Not measured in this run." in throughput_section(run.results())
    assert throughput_section({}) == ""


def test_numbers_of_the_drawing_are_a_table_too(tmp_path: Path) -> None:
    """Medians, all runs, acceptance length, speed-up and floor can be read without the drawing."""
    shown = Page(rendered(measured(tmp_path, ["a"], ARMS))).text
    assert "a new, CUDA 13.0 with 122.0 121.9 to 125.3 122.0 118.2 125.3 121.9 127.0 2.60 1.32×" in shown
    assert "a floor in the pins with 90.2 1.00×" in shown
    assert "2.26× the median of before, CUDA 12.8, with EAGLE-3" in shown


def test_drawing_is_reproducible_and_has_words() -> None:
    """Equal data give equal bytes; text is text, colours are the page's, ids are its own."""
    found = throughput(result("a", "eagle3", facts={"arms": ARMS, "floor": FLOOR}))
    assert found is not None
    drawn = plot.svg(found, 3)
    assert drawn == plot.svg(found, 3)
    for words in (">122.0</text>", ">length 2.60</text>", ">90.2</text>", "var(--plot-floor)", "<title>Median output"):
        assert words in drawn
    assert [name for name in re.findall(r'\bid="([^"]*)"', drawn) if not name.startswith("plot-3-")] == []
    assert "#0102" not in drawn


def test_up_to_eight_hosts_are_drawn(tmp_path: Path) -> None:
    """Each has its own drawing; more are only a table."""
    text = rendered(measured(tmp_path, [f"h{number}" for number in range(8)], ARMS))
    assert text.count("<svg") == 8
    assert text.count('class="numbers"') == 1


def test_drawing_library_is_not_imported_for_nothing() -> None:
    """A run without a throughput stage does not pay for matplotlib."""
    code = "import sys, fleet.report, fleet.grid; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_colours_have_enough_contrast() -> None:
    """Text and its background differ by 4.5:1 in light and in dark."""
    sheet = Path(report_page.__file__).with_name("report.css").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in sheet.split("@media")[:2])
    pairs = [
        ("ink", "paper"),
        ("ink", "card"),
        ("soft", "paper"),
        ("soft", "card"),
        ("link", "paper"),
        ("link", "card"),
    ]
    pairs += [(f"{kind}-ink", f"{kind}-bg") for kind in ("good", "changed", "would", "bad", "idle", "banner")]
    pairs += [(f"{kind}-ink", ground) for kind in ("good", "would", "bad") for ground in ("paper", "card")]
    pairs += [("plot-floor", "paper")]
    for colours in (light, dark):
        assert [pair for pair in pairs if contrast(colours[pair[0]], colours[pair[1]]) < 4.5] == []


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours as WCAG 2 defines it."""
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour: str) -> float:
    """The relative luminance of #rrggbb."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_decisions_are_shown_and_escaped() -> None:
    """The chosen, the evidence and the rejected of a decision are in its block; a row that is none is left out."""
    evidence = {"source": "md5sum.txt", "says": "<b>x</b>", "url": "http://m/md5sum.txt", "status": 200}
    good = {
        "subject": "CUDA runfile",
        "wish": "13.0.2",
        "candidates": [{"name": "a.run", "evidence": [evidence]}],
        "chosen": "a.run",
        "reason": "listed",
        "rejected": [{"name": "b.run", "reason": "belongs to 13.0.1"}],
        "conflicts": ["two sums"],
    }
    found = decisions_of({"decisions": [good, {"subject": 7}, "x"]})
    shown = decisions_html(found)
    assert len(found) == 1
    for text in ("CUDA runfile", "a.run", "md5sum.txt", "b.run", "belongs to 13.0.1", "two sums", "&lt;b&gt;"):
        assert text in shown
    assert "<b>x</b>" not in shown


def test_facts_without_decisions_show_none() -> None:
    """Neither missing nor malformed decisions make a block."""
    assert decisions_html(decisions_of({})) == ""
    assert decisions_of({"decisions": "none"}) == []
