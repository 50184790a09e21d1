"""The SSH side of a host, against a small real server: whatever it does, there is an answer or a reason, in time."""

import asyncio
import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from fleet.host import SshHost, Unreachable, _connection, quoted
from fleet.hosts import HostSpec


class Server:
    """An SSH server on this machine that runs commands, and fails in the ways that its commands name."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.connections = 0
        self._open: list[asyncssh.SSHServerConnection] = []
        self.port = 0
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.user_key = asyncssh.generate_private_key("ssh-ed25519")
        self.user_key.write_private_key(str(place / "key"))
        self.user_key.write_public_key(str(place / "authorized"))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "Server":
        self._thread.start()
        self.port = self._do(self._listen())
        key = self.host_key.export_public_key().decode()
        (self.place / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {key}")
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> int:
        server = self

        class Counted(asyncssh.SSHServer):
            def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
                server.connections += 1
                server._open.append(conn)

        self._acceptor = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=Counted,
            server_host_keys=[self.host_key],
            authorized_client_keys=str(self.place / "authorized"),
            process_factory=self._serve,
            encoding=None,
            sftp_factory=True,
        )
        return int(self._acceptor.get_port())

    async def _end(self) -> None:
        self._acceptor.close()
        for connection in self._open:
            connection.abort()
            await connection.wait_closed()
        tasks = asyncio.all_tasks(self._loop) - {asyncio.current_task(self._loop)}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._acceptor.wait_closed()
        # What was closed says so in the next rounds of the loop.
        await asyncio.sleep(0.05)

    async def _serve(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
        command = process.command or ""
        if command.startswith("hang"):
            await asyncio.Event().wait()
        if command.startswith("vanish"):
            process.stdout.write(b"half an answ")
            await process.stdout.drain()
            process.channel.get_connection().abort()
            return
        pipe = asyncio.subprocess.PIPE
        inner = await asyncio.create_subprocess_exec("sh", "-c", command, stdin=pipe, stdout=pipe, stderr=pipe)
        typed = asyncio.create_task(_pour(process.stdin, inner.stdin))
        await asyncio.gather(_pour(inner.stdout, process.stdout), _pour(inner.stderr, process.stderr))
        typed.cancel()
        rc = await inner.wait()
        if rc < 0:
            process.exit_with_signal("KILL")
        else:
            process.exit(rc)


async def _pour(source: Any, target: Any) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
    if isinstance(target, asyncio.StreamWriter):
        target.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests."""
    with Server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., SshHost]]:
    """Makes hosts of the server, which are closed at the end."""
    made = []

    def host(accept_new_host_keys: bool = False, **changes: Any) -> SshHost:
        spec = HostSpec(
            **{
                "name": "gpu-01",
                "address": "127.0.0.1",
                "port": server.port,
                "user": "ops",
                "key": str(server.place / "key"),
                "known_hosts": str(server.place / "known_hosts"),
                **changes,
            }
        )
        made.append(SshHost(spec, accept_new_host_keys))
        return made[-1]

    yield host
    for one in made:
        one.close()


@pytest.fixture
def host(connect: Callable[..., SshHost]) -> SshHost:
    """The host as an inventory names it."""
    return connect()


def test_exit_status_is_an_answer(host: SshHost) -> None:
    """Output, errors and status of each command; none is raised."""
    answers = [host.run(command) for command in ("echo out; echo err >&2; exit 3", "true", "exit 255", "no-such-tool")]
    assert [(one.rc, one.ok) for one in answers] == [(3, False), (0, True), (255, False), (127, False)]
    assert (answers[0].out, answers[0].err) == ("out\n", "err\n")
    assert answers[0].command == "echo out; echo err >&2; exit 3"
    assert "not found" in answers[3].err


def test_one_connection_for_all_commands(host: SshHost, server: Server) -> None:
    """Opened at the first question, closed when told; the next question opens another."""
    before = server.connections
    host.run("true")
    host.run("true")
    host.run_bytes("true")
    assert server.connections == before + 1
    host.close()
    host.close()
    assert host.run("echo again").out == "again\n"
    assert server.connections == before + 2


def test_every_byte_arrives(host: SshHost) -> None:
    """As it is for whoever knows what it means; replaced where text is wanted."""
    rc, out, err = host.run_bytes("printf '\\000\\377\\303\\r\\n\\r'; printf '\\376' >&2")
    assert (rc, out, err) == (0, b"\0\xff\xc3\r\n\r", b"\xfe")
    assert host.run("printf '\\377a\\303\\227'").out == "\ufffda×"


def test_large_output_arrives_whole(host: SshHost) -> None:
    """20 MB, at the speed of the connection and not of a thousand bytes a read."""
    clock = time.monotonic()
    _, out, _ = host.run_bytes("head -c 20000000 /dev/zero | tr '\\0' x; echo end")
    assert (len(out), out[-5:]) == (20_000_004, b"xend\n")
    assert time.monotonic() - clock < 20


def test_command_that_never_answers(host: SshHost) -> None:
    """Unreachable in time, with the command named; the next one works, over a new connection."""
    clock = time.monotonic()
    with pytest.raises(Unreachable, match=r"no answer in 0\.3 s to: hang for ever"):
        host.run("hang for ever", timeout_s=0.3)
    assert time.monotonic() - clock < 3
    assert host.run("echo works").out == "works\n"


def test_connection_that_breaks_in_the_middle(connect: Callable[..., SshHost]) -> None:
    """Half an answer is none, also on a connection that worked before; the next command opens another."""
    host = connect()
    with pytest.raises(Unreachable):
        host.run("vanish")
    assert host.run("echo works").out == "works\n"
    with pytest.raises(Unreachable):
        host.run("vanish")
    assert host.run("echo works").out == "works\n"


