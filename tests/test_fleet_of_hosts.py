"""Several hosts at once: each in its own order, none held up or brought down by another."""

import html
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from stages_kit import ROOT, Outcome, Scene

HOSTS = ("lab-01", "lab-02", "lab-03")
QUICK = ["driver", "runfile", "toolkit"]
DONE = {"driver": "ok", "runfile": "ok", "toolkit": "changed"}

EXTRA_STAGE = '''\
"""A stage that misbehaves on one host."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet.model import Check

READS = {{}}


@dataclass
class Odd:
    """Not plain data."""

    path: Path


def plan(host, pins):
    """Counts how often it is called, then misbehaves."""
    with open({tally!r}, "a") as tally:
        tally.write(host.name + "\\n")
    if host.name == "lab-02":
        {misdeed}
    return []


def verify(host, pins):
    """One check, always right."""
    yield Check(name="mood", want="good", got="good", ok=True)


def test_trouble_is_survived(stage, record_property):
    """Whatever happens here stays here."""
    {before}
    stage(plan, verify)
'''


def _finished(outcome: Outcome, host: str) -> list[str]:
    return [event.stage for event in outcome.events(host) if event.kind == "finished"]


def _checkout(folder: Path, misdeed: str, before: str = "pass") -> tuple[Path, Path]:
    """A copy of the tool with one more stage between runfile and toolkit, and the file where it counts its calls."""
    copy, tally = folder / "checkout", folder / "tally"
    for name in ("fleet", "checks", "stages"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    text = EXTRA_STAGE.format(tally=str(tally), misdeed=misdeed, before=before)
    (copy / "stages/test_25_trouble.py").write_text(text)
    return copy, tally


@pytest.fixture
def troubled(tmp_path: Path, scene: Callable[..., Scene]) -> Callable[..., tuple[Outcome, list[str]]]:
    """Runs three hosts through a tool with the extra stage; gives the outcome and the hosts it was called for."""

    def run(misdeed: str, before: str = "pass") -> tuple[Outcome, list[str]]:
        checkout, tally = _checkout(tmp_path, misdeed, before)
        outcome = scene(hosts=3, checkout=checkout).stages("apply", "--only=driver,runfile,trouble,toolkit")
        return outcome, sorted(tally.read_text().split()) if tally.exists() else []

    return run


def _others_finished(outcome: Outcome) -> bool:
    return all(outcome.statuses(host) == DONE | {"trouble": "ok"} for host in ("lab-01", "lab-03"))


def test_each_host_goes_through_the_stages_in_order(scene: Callable[..., Scene]) -> None:
    """Three hosts, three workers: every host has its stages one after the other."""
    outcome = scene(hosts=3).stages("apply", f"--only={','.join(QUICK)}")
    assert outcome.rc == 0
    assert [outcome.statuses(host) for host in HOSTS] == [DONE] * 3
    assert [_finished(outcome, host) for host in HOSTS] == [QUICK] * 3


def test_fewer_workers_than_hosts_finish_all_hosts_in_order(scene: Callable[..., Scene]) -> None:
    """A host waits for a free worker, and is not split between two."""
    outcome = scene(hosts=3).stages("apply", f"--only={','.join(QUICK)}", "--workers=2")
    assert outcome.rc == 0
    assert [_finished(outcome, host) for host in HOSTS] == [QUICK] * 3


def test_failing_host_blocks_only_itself(scene: Callable[..., Scene]) -> None:
    """One old driver: its host stops there, the others are changed, and the run as a whole is red."""
    stage = scene(hosts=3, faults=["driver-too-old@lab-02"])
    outcome = stage.stages("apply", f"--only={','.join(QUICK)}")
    assert outcome.statuses("lab-02") == {"driver": "failed", "runfile": "blocked", "toolkit": "blocked"}
    assert [outcome.statuses(host) for host in ("lab-01", "lab-03")] == [DONE] * 2
    assert (outcome.rc, stage.built("lab-02")) == (1, set())
    assert "lab-02 driver: failed" in outcome.told


def test_unreachable_host_is_asked_once_and_blocks_only_itself(scene: Callable[..., Scene]) -> None:
    """A host that is down costs one attempt, not one a stage, also where threads plan."""
    outcome = scene(hosts=3, faults=["host-unreachable@lab-02"]).stages("plan")
    assert outcome.statuses("lab-02") == {"driver": "unreachable"} | dict.fromkeys(
        ("runfile", "toolkit", "wheels", "kernels", "eagle3", "switch"), "blocked"
    )
    assert (outcome.rc, outcome.statuses("lab-01")["switch"]) == (1, "would change")
    assert outcome.told.count("no connection to") == 1


def test_dying_worker_is_not_started_again(troubled: Callable[..., tuple[Outcome, list[str]]]) -> None:
    """A stage that kills its process: once, its cell is interrupted, and the other hosts finish."""
    outcome, calls = troubled("os._exit(1)")
    assert calls.count("lab-02") == 1
    assert outcome.statuses("lab-02") == {
        "driver": "ok",
        "runfile": "ok",
        "trouble": "interrupted",
        "toolkit": "not run",
    }
    assert (_others_finished(outcome), outcome.rc) == (True, 1)
    assert "interrupted" in outcome.report()


def test_crashing_stage_is_shown_with_its_traceback(troubled: Callable[..., tuple[Outcome, list[str]]]) -> None:
    """An error in a stage's own code fails its cell, blocks what follows, and is in the page, escaped."""
    outcome, _ = troubled("raise RuntimeError('<b>boom</b>')")
    result = outcome.result("trouble", "lab-02")
    assert (result.status, result.reason) == ("failed", "the stage crashed: RuntimeError: <b>boom</b>")
    assert outcome.statuses("lab-02")["toolkit"] == "blocked"
    assert (_others_finished(outcome), outcome.rc) == (True, 1)
    page = outcome.report()
    assert "<b>boom</b>" not in page
    assert "Traceback (most recent call last)" in page
    assert "RuntimeError: <b>boom</b>" in html.unescape(page)


def test_facts_that_are_no_plain_data_cost_only_their_cell(
    troubled: Callable[..., tuple[Outcome, list[str]]],
) -> None:
    """What cannot be recorded fails its stage by name; the session and the other hosts go on."""
    outcome, _ = troubled("host.facts['odd'] = Path('/')")
    result = outcome.result("trouble", "lab-02")
    assert (result.status, "the stage crashed: TypeError" in result.reason) == ("failed", True)
    assert outcome.statuses("lab-02")["toolkit"] == "blocked"
    assert (_others_finished(outcome), outcome.rc) == (True, 1)


def test_odd_values_on_a_report_do_not_end_the_session(troubled: Callable[..., tuple[Outcome, list[str]]]) -> None:
    """Whole sessions of xdist die of a dataclass or a path on a report: none gets there."""
    outcome, _ = troubled("pass", before="record_property('odd', Odd(Path('/')))")
    assert [outcome.statuses(host) for host in HOSTS] == [DONE | {"trouble": "ok"}] * 3
    assert (outcome.rc, "DumpError" in outcome.stderr + outcome.stdout) == (0, False)


def test_error_outside_of_the_stage_is_told(troubled: Callable[..., tuple[Outcome, list[str]]]) -> None:
    """A test file that fails before it calls its stage makes the run red, and says where."""
    outcome, calls = troubled("pass", before="raise LookupError('before the stage')")
    assert (outcome.rc, calls) == (1, [])
    assert "LookupError: before the stage" in outcome.stderr
    assert [outcome.statuses(host)["trouble"] for host in HOSTS] == ["not run"] * 3


def test_stage_file_that_cannot_be_imported_stops_the_run_before_any_host(
    tmp_path: Path, scene: Callable[..., Scene]
) -> None:
    """Workers would go on without it: hosts would be changed by a story with a page missing."""
    checkout, _ = _checkout(tmp_path, "pass")
    (checkout / "stages/test_25_trouble.py").write_text("import no_module_of_that_name\n")
    stage = scene(hosts=2, checkout=checkout)
    outcome = stage.stages("apply")
    assert outcome.rc == 4
    assert "test_25_trouble.py: cannot be imported: ModuleNotFoundError" in outcome.stderr
    assert [stage.built(host.name) for host in stage.lab.hosts] == [set(), set()]
