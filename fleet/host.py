"""A host over SSH: the only module that knows Fabric.

Fabric's and paramiko's defaults are replaced where they hurt an unattended run: unknown host keys are refused,
nothing waits for ever, small packets leave at once, and an exit status is an answer.
"""

import base64
import contextlib
import hashlib
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import fabric
import invoke
import paramiko

from fleet.hosts import HostSpec
from fleet.model import Answer

CONNECT_TIMEOUT_S = 15.0
READ_TIMEOUT_S = 30.0
KEEPALIVE_S = 15
T = TypeVar("T")


class Unreachable(Exception):
    """The host cannot be asked: no connection, no permission to log in, or no answer in time."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class Dropped(Unreachable):
    """The connection ended while a command ran, or just before."""


class Host(Protocol):
    """What the engine needs of a host."""

    spec: HostSpec

    def run(self, command: str, timeout_s: float = READ_TIMEOUT_S) -> Answer:
        """The answer to one command of the login shell. Raises Unreachable."""

    def run_bytes(self, command: str, timeout_s: float = READ_TIMEOUT_S) -> tuple[int, bytes, bytes]:
        """Exit status, stdout and stderr, byte for byte. Raises Unreachable."""

    def put(self, local: Path, remote: str, timeout_s: float = 600.0) -> None:
        """Copies one file to the host. Raises Unreachable."""

    def close(self) -> None:
        """Ends the connection."""


class _Prompt(fabric.runners.Remote):  # type: ignore[misc]
    # 1,000 bytes a read make 20 MB of output take 45 s.
    read_chunk_size = 65536

    def start(self, command: str, shell: str, env: Any, timeout: float | None = None) -> None:
        super().start(command, shell, env, timeout)
        # Without the end of input, a tool that asks a question waits until its time is over.
        self.channel.shutdown_write()

    def wait(self) -> None:
        # Wakes at the exit status itself; the stock loop polls every 10 ms, for the length of the command.
        while not (self.process_is_finished or self.has_dead_threads):
            self.channel.status_event.wait(0.2)


@cache
def _ssh_config() -> paramiko.SSHConfig:
    """~/.ssh/config and /etc/ssh/ssh_config, read once."""
    config = fabric.Config(lazy=True)
    try:
        config.load_ssh_config()
    except (OSError, ValueError, paramiko.SSHException) as error:
        raise Unreachable(f"~/.ssh/config cannot be read: {error}", "correct it; `ssh -G HOST` reads it too") from None
    found: paramiko.SSHConfig = config.base_ssh_config
    return found


_reading = threading.Lock()


def _config() -> fabric.Config:
    """A configuration of a connection's own: Fabric writes into it while it connects, and hosts connect in threads."""
    with _reading:
        ssh_config = _ssh_config()
    # lazy: a user's ~/.fabric.yaml must not change what a run does; ~/.ssh/config is wanted.
    return fabric.Config(lazy=True, overrides={"runners": {"remote": _Prompt}}, ssh_config=ssh_config)


