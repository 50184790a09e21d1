"""Everything that goes wrong on a host: the right stage fails and says why, and nothing is lost."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from stages_kit import FAST_SERVER, STAGES, Outcome, Scene, edited, until

from lab import faults


class Fault(NamedTuple):
    """A fault of lab/faults, the stage that must fail, and words of its reason and of what to do next."""

    name: str
    stage: str
    reason: tuple[str, ...]
    hint: tuple[str, ...]
    status: str = "failed"

    def __str__(self) -> str:
        """The id of the test."""
        return self.name


FATAL = [
    Fault("driver-too-old", "driver", ("want >= 580.65.06 (CUDA 13.0.2)", "got 570.124.06"), ("branch 580", "restart")),
    Fault("driver-mismatch", "driver", ("want 8 visible", "Driver/library version mismatch"), ("restart the host",)),
    Fault("gpu-missing", "driver", ("want 8 visible, got 7",), ("xid", "`gpus` in hosts.toml")),
    Fault("gpus-held", "driver", ("no process on them", "4242 /opt/train/venv/bin/python3"), ("stop", "--only")),
    Fault("server-running", "driver", ("no process on them", "4321 sglang::scheduler"), ("stop", "--only")),
    Fault("host-unreachable", "driver", ("no connection to 127.0.0.1:",), ("is sshd running?",), "unreachable"),
    Fault("runfile-404", "runfile", ("md5sum.txt of 13.0.2", "no runfile"), ("choose another release",)),
    Fault(
        "runfile-listed-elsewhere",
        "runfile",
        ("cuda_13.0.2_580.82.07_linux.run", "wrong name: 13.0.2 is published as cuda_13.0.2_580.95.05_linux.run"),
        ('set `file = "cuda_13.0.2_580.95.05_linux.run"` in pins.toml',),
    ),
    Fault("runfile-listed-but-404", "runfile", ("listed but 404",), ("wait", "`nox -s runfile`")),
    Fault("download-html", "runfile", ("not a runfile: an HTML page",), ("proxy, login or error page",)),
    Fault("download-wrong-size", "runfile", ("3000000 bytes, want 42",), ("replaced or cut",)),
    Fault("tmp-full", "runfile", ("/root/tmp: want >= 8.4 MB free, got 1.0 MB",), ("free it", "`tmp` in hosts.toml")),
    Fault("base-full", "runfile", ("/opt/fleet: want", "got 1.0 MB free"), ("free it", "`base` in hosts.toml")),
    Fault("tmp-noexec", "runfile", ("want exec, got noexec",), ("set `tmp` in hosts.toml",)),
    Fault(
        "download-truncated", "toolkit", ("the download ends too early", "byte 1500000"), ("`nox -s toolkit` resumes",)
    ),
    Fault("installer-nothing", "toolkit", ("reports success and installed nothing",), ("log", "`nox -s toolkit`")),
    Fault("installer-fails", "toolkit", ("exit 1", "No space left on device"), ("free it", "`nox -s toolkit`")),
    Fault("sudo-password", "runfile", ("sudo: a password is required",), ("`sudo` and `base` in hosts.toml",)),
    Fault("wheel-wrong-version", "wheels", ("2.13.0 != 2.14.1",), ("pins.toml", "`nox -s wheels`")),
    Fault("wheel-corrupt", "wheels", ("a wheel is damaged",), ("`nox -s wheels`", "pins.lock")),
    Fault("wheel-wrong-cuda", "kernels", ("CUDA of torch: want 13.x, got 12.8",), ("pin a torch for cu130",)),
    Fault("wheel-wrong-inside", "kernels", ("torch version: want 2.14.1, got 2.13.0",), ("`nox -s wheels",)),
    Fault(
        "kernel-wrong-small-batch",
        "kernels",
        ("rmsnorm bfloat16", "wrong at 1, 16 rows"),
        ("only batches of up to 16 rows are wrong", "pin another sglang-kernel", "--on lab-01 --from wheels"),
    ),
    Fault("eagle3-slower", "eagle3", ("EAGLE-3 speed-up: want >= 1 x, got 0.", "worse"), ("eagle3.num_steps",)),
    Fault(
        "acceptance-one",
        "eagle3",
        ("acceptance length: want >= 1.6", "got 1.00"),
        ("no draft token is accepted", "lightseekorg/kimi-k2.5-eagle3"),
    ),
]
SURVIVED = [
    "download-reset-twice",
    "installer-slow",
    "mirror-busy",
    "mirror-ignores-range",
    "mirror-moved",
    "ssh-dropped-during-install",
    "ssh-slow",
]


def test_each_fault_of_the_lab_has_its_test() -> None:
    """A fault that somebody adds is either fatal to a stage or survived, and one of the tests here says which."""
    assert faults.names() == sorted([fault.name for fault in FATAL] + SURVIVED)


@pytest.mark.parametrize("fault", FATAL, ids=str)
def test_fault_stops_the_right_stage(scene: Callable[..., Scene], fault: Fault) -> None:
    """Reason and next step are told; later stages are blocked, earlier ones stay, what was in use is untouched."""
    stage = scene(faults=[fault.name])
    _impatient(stage)
    before = stage.in_use()
    outcome = stage.stages("apply")
    result, statuses = outcome.result(fault.stage), outcome.statuses()
    assert (result.status, outcome.rc, outcome.run.record.outcome) == (fault.status, 1, "failed")
    assert [words for words in fault.reason if words not in result.reason] == []
    assert [words for words in fault.hint if words not in _hints(outcome)] == []
    _require_order(outcome, fault)
    assert stage.in_use() == before
    assert stage.built() == _built_by(statuses)
    assert _leftovers(stage) == []


def _require_order(outcome: Outcome, fault: Fault) -> None:
    """What came before is green, what comes after is blocked by this stage."""
    place = STAGES.index(fault.stage)
    rows = [outcome.result(name) for name in STAGES]
    assert [row.stage for row in rows[:place] if row.status not in ("ok", "changed")] == []
    assert [row.status for row in rows[place + 1 :]] == ["blocked"] * (6 - place)
    assert [
        row.reason for row in rows[place + 1 :] if not row.reason.startswith(f"{fault.stage} {fault.status}:")
    ] == []


def _hints(outcome: Outcome) -> str:
    """The hint lines a user sees below the grid."""
    return outcome.told.partition("hint: ")[2]


def _built_by(statuses: dict[str, str]) -> set[str]:
    """What the stages that ended well leave for the next attempt."""
    leave = {"toolkit": "cuda-13.0.2", "wheels": "venv"}
    return {leave[stage] for stage, status in statuses.items() if status == "changed"}


def _leftovers(stage: Scene) -> list[str]:
    """What a failed run should not leave: files in tmp, processes."""
    until(lambda: not stage.host.processes(), "the last shell to end")
    return [path.name for path in (stage.host.root / "tmp").iterdir()]


def _impatient(stage: Scene) -> None:
    """The host tries a download again at once, and its old stack is measured quickly."""
    real = (stage.host.root / "usr/bin/python3").readlink()
    python = stage.host.root / "usr/local/bin/python3"
    python.write_text(f'#!/bin/sh\ncase $1 in ./fetch.py) set -- "$@" --backoff 0.01;; esac\nexec {real} "$@"\n')
    python.chmod(0o755)
    stage.host.set(throughput={"12.8": FAST_SERVER})


def test_dropped_connection_is_survived(scene: Callable[..., Scene]) -> None:
    """The install goes on without us, is found again, and ran once."""
    stage = scene(faults=["ssh-dropped-during-install"], installer_s=None)
    outcome = stage.stages("apply", "--only=toolkit")
    assert (outcome.rc, outcome.statuses(), len(stage.host.installs())) == (0, {"toolkit": "changed"}, 1)
    assert "connection lost" in outcome.stderr


def test_silent_installer_is_waited_for(scene: Callable[..., Scene]) -> None:
    """An installer that says nothing is no reason to give up."""
    stage = scene(faults=["installer-slow"], installer_s=2.5)
    outcome = stage.stages("apply", "--only=toolkit")
    assert (outcome.rc, outcome.statuses(), len(stage.host.installs())) == (0, {"toolkit": "changed"}, 1)


def test_broken_download_is_resumed(scene: Callable[..., Scene]) -> None:
    """What came before the line broke is not fetched again."""
    stage = scene(faults=["download-reset-twice"])
    _impatient(stage)
    outcome = stage.stages("apply", "--only=toolkit")
    said = json.loads(outcome.run.log_tail("lab-01", "toolkit.1.log").splitlines()[-1])
    assert (outcome.rc, said["ok"], said["attempts"] > 1) == (0, True, True)
    assert "bytes=1000000-" in {request.range for request in stage.lab.mirror.requests}


@pytest.mark.parametrize("fault", ["mirror-moved", "mirror-ignores-range", "ssh-slow"])
def test_odd_mirror_or_line_is_no_fault(scene: Callable[..., Scene], fault: str) -> None:
    """Redirects, whole answers to ranged questions and a slow line change nothing."""
    outcome = scene(faults=[fault]).stages("apply", "--only=runfile,toolkit")
    assert (outcome.rc, outcome.statuses()) == (0, {"runfile": "ok", "toolkit": "changed"})


def test_busy_mirror_is_waited_for(scene: Callable[..., Scene]) -> None:
    """A server that asks to come again is asked again, and then serves."""
    stage = scene(faults=["mirror-busy"])
    outcome = stage.stages("apply", "--only=runfile,toolkit")
    assert (outcome.rc, outcome.statuses()) == (0, {"runfile": "ok", "toolkit": "changed"})
    assert [request.status for request in stage.lab.mirror.requests].count(503) == 2


def test_run_goes_on_after_the_fault_is_mended(scene: Callable[..., Scene]) -> None:
    """A new driver, the same run: what was blocked is done."""
    stage = scene(faults=["driver-too-old"])
    first = stage.stages("apply", "--only=driver,runfile,toolkit")
    stage.host.set(driver="580.95.05")
    second = stage.stages("apply", "--run=latest")
    assert first.statuses() == {"driver": "ok", "runfile": "ok", "toolkit": "changed"} == second.statuses()
    assert (first.rc, second.rc, second.run.record.outcome) == (1, 0, "passed")


def test_held_gpus_do_not_stop_stages_that_need_none(scene: Callable[..., Scene]) -> None:
    """A toolkit can be installed beside a training run."""
    outcome = scene(faults=["gpus-held"]).stages("apply", "--only=driver,toolkit")
    assert (outcome.rc, outcome.statuses()) == (0, {"driver": "ok", "toolkit": "changed"})


def test_installer_that_takes_the_system_link_gives_it_back(scene: Callable[..., Scene]) -> None:
    """/usr/local/cuda belongs to the stack in use."""
    stage = scene()
    stage.host.set(installer={"repoints_link": True})
    link = stage.host.root / "usr/local/cuda"
    before = link.readlink()
    outcome = stage.stages("apply", "--only=toolkit")
    assert (outcome.rc, link.readlink()) == (0, before)
    assert "gave /usr/local/cuda back" in outcome.run.log_tail("lab-01", "toolkit.2.log")


def test_failed_stage_is_taken_back_and_told(scene: Callable[..., Scene]) -> None:
    """The half-made toolkit is removed, the record and the page say so."""
    stage = scene(faults=["installer-fails"])
    outcome = stage.stages("apply", "--only=toolkit")
    undone = {ran.why: ran.undone for ran in outcome.result("toolkit").commands}
    assert undone == {"download cuda_13.0.2_580.95.05_linux.run": False, "install the CUDA 13.0.2 toolkit": True}
    assert "undone: install the CUDA 13.0.2 toolkit" in outcome.stderr


def test_changed_pins_do_not_continue_an_old_run(scene: Callable[..., Scene]) -> None:
    """A run is about one set of pins: other pins are another run, and no host is asked."""
    stage = scene()
    first = stage.stages("plan", "--only=driver")
    visits = len(stage.lab.visits("lab-01"))
    with edited(stage.lab.pins_file) as pins:
        pins["eagle3"]["min_speedup"] = 1.5
    second = stage.stages("plan", f"--run={first.run.path.name}")
    assert (first.rc, second.rc, len(stage.lab.visits("lab-01"))) == (0, 4, visits)
    assert "was made with other pins" in second.stderr


def test_pages_of_a_failed_run_name_the_cause(scene: Callable[..., Scene]) -> None:
    """Who opens report.html sees the same reason and hint as on the terminal."""
    outcome = scene(faults=["driver-too-old"]).stages("apply", "--only=driver,runfile")
    assert "got 570.124.06" in outcome.report()
    assert "branch 580" in outcome.report()
    assert Path(outcome.run.path / "junit.xml").read_text("utf-8").count("<failure") == 1
