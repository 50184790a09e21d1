"""The lab as a process of its own: one per folder, found again by the lock it holds."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.cache import HERE
from lab.errors import LabError
from lab.settings import Settings

MADE = (
    "hosts",
    "keys",
    "hosts.toml",
    "known_hosts",
    "pins.toml",
    "pins.lock",
    "notes.txt",
    "ports.json",
    "daemon.log",
    "cache",
)
START_S = 60.0


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one of all `up`, `stop` and `reset` of a folder at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "up.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def running(folder: Path) -> dict[str, Any] | None:
    """What the daemon of a folder wrote about itself, if it lives: it holds its lock as long as it does."""
    return _about(folder) if _held(folder) else None


def _held(folder: Path) -> bool:
    try:
        with (folder / "daemon.lock").open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _about(folder: Path) -> dict[str, Any] | None:
    try:
        about: dict[str, Any] = json.loads((folder / "daemon.json").read_text())
    except (OSError, ValueError):
        return None
    return about


def kept(settings: Settings) -> Settings:
    """These settings with the hosts and faults of the lab that runs in the folder, if one does."""
    about = running(settings.folder)
    extent = about.get("extent") if about else None
    if not isinstance(extent, dict):
        return settings
    return replace(settings, hosts=extent["hosts"], faults=tuple(extent["faults"]), minimal=extent["minimal"])


def up(settings: Settings, linger_s: float, *, reset: bool = False) -> dict[str, Any]:
    """A running daemon with these settings: the one that is there, or a new one."""
    wanted = settings.digest()
    with locked(settings.folder):
        about = running(settings.folder)
        if about and about["settings"] == wanted and not reset and status(about):
            return about
        _end(settings.folder)
        if reset:
            forget(settings.folder)
        return _start(settings, linger_s)


def status(about: dict[str, Any]) -> dict[str, Any] | None:
    """What a running daemon says; asking keeps it from ending for want of visitors."""
    # A proxy for the internet knows nothing of loopback.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{about['url']}/lab/status", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
    except OSError:
        return None
    return found


def _start(settings: Settings, linger_s: float) -> dict[str, Any]:
    (settings.folder / "daemon.json").unlink(missing_ok=True)
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH")]
    with (settings.folder / "daemon.log").open("wb") as log:
        process = subprocess.Popen(
            [*_command(settings), "--linger-s", str(linger_s), "--detached"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if about := _about(settings.folder):
            # the daemon outlives this process on purpose
            process.returncode = 0
            return about
        if process.poll() is not None:
            raise LabError(f"the lab did not start: {_last_words(settings.folder / 'daemon.log')}")
        time.sleep(0.01)
    process.kill()
    raise LabError(f"the lab did not start within {START_S:.0f} s: see {settings.folder / 'daemon.log'}")


def _command(settings: Settings) -> list[str]:
    words = [sys.executable, "-m", "lab", "serve", "--dir", str(settings.folder), "--pins", str(settings.pins)]
    words += ["--hosts", str(settings.hosts)]
    for fault in settings.faults:
        words += ["--fault", fault]
    words += ["--cache", str(settings.cache)] if settings.cache else []
    return [*words, "--minimal"] if settings.minimal else words


def _last_words(file: Path) -> str:
    lines = file.read_text(errors="replace").strip().splitlines()
    # an error for people has one or two lines; a traceback tells it in its last
    return "\n".join(lines if len(lines) <= 2 else lines[-1:]) or "it said nothing"


def stop(folder: Path) -> bool:
    """End the daemon of a folder; false when none ran."""
    with locked(folder):
        return _end(folder)


def _end(folder: Path) -> bool:
    if not _held(folder):
        return False
    told = 0
    deadline = time.monotonic() + 15
    while _held(folder):
        # one that is just starting has not said yet which process it is
        about = _about(folder)
        if about and time.monotonic() > deadline:
            os.kill(about["pid"], signal.SIGKILL)
        elif about and not told:
            told = about["pid"]
            os.kill(told, signal.SIGTERM)
        time.sleep(0.01)
    return True


def reset(folder: Path) -> None:
    """End the daemon and forget everything it made."""
    with locked(folder):
        _end(folder)
        forget(folder)


def forget(folder: Path) -> None:
    """Remove what the lab made in a folder, and nothing else."""
    for name in MADE:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