class SshHost:
    """A host reached by SSH, over one connection that is opened at the first question."""

    def __init__(self, spec: HostSpec, accept_new_host_keys: bool = False) -> None:
        self.spec = spec
        self._accept_new = accept_new_host_keys
        self._connection: fabric.Connection | None = None

    def run(self, command: str, timeout_s: float = READ_TIMEOUT_S) -> Answer:
        """The answer to one command of the login shell; bytes that are not UTF-8 are replaced.

        Raises Unreachable when there is no connection or no answer in `timeout_s`.
        """
        started = time.monotonic()
        rc, out, err = self.run_bytes(command, timeout_s)
        return Answer(
            command=command,
            rc=rc,
            out=out.decode("utf-8", "replace"),
            err=err.decode("utf-8", "replace"),
            seconds=round(time.monotonic() - started, 3),
        )

    def run_bytes(self, command: str, timeout_s: float = READ_TIMEOUT_S) -> tuple[int, bytes, bytes]:
        """Exit status, stdout and stderr of one command, byte for byte. Raises as `run`."""
        reused = self._connection is not None
        try:
            return self._once(command, timeout_s)
        except Dropped:
            if not reused:
                raise
            # The line went away since the last command. Every command of ours may be given twice.
            self.close()
            return self._once(command, timeout_s)

    def _once(self, command: str, timeout_s: float) -> tuple[int, bytes, bytes]:
        connection = self._opened()
        late = f"no answer in {timeout_s:g} s to: {command[:80]}"
        with _translated(self.spec):
            result = self._within(timeout_s, late, lambda: _run(connection, command))
        return result.exited, result.stdout.encode("latin-1"), result.stderr.encode("latin-1")

    def put(self, local: Path, remote: str, timeout_s: float = 600.0) -> None:
        """Copies one file to the host by SFTP.

        Raises Unreachable when the connection fails or the copy takes longer than `timeout_s`.
        """
        connection = self._opened()
        with _translated(self.spec):
            late = f"copying {local.name} took over {timeout_s:g} s"
            self._within(timeout_s, late, lambda: _put(connection, local, remote))

    def close(self) -> None:
        """Ends the connection; the next question opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.client is not None:
            connection.client.close()

    def _opened(self) -> fabric.Connection:
        connection = self._connection
        if connection is not None and connection.is_connected:
            return connection
        self.close()
        connection = _connection(self.spec, self._accept_new)
        with _translated(self.spec):
            self._within(4 * CONNECT_TIMEOUT_S, "no SSH session in time", connection.open)
        _tuned(connection)
        self._connection = connection
        return connection

    def _within(self, seconds: float, late: str, work: Callable[[], T]) -> T:
        """`work` in a thread of its own: paramiko can block past every time-out it is given."""
        outcome: list[T] = []
        failure: list[BaseException] = []

        def guarded() -> None:
            try:
                outcome.append(work())
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=guarded, daemon=True, name=f"ssh-{self.spec.name}")
        thread.start()
        thread.join(seconds)
        if failure:
            raise failure[0]
        if outcome:
            return outcome[0]
        self.close()
        raise Unreachable(late, "the host may hang: look at its console, then run again")


def _run(connection: fabric.Connection, command: str) -> Any:
    # latin-1 keeps every byte; the caller knows what they mean.
    result = connection.run(command, hide=True, warn=True, in_stream=False, pty=False, encoding="latin-1")
    if result.exited == -1 and _is_gone(connection):
        raise EOFError("closed by the host")
    return result


def _is_gone(connection: fabric.Connection) -> bool:
    """A command without an exit status died of a signal, or its connection did; paramiko tells the latter late."""
    transport = connection.client.get_transport()
    if transport is not None:
        transport.join(0.3)
    return transport is None or not transport.is_active()


def _put(connection: fabric.Connection, local: Path, remote: str) -> Any:
    return connection.put(str(local), remote=remote)


def _connection(spec: HostSpec, accept_new: bool) -> fabric.Connection:
    kwargs: dict[str, Any] = {
        "banner_timeout": CONNECT_TIMEOUT_S,
        "auth_timeout": CONNECT_TIMEOUT_S,
        # Opening a channel waits an hour by default.
        "channel_timeout": CONNECT_TIMEOUT_S,
    }
    if spec.key and not Path(spec.key).expanduser().is_file():
        raise Unreachable(f"no key file {spec.key}", f"correct `key` of {spec.name} in hosts.toml")
    if spec.key:
        kwargs.update(key_filename=[str(Path(spec.key).expanduser())], look_for_keys=False, allow_agent=False)
    connection = fabric.Connection(
        spec.address,
        user=spec.user or None,
        port=spec.port or None,
        config=_config(),
        connect_timeout=int(CONNECT_TIMEOUT_S),
        connect_kwargs=kwargs,
    )
    _guard_host_keys(connection, spec, accept_new)
    return connection


def _guard_host_keys(connection: fabric.Connection, spec: HostSpec, accept_new: bool) -> None:
    client = connection.client
    client.load_system_host_keys()
    named = [spec.known_hosts] if spec.known_hosts else []
    named += str(connection.ssh_config.get("userknownhostsfile", "")).split()
    for name in named:
        path = Path(name).expanduser()
        if path.is_file():
            client.load_system_host_keys(str(path))
    if accept_new:
        store = Path(named[0]).expanduser() if named else Path("~/.ssh/known_hosts").expanduser()
        store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        store.touch()
        client.load_host_keys(str(store))
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    else:
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
    if isinstance(connection.gateway, fabric.Connection):
        _guard_host_keys(connection.gateway, spec, accept_new)


def _tuned(connection: fabric.Connection) -> None:
    transport = connection.client.get_transport()
    transport.set_keepalive(KEEPALIVE_S)
    # Through a jump host the transport runs over a channel, which has no socket options.
    if isinstance(transport.sock, socket.socket):
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def fingerprint(key: paramiko.PKey) -> str:
    """A key's SHA256 fingerprint as ssh-keygen -l prints it."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return f"{key.get_name()} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


@contextlib.contextmanager
def _translated(spec: HostSpec) -> Iterator[None]:
    """Turns what Fabric, paramiko and sockets raise into Unreachable with a cause a person can act on."""
    where = f"{spec.address}:{spec.port}" if spec.port else spec.address
    try:
        yield
    except paramiko.BadHostKeyException as error:
        raise Unreachable(
            f"the host key of {where} has changed: known {fingerprint(error.expected_key)}, "
            f"offered {fingerprint(error.key)}",
            "if the host was reinstalled, remove the old key (ssh-keygen -R) and connect once by hand",
        ) from error
    except paramiko.AuthenticationException as error:
        raise Unreachable(f"login on {where} refused: {error}", f"try {_by_hand(spec)} first") from error
    except paramiko.SSHException as error:
        raise _from_ssh(error, where, spec) from error
    except (OSError, EOFError) as error:
        # paramiko's error for several tried addresses has no number and would show it as `[Errno None]`.
        cause = getattr(error, "strerror", "") or error or "closed by the host"
        raise Dropped(
            f"no connection to {where}: {cause}", f"is it up, is sshd running? try {_by_hand(spec)}"
        ) from error
    except invoke.exceptions.ThreadException as error:
        raise Dropped(f"the connection to {where} broke while a command ran") from error


def _by_hand(spec: HostSpec) -> str:
    """The same login as a command for a person."""
    port = f"-p {spec.port} " if spec.port else ""
    return f"`ssh {port}{spec.user + '@' if spec.user else ''}{spec.address}`"


def _from_ssh(error: paramiko.SSHException, where: str, spec: HostSpec) -> Unreachable:
    if "session not active" in str(error).lower() or "channel closed" in str(error).lower():
        return Dropped(f"the connection to {where} is gone: {error}")
    if "not found in known_hosts" in str(error):
        hint = "connect once by hand to record its key, or pass --accept-new-host-keys"
        return Unreachable(f"the host key of {where} is not known", hint)
    return Unreachable(f"SSH to {where} failed: {error}", f"try {_by_hand(spec)}")


def quoted(*words: str) -> str:
    """The words as one shell line, each quoted."""
    return shlex.join(words)
