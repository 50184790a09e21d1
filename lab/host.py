"""One simulated GPU host: its folder, its state, and what was done to it."""

import contextlib
import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab import furnish, processes, state
from lab.cache import put
from lab.faults import load, state_change
from lab.state import State
from lab.writes import Changes, Snapshot, changes, snapshot

USER = "ops"
SHELL = shutil.which("bash") or "/bin/sh"


@dataclass(frozen=True)
class Visit:
    """One SSH connection, or the time between two, and what changed on the host's disk meanwhile."""

    kind: str
    started: float
    ended: float
    commands: int
    changes: Changes

    @property
    def count(self) -> int:
        """How many paths changed."""
        return self.changes.count


class Host:
    """A lab host on disk; the server serves it, tests look into it."""

    def __init__(self, folder: Path, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.folder = folder
        self.root = folder / "root"
        self.port = 0
        self._last: Snapshot | None = None

    @property
    def state_file(self) -> Path:
        """state.json, which the stand-ins read."""
        return self.folder / "state.json"

    @property
    def state(self) -> State:
        """The state in force."""
        found: State = json.loads(self.state_file.read_text())
        return found

    @property
    def faults(self) -> State:
        """What the faults of the running lab change."""
        file = self.folder / "faults.json"
        found: State = json.loads(file.read_text()) if file.exists() else {}
        return found

    @property
    def changed_by_hand(self) -> State:
        """What `set` changed, kept apart from defaults and faults."""
        file = self.folder / "overlay.json"
        found: State = json.loads(file.read_text()) if file.exists() else {}
        return found

    @property
    def machine_id(self) -> str:
        """Contents of /etc/machine-id."""
        return (self.root / "etc/machine-id").read_text().strip()

    def set(self, change: Mapping[str, Any] | None = None, **values: Any) -> None:
        """Change the state, at once and until the next reset: `set(driver="570.124.06", ssh={"refuse": True})`."""
        overlay = state.merged(state.merged(self.changed_by_hand, change or {}), values)
        put(self.folder / "overlay.json", json.dumps(overlay) + "\n")
        self.write_state()

    def fault(self, name: str) -> None:
        """Put what a fault says about hosts into this one, at once."""
        self.set(state_change(load(name)))

    def clear(self) -> None:
        """Undo `set` and `fault`."""
        put(self.folder / "overlay.json", "{}\n")
        self.write_state()

    def write_state(self) -> None:
        """Bring state.json, its shell twin and what /proc shows up to date."""
        now = state.merged(state.merged(state.defaults(), self.faults), self.changed_by_hand)
        put(self.folder / "state.sh", state.as_shell(now, self.machine_id))
        put(self.state_file, state.as_json(now))
        loaded = self.root / "proc/driver/nvidia/version"
        if now["driver"] == "none":
            loaded.unlink(missing_ok=True)
        else:
            put(loaded, state.module_text(now))

    def furnish(self, cache: Path, faults: State, files: Mapping[str, str], *, minimal: bool) -> None:
        """Make what is missing of the host, and put faults in force."""
        furnish.furnish(self.root, self.name, cache, minimal=minimal)
        put(self.folder / "faults.json", json.dumps(faults) + "\n")
        self._lay_fault_files(files)
        self.write_state()

    def _lay_fault_files(self, files: Mapping[str, str]) -> None:
        """Files of the faults in force; those of earlier faults go."""
        note = self.folder / "fault_files.json"
        earlier: list[str] = json.loads(note.read_text()) if note.exists() else []
        for path in set(earlier) - set(files):
            (self.root / path).unlink(missing_ok=True)
        for path, text in files.items():
            put(self.root / path, text.replace("{root}", str(self.root)))
        put(note, json.dumps(sorted(files)) + "\n")

    def environment(self) -> dict[str, str]:
        """The environment of a command on this host."""
        root = str(self.root)
        own = ":".join(f"{root}/{folder}" for folder in ("usr/local/sbin", "usr/local/bin", "usr/bin"))
        return {
            "PATH": f"{own}:/usr/bin:/bin",
            "HOME": f"{root}/home/{USER}",
            "TMPDIR": f"{root}/tmp",  # noqa: S108 - the host's own
            "USER": USER,
            "LOGNAME": USER,
            "SHELL": SHELL,
            "LANG": "C.UTF-8",
            "LAB_ROOT": root,
            "LAB_STATE": str(self.state_file),
        }

    def installs(self) -> list[str]:
        """One line for each time the installer really ran."""
        file = self.folder / "installs.log"
        return file.read_text().splitlines() if file.exists() else []

    def sudo_log(self) -> list[str]:
        """The commands that were run under sudo."""
        file = self.folder / "sudo.log"
        return file.read_text().splitlines() if file.exists() else []

    def snapshot(self) -> Snapshot:
        """What is on the host's disk now."""
        return snapshot(self.root)

    def changes_since(self, before: Snapshot) -> Changes:
        """What changed on the host's disk since a snapshot."""
        return changes(before, self.snapshot())

    def enter(self) -> Snapshot:
        """A connection begins; what changed since the last one is noted as done between connections."""
        now = self.snapshot()
        if self._last is not None and (between := changes(self._last, now)).count:
            self._note(Visit("between connections", time.time(), time.time(), 0, between))
        return now

    def leave(self, before: Snapshot, started: float, commands: int) -> None:
        """A connection ended."""
        self._last = self.snapshot()
        self._note(Visit("connection", started, time.time(), commands, changes(before, self._last)))

    def _note(self, visit: Visit) -> None:
        with (self.folder / "visits.jsonl").open("a") as file:
            file.write(json.dumps(asdict(visit)) + "\n")

    def visits(self) -> list[Visit]:
        """All finished connections since the last reset, oldest first."""
        file = self.folder / "visits.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [_visit(json.loads(line)) for line in lines]

    def processes(self) -> list[int]:
        """Processes that run on this host."""
        return processes.of(self.root)

    def kill(self) -> int:
        """End everything that runs on this host, and say how many processes that were."""
        ended = 0
        # a process may fork while the list is made: look again until there is none
        while victims := self.processes():
            ended += len(victims)
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        return ended

    def reboot(self) -> None:
        """What a reboot does: nothing runs any more, /tmp is empty, the boot id is new."""
        self.kill()
        for entry in (self.root / "tmp").iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        put(self.root / "proc/sys/kernel/random/boot_id", f"{uuid.uuid4()}\n")


def _visit(table: dict[str, Any]) -> Visit:
    lists = {key: tuple(paths) for key, paths in table.pop("changes").items()}
    return Visit(changes=Changes(**lists), **table)
