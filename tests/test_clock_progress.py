"""Times and sizes in words, and what is shown while a run goes on: on a terminal, and where there is none."""

import io
import re
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from fleet.clock import now, sized, spoken
from fleet.grid import grid
from fleet.model import RunRecord, StageResult
from fleet.progress import Progress
from fleet.run import Run


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0 s"),
        (0.04, "0.0 s"),
        (0.36, "0.4 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (10, "10 s"),
        (34.4, "34 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (60, "1 min"),
        (134.2, "2 min 14 s"),
        (3599, "59 min 59 s"),
        (3599.6, "1 h"),
        (3600, "1 h"),
        (3790, "1 h 3 min"),
        (90_000, "25 h"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    """As people say them; never sixty of something."""
    assert spoken(seconds) == words


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (38_000_000, "38.0 MB"),
        (999_960_000, "1.00 GB"),
        (4_328_066_903, "4.33 GB"),
        (20_000_000_000_000, "20000.00 GB"),
    ],
)
def test_sizes(size_bytes: int, words: str) -> None:
    """In powers of 1000, as vendors write them; never a thousand of something smaller."""
    assert sized(size_bytes) == words


def test_now_is_utc() -> None:
    """ISO, to the second, with a Z."""
    stamp = datetime.strptime(now(), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    assert abs((datetime.now(timezone.utc) - stamp).total_seconds()) < 3


class Terminal(io.StringIO):
    """A stream that says of itself that people look at it."""

    def isatty(self) -> bool:
        """A terminal."""
        return True


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run without events."""
    return Run(tmp_path)


def shown(run: Run, out: io.StringIO, speak: Callable[[], None]) -> str:
    """What is printed while `speak` writes events; times are left out."""
    progress = Progress(run, out)
    progress.start()
    speak()
    progress.stop()
    return re.sub(r"\d\d:\d\d:\d\d", "hh:mm:ss", out.getvalue())


def test_one_event_one_line(run: Run) -> None:
    """Time, host, stage, text; a warning is marked."""

    def speak() -> None:
        run.event("gpu-01", "toolkit", "started", "download")
        run.event("gpu-02", "toolkit", "warning", "connection lost")

    assert shown(run, io.StringIO(), speak) == (
        "hh:mm:ss gpu-01     toolkit  download\nhh:mm:ss gpu-02     toolkit  ! connection lost\n"
    )


def test_events_of_an_earlier_process_are_not_told_again(run: Run) -> None:
    """A resumed run prints what is new."""
    run.event("gpu-01", "toolkit", "started", "before")
    out = shown(run, io.StringIO(), lambda: run.event("gpu-01", "toolkit", "started", "after"))
    assert out == "hh:mm:ss gpu-01     toolkit  after\n"


def download(run: Run, host: str = "gpu-01", steps: int = 40) -> None:
    """A download that is told in many small steps."""
    for step in range(steps + 1):
        run.event(host, "toolkit", "progress", "", step * 100_000_000, steps * 100_000_000)


def test_without_a_terminal_only_quarters_are_told(run: Run) -> None:
    """Four lines a download, however often it is told; each host has its own."""

    def speak() -> None:
        download(run)
        download(run, "gpu-02", 3)
        # A size that nobody knows makes no share.
        run.event("gpu-01", "toolkit", "progress", "", 5, 0)

    assert shown(run, io.StringIO(), speak).splitlines() == [
        "hh:mm:ss gpu-01     toolkit  25% 1.00 GB of 4.00 GB",
        "hh:mm:ss gpu-01     toolkit  50% 2.00 GB of 4.00 GB",
        "hh:mm:ss gpu-01     toolkit  75% 3.00 GB of 4.00 GB",
        "hh:mm:ss gpu-01     toolkit  100% 4.00 GB of 4.00 GB",
        "hh:mm:ss gpu-02     toolkit  33% 100.0 MB of 300.0 MB",
        "hh:mm:ss gpu-02     toolkit  67% 200.0 MB of 300.0 MB",
        "hh:mm:ss gpu-02     toolkit  100% 300.0 MB of 300.0 MB",
    ]


def test_second_download_of_a_host_is_told_too(run: Run) -> None:
    """Another stage, or another attempt, begins at nothing again."""

    def speak() -> None:
        download(run, steps=1)
        download(run, steps=1)

    assert len(shown(run, io.StringIO(), speak).splitlines()) == 2


def test_bar_on_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that is written over, and left before the next event."""
    monkeypatch.setenv("TERM", "xterm")

    def speak() -> None:
        download(run, steps=2)
        run.event("gpu-01", "toolkit", "finished", "ok")

    *before, last = shown(run, Terminal(), speak).split("\r")
    assert before[2].endswith(f"[{'#' * 15}{' ' * 15}] 100.0 MB of 200.0 MB ")
    assert last == f"hh:mm:ss gpu-01     toolkit  [{'#' * 30}] 200.0 MB of 200.0 MB \nhh:mm:ss gpu-01     toolkit  ok\n"


def test_more_than_the_whole_is_the_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends too much does not break the bar."""
    monkeypatch.setenv("TERM", "xterm")
    out = shown(run, Terminal(), lambda: run.event("gpu-01", "toolkit", "progress", "", 300, 200))
    assert f"[{'#' * 30}] 300 B of 200 B" in out


def test_dumb_terminal_gets_lines(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot go back in a line is not asked to."""
    monkeypatch.setenv("TERM", "dumb")
    assert "\r" not in shown(run, Terminal(), lambda: download(run))


@pytest.mark.parametrize("terminal", [io.StringIO, Terminal])
def test_text_of_a_host_cannot_move_the_cursor(terminal: Any, run: Run) -> None:
    """Escapes, line feeds, bells, C1 controls and those that turn the direction of text become blanks."""
    text = "a\x1b[2Jb\nc\rd\x07e\x9bf\x00g\u202eh\u2028i"
    out = shown(run, terminal(), lambda: run.event("gpu-\x1b]0;x\x0701", "tool\nkit", "running", text))
    assert out.count("\n") == 1
    assert not set(out[:-1]) & set("\x1b\n\r\x07\x9b\x00\u202e\u2028")
    assert re.sub(r"\W", "", out).endswith("a2Jbcdefghi")


def test_stop_prints_what_is_left(run: Run) -> None:
    """Events of the last moment are not lost, and stopping takes no time."""
    progress = Progress(run, out := io.StringIO())
    progress.start()
    for number in range(500):
        run.event("gpu-01", "toolkit", "running", str(number))
    clock = time.monotonic()
    progress.stop()
    assert time.monotonic() - clock < 2
    assert len(out.getvalue().splitlines()) == 500


def test_colour_only_where_it_is_asked_for(tmp_path: Path) -> None:
    """Without colour the grid has no escape, and with it the same words."""
    (tmp_path / "pins.toml").write_text("")
    record = RunRecord(
        id="r",
        mode="apply",
        started="",
        hosts=["gpu-01"],
        stages=["driver"],
        pins_file="",
        pins_digest="",
        stack="",
    )
    run = Run.create(tmp_path / "reports", record, tmp_path / "pins.toml")
    run.write_result(StageResult(host="gpu-01", stage="driver", status="failed", reason="x"))
    plain, coloured = grid(run), grid(run, colour=True)
    assert "\x1b" not in plain
    assert "\x1b[31mfailed\x1b[0m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
