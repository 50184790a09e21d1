"""Runs what an SSH client asks for as a process of the host."""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable
from typing import Any, Protocol, TypeAlias

import asyncssh

from lab.host import SHELL, USER, Host

CHUNK_BYTES = 65536

Channel: TypeAlias = "asyncssh.SSHServerProcess[bytes]"


class Writer(Protocol):
    """Where output of a process goes."""

    def write(self, data: bytes) -> None:
        """Queue data."""

    async def drain(self) -> None:
        """Wait until there is room for more."""


def argv(command: str | None) -> list[str]:
    """What the login shell is started with."""
    if command is not None:
        return ["/bin/sh", "-c", command]
    return [SHELL, "--norc", "-i"] if SHELL.endswith("bash") else [SHELL, "-i"]


async def run(host: Host, ssh: Channel) -> None:
    """Serve one channel without a terminal until its process ends; one whose client went away runs on."""
    line = ["/bin/sh", "-s"] if ssh.command is None else argv(ssh.command)
    try:
        shell = await _started(host, line)
    except OSError as error:
        # such as a command longer than the kernel takes
        ssh.stderr.write(f"{error}\n".encode())
        ssh.exit(126)
        return
    assert shell.stdout is not None
    assert shell.stderr is not None
    feeding = asyncio.create_task(_feed(ssh, shell))
    await until_done(ssh, _pump(shell.stdout, ssh.stdout), _pump(shell.stderr, ssh.stderr))
    gone = ssh.is_closing()
    if gone:
        _close_pipes(shell)
    code = await shell.wait()
    feeding.cancel()
    if not gone:
        finish(ssh, code)


async def _started(host: Host, line: list[str]) -> Process:
    return await asyncio.create_subprocess_exec(
        *line,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=host.environment(),
        cwd=host.root / "home" / USER,
        start_new_session=True,
    )


async def until_done(ssh: Channel, *outputs: Awaitable[None]) -> None:
    """Until all output was passed on, or nobody listens any more."""
    passed_on = asyncio.gather(*outputs)
    closed = asyncio.ensure_future(ssh.channel.wait_closed())
    both: list[asyncio.Future[Any]] = [passed_on, closed]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    for one in both:
        one.cancel()
    await asyncio.gather(*both, return_exceptions=True)


def finish(ssh: Channel, code: int) -> None:
    """Tell the client how its process ended."""
    if code < 0:
        ssh.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
    else:
        ssh.exit(code)


def _close_pipes(shell: Process) -> None:
    """What a client that went away leaves: nobody reads the pipes. The transport itself stays: closing it kills."""
    transport = shell._transport  # type: ignore[attr-defined]
    for number in (0, 1, 2):
        if (pipe := transport.get_pipe_transport(number)) is not None:
            pipe.close()


async def _pump(source: asyncio.StreamReader, sink: Writer) -> None:
    while data := await source.read(CHUNK_BYTES):
        try:
            sink.write(data)
            await sink.drain()
        except (BrokenPipeError, ConnectionError, asyncssh.Error):
            return


async def _feed(ssh: Channel, shell: Process) -> None:
    """Pass input on until its end; signals go to the whole session."""
    assert shell.stdin is not None
    while True:
        try:
            data = await ssh.stdin.read(CHUNK_BYTES)
        except asyncssh.SignalReceived as event:
            send_signal(shell.pid, event.signal)
            continue
        except (asyncssh.BreakReceived, asyncssh.TerminalSizeChanged):
            continue
        except (ConnectionError, asyncssh.Error):
            return
        if not data:
            shell.stdin.close()
            return
        try:
            shell.stdin.write(data)
            await shell.stdin.drain()
        except ConnectionError:
            return


def send_signal(session: int, name: str) -> None:
    """Send a signal to all processes of a session's first group."""
    number = getattr(signal, f"SIG{name}", None)
    if number is not None:
        try:
            os.killpg(session, number)
        except ProcessLookupError:
            return
