"""What the daemon does: serves a lab until it is told to stop, or nobody comes any more."""

import fcntl
import json
import resource
import signal
import time
from typing import TextIO

from lab.cache import put
from lab.errors import LabError
from lab.output import say
from lab.rack import Lab
from lab.settings import Settings, ssh_lines


def serve(settings: Settings, linger_s: float, *, detached: bool) -> None:
    """Serve until a signal, or until nobody has connected for `linger_s`; 0 = no such limit."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    with (settings.folder / "daemon.lock").open("a") as lock:
        if not _taken(lock):
            raise LabError(f"{settings.folder}: a lab runs here already; `python -m lab stop` ends it")
        _raise_file_limit()
        stop = _StopSignal()
        lab = Lab(
            settings.folder,
            pins=settings.pins,
            hosts=settings.hosts,
            faults=settings.faults,
            minimal=settings.minimal,
            cache=settings.cache,
        )
        try:
            lab.start()
            extent = {"hosts": settings.hosts, "faults": settings.faults, "minimal": settings.minimal}
            about = lab.status() | {"settings": settings.digest(), "extent": extent, "linger_s": linger_s}
            put(settings.folder / "daemon.json", json.dumps(about, indent=1) + "\n")
            if not detached:
                say("\n".join(ssh_lines(settings.folder, about)))
            while not stop.came and (not linger_s or lab.idle_s < linger_s):
                time.sleep(0.1)
        finally:
            (settings.folder / "daemon.json").unlink(missing_ok=True)
            lab.stop()


def _taken(lock: TextIO) -> bool:
    """Take the daemon's lock; somebody who only looks may hold it for a moment."""
    for _ in range(20):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


class _StopSignal:
    """Remembers SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self.came = True


def _raise_file_limit() -> None:
    """A hundred hosts with their processes need more than the usual 1024 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else hard
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
