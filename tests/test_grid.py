"""The grid as a terminal shows it."""

import re
from pathlib import Path

import pytest
from report_samples import HOSTILE, STAGES, new_run, result, two_hosts, write_green

from fleet.grid import cell_of, grid, settled, summary
from fleet.model import Check, Ran

TWO_HOSTS = """\
host    driver  runfile  toolkit  wheels   kernels  eagle3   switch
lab-01  ok      ok       changed  changed  ok       ok       changed  SIMULATED
lab-02  ok      ok       failed   blocked  blocked  blocked  blocked  SIMULATED

lab-02 toolkit: failed: toolkit 13.0.2: want 13.0.2 in version.json, got 12.8.1
  read: cat /opt/fleet/stacks/5b1f/cuda-13.0.2/version.json
hint: another toolkit owns the symlink; `nox -s plan -- --on lab-02 --only toolkit` shows the change

lab-02 wheels, kernels, eagle3, switch: blocked: toolkit failed"""


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("stages/test_30_toolkit.py::test_toolkit_is_installed[lab-01]", ("lab-01", "toolkit")),
        ("test_60_eagle3.py::test_eagle3_is_faster[gpu.example.org]", ("gpu.example.org", "eagle3")),
        ("stages/test_70_two_words.py::test_x[a b]", ("a b", "two_words")),
        ("stages/test_30_toolkit.py::test_x[lab-01]@lab-01", ("lab-01", "toolkit")),
        ("stages/test_30_toolkit.py::test_toolkit_is_installed", None),
        ("tests/test_grid.py::test_x[lab-01]", None),
        ("stages/test_30_toolkit.py", None),
    ],
)
def test_host_and_stage_are_read_from_a_node_id(nodeid: str, expected: tuple[str, str] | None) -> None:
    """The file's word and the last bracket; other tests are no cells."""
    assert cell_of(nodeid) == expected


def test_grid_lists_each_cause_once_with_evidence_and_hint(tmp_path: Path) -> None:
    """Blocked cells of one host share one line; the wrong check is not said twice."""
    assert grid(two_hosts(tmp_path)) == TWO_HOSTS


def test_grid_fits_the_width_it_is_given(tmp_path: Path) -> None:
    """Stages as columns, then hosts as columns, then a list; only single words may stick out."""
    run = two_hosts(tmp_path)
    for width in (100, 70, 28):
        lines = grid(run, width=width).splitlines()
        assert [line for line in lines if len(line) > width and len(line.split()) > 2] == []
        assert [line for line in lines if line != line.rstrip()] == []
    assert "toolkit  changed    failed" in grid(run, width=60)
    assert "lab-02: driver ok, runfile" in grid(run, width=28)


def test_colour_only_adds_to_the_words(tmp_path: Path) -> None:
    """Without its escape sequences the coloured grid is the plain one."""
    run = two_hosts(tmp_path)
    coloured = grid(run, colour=True)
    assert "\x1b[31mfailed\x1b[0m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == grid(run)


def test_nothing_from_a_host_reaches_the_terminal_raw(tmp_path: Path) -> None:
    """Colours, titles, NUL and text-direction marks are neutralised, a megabyte is cut."""
    run = new_run(tmp_path, ["lab-01"])
    check = Check(name=HOSTILE, want=HOSTILE, got=HOSTILE + "x" * 10**6, ok=None, hint=HOSTILE, read=HOSTILE)
    run.write_result(result("lab-01", "driver", "failed", reason=HOSTILE, hint=HOSTILE, checks=[check]))
    shown = grid(run)
    assert re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown) == []
    assert "[31m" not in shown
    assert "(the host could not tell)" in shown
    assert len(shown) < 5000


def test_stages_without_a_record_are_not_run(tmp_path: Path) -> None:
    """A run that ended early shows what it did not come to, on one line per host."""
    run = new_run(tmp_path, ["lab-01"])
    run.write_result(result("lab-01", "driver", "running"))
    shown = grid(run)
    assert "lab-01 driver: interrupted: " in shown
    assert f"lab-01 {', '.join(STAGES[1:])}: not run: " in shown


def test_an_unreadable_record_costs_its_own_cell(tmp_path: Path) -> None:
    """The other cells are shown; the broken one is failed and says why."""
    run = two_hosts(tmp_path)
    run.log_path("lab-01", "wheels.json").write_text("{")
    results = settled(run)
    assert results["lab-01", "wheels"].status == "failed"
    assert results["lab-01", "kernels"].status == "ok"
    assert "wheels.json: unreadable" in " ".join(grid(run).split())


def test_a_host_is_simulated_in_all_its_cells(tmp_path: Path) -> None:
    """Also in those that were never run."""
    run = new_run(tmp_path, ["lab-01", "gpu-01"])
    run.write_result(result("lab-01", "driver", simulated=True))
    marked = {cell for cell, row in settled(run).items() if row.simulated}
    assert marked == {("lab-01", stage) for stage in STAGES}


def test_reused_measurements_are_named_with_their_time(tmp_path: Path) -> None:
    """A green cell that was not measured now says so."""
    run = new_run(tmp_path, ["lab-01"])
    write_green(run, "lab-01")
    run.write_result(result("lab-01", "eagle3", reused="2026-11-29T10:00:00Z"))
    assert "lab-01 eagle3: measured 2026-11-29T10:00:00Z, reused" in grid(run)


def test_summary_counts_statuses_in_a_fixed_order(tmp_path: Path) -> None:
    """Good ones first; nothing at all is said in words."""
    assert summary(settled(two_hosts(tmp_path)).values()) == "6 ok, 3 changed, 1 failed, 4 blocked"
    assert summary([]) == "no stage"


def test_a_run_without_hosts_says_so(tmp_path: Path) -> None:
    """An empty grid is not an empty string."""
    assert grid(new_run(tmp_path, [])) == "no host or no stage in this run"


PLAN = """\
host    driver  toolkit
lab-01  ok      would change
lab-02  ok      would change

lab-01, lab-02 toolkit: would change
  download the runfile (4.33 GB)
    undo: rm -f cuda.run
  install the toolkit
    undo: differs by host, see the report
  measure it
    measures only: nothing to undo"""


def test_a_plan_names_equal_steps_once(tmp_path: Path) -> None:
    """Steps with their size and undo, for all hosts on which they are the same."""
    run = new_run(tmp_path, ["lab-01", "lab-02"], mode="plan", stages=["driver", "toolkit"])
    for host in ("lab-01", "lab-02"):
        steps = [
            Ran(why="download the runfile", shell="fetch", undo="rm -f cuda.run", size_bytes=4328066903),
            Ran(why="install the toolkit", shell="sh cuda.run", undo=f"rm -rf /hosts/{host}/cuda"),
            Ran(why="measure it", shell="python kernels.py", undo="", measures=True),
        ]
        run.write_result(result(host, "driver"))
        run.write_result(result(host, "toolkit", "would change", commands=steps))
    assert grid(run) == PLAN
