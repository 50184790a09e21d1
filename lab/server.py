"""The SSH side of a lab: one port and one host key per host."""

import asyncio
import posixpath
import socket
import time
from functools import partial
from typing import Any

import asyncssh

from lab import session, terminal
from lab.host import USER, Host
from lab.writes import Snapshot


class Gate:
    """Serves one host over SSH and follows its state while it runs."""

    def __init__(self, host: Host, host_key: asyncssh.SSHKey, users: asyncssh.SSHAuthorizedKeys) -> None:
        self.host = host
        self.users = users
        self.connections: dict[asyncssh.SSHServerConnection, _Door] = {}
        self.last_used = time.monotonic()
        self.closed_until = 0.0
        self._host_key = host_key
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._installs = len(host.installs())
        self._seen = 0
        self._ssh: dict[str, Any] = host.state["ssh"]

    @property
    def latency_s(self) -> float:
        """What every round trip takes longer."""
        return float(self._ssh["latency_ms"]) / 1000

    async def open(self) -> None:
        """Listen, on the host's own port if it has one and it is free."""
        if self._acceptor is not None:
            return
        try:
            self._acceptor = await self._listen(self.host.port)
        except OSError:
            self._acceptor = await self._listen(0)
        self.host.port = self._acceptor.get_port()

    async def _listen(self, port: int) -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            "127.0.0.1",
            port,
            server_factory=partial(_Door, self),
            server_host_keys=[self._host_key],
            process_factory=self._run,
            sftp_factory=partial(_Files, self.host),
            allow_scp=True,
            encoding=None,
            line_editor=False,
            agent_forwarding=False,
            kex_algs=["curve25519-sha256", "curve25519-sha256@libssh.org", "ecdh-sha2-nistp256"],
            compression_algs=None,
            login_timeout=60,
            backlog=128,
        )

    async def _run(self, ssh: "asyncssh.SSHServerProcess[bytes]") -> None:
        door = self.connections.get(ssh.get_extra_info("connection"))
        if door is not None:
            door.commands += 1
        if ssh.term_type is None:
            await session.run(self.host, ssh)
        else:
            await terminal.run(self.host, ssh, ssh.term_type)

    async def close(self) -> None:
        """Stop listening and end all connections."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.close()
            await acceptor.wait_closed()
        self.drop()

    def drop(self) -> None:
        """End all connections as a cut cable does, without a word."""
        for connection in list(self.connections):
            connection.abort()

    async def follow(self) -> None:
        """Bring the gate in line with the state of its host; called a few times a second."""
        stamp = self.host.state_file.stat().st_mtime_ns
        if stamp != self._seen:
            self._seen, self._ssh = stamp, self.host.state["ssh"]
        self._drop_when_installing()
        shut = self._ssh["refuse"] or time.monotonic() < self.closed_until
        if shut and self._acceptor is not None:
            await self.close()
        elif not shut:
            await self.open()

    def _drop_when_installing(self) -> None:
        if not self._ssh["drop_after_install_starts"]:
            return
        ran = len(self.host.installs())
        if ran > self._installs:
            self._installs = ran
            self.closed_until = time.monotonic() + float(self._ssh["down_after_drop_s"])
            self.drop()


def free_port() -> int:
    """A port for a host that does not listen yet."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class _Door(asyncssh.SSHServer):
    """One connection."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.before: Snapshot | None = None
        self.started = time.time()
        self.commands = 0

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.conn = conn
        self.gate.connections[conn] = self
        self.gate.last_used = time.monotonic()
        if self.gate.latency_s:
            _slow_down(conn, self.gate)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the name is inherited
        if self.before is not None:
            self.gate.host.leave(self.before, self.started, self.commands)
        self.gate.last_used = time.monotonic()
        # last: who waits for the connection to be gone wants its visit noted
        self.gate.connections.pop(self.conn, None)

    def begin_auth(self, username: str) -> bool:
        if username == USER:
            self.conn.set_authorized_keys(self.gate.users)
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def auth_completed(self) -> None:
        self.before = self.gate.host.enter()


def _slow_down(conn: asyncssh.SSHServerConnection, gate: Gate) -> None:
    """Hand incoming bytes on later, in order: so each round trip takes that much longer."""
    receive, loop = conn.data_received, asyncio.get_running_loop()

    def later(data: bytes, kind: int | None = None) -> None:
        loop.call_later(gate.latency_s, receive, data, kind)

    setattr(conn, "data_received", later)  # noqa: B010 - the transport looks the method up on the object


class _Files(asyncssh.SFTPServer):
    """SFTP with real paths; relative ones begin at the home folder, as with OpenSSH."""

    def __init__(self, host: Host, chan: "asyncssh.SSHServerChannel[bytes]") -> None:
        super().__init__(chan)
        self._home = str(host.root / "home" / USER).encode()

    def map_path(self, path: bytes) -> bytes:
        """The path on this machine."""
        return posixpath.normpath(posixpath.join(self._home, path))
