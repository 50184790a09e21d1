"""A run that is killed, stopped or met by another one: nothing is lost, nothing runs twice."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from stages_kit import FAST_SERVER, Controller, Outcome, Scene, events, newest, until

from lab.faults import Rule

TO_TOOLKIT = "--only=driver,runfile,toolkit"


def _install_runs(stage: Scene) -> bool:
    return len(stage.host.installs()) == 1


def _job(stage: Scene, words: str) -> Path | None:
    """The directory of the job whose script holds these words, once it has a process."""
    for script in stage.base.glob("jobs/[a-z]*-*/run.sh"):
        if not script.parent.name.startswith("old-") and words in script.read_text() and _pid(script.parent):
            return script.parent
    return None


def _pid(job: Path) -> str:
    file = job / "pid"
    return file.read_text().strip() if file.exists() else ""


def _killed_while_installing(stage: Scene, *, parent: bool = False) -> Outcome:
    controller = stage.start("apply", TO_TOOLKIT, parent=parent)
    controller.until(lambda: _install_runs(stage), "the installer to run")
    return controller.kill()


def _attached(outcome: Outcome, name: str) -> bool:
    return any(ran.attached for ran in outcome.result(name).commands)


def test_killed_controller_is_replaced_and_the_install_runs_once(scene: Callable[..., Scene]) -> None:
    """SIGKILL for nox and pytest during the install: the next run of that id takes the job up and finishes."""
    stage = scene(installer_s=12)
    killed = _killed_while_installing(stage, parent=True)
    resumed = stage.stages("apply", "--run=latest")
    assert killed.rc == -signal.SIGKILL
    assert (resumed.rc, resumed.run.path) == (0, killed.run.path)
    assert resumed.statuses() == {"driver": "ok", "runfile": "ok", "toolkit": "changed"}
    assert (_attached(resumed, "toolkit"), len(stage.host.installs())) == (True, 1)


def test_killed_run_replays_as_interrupted(scene: Callable[..., Scene]) -> None:
    """What a killed run left is shown for what it is: green before, interrupted where it stopped."""
    stage = scene(installer_s=2)
    killed = _killed_while_installing(stage)
    shown = stage.stages("replay", "--run=latest")
    assert (shown.rc, shown.run.path) == (1, killed.run.path)
    assert shown.statuses() == {"driver": "ok", "runfile": "ok", "toolkit": "interrupted"}
    assert "the run did not end by itself" in shown.told
    assert f"`nox -s upgrade -- --run {shown.run.path.name}`" in shown.told


def test_install_that_ended_unwatched_is_not_repeated(scene: Callable[..., Scene]) -> None:
    """The job finished after its controller was killed: the resumed run finds a complete toolkit."""
    stage = scene(installer_s=1)
    _killed_while_installing(stage)
    until(lambda: any(stage.base.glob("stacks/*/cuda-*/.complete")), "the install to end by itself")
    resumed = stage.stages("apply", "--run=latest")
    assert (resumed.rc, resumed.statuses()["toolkit"], len(stage.host.installs())) == (0, "ok", 1)


def test_download_goes_on_without_its_controller(scene: Callable[..., Scene]) -> None:
    """SIGKILL during the download: the same job is attached, nothing is fetched twice."""
    stage = scene(faults=["download-reset-twice"])
    controller = stage.start("apply", TO_TOOLKIT.replace("runfile,", ""))
    controller.until(lambda: any(stage.base.glob("downloads/*.part")) and _job(stage, "fetch.py"), "a part of the file")
    controller.kill()
    resumed = stage.stages("apply", "--run=latest")
    whole = [request for request in stage.lab.mirror.requests if request.range == "" and request.status == 200]
    assert (resumed.rc, len(stage.host.installs())) == (0, 1)
    assert len([request for request in whole if request.path.endswith(".run")]) == 1


def test_wheels_go_on_without_their_controller(scene: Callable[..., Scene]) -> None:
    """SIGKILL during the installation of the wheels: the venv is whole in the end."""
    stage = scene()
    stage.lab.mirror.rules = [Rule(path="*torch-*.whl", delay_s=2.5)]
    controller = stage.start("apply", "--only=wheels")
    controller.until(lambda: _job(stage, "lock.txt"), "the job that makes the venv")
    controller.kill()
    resumed = stage.stages("apply", "--run=latest")
    assert (resumed.rc, resumed.statuses(), _attached(resumed, "wheels")) == (0, {"wheels": "changed"}, True)
    assert stage.stages("apply", "--only=wheels").statuses() == {"wheels": "ok"}


def test_measurement_goes_on_without_its_controller(scene: Callable[..., Scene]) -> None:
    """SIGKILL while a server is measured: it is followed to its end, and the host is left clean."""
    stage = scene()
    stage.host.set(server_start_s=3.0, throughput={"12.8": FAST_SERVER})
    controller = stage.start("apply", "--only=wheels,eagle3")
    jobs = stage.host.root / "tmp/fleet-jobs-lab-01"
    controller.until(lambda: any(jobs.glob("eagle3-*/pid")), "the measurement to run")
    killed = controller.kill()
    resuming = stage.start("apply", "--run=latest")
    resuming.until(lambda: any("attached" in event.text for event in events(killed.run)), "the job to be found again")
    stage.host.set(server_start_s=0.1)
    resumed = resuming.finish()
    assert (resumed.rc, resumed.statuses()) == (0, {"wheels": "ok", "eagle3": "ok"})
    assert "gone" not in resumed.stderr
    assert list((stage.host.root / "tmp").iterdir()) == []


def test_second_operator_is_refused_with_the_name_of_the_first(scene: Callable[..., Scene]) -> None:
    """Two runs at once: the later one says whose work it met, undoes nothing of it, and the first one finishes."""
    stage = scene(installer_s=12)
    first = stage.start("apply", TO_TOOLKIT)
    first.until(lambda: _install_runs(stage), "the installer to run")
    owner = newest(stage.reports)
    assert owner is not None
    second = stage.stages("apply", TO_TOOLKIT)
    result = second.result("toolkit")
    assert (second.rc, result.status) == (1, "failed")
    assert f"another run is at work on this host: {owner.path.name}" in result.reason
    assert f"--run {owner.path.name}" in result.hint
    assert first.finish().rc == 0
    assert owner.results()["lab-01", "toolkit"].status == "changed"
    assert (len(stage.host.installs()), stage.built()) == (1, {"cuda-13.0.2"})


def test_second_controller_of_one_run_is_refused(scene: Callable[..., Scene]) -> None:
    """The parent, nox, is killed alone and its pytest lives on: nobody else may continue that run meanwhile."""
    stage = scene(installer_s=8)
    controller = stage.start("apply", TO_TOOLKIT, parent=True)
    controller.until(lambda: _install_runs(stage), "the installer to run")
    controller.process.kill()
    controller.process.wait(10)
    second = stage.stages("apply", "--run=latest")
    assert second.rc == 4
    assert f"{second.run.path.name} is being worked on by another process" in second.stderr
    until(lambda: second.run.record.outcome, "the first one to end")
    assert (second.run.record.outcome, len(stage.host.installs())) == ("passed", 1)


def _end_job(stage: Scene) -> None:
    """Ends a job with all its processes, as the kernel does when memory runs out."""
    job = _job(stage, "--toolkitpath")
    assert job is not None
    session = _pid(job)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.joinpath("stat").read_text().rpartition(")")[2].split()[3] == session:
                os.kill(int(folder.name), signal.SIGKILL)


def _reboot(stage: Scene) -> None:
    stage.lab.reboot("lab-01")


@pytest.mark.parametrize("accident", [_end_job, _reboot], ids=["killed", "rebooted"])
def test_lost_job_is_told_and_done_again(scene: Callable[..., Scene], accident: Callable[[Scene], None]) -> None:
    """A job that is gone without an exit code fails its stage; the resumed run makes the half-made toolkit anew."""
    stage = scene(installer_s=5)
    controller = stage.start("apply", TO_TOOLKIT)
    controller.until(lambda: _install_runs(stage), "the installer to run")
    accident(stage)
    lost = controller.finish()
    result = lost.result("toolkit")
    assert (lost.rc, result.status) == (1, "failed")
    assert "the job is gone without an exit code" in result.reason
    assert f"--run {lost.run.path.name}" in result.hint
    stage.host.set(installer={"seconds": 0.1})
    resumed = stage.stages("apply", "--run=latest")
    assert (resumed.rc, resumed.statuses()["toolkit"], len(stage.host.installs())) == (0, "changed", 2)


def _stopped_while_installing(stage: Scene, *hosts: str) -> Outcome:
    controller: Controller = stage.start("apply", TO_TOOLKIT)
    for host in hosts:
        controller.until(stage.lab.host(host).installs, f"the installer to run on {host}")
    controller.signal(signal.SIGINT)
    return controller.finish()


def test_ctrl_c_leaves_a_report_and_the_job_at_work(scene: Callable[..., Scene]) -> None:
    """The page is written, the run is marked, the host goes on, and the next run of that id attaches."""
    stage = scene(installer_s=15)
    stopped = _stopped_while_installing(stage, "lab-01")
    assert stopped.rc != 0
    assert (stopped.run.record.outcome, stopped.statuses()["toolkit"]) == ("interrupted", "interrupted")
    assert "interrupted" in stopped.report()
    assert stage.host.processes()
    resumed = stage.stages("apply", "--run=latest")
    assert (resumed.rc, _attached(resumed, "toolkit"), len(stage.host.installs())) == (0, True, 1)
    assert resumed.run.record.outcome == "passed"


def test_ctrl_c_stops_all_hosts_and_leaves_a_report(scene: Callable[..., Scene]) -> None:
    """With a worker a host it is the same: page, mark, and each install runs once."""
    stage = scene(hosts=2, installer_s=6)
    stopped = _stopped_while_installing(stage, "lab-01", "lab-02")
    assert stopped.rc != 0
    assert stopped.run.record.outcome == "interrupted"
    assert [stopped.statuses(host)["toolkit"] for host in ("lab-01", "lab-02")] == ["interrupted"] * 2
    assert "interrupted" in stopped.report()
    resumed = stage.stages("apply", "--run=latest")
    assert (resumed.rc, [len(host.installs()) for host in stage.lab.hosts]) == (0, [1, 1])


def test_resumed_run_prints_only_what_is_new(scene: Callable[..., Scene]) -> None:
    """The events of the first attempt stay in the log and are not told again."""
    stage = scene()
    first = stage.stages("apply", "--only=driver")
    kept = len(events(first.run))
    second = stage.stages("apply", "--run=latest", "--only=runfile")
    assert "driver" not in second.stderr
    assert len(events(second.run)) > kept
    assert second.statuses() == {"driver": "ok", "runfile": "ok"}
