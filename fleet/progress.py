"""Live progress: prints the events of a run as they are appended, by whatever process."""

import os
import re
import sys
import threading
from typing import TextIO

from fleet.clock import sized
from fleet.run import Event, Run, follow

BAR = 30
# Controls, and what turns the direction of text or begins a line.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Progress:
    """A thread that turns events.log into lines on stderr, and downloads into a bar where there is a terminal."""

    def __init__(self, run: Run, out: TextIO | None = None) -> None:
        self._run = run
        self._out = out or sys.stderr
        self._tty = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._stop = threading.Event()
        self._bar = False
        self._quarter: dict[str, int] = {}
        # A resumed run prints what is new, not what an earlier process saw.
        log = run.path / "events.log"
        self._skip = log.stat().st_size if log.exists() else 0
        self._thread = threading.Thread(target=self._follow, daemon=True, name="progress")

    def start(self) -> None:
        """Begins to print."""
        self._thread.start()

    def stop(self) -> None:
        """Prints what is left, then ends."""
        self._stop.set()
        self._thread.join(5)

    def _follow(self) -> None:
        for event in follow(self._run.path / "events.log", self._stop, self._skip):
            if event.kind == "progress":
                self._progress(event)
            else:
                self._line(event)

    def _line(self, event: Event) -> None:
        mark = "! " if event.kind == "warning" else ""
        self._write(f"{_head(event)} {mark}{_UNSAFE.sub(' ', event.text)}\n")

    def _progress(self, event: Event) -> None:
        if not event.total:
            return
        share = min(event.done / event.total, 1.0)
        text = f"{sized(event.done)} of {sized(event.total)}"
        if self._tty:
            filled = "#" * round(share * BAR)
            self._out.write(f"\r{_head(event)} [{filled:<{BAR}}] {text} ")
            self._out.flush()
            self._bar = True
            return
        quarter, told = int(share * 4), self._quarter.get(event.host, 0)
        # Less than before is another download.
        self._quarter[event.host] = quarter
        if quarter > told:
            self._write(f"{_head(event)} {share:.0%} {text}\n")

    def _write(self, line: str) -> None:
        self._out.write(("\n" if self._bar else "") + line)
        self._out.flush()
        self._bar = False


def _head(event: Event) -> str:
    return _UNSAFE.sub(" ", f"{event.at[11:19]} {event.host:<10} {event.stage:<8}")