def test_command_that_is_killed_has_an_answer(host: SshHost) -> None:
    """A signal on the host is a status that is not 0, not a broken connection."""
    answer = host.run("echo before; kill -9 $$")
    assert (answer.ok, answer.out) == (False, "before\n")


def test_nothing_is_read_from_our_own_input(host: SshHost) -> None:
    """A command that asks a question gets the end of input, at once."""
    clock = time.monotonic()
    assert host.run("cat; echo end", timeout_s=5).out == "end\n"
    assert time.monotonic() - clock < 3


def test_nobody_listens(connect: Callable[..., SshHost]) -> None:
    """Address and port are named, and what to look at."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Unreachable, match=f"no connection to 127.0.0.1:{port}: ") as caught:
        connect(port=port).run("true")
    assert caught.value.hint == f"is it up, is sshd running? try `ssh -p {port} ops@127.0.0.1`"


def test_who_answers_is_no_ssh_server(connect: Callable[..., SshHost]) -> None:
    """A port of something else is told, without a traceback of ours or of a library."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with contextlib.suppress(OSError):
                peer, _ = listener.accept()
                peer.sendall(b"220 mail.example ESMTP\r\n" * 200)
                peer.close()

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(Unreachable, match=r"SSH to 127\.0\.0\.1:"):
            connect(port=listener.getsockname()[1]).run("true")


def test_login_is_refused(connect: Callable[..., SshHost], tmp_path: Path) -> None:
    """Another key: said so, with what to try by hand."""
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(tmp_path / "other"))
    with pytest.raises(Unreachable, match=r"login on 127\.0\.0\.1:\d+ refused: ") as caught:
        connect(key=str(tmp_path / "other")).run("true")
    assert "ssh" in caught.value.hint


def test_key_that_is_not_there(connect: Callable[..., SshHost]) -> None:
    """The file is named, and where to correct it."""
    with pytest.raises(Unreachable, match="no key file /none") as caught:
        connect(key="/none").run("true")
    assert caught.value.hint == "correct `key` of gpu-01 in hosts.toml"


def test_unknown_host_key_is_refused(connect: Callable[..., SshHost], server: Server, tmp_path: Path) -> None:
    """Unless it is asked for; then it is recorded, and known the next time."""
    known = tmp_path / "known_hosts"
    with pytest.raises(Unreachable, match=r"the host key of .* is not known") as caught:
        connect(known_hosts=str(known)).run("true")
    assert "--accept-new-host-keys" in caught.value.hint
    assert not known.exists()
    assert connect(accept_new_host_keys=True, known_hosts=str(known)).run("echo met").out == "met\n"
    assert f"[127.0.0.1]:{server.port}" in known.read_text()
    assert connect(known_hosts=str(known)).run("echo known").out == "known\n"


def test_changed_host_key_is_always_refused(connect: Callable[..., SshHost], server: Server, tmp_path: Path) -> None:
    """Also where new ones are accepted; both fingerprints are told, and the old key stays."""
    known = tmp_path / "known_hosts"
    other = asyncssh.generate_private_key("ssh-ed25519")
    known.write_text(f"[127.0.0.1]:{server.port} {other.export_public_key().decode()}")
    before = known.read_text()
    for accept in (False, True):
        with pytest.raises(Unreachable, match="has changed: known ssh-ed25519 SHA256:") as caught:
            connect(accept_new_host_keys=accept, known_hosts=str(known)).run("true")
        for key in (other, server.host_key):
            assert key.get_fingerprint() in caught.value.reason
    assert known.read_text() == before


def test_small_packets_leave_at_once(host: SshHost) -> None:
    """Nagle's algorithm and delayed acknowledgements would cost 40 ms a command."""
    host.run("true")
    connection = host._connection
    assert connection is not None
    sock = connection.client.get_transport().sock
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_words_are_quoted(host: SshHost) -> None:
    """Every word arrives as it was, whatever it holds."""
    words = ["it's", '"', "$HOME", "`id`", "a b", "", "\n", "\\", "*", "-n", "×", ";", "&&", "%s"]
    answer = host.run(quoted("printf", "<%s>", *words))
    assert answer.out == "".join(f"<{word}>" for word in words)


def test_file_is_copied(host: SshHost, tmp_path: Path) -> None:
    """Byte for byte, to any name; a folder that is not there is told."""
    here = tmp_path / "here"
    here.write_bytes(bytes(range(256)) * 4000)
    there = tmp_path / "it's there"
    host.put(here, str(there))
    assert there.read_bytes() == here.read_bytes()
    with pytest.raises(Unreachable):
        host.put(here, str(tmp_path / "none" / "there"))
    assert host.run("echo works").out == "works\n"


def test_questions_of_several_threads(connect: Callable[..., SshHost], server: Server) -> None:
    """Hosts are asked at the same time, each over its own connection; answers never mix."""
    hosts = [connect(name=f"gpu-{number:02}") for number in range(6)]
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        answers[number] = "".join(hosts[number].run(f"echo {number}-{turn}").out for turn in range(5))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    before = server.connections
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert answers == {number: "".join(f"{number}-{turn}\n" for turn in range(5)) for number in range(6)}
    assert server.connections == before + 6


def test_hosts_connect_in_threads_without_sharing_what_fabric_writes() -> None:
    """Each connection has a configuration of its own: Fabric writes into it, and reads it elsewhere."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(16) as pool:
            specs = [HostSpec(name=f"h{number}", address="127.0.0.1", port=9) for number in range(200)]
            made = list(pool.map(lambda spec: _connection(spec, False), specs))
    finally:
        sys.setswitchinterval(interval)
    assert len({id(connection.config) for connection in made}) == len(specs)
