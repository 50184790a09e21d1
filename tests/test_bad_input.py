"""Mistakes of the user: each is told in a line or two, before any host is contacted and before anything is written."""

import argparse
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import pytest
import tomli

from fleet.hosts import read_hosts
from fleet.model import Mode, RunRecord
from fleet.options import Request
from fleet.pins import read_pins
from fleet.problem import Problem
from fleet.run import Run

TOP = Path(__file__).parent.parent
DATA = Path(__file__).parent / "data" / "bad_input"
STAGES = ["driver", "runfile", "toolkit", "wheels", "kernels", "eagle3", "switch"]


def cases(name: str) -> list[Any]:
    """The cases of a data file, each with its name as the test's."""
    return [pytest.param(case, id=case["name"]) for case in tomli.loads((DATA / name).read_text("utf-8"))["case"]]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with good pins.toml, pins.lock and hosts.toml."""
    for name in ("pins.toml", "pins.lock", "hosts.toml"):
        shutil.copyfile(DATA / name, tmp_path / name)
    return tmp_path


def told(site: Path, **options: Any) -> str:
    """What the command line is answered; empty when nothing is wrong with it."""
    defaults = {"mode": "plan", "hosts": site / "hosts.toml", "pins": site / "pins.toml", "reports": site / "reports"}
    texts = {"on": "", "only": "", "from_stage": "", "run": ""}
    switches = {"accept_new_host_keys": False, "workers": 24}
    try:
        Request(argparse.Namespace(**{**defaults, **texts, **switches, **options})).stages_of(STAGES)
    except Problem as problem:
        return str(problem).replace(f"{site}/", "")
    return ""


def test_the_samples_are_good(site: Path) -> None:
    """What the cases break is not broken before."""
    assert told(site) == ""
    pins = read_pins(site / "pins.toml")
    assert (pins.cuda_major, len(pins.digest), len(pins.stack)) == (13, 12, 12)
    first, second = read_hosts(site / "hosts.toml")
    assert (first.name, first.address, first.port, first.root) == ("gpu-01", "127.0.0.1", 1, "/")
    assert (second.name, second.root, second.in_use.cuda) == ("gpu-02", "/host", "/usr/local/cuda")


@pytest.mark.parametrize("case", cases("bad_pins.toml"))
def test_fault_in_the_pins(case: dict[str, str], site: Path) -> None:
    """File, key and what would be right, in a line or two."""
    path = site / "pins.toml"
    text = path.read_text("utf-8")
    old = case.get("old", "")
    assert old in text
    path.write_text(text.replace(old, case["new"], 1) if old else text + case["new"] + "\n", "utf-8")
    assert told(site) == f"pins.toml: {case['says']}"


@pytest.mark.parametrize("case", cases("bad_hosts.toml"))
def test_fault_in_the_inventory(case: dict[str, str], site: Path) -> None:
    """File, key and what would be right, in a line or two."""
    (site / "hosts.toml").write_text(case["text"], "utf-8")
    assert told(site) == f"hosts.toml: {case['says']}"


@pytest.mark.parametrize("name", ["pins.toml", "hosts.toml"])
def test_file_that_cannot_be_read(name: str, site: Path) -> None:
    """Missing, a folder, not UTF-8, nested without end: the file is named, and what is wrong with it."""
    path = site / name
    path.write_bytes(b"a = '\xff'\n")
    reason = "'utf-8' codec can't decode byte 0xff in position 5: invalid start byte"
    assert told(site) == f"{name}: unreadable: {reason}"
    path.write_text("a = " + "[" * 100_000)
    assert told(site).startswith(f"{name}: not TOML: ")
    path.unlink()
    assert told(site) == f"{name}: no such file"
    path.mkdir()
    assert told(site) == f"{name}: unreadable: [Errno 21] Is a directory: '{name}'"


def test_lock_that_cannot_be_read(site: Path) -> None:
    """The key that names the lock is named, and the lock."""
    lock = site / "pins.lock"
    lock.write_bytes(b"torch==2.14.1 \xff\n")
    reason = "'utf-8' codec can't decode byte 0xff in position 14: invalid start byte"
    assert told(site) == f"pins.toml: `wheels.lock`: pins.lock is unreadable: {reason}"
    lock.unlink()
    assert told(site) == "pins.toml: `wheels.lock`: no such file: pins.lock"
    lock.mkdir()
    assert told(site) == "pins.toml: `wheels.lock`: no such file: pins.lock"


@pytest.mark.parametrize(
    ("on", "says"),
    [
        ("gpu-1", "unknown host or group `gpu-1` in hosts.toml; did you mean `gpu-01`?"),
        ("gpu-01,canry", "unknown host or group `canry` in hosts.toml; did you mean `canary`?"),
        ("qqq", "unknown host or group `qqq` in hosts.toml; known: canary, gpu-01, gpu-02"),
        (" , ", "want names of hosts or groups, got ' , '"),
        ("gpu-01\n", ""),
    ],
)
def test_unknown_host(on: str, says: str, site: Path) -> None:
    """The nearest name is offered; a list of nothing is not a list of everything."""
    assert told(site, on=on) == (f"--on: {says}" if says else "")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"only": "toolkits"}, "--only: unknown stage `toolkits`; did you mean `toolkit`?"),
        ({"only": "driver,wheel"}, "--only: unknown stage `wheel`; did you mean `wheels`?"),
        ({"only": "rollback"}, f"--only: unknown stage `rollback`; known: {', '.join(sorted(STAGES))}"),
        ({"from_stage": "kernel"}, "--from: unknown stage `kernel`; did you mean `kernels`?"),
        ({"only": ","}, "--only: want names of stages, got ','"),
        ({"only": "driver", "from_stage": "wheels"}, ""),
    ],
)
def test_unknown_stage(options: dict[str, str], says: str, site: Path) -> None:
    """The nearest name is offered; an empty selection is a mistake, not a success."""
    assert told(site, **options) == says


def earlier(site: Path, mode: Mode, digest: str, number: int = 0) -> str:
    """A run of that mode in the reports; its id."""
    name = f"20261130T02000{number}Z-{mode}-0000"
    record = RunRecord(
        id=name,
        mode=mode,
        started="2026-11-30T02:00:00Z",
        hosts=["gpu-01"],
        stages=["driver"],
        pins_file=str(site / "pins.toml"),
        pins_digest=digest,
        stack="0",
    )
    Run.create(site / "reports", record, site / "pins.toml")
    return name


def test_unknown_run(site: Path) -> None:
    """An id that is none, also one that would lead out of the reports."""
    assert told(site, run="latest") == "reports: no plan run yet\nhint: `make plan` makes one"
    name = earlier(site, "plan", read_pins(site / "pins.toml").digest)
    assert told(site, run=name) == ""
    assert told(site, run=name[:-1] + "1") == f"--run: unknown run `{name[:-1]}1`; did you mean `{name}`?"
    assert told(site, run=f"../reports/{name}").startswith("--run: unknown run `../reports/")
    assert told(site, mode="replay", run="zz") == f"--run: unknown run `zz`; known: {name}"


def test_run_of_another_mode(site: Path) -> None:
    """A plan cannot be gone on with as an upgrade; `latest` means the latest of the mode."""
    digest = read_pins(site / "pins.toml").digest
    name = earlier(site, "plan", digest)
    assert told(site, mode="apply", run=name) == f"--run: {name} is a plan run, not one of mode apply"
    assert told(site, mode="apply", run="latest") == "reports: no apply run yet\nhint: `make upgrade` makes one"


def test_run_with_other_pins(site: Path) -> None:
    """Results of two sets of pins do not belong in one run."""
    name = earlier(site, "plan", "0" * 12)
    hint = "start a new run, or give back the pins: they are kept beside the run"
    assert told(site, run=name) == f"--run: {name} was made with other pins\nhint: {hint}"


def test_run_whose_host_is_gone(site: Path) -> None:
    """A host of the run that the inventory no longer has is named."""
    name = earlier(site, "plan", read_pins(site / "pins.toml").digest)
    (site / "hosts.toml").write_text("[hosts.gpu-07]\n")
    assert told(site, run=name) == "--on: unknown host or group `gpu-01` in hosts.toml; did you mean `gpu-07`?"


def test_run_that_is_not_readable(site: Path) -> None:
    """A run.json of another version is told, not guessed at."""
    name = earlier(site, "plan", "0" * 12)
    (site / "reports" / name / "run.json").write_text('{"id": 3}')
    assert told(site, run=name).startswith(f"reports/{name}/run.json: unreadable: ")


# The real command line, once per way that a message can take to the user.


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    """A port that nobody may knock at."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.setblocking(False)
        yield server


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--pins=none.toml"], "none.toml: no such file"),
        (["--hosts=none.toml"], "none.toml: no such file"),
        (["--pins=bad.toml"], "bad.toml: unknown key `cuda.verion`; did you mean `version`?"),
        (["--on=gpu-3"], "--on: unknown host or group `gpu-3` in hosts.toml; did you mean `gpu-02`?"),
        (["--only=toolkits"], "--only: unknown stage `toolkits`; did you mean `toolkit`?"),
        (["--from=kernel", "--mode=apply"], "--from: unknown stage `kernel`; did you mean `kernels`?"),
        (["--run=zz", "--mode=replay"], "--run: unknown run `zz`"),
        (["--workers=0", "--mode=apply"], "--workers: want at least one, got 0"),
        (["--only=driver", "--mode=rollback"], "--only: unknown stage `driver`; known: rollback"),
    ],
)
def test_command_line(arguments: list[str], says: str, site: Path, listener: socket.socket) -> None:
    """Exit 4, one line, no traceback; no host was contacted and no run was begun."""
    inventory = site / "hosts.toml"
    inventory.write_text(inventory.read_text("utf-8").replace("port = 1", f"port = {listener.getsockname()[1]}"))
    bad = (site / "pins.toml").read_text("utf-8").replace("version", "verion", 1)
    (site / "bad.toml").write_text(bad)
    given = [word.replace("=none.toml", f"={site}/none.toml").replace("=bad", f"={site}/bad") for word in arguments]
    files = [f"--pins={site}/pins.toml", f"--hosts={site}/hosts.toml", f"--reports={site}/reports"]
    command = [sys.executable, "-m", "pytest", "stages", "-p", "no:cacheprovider", "-o", "addopts=", *files, *given]
    answer = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False, timeout=30)
    said = answer.stderr.replace(f"{site}/", "").splitlines()
    assert (answer.returncode, said, answer.stdout) == (4, [f"ERROR: {says}", ""], "")
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert not (site / "reports").exists()


def test_unknown_mode() -> None:
    """The modes are named by the command line itself."""
    command = [sys.executable, "-m", "pytest", "stages", "-p", "no:cacheprovider", "--mode=aply"]
    answer = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False, timeout=30)
    assert answer.returncode == 4
    assert "invalid choice: 'aply'" in answer.stderr
    assert all(mode in answer.stderr for mode in get_args(Mode))
    assert "Traceback" not in answer.stderr
