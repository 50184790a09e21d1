"""Runs what an SSH client asks for on a terminal, so that a person can log in."""

import asyncio
import fcntl
import os
import pty
import struct
import termios

import asyncssh

from lab.host import USER, Host
from lab.session import CHUNK_BYTES, Channel, Writer, argv, finish, send_signal, until_done

# a session leader gets the first terminal it opens as its own, so the shell opens the slave once more
ATTACH = 'exec <"$0" >"$0" 2>&1; exec "$@"'


async def run(host: Host, ssh: Channel, kind: str) -> None:
    """Serve one channel with a terminal until its process ends; one whose client went away is hung up."""
    master, slave = pty.openpty()
    _resize(master, ssh.term_size)
    prompt = {"TERM": kind, "PS1": f"{USER}@{host.name}:\\w$ ", "SSH_TTY": os.ttyname(slave)}
    shell = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        ATTACH,
        os.ttyname(slave),
        *argv(ssh.command),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=host.environment() | prompt,
        cwd=host.root / "home" / USER,
        start_new_session=True,
    )
    os.close(slave)
    typing = asyncio.create_task(_type(ssh, master, shell.pid))
    try:
        await until_done(ssh, _show(master, ssh.stdout))
    finally:
        typing.cancel()
        gone = ssh.is_closing()
        if gone:
            send_signal(shell.pid, "HUP")
        os.close(master)
    code = await shell.wait()
    if not gone:
        finish(ssh, code)


async def _show(master: int, sink: Writer) -> None:
    while data := await _read(master):
        try:
            sink.write(data)
            await sink.drain()
        except (BrokenPipeError, ConnectionError, asyncssh.Error):
            return


async def _read(master: int) -> bytes:
    """The next bytes of a terminal; empty at its end."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(master, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
        return os.read(master, CHUNK_BYTES)
    except OSError:
        # EIO: the last process on the terminal is gone
        return b""
    finally:
        loop.remove_reader(master)


async def _type(ssh: Channel, master: int, session: int) -> None:
    while True:
        try:
            data = await ssh.stdin.read(CHUNK_BYTES)
        except asyncssh.TerminalSizeChanged:
            _resize(master, ssh.term_size)
            continue
        except asyncssh.SignalReceived as event:
            send_signal(session, event.signal)
            continue
        except (ConnectionError, asyncssh.Error):
            return
        if not data:
            return
        os.write(master, data)


def _resize(master: int, size: tuple[int, int, int, int]) -> None:
    columns, rows, width, height = size
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows or 24, columns or 80, width, height))
