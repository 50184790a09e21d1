"""`validate` on a host we never changed: it finds the stack in use or says that it does not know; it writes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from stages_kit import STAGES, Outcome, Scene, edited

LOOKS = "--only=toolkit,wheels,switch"


def _untold(stage: Scene) -> None:
    """Nobody says in hosts.toml what the host runs."""
    with edited(stage.lab.hosts_file) as file:
        del file["hosts"]["lab-01"]["in_use"]


def _serving(stage: Scene, python: Path) -> None:
    """A server of that interpreter shows in the host's /proc."""
    folder = stage.host.root / "proc/4711"
    folder.mkdir()
    words = [str(python), "-m", "sglang.launch_server", "--model-path", "moonshotai/Kimi-K2.5"]
    folder.joinpath("cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))


def _nothing_written(stage: Scene, validate: Callable[[], Outcome]) -> Outcome:
    """Validates, and fails when anything on the host's disk is not as it was."""
    before = stage.host.snapshot()
    outcome = validate()
    assert (stage.writes(), stage.host.changes_since(before).count) == (0, 0)
    return outcome


def test_told_stack_is_validated_in_full(scene: Callable[..., Scene]) -> None:
    """hosts.toml names interpreter and toolkit: all seven stages look at them, and are green."""
    stage = scene()
    stage.host.set(sudo="password")
    outcome = _nothing_written(stage, lambda: stage.stages("validate"))
    assert (outcome.rc, outcome.statuses()) == (0, dict.fromkeys(STAGES, "ok"))
    assert "CUDA 12.8.1" in outcome.result("switch").reason
    assert {arm["cuda"] for arm in outcome.result("eagle3").facts["arms"]} == {"12.8.1"}


def test_running_server_tells_the_stack(scene: Callable[..., Scene]) -> None:
    """The interpreter of the server that runs, and /usr/local/cuda, are the stack in use."""
    stage = scene()
    _untold(stage)
    _serving(stage, stage.host.root / "opt/sglang-cu128/venv/bin/python")
    outcome = _nothing_written(stage, lambda: stage.stages("validate", LOOKS))
    assert (outcome.rc, outcome.statuses()) == (0, {"toolkit": "ok", "wheels": "ok", "switch": "ok"})
    assert outcome.result("wheels").facts["packages"]["torch"] == "2.9.1"
    assert "CUDA 12.8.1, torch 2.9.1" in outcome.result("switch").reason


def test_serving_host_is_looked_at_and_not_disturbed(scene: Callable[..., Scene]) -> None:
    """While a server holds the GPUs nothing is measured on them: that is said, and everything else is checked."""
    stage = scene(faults=["server-running"])
    outcome = _nothing_written(stage, lambda: stage.stages("validate"))
    unmeasured = dict.fromkeys(("kernels", "eagle3"), "failed")
    assert (outcome.rc, outcome.statuses()) == (1, dict.fromkeys(STAGES, "ok") | unmeasured)
    assert "the GPUs are held by 4321 sglang::scheduler" in outcome.told
    assert [check.ok for check in outcome.result("kernels").failed_checks] == [None]


def test_toolkit_alone_is_found_and_the_rest_is_unknown(scene: Callable[..., Scene]) -> None:
    """Only /usr/local/cuda is there to see: it is checked, and no interpreter is made up."""
    stage = scene()
    _untold(stage)
    outcome = _nothing_written(stage, lambda: stage.stages("validate", "--only=toolkit,wheels,kernels"))
    assert (outcome.rc, outcome.statuses()) == (1, {"toolkit": "ok", "wheels": "failed", "kernels": "failed"})
    assert [check.ok for stage in ("wheels", "kernels") for check in outcome.result(stage).failed_checks] == [None] * 2
    assert "in_use.python" in outcome.told


def test_unknown_stack_is_never_green(scene: Callable[..., Scene]) -> None:
    """No word in hosts.toml, no server, no /usr/local/cuda: each stage that needs a stack says that there is none."""
    stage = scene()
    _untold(stage)
    (stage.host.root / "usr/local/cuda").unlink()
    stages = ["toolkit", "wheels", "kernels", "eagle3"]
    outcome = _nothing_written(stage, lambda: stage.stages("validate", f"--only={','.join(stages)}"))
    assert (outcome.rc, outcome.statuses()) == (1, dict.fromkeys(stages, "failed"))
    assert [outcome.result(name).checks[0].ok for name in stages] == [None] * 4
    assert "stack in use: want one to look at, got none found" in outcome.told


def test_changed_file_of_the_stack_in_use_is_noticed(scene: Callable[..., Scene]) -> None:
    """A wheel's file that is not as its RECORD says makes validation red, and names the file."""
    stage = scene()
    file = next(stage.host.root.glob("opt/sglang-cu128/venv/lib/python3*/site-packages/torch/version.py"))
    file.write_text(file.read_text() + "# patched by hand\n")
    outcome = stage.stages("validate", "--only=wheels")
    assert (outcome.rc, outcome.statuses()) == (1, {"wheels": "failed"})
    assert "torch/version.py" in outcome.result("wheels").reason


@pytest.mark.parametrize("mode", ["plan", "validate"])
def test_reading_needs_no_root(scene: Callable[..., Scene], mode: str) -> None:
    """Whether sudo works may be asked; no command of plan or validate runs under it."""
    stage = scene()
    stage.stages(mode, "--only=driver,toolkit,wheels")
    assert set(stage.host.sudo_log()) <= {"true"}
