"""What end-to-end tests share: a lab of their own, and the stages run as the nox sessions run them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomlkit

from fleet.model import StageResult
from fleet.run import Event, Run
from lab import Lab
from lab.host import Host
from lab.writes import Snapshot

ROOT = Path(__file__).parent.parent
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # What a shell starts in the background ignores SIGINT, and so would every controller that the tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
PYTEST = ["-m", "pytest", "stages", "-q", "-s", "--no-header", "-p", "no:cacheprovider", "-o", "addopts="]
STAGES = ["driver", "runfile", "toolkit", "wheels", "kernels", "eagle3", "switch"]
IN_USE = ("opt/sglang-cu128", "usr/local")
"""Where the stack lies that a fresh lab host has in use."""
PARENT = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
"""Waits for its child as nox does."""
FAST_SERVER = {"without": 2000.0, "with": 1500.0}
"""Tokens/s of an old stack whose numbers a test does not look at."""
PATIENCE_S = 90.0

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """How one run of the stages ended, and what it left in its run directory."""

    rc: int
    stdout: str
    stderr: str
    found: Run | None

    @property
    def run(self) -> Run:
        """The run directory."""
        assert self.found is not None, f"no run was made:\n{self.stdout}\n{self.stderr}"
        return self.found

    @property
    def told(self) -> str:
        """What is printed for people, on one line: where it wraps is of no interest."""
        return " ".join(self.stdout.split())

    def result(self, stage: str, host: str = "lab-01") -> StageResult:
        """What a stage came to on a host."""
        return self.run.results()[host, stage]

    def statuses(self, host: str = "lab-01") -> dict[str, str]:
        """The row of a host in the grid."""
        return {stage: result.status for (name, stage), result in self.run.results().items() if name == host}

    def events(self, host: str = "lab-01") -> list[Event]:
        """What was logged about a host, in order."""
        return [event for event in events(self.run) if event.host == host]

    def report(self) -> str:
        """The text of report.html."""
        return (self.run.path / "report.html").read_text("utf-8")


class Controller:
    """A run of the stages at work, in a process group of its own."""

    def __init__(self, command: list[str], reports: Path, log: Path, cwd: Path, home: Path) -> None:
        self.reports = reports
        self._out, self._err = log.with_suffix(".out"), log.with_suffix(".err")
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=err,
                cwd=cwd,
                env=_environment(home),
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the whole group, as a terminal does."""
        os.killpg(self.process.pid, number)

    def kill(self) -> Outcome:
        """Ends the whole group at once, without a chance to say or write anything."""
        self.signal(signal.SIGKILL)
        return self.finish()

    def finish(self) -> Outcome:
        """Waits for the end."""
        rc = self.process.wait(PATIENCE_S)
        return Outcome(rc, self._out.read_text("utf-8"), self._err.read_text("utf-8"), newest(self.reports))

    def until(self, look: Callable[[], T], what: str) -> T:
        """What `look` gives as soon as it is true; fails when the run ends before."""

        def look_here() -> T:
            assert self.process.poll() is None, f"ended before {what}:\n{self._out.read_text()}{self._err.read_text()}"
            return look()

        return until(look_here, what)

    def end(self) -> None:
        """Leaves nothing behind, whatever became of the test."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait(10)


class Scene:
    """A running lab and the run directories of whoever works on it."""

    def __init__(self, lab: Lab, folder: Path, checkout: Path = ROOT) -> None:
        self.lab = lab
        self.folder = folder
        self.checkout = checkout
        self.reports = folder / "reports"
        self.home = folder / "home"
        self.home.mkdir()
        self._controllers: list[Controller] = []

    @property
    def host(self) -> Host:
        """The first host of the lab."""
        return self.lab.host("lab-01")

    @property
    def base(self) -> Path:
        """Where stacks live on the first host."""
        return self.host.root / "opt/fleet"

    def stages(self, mode: str, *options: str) -> Outcome:
        """Runs the stages to their end."""
        return self.start(mode, *options).finish()

    def start(self, mode: str, *options: str, parent: bool = False) -> Controller:
        """Runs the stages in the background; `parent`: as the child of a process that waits for it."""
        inputs = [f"--hosts={self.lab.hosts_file}", f"--pins={self.lab.pins_file}", f"--reports={self.reports}"]
        command = [sys.executable, *PYTEST, f"--mode={mode}", *inputs, *options]
        if parent:
            command = [sys.executable, "-c", PARENT, *command]
        log = self.folder / f"controller-{len(self._controllers)}"
        controller = Controller(command, self.reports, log, self.checkout, self.home)
        self._controllers.append(controller)
        return controller

    def writes(self, host: str = "lab-01", since: int = 0) -> int:
        """How many paths all connections but the first `since` of them changed on a host."""
        return sum(visit.count for visit in self.lab.visits(host)[since:])

    def in_use(self, host: str = "lab-01") -> Snapshot:
        """Every path of the stack that was in use before we came, with size, time and inode."""
        found = self.lab.host(host).snapshot()
        return {path: mark for path, mark in found.items() if path.startswith(IN_USE)}

    def built(self, host: str = "lab-01") -> set[str]:
        """What stands in stack folders and as links on a host: `cuda-13.0.2`, `venv`, `current`."""
        base = self.lab.host(host).root / "opt/fleet"
        links = {name for name in ("current", "former") if (base / name).is_symlink()}
        return links | {path.name for path in base.glob("stacks/*/*")}

    def close(self) -> None:
        """Ends what is still at work."""
        for controller in self._controllers:
            controller.end()


@contextlib.contextmanager
def open_scene(
    folder: Path,
    cache: Path,
    *,
    hosts: int = 1,
    faults: Iterable[str] = (),
    installer_s: float | None = 0.1,
    checkout: Path = ROOT,
) -> Iterator[Scene]:
    """A fresh lab with short measurements; `installer_s` None leaves the installer as the faults want it."""
    with Lab(folder / "lab", pins=ROOT / "pins.toml", hosts=hosts, faults=faults, cache=cache) as lab:
        for host in lab.hosts if installer_s is not None else []:
            host.set(installer={"seconds": installer_s})
        with edited(lab.pins_file) as pins:
            pins["eagle3"].update(runs=3, prompts=2, max_new_tokens=16)
            pins["kernels"]["rows"] = [1, 16, 17]
        scene = Scene(lab, folder, checkout)
        try:
            yield scene
        finally:
            scene.close()


@contextlib.contextmanager
def edited(path: Path) -> Iterator[Any]:
    """The tables of a TOML file; what is changed in them is written back."""
    document = tomlkit.parse(path.read_text("utf-8"))
    yield document
    path.write_text(tomlkit.dumps(document), "utf-8")


def until(look: Callable[[], T], what: str) -> T:
    """What `look` gives as soon as it is true; fails after a while."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"in vain: waited for {what}")


def newest(reports: Path) -> Run | None:
    """The run directory that was written last."""
    records = sorted(reports.glob("*/run.json"), key=lambda path: path.stat().st_mtime_ns)
    return Run(records[-1].parent) if records else None


def events(run: Run) -> list[Event]:
    """What was logged in a run, in order."""
    path = run.path / "events.log"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Event) for line in lines]


def _environment(home: Path) -> Mapping[str, str]:
    """Ours, without what steers this pytest, and with a home without SSH settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "SSH_", "NO_COLOR"))}
    return kept | {"HOME": str(home)}
