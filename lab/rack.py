"""A lab: builds what is missing, serves hosts, mirror and index from one thread, writes the files a user needs."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from lab import catalogue, faults, inventory, pins, processes
from lab.cache import put
from lab.host import Host, Visit
from lab.mirror import Mirror
from lab.server import Gate, free_port
from lab.settings import Settings
from lab.wheels import Stack

FOLLOW_S = 0.05
IDLE_S = 0.3
SHOW_TICKS = 5
BUSY_S = 60.0
"""A host that nobody has visited for so long starts no server."""

T = TypeVar("T")


class Lab:
    """Simulated GPU hosts in one folder; `with Lab(path, pins=…) as lab:` serves them meanwhile."""

    def __init__(
        self,
        path: Path | str,
        *,
        pins: Path | str = "pins.toml",
        hosts: int = 1,
        faults: Iterable[str] = (),
        minimal: bool = False,
        cache: Path | str | None = None,
    ) -> None:
        shared = Path(cache).absolute() if cache else None
        self.settings = Settings(Path(path).absolute(), Path(pins).absolute(), hosts, tuple(faults), minimal, shared)
        self.path = self.settings.folder
        self.hosts: list[Host] = []
        self.gates: list[Gate] = []
        self.mirror = Mirror({}, [], self._asked)
        self._last_asked = 0.0
        self.notes: list[str] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._following: Future[None] | None = None

    def __enter__(self) -> "Lab":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def hosts_file(self) -> Path:
        """hosts.toml for these hosts."""
        return self.path / "hosts.toml"

    @property
    def pins_file(self) -> Path:
        """The derived pins.toml; pins.lock lies beside it."""
        return self.path / "pins.toml"

    def host(self, name: str) -> Host:
        """The host of that name."""
        return next(host for host in self.hosts if host.name == name)

    def start(self) -> None:
        """Build what is missing and serve."""
        wanted = faults.collect(self.settings.faults)
        known = pins.read(self.settings.pins)
        try:
            self._make_hosts(wanted)
            self.mirror.rules = list(wanted.http)
            self.mirror.start(self._port("http"))
            self._publish(known, wanted)
            self._serve()
            self._write_files()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Close all ports and end what runs on the hosts; what is on their disks stays."""
        if self._loop is not None and self._thread is not None:
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None
        self.mirror.stop()

    def status(self) -> dict[str, Any]:
        """What is served, for people and for `python -m lab`."""
        hosts = {gate.host.name: self._host_status(gate) for gate in self.gates}
        return {"pid": os.getpid(), "url": self.mirror.url, "idle_s": round(self.idle_s, 1), "hosts": hosts}

    def _asked(self) -> dict[str, Any]:
        """Status for somebody who asks over HTTP: that counts as use, so that a lab just found does not end."""
        told = self.status()
        self._last_asked = time.monotonic()
        return told

    def _host_status(self, gate: Gate) -> dict[str, Any]:
        return {"port": gate.host.port, "connections": len(gate.connections), "root": str(gate.host.root)}

    @property
    def connections(self) -> int:
        """Open SSH connections."""
        return sum(len(gate.connections) for gate in self.gates)

    @property
    def idle_s(self) -> float:
        """Seconds since the last SSH connection ended or somebody asked; 0 while a connection is open."""
        if self.connections or not self.gates:
            return 0.0
        return time.monotonic() - max(self._last_asked, *(gate.last_used for gate in self.gates))

    def visits(self, host: str, settle_s: float = 2.0) -> list[Visit]:
        """Finished connections to a host; waits a moment for those that are just being closed."""
        gate = next(one for one in self.gates if one.host.name == host)
        deadline = time.monotonic() + settle_s
        while gate.connections and time.monotonic() < deadline:
            time.sleep(0.01)
        return gate.host.visits()

    def drop(self, host: str) -> None:
        """End all connections to a host at once, as a cut cable does."""
        gate = next(one for one in self.gates if one.host.name == host)
        self._running_loop().call_soon_threadsafe(gate.drop)

    def reboot(self, host: str) -> None:
        """Reboot a host: connections and processes end, the boot id changes."""
        self.drop(host)
        self.host(host).reboot()

    def _make_hosts(self, wanted: faults.Faults) -> None:
        cache = self.settings.cache_folder
        self.hosts = []
        for number, name in enumerate(self.settings.host_names, 1):
            host = Host(self.path / "hosts" / name, name, number)
            host.furnish(cache, wanted.state_of(name), wanted.files, minimal=self.settings.minimal)
            host.port = self._port(name)
            self.hosts.append(host)

    def _publish(self, known: dict[str, Any], wanted: faults.Faults) -> None:
        cache, pinned = self.settings.cache_folder, pins.stack(known)
        folder, listed = catalogue.runfiles(cache, known)
        house, built = catalogue.wheelhouse(cache, Stack(pinned.cuda, pinned.packages, wanted.index))
        self.mirror.pages = catalogue.mirror(folder, listed, wanted.unlisted) | catalogue.index(house, built)
        mine = catalogue.pinned_runfile(listed, known)
        put(self.path / "pins.lock", pins.lock(built))
        put(self.pins_file, pins.derive(self.settings.pins, self.mirror.url, mine, wanted.pins))
        self.notes = sorted({wheel.note for wheel in built if wheel.note})
        notes = self.notes or ["all wheels carry the tags of the published ones"]
        put(self.path / "notes.txt", "".join(f"{note}\n" for note in notes))

    def _serve(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lab-ssh", daemon=True)
        self._thread.start()
        users = inventory.user_key(self.path)
        self.gates = [Gate(host, inventory.host_key(host), users) for host in self.hosts]
        self._call(self._open())
        self._following = asyncio.run_coroutine_threadsafe(self._follow(), self._running_loop())

    async def _open(self) -> None:
        for gate in self.gates:
            if gate.host.state["ssh"]["refuse"]:
                gate.host.port = gate.host.port or free_port()
            else:
                await gate.open()

    async def _follow(self) -> None:
        tick = 0
        while True:
            for gate in self.gates:
                await gate.follow()
            tick += 1
            if tick % SHOW_TICKS == 0 and self.idle_s < BUSY_S:
                self._show_servers()
            await asyncio.sleep(FOLLOW_S if self.idle_s < BUSY_S else IDLE_S)

    def _show_servers(self) -> None:
        for root, running in processes.servers([host.root for host in self.hosts]).items():
            processes.show(root, running)

    async def _close(self) -> None:
        if self._following is not None:
            self._following.cancel()
        for gate in self.gates:
            await gate.close()
        for host in self.hosts:
            host.kill()
        mine = asyncio.current_task()
        rest = [task for task in asyncio.all_tasks() if task is not mine]
        await asyncio.wait(rest, timeout=2) if rest else None
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._running_loop()).result()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the lab is not started"
        return self._loop

    def _port(self, name: str) -> int:
        """The port something had before, so that inventories stay true; 0 at first."""
        file = self.path / "ports.json"
        ports: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
        return ports.get(name, 0)

    def _write_files(self) -> None:
        ports = {"http": self.mirror.port} | {host.name: host.port for host in self.hosts}
        put(self.path / "ports.json", json.dumps(ports, indent=1) + "\n")
        put(self.path / "known_hosts", inventory.known_hosts(self.hosts))
        put(self.hosts_file, inventory.hosts_toml(self.path, self.hosts))
        # The versions are the real ones, and so is why they were chosen; the interpreter is the lab's own.
        decided = self.settings.pins.with_suffix(".decision.json")
        if decided.is_file():
            put(self.path / "pins.decision.json", pins.decisions(decided.read_text("utf-8")))
