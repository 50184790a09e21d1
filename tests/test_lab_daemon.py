"""The lab as a daemon: one per folder, found again, outliving its starter, forgetting when told."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli
from lab_client import PINS, ask

from lab import Lab, __main__, daemon

REPOSITORY = PINS.parent


def words(folder: Path, command: str, *more: str) -> list[str]:
    """A command line of the lab."""
    pins = ["--pins", str(PINS), "--minimal"] if command == "up" else []
    return [sys.executable, "-m", "lab", command, "--dir", str(folder), *pins, *more]


def run(folder: Path, command: str, *more: str) -> str:
    """Output of a command that must succeed."""
    answer = subprocess.run(words(folder, command, *more), cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer
    return answer.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose daemon is ended afterwards."""
    yield tmp_path / "lab"
    daemon.stop(tmp_path / "lab")


def test_two_starters_get_one_daemon_that_outlives_them(folder: Path) -> None:
    """Both print the same line; the process is its own session; a third `up` finds it."""
    both = [subprocess.Popen(words(folder, "up"), cwd=REPOSITORY, stdout=subprocess.PIPE) for _ in range(2)]
    lines = {starter.communicate()[0] for starter in both}
    about = daemon.running(folder)
    assert len(lines) == 1
    assert about is not None
    assert os.getsid(about["pid"]) == about["pid"] != os.getsid(0)
    assert daemon.up(__main__.settings(["up", *words(folder, "up")[4:]]), 900)["pid"] == about["pid"]


def test_host_keeps_its_identity_until_reset(folder: Path) -> None:
    """Port, key and disk survive stop and start; reset makes a new host; other settings restart the daemon."""
    first = run(folder, "up")
    machine = folder / "hosts/lab-01/root/etc/machine-id"
    before = machine.read_text(), (folder / "known_hosts").read_text()
    assert run(folder, "stop") == "stopped\n"
    assert run(folder, "up") == first
    assert (machine.read_text(), (folder / "known_hosts").read_text()) == before
    assert len(run(folder, "up", "--hosts", "2", "--fault", "gpu-missing").splitlines()) == 2
    assert machine.read_text() == before[0]
    assert json.loads((folder / "hosts/lab-02/state.json").read_text())["gpus"] == 7
    run(folder, "up", "--reset")
    assert machine.read_text() != before[0]
    assert not (folder / "hosts/lab-02").exists()


def test_daemon_ends_when_nobody_comes(folder: Path) -> None:
    """--linger-s without a connection."""
    run(folder, "up", "--linger-s", "0.3")
    deadline = time.monotonic() + 5
    while daemon.running(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert daemon.running(folder) is None


def test_mistakes_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown fault, unknown host, missing pins: exit 2 and nothing made."""
    where = ["--dir", str(folder)]
    assert __main__.main(["up", *where, "--fault", "tmp-ful"]) == 2
    assert __main__.main(["installs", "lab-07", *where]) == 2
    assert __main__.main(["up", *where, "--pins", "/nowhere/pins.toml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "unknown fault `tmp-ful`; did you mean `tmp-full`?"
    assert lines[1] == "no host `lab-07`; there are: none"
    assert lines[2] == "/nowhere/pins.toml: No such file or directory"
    assert not folder.exists()


def test_commands_about_hosts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`set` changes the state of a running host and keeps its faults; `writes` and `installs` read what was noted."""
    with Lab(folder, pins=PINS, minimal=True, faults=["gpu-missing"]) as lab:
        assert __main__.main(["set", "lab-01", "installer.seconds=0", "driver=575.57.08", "--dir", str(folder)]) == 0
        assert ask(lab, "nvidia-smi --query-gpu=driver_version --format=csv,noheader; touch x") == "575.57.08\n" * 7
        lab.visits("lab-01")
        __main__.main(["writes", "lab-01", "--dir", str(folder), "--json"])
        visits = json.loads(capsys.readouterr().out)["lab-01"]
        __main__.main(["installs", "lab-01", "--dir", str(folder)])
        assert capsys.readouterr().out == "lab-01: the installer ran 0 times\n"
    assert [(visit["count"], visit["changes"]["added"]) for visit in visits] == [(1, ["home/ops/x"])]


def test_inventory_names_what_a_fresh_host_has(tmp_path: Path) -> None:
    """Absolute paths; GPUs as built, whatever a fault took away; several labs at once in one process."""
    first = Lab(tmp_path / "a", pins=PINS, hosts=2, minimal=True, faults=["gpu-missing"], cache=tmp_path / "cache")
    second = Lab(tmp_path / "b", pins=PINS, cache=tmp_path / "cache")
    with first, second:
        table = tomli.loads(first.hosts_file.read_text())
        assert table["defaults"]["gpus"] == 8
        assert [host["groups"] for host in table["hosts"].values()] == [["canary"], ["fleet"]]
        in_use = tomli.loads(second.hosts_file.read_text())["hosts"]["lab-01"]["in_use"]
        assert all(Path(path).exists() for path in in_use.values())
        assert ask(first, "cat $LAB_ROOT/etc/lab-host", host="lab-02") == "lab-02\n"
        assert ask(second, "cat $LAB_ROOT/etc/lab-host") == "lab-01\n"


def test_reader_that_goes_away_is_no_error() -> None:
    """As with `| head -1`: no traceback, neither while printing nor at the end."""
    line = [sys.executable, "-m", "lab", "faults"]
    with subprocess.Popen(line, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        assert command.stderr.read() == b""
    assert command.returncode == 0
