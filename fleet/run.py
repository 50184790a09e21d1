"""The run directory: the only truth about a run, and its only writer.

`reports/<run>/` holds run.json, pins.toml (a copy), events.log, and per host `probe.json`, `<stage>.json` and
logs. Each file is written whole and moved into place, so that a reader never sees half of one.
"""

import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fleet.clock import now
from fleet.model import GOOD, Measured, Mode, RunRecord, StageResult, Status
from fleet.problem import Problem, did_you_mean

KEPT = GOOD | {"running"}
"""Whose measurements serve again: not those of a stage that failed, which a second try must be able to better."""
LOG_TAIL_BYTES = 64 * 1024
T = TypeVar("T")


def new_run_id(mode: Mode) -> str:
    """A sortable, unique name for a run: time, mode, four random hex digits."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return f"{stamp}-{mode}-{secrets.token_hex(2)}"


class Event(msgspec.Struct, frozen=True):
    """One line of events.log."""

    at: str
    host: str
    stage: str
    kind: str
    """started, running, progress, warning, finished."""
    text: str
    done: int = 0
    total: int = 0


class Run:
    """One run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, reports: Path, record: RunRecord, pins_file: Path) -> "Run":
        """A run directory, new or that of a resumed run, with its record and a copy of the pins."""
        run = cls(reports / record.id)
        run.path.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(pins_file, run.path / "pins.toml")
        run.write_record(record)
        return run

    @property
    def record(self) -> RunRecord:
        """run.json as it is now."""
        found = self._read(self.path / "run.json", RunRecord)
        if found is None:
            raise Problem(f"{self.path}: no readable run.json: not a run directory")
        return found

    def write_record(self, record: RunRecord) -> None:
        """Replaces run.json."""
        self._write(self.path / "run.json", record)

    def write_probe(self, host: str, record: dict[str, Any]) -> None:
        """Keeps the probe record of a host."""
        self._write(self._host(host) / "probe.json", record)

    def write_result(self, result: StageResult) -> None:
        """Keeps what a stage came to on a host."""
        self._write(self._host(result.host) / f"{result.stage}.json", result)

    def result(self, host: str, stage: str) -> StageResult | None:
        """What a stage came to on a host, if anything was written."""
        return self._read(self.path / host / f"{stage}.json", StageResult)

    def results(self) -> dict[tuple[str, str], StageResult]:
        """A result for each host × stage of the run: `running` reads as interrupted, none as not run."""
        record = self.record
        cells = [(host, stage) for host in record.hosts for stage in record.stages]
        return {cell: self._settled(*cell) for cell in cells}

    def log_path(self, host: str, name: str) -> Path:
        """Where a log of that name belongs; its folder exists."""
        return self._host(host) / name

    def log_tail(self, host: str, name: str, limit_bytes: int = LOG_TAIL_BYTES) -> str:
        """The end of a log, decoded with replacement; empty when there is none."""
        path = self.path / host / name
        if not name or not path.is_file():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - limit_bytes))
            return file.read().decode("utf-8", "replace")

    def event(self, host: str, stage: str, kind: str, text: str, done: int = 0, total: int = 0) -> None:
        """Appends one line to events.log; a single write, so that workers never mix lines."""
        # The name of a file may be no text: a surrogate is no UTF-8.
        text = text.encode("utf-8", "replace").decode()
        line = msgspec.json.encode(Event(now(), host, stage, kind, text, done, total)) + b"\n"
        descriptor = os.open(self.path / "events.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def _settled(self, host: str, stage: str) -> StageResult:
        found = self.result(host, stage)
        if found is None:
            reason = "the run ended before this stage"
            return StageResult(host=host, stage=stage, status="not run", reason=reason)
        if found.status == "running":
            changed: Status = "interrupted"
            return msgspec.structs.replace(
                found,
                status=changed,
                reason="the run ended while this stage was at work; its job may go on on the host",
                hint=f"`nox -s upgrade -- --run {self.path.name}` takes it up again",
            )
        return found

    def _host(self, host: str) -> Path:
        folder = self.path / host
        folder.mkdir(exist_ok=True)
        return folder

    @staticmethod
    def _write(path: Path, value: Any) -> None:
        scratch = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(2)}")
        scratch.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
        scratch.replace(path)

    @staticmethod
    def _read(path: Path, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Problem(f"{path}: unreadable: {error}", "the run was written by another version") from None


def runs(reports: Path) -> list[Run]:
    """All run directories, the newest first."""
    found = [path.parent for path in reports.glob("*/run.json")]
    return [Run(path) for path in sorted(found, reverse=True)]


def find_run(reports: Path, name: str, mode: Mode | None = None) -> Run:
    """The run of that id; for `latest` the newest, of that mode if one is given.

    Raises Problem when there is none.
    """
    known = runs(reports)
    if name == "latest":
        # Someone who goes on with an upgrade does not mean the plan that was made after it.
        fitting = [run for run in known if mode in (None, _mode(run))]
        if not fitting:
            verb = "upgrade" if mode in (None, "apply") else mode
            kind = f"{mode} run" if mode else "run"
            raise Problem(f"{reports}: no {kind} yet", f"`make {verb}` makes one")
        return fitting[0]
    for run in known:
        if run.path.name == name:
            return run
    raise Problem(f"--run: unknown run `{name}`" + did_you_mean(name, [run.path.name for run in known[:20]]))


def _mode(run: Run) -> Mode | None:
    """The mode of a run; None when its record cannot be read: one bad file must not hide the other runs."""
    try:
        return run.record.mode
    except Problem:
        return None


def earlier_measurement(reports: Path, host: str, stage: str, name: str, inputs: str) -> Measured | None:
    """The newest measurement of that name with equal inputs that any run recorded for that host."""
    for run in runs(reports):
        try:
            result = run.result(host, stage)
        except Problem:
            continue
        # A measurement that was judged wrong, or too noisy to tell, is made again: that is what its hint asks for.
        measured = result.measured.get(name) if result and result.status in KEPT else None
        if measured is not None and measured.inputs == inputs:
            return measured
    return None


def follow(path: Path, stop: threading.Event, offset: int = 0) -> Iterator[Event]:
    """Yields events as they are appended after `offset`, until `stop` is set and the file is read to its end."""
    while True:
        ended = stop.is_set()
        lines = _lines_from(path, offset)
        offset += sum(map(len, lines))
        yield from filter(None, map(_event, lines))
        if ended:
            return
        stop.wait(0.05)


def _lines_from(path: Path, offset: int) -> list[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return re.findall(rb"[^\n]*\n", file.read())
    except FileNotFoundError:
        return []


def _event(line: bytes) -> Event | None:
    try:
        return msgspec.json.decode(line, type=Event)
    except msgspec.MsgspecError:
        return None
