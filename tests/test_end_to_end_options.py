"""The same upgrade on other hosts and with other words: without root, odd paths, some hosts, some stages."""

from collections.abc import Callable

import pytest
from stages_kit import FAST_SERVER, STAGES, Scene, edited


def _change(stage: Scene, **keys: object) -> None:
    """Says something else about the first host in hosts.toml."""
    with edited(stage.lab.hosts_file) as file:
        file["hosts"]["lab-01"].update(keys)


def test_host_without_root_is_upgraded_into_a_folder_of_the_user(scene: Callable[..., Scene]) -> None:
    """`sudo = false` and a base the user can write: sudo is never called."""
    stage = scene()
    base = stage.host.root / "home/ops/stacks of mine"
    stage.host.set(sudo="password")
    _change(stage, sudo=False, base=str(base))
    with edited(stage.lab.pins_file) as pins:
        pins["switch"] = {"require": []}
    outcome = stage.stages("apply", "--only=driver,runfile,toolkit,wheels,switch")
    assert (outcome.rc, outcome.statuses()["switch"]) == (0, "changed"), outcome.stdout
    assert (base / "current/stack.json").is_file()
    assert (stage.host.sudo_log(), (stage.host.root / "opt/fleet").exists()) == ([], False)


def test_odd_paths_are_only_paths(scene: Callable[..., Scene]) -> None:
    """Space, quotes, dollar and semicolon in base and tmp: everything is quoted, nothing is executed."""
    stage = scene()
    base, tmp = stage.host.root / 'opt/it\'s "our" $HOME; fleet', stage.host.root / "tmp/a 'b' $(touch c)"
    tmp.mkdir()
    stage.host.set(throughput={"12.8": FAST_SERVER})
    _change(stage, base=str(base), tmp=str(tmp))
    before = stage.in_use()
    outcome = stage.stages("apply")
    assert (outcome.rc, outcome.statuses()["switch"]) == (0, "changed"), outcome.stdout
    assert stage.stages("apply").statuses() == dict.fromkeys(STAGES, "ok")
    assert stage.stages("rollback").rc == 0
    assert (base / "current").readlink().name.startswith("adopted-")
    assert (stage.in_use() == before, list(tmp.iterdir())) == (True, [])
    assert sorted(path.name for path in (stage.host.root / "opt").iterdir()) == [base.name, "sglang-cu128"]


@pytest.mark.parametrize("words", ["canary", "lab-01"])
def test_on_leaves_all_other_hosts_alone(scene: Callable[..., Scene], words: str) -> None:
    """A group or a name: no other host is so much as connected to."""
    stage = scene(hosts=2)
    outcome = stage.stages("plan", f"--on={words}", "--only=driver")
    assert (outcome.rc, outcome.run.record.hosts) == (0, ["lab-01"])
    assert (len(stage.lab.visits("lab-01")), stage.lab.visits("lab-02")) == (1, [])


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        (["--only=toolkit"], ["toolkit"]),
        (["--only=switch,driver"], ["driver", "switch"]),
        (["--from=kernels"], ["kernels", "eagle3", "switch"]),
        (["--only=driver", "--from=eagle3"], ["driver", "eagle3", "switch"]),
    ],
)
def test_only_and_from_choose_stages(scene: Callable[..., Scene], options: list[str], stages: list[str]) -> None:
    """The chosen stages run, in the order of the story."""
    outcome = scene().stages("plan", *options)
    assert list(outcome.statuses()) == stages == outcome.run.record.stages


def test_switch_wants_proof(scene: Callable[..., Scene]) -> None:
    """A stack that was built and not measured is not put in use, whatever stages are chosen."""
    stage = scene()
    outcome = stage.stages("apply", "--only=toolkit,wheels,switch")
    assert (outcome.rc, outcome.result("switch").status) == (1, "failed")
    assert "the pinned stack is not proven: kernels" in outcome.told
    assert "`nox -s kernels`" in outcome.told
    assert stage.built() == {"cuda-13.0.2", "venv"}


def test_rollback_removes_what_was_never_finished(scene: Callable[..., Scene]) -> None:
    """Half a toolkit is taken away, a whole one is kept for the next attempt; the stack in use stays."""
    stage = scene()
    before = stage.in_use()
    stage.stages("apply", "--only=toolkit")
    whole = stage.stages("rollback")
    assert (whole.rc, whole.statuses(), stage.built()) == (0, {"rollback": "ok"}, {"cuda-13.0.2"})
    next(stage.base.glob("stacks/*/cuda-*/.complete")).unlink()
    half = stage.stages("rollback")
    assert (half.rc, half.statuses(), stage.built()) == (0, {"rollback": "changed"}, set())
    assert stage.in_use() == before


def test_rollback_without_an_upgrade_changes_nothing(scene: Callable[..., Scene]) -> None:
    """There is nothing to go back from, and that is fine."""
    stage = scene()
    outcome = stage.stages("rollback")
    assert (outcome.rc, outcome.statuses(), stage.writes()) == (0, {"rollback": "ok"}, 0)


def test_report_is_written_again_from_the_run_directory(scene: Callable[..., Scene]) -> None:
    """A replay needs no host, and makes the page and the JUnit file anew; its verdict is that of the run."""
    stage = scene(faults=["driver-too-old"])
    first = stage.stages("apply", "--only=driver")
    made = [stage.reports / first.run.path.name / name for name in ("report.html", "junit.xml")]
    for path in made:
        path.unlink()
    stage.lab.stop()
    again = stage.stages("replay", f"--run={first.run.path.name}")
    assert (first.rc, again.rc) == (1, 1)
    assert [path.is_file() for path in made] == [True, True]
    assert "loaded driver: want >= 580.65.06" in again.stdout
