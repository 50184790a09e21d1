"""What tests of the lab share: a cache of what is expensive to build, and a plain SSH client."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import asyncssh

from lab import Lab

PINS = Path(__file__).parent.parent / "pins.toml"

T = TypeVar("T")


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    rc: int | None
    out: str
    err: str


async def connect(lab: Lab, host: str = "lab-01", **options: Any) -> asyncssh.SSHClientConnection:
    """A connection to a host of the lab, with the files that the lab wrote for its users."""
    settings: dict[str, Any] = {
        "port": lab.host(host).port,
        "username": "ops",
        "client_keys": [str(lab.path / "keys/user")],
        "known_hosts": str(lab.path / "known_hosts"),
        "config": None,
    }
    return await asyncssh.connect("127.0.0.1", **(settings | options))


def with_connection(
    lab: Lab,
    work: Callable[[asyncssh.SSHClientConnection], Coroutine[Any, Any, T]],
    host: str = "lab-01",
    **options: Any,
) -> T:
    """Do something with one connection."""

    async def main() -> T:
        connection = await connect(lab, host, **options)
        try:
            return await work(connection)
        finally:
            connection.close()
            await connection.wait_closed()

    return asyncio.run(main())


def ssh(lab: Lab, *commands: str, host: str = "lab-01", **options: Any) -> list[Said]:
    """Run commands, one after the other, over one connection."""

    async def work(connection: asyncssh.SSHClientConnection) -> list[Said]:
        return [said(await connection.run(command, **options)) for command in commands]

    return with_connection(lab, work, host)


def ask(lab: Lab, command: str, host: str = "lab-01") -> str:
    """Output of one command that must succeed."""
    answer = ssh(lab, command, host=host)[0]
    assert answer.rc == 0, answer
    return answer.out


def said(answer: asyncssh.SSHCompletedProcess) -> Said:
    """The parts of an answer that tests look at."""
    return Said(answer.returncode, str(answer.stdout), str(answer.stderr))
