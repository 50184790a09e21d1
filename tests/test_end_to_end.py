"""The whole story on one lab host: plan, upgrade, upgrade again, validate, back, and forth."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest
from stages_kit import STAGES, Outcome, Scene, open_scene

from lab.writes import Snapshot

ALL_OK = dict.fromkeys(STAGES, "ok")


@dataclass(frozen=True)
class Step:
    """One run of the story, and the host right after it."""

    outcome: Outcome
    writes: int
    installs: int
    current: str
    former: str
    in_use: Snapshot


@dataclass(frozen=True)
class Story:
    """All steps, in order."""

    before: Snapshot
    plan: Step
    upgrade: Step
    again: Step
    validate: Step
    rollback: Step
    validate_back: Step
    forth: Step

    @property
    def steps(self) -> list[Step]:
        """Every step."""
        return [self.plan, self.upgrade, self.again, self.validate, self.rollback, self.validate_back, self.forth]


def _step(scene: Scene, mode: str) -> Step:
    seen, before = len(scene.lab.visits("lab-01")), scene.host.snapshot()
    outcome = scene.stages(mode)
    writes = scene.writes(since=seen) + scene.host.changes_since(before).count
    links = [scene.base / name for name in ("current", "former")]
    current, former = (str(link.readlink()) if link.is_symlink() else "" for link in links)
    return Step(outcome, writes, len(scene.host.installs()), current, former, scene.in_use())


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, lab_cache: Path) -> Iterator[Story]:
    """The story, told once for all tests of this file."""
    modes = ["plan", "apply", "apply", "validate", "rollback", "validate", "apply"]
    with open_scene(tmp_path_factory.mktemp("story"), lab_cache) as scene:
        yield Story(scene.in_use(), *(_step(scene, mode) for mode in modes))


def test_plan_says_what_would_happen(story: Story) -> None:
    """Changes and measurements are announced as such, with their undo, and nothing is red."""
    outcome = story.plan.outcome
    changes, runs = dict.fromkeys(("toolkit", "wheels", "switch"), "would change"), ("kernels", "eagle3")
    assert outcome.statuses() == {"driver": "ok", "runfile": "ok"} | changes | dict.fromkeys(runs, "would run")
    assert "2 ok, 3 would change, 2 would run" in outcome.told
    assert "install the CUDA 13.0.2 toolkit undo: rm -rf" in outcome.told
    assert outcome.rc == 0


def test_plan_changes_nothing(story: Story) -> None:
    """Not one path on the host, and no installer ran."""
    assert (story.plan.writes, story.plan.installs, story.plan.current) == (0, 0, "")


def test_upgrade_goes_through_all_stages(story: Story) -> None:
    """Seven green stages, three of which changed the host."""
    outcome = story.upgrade.outcome
    assert outcome.statuses() == ALL_OK | dict.fromkeys(("toolkit", "wheels", "switch"), "changed")
    assert "4 ok, 3 changed" in outcome.told
    assert (outcome.rc, outcome.run.record.outcome) == (0, "passed")
    assert (story.upgrade.installs, story.upgrade.current) == (1, f"stacks/{outcome.run.record.stack}")


def test_upgrade_keeps_the_former_stack(story: Story) -> None:
    """The stack in use before is adopted and named, so that there is a way back."""
    assert story.upgrade.former.startswith("stacks/adopted-")
    assert "CUDA 12.8.1" in story.upgrade.outcome.result("switch").facts["former"]


def test_upgrade_measures_both_stacks(story: Story) -> None:
    """Before and after, without and with EAGLE-3: four arms, and the new one is faster with it."""
    facts = story.upgrade.outcome.result("eagle3").facts
    rates = {(arm["cuda"], arm["speculation"]): max(arm["tokens_per_s"]) for arm in facts["arms"]}
    assert set(rates) == {(cuda, arm) for cuda in ("12.8.1", "13.0.2") for arm in ("without", "with")}
    assert rates["13.0.2", "with"] > rates["13.0.2", "without"] > rates["12.8.1", "with"]


def test_upgrade_leaves_its_evidence(story: Story) -> None:
    """The run directory holds report, JUnit, record, pins, events, probe, and each stage with its logs."""
    path = story.upgrade.outcome.run.path
    wanted = ["report.html", "junit.xml", "run.json", "pins.toml", "events.log"]
    wanted += [f"lab-01/{stage}.json" for stage in STAGES] + ["lab-01/probe.json", "lab-01/toolkit.1.log"]
    assert [name for name in wanted if not (path / name).is_file()] == []
    assert str(path / "report.html") in story.upgrade.outcome.stdout


def test_junit_has_a_case_for_each_stage(story: Story) -> None:
    """A CI system sees seven tests, each with its status."""
    cases = ElementTree.parse(story.upgrade.outcome.run.path / "junit.xml").iter("testcase")  # noqa: S314 - our own
    found = [{prop.get("name"): prop.get("value") for prop in case.iter("property")} for case in cases]
    assert [case["stage"] for case in found] == STAGES
    assert [case["status"] for case in found] == ["ok", "ok", "changed", "changed", "ok", "ok", "changed"]


@pytest.mark.parametrize("step", ["plan", "upgrade", "validate", "rollback"])
def test_simulated_is_said_everywhere(story: Story, step: str) -> None:
    """Terminal, page, JUnit and record all say that this was a lab."""
    outcome: Outcome = getattr(story, step).outcome
    assert "SIMULATED" in outcome.stdout
    assert "SIMULATED" in outcome.report()
    assert "SIMULATED" in (outcome.run.path / "junit.xml").read_text("utf-8")
    assert outcome.run.record.simulated == ["lab-01"]


def test_second_upgrade_is_a_no_op(story: Story) -> None:
    """Every stage ok, nothing written, the installer not run again."""
    assert story.again.outcome.statuses() == ALL_OK
    assert (story.again.outcome.rc, story.again.writes, story.again.installs) == (0, 0, 1)


@pytest.mark.parametrize("stage", ["kernels", "eagle3"])
def test_second_upgrade_reuses_measurements_and_says_so(story: Story, stage: str) -> None:
    """The results are those of the first run, shown with the time they were measured."""
    first, second = story.upgrade.outcome.result(stage), story.again.outcome.result(stage)
    assert first.measured == second.measured
    assert second.reused == min(one.at for one in first.measured.values())
    assert f"lab-01 {stage}: measured {second.reused}, reused" in story.again.outcome.told


def test_validate_is_green_on_the_new_stack(story: Story) -> None:
    """The stack in use is looked at, and it is the new one; nothing is written."""
    outcome = story.validate.outcome
    assert (outcome.rc, outcome.statuses(), story.validate.writes) == (0, ALL_OK, 0)
    assert "CUDA 13.0.2" in outcome.result("toolkit").reason


def test_rollback_puts_the_former_stack_in_use(story: Story) -> None:
    """`current` points at the adopted stack again; the new one stays on the disk."""
    assert story.rollback.outcome.statuses() == {"rollback": "changed"}
    assert (story.rollback.outcome.rc, story.rollback.current) == (0, story.upgrade.former)
    assert story.rollback.former == ""


def test_validate_after_rollback_says_the_old_release(story: Story) -> None:
    """The stack looked at is CUDA 12.8.1, in the record and on the terminal; nothing is written."""
    outcome = story.validate_back.outcome
    assert (outcome.rc, outcome.statuses(), story.validate_back.writes) == (0, ALL_OK, 0)
    assert "CUDA 12.8.1" in outcome.result("switch").reason
    assert re.search(r"switch +ok: .*CUDA 12\.8\.1", outcome.stderr)


def test_upgrade_after_rollback_only_switches(story: Story) -> None:
    """Nothing is installed or measured a second time."""
    assert story.forth.outcome.statuses() == ALL_OK | {"switch": "changed"}
    assert (story.forth.installs, story.forth.current) == (1, story.upgrade.current)
    assert story.forth.former == story.upgrade.former


def test_stack_in_use_is_never_touched(story: Story) -> None:
    """Not one file of the 12.8 stack or of /usr/local changes, from the first to the last step."""
    assert len(story.before) > 100
    assert [step.in_use == story.before for step in story.steps] == [True] * 7
