"""The SSH side of the lab: what a client gets, what survives it, and how it can fail."""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from lab_client import PINS, ask, connect, said, ssh, with_connection

from lab import Lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts without a stack in use."""
    with Lab(tmp_path_factory.mktemp("lab"), pins=PINS, hosts=2, minimal=True) as lab:
        yield lab


@pytest.fixture(autouse=True)
def healthy(lab: Lab) -> Iterator[None]:
    """Each test leaves the hosts as they were."""
    yield
    for host in lab.hosts:
        host.clear()
        host.kill()


def test_command_has_the_environment_of_its_host_and_no_other(lab: Lab) -> None:
    """Variables of the process that serves do not leak; both streams and the exit code come back."""
    root = lab.host("lab-02").root
    answer = ssh(lab, "env | cut -d= -f1; echo $HOME:$LAB_ROOT; echo oops >&2; exit 3", host="lab-02")[0]
    *names, paths = answer.out.splitlines()
    told = {"PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "SHELL", "LANG", "LAB_ROOT", "LAB_STATE"}
    assert set(names) - told <= {"PWD", "_", "OLDPWD", "SHLVL"}
    assert (paths, answer.err, answer.rc) == (f"{root}/home/ops:{root}", "oops\n", 3)


def test_input_and_large_output_pass_through(lab: Lab) -> None:
    """Input ends when the client ends it; a megabyte arrives whole."""
    data = "0123456789abcde\n" * 65536
    assert ssh(lab, "cat", input=data)[0].out == data


def test_death_by_signal_is_told(lab: Lab) -> None:
    """A command that dies of a signal has no exit code."""

    async def work(connection: asyncssh.SSHClientConnection) -> object:
        return (await connection.run("kill -9 $$")).exit_signal

    signal = with_connection(lab, work)
    assert isinstance(signal, tuple)
    assert signal[0] == "KILL"


def test_shell_on_a_terminal(lab: Lab) -> None:
    """A person can log in: prompt, terminal size, sudo without -n, exit code."""

    async def work(connection: asyncssh.SSHClientConnection) -> asyncssh.SSHCompletedProcess:
        typed = "tty; stty size; sudo true && echo granted; exit 5\n"
        return await connection.run(term_type="xterm", term_size=(100, 30), input=typed)

    answer = said(with_connection(lab, work))
    assert answer.rc == 5
    assert "/dev/pts/" in answer.out
    assert "30 100" in answer.out
    assert "ops@lab-01:" in answer.out
    assert "granted" in answer.out.split("echo granted")[-1]


def test_files_go_to_real_paths(lab: Lab, tmp_path: Path) -> None:
    """SFTP: relative paths begin at home, absolute ones are those of this machine."""
    (tmp_path / "local").write_text("payload")

    async def work(connection: asyncssh.SSHClientConnection) -> str:
        async with connection.start_sftp_client() as sftp:
            await sftp.put(str(tmp_path / "local"), "there")
            await sftp.put(str(tmp_path / "local"), str(tmp_path / "elsewhere"))
            return str(await sftp.realpath("."))

    home = lab.host("lab-01").root / "home/ops"
    assert with_connection(lab, work) == str(home)
    assert (home / "there").read_text() == (tmp_path / "elsewhere").read_text() == "payload"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"username": "root"}, asyncssh.PermissionDenied),
        ({"client_keys": [asyncssh.generate_private_key("ssh-ed25519")]}, asyncssh.PermissionDenied),
        ({"known_hosts": ([], [], [])}, asyncssh.HostKeyNotVerifiable),
    ],
)
def test_strangers_are_refused(lab: Lab, options: dict[str, Any], error: type[Exception]) -> None:
    """Another user, another key, or a client that does not know the host."""
    with pytest.raises(error):
        asyncio.run(connect(lab, **options))


def test_process_survives_its_client(lab: Lab) -> None:
    """As on a real host: the connection goes, the job runs on; only the host's own end is its end."""

    async def work() -> None:
        connection = await connect(lab)
        await connection.create_process("echo started >job; sleep 30")
        while not (lab.host("lab-01").root / "home/ops/job").exists():
            await asyncio.sleep(0.01)
        connection.abort()

    asyncio.run(work())
    assert "sleep 30" in ask(lab, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
    assert lab.host("lab-01").kill() >= 2
    assert lab.host("lab-01").processes() == []


def test_reboot_ends_everything_and_changes_the_boot_id(lab: Lab) -> None:
    """What TRAPS call "host reboots mid-stage"."""
    boot_id = "cat $LAB_ROOT/proc/sys/kernel/random/boot_id"
    before = ask(lab, f"touch $TMPDIR/left; sleep 30 </dev/null >/dev/null 2>&1 & {boot_id}")
    lab.reboot("lab-01")
    assert lab.host("lab-01").processes() == []
    assert ask(lab, boot_id) != before
    assert ask(lab, "ls $TMPDIR") == ""


def test_refusing_host_closes_its_port_and_opens_it_again(lab: Lab) -> None:
    """The same port before and after, and the other host is not concerned."""
    host = lab.host("lab-01")
    host.fault("host-unreachable")
    assert _answers(host.port, wanted=False)
    assert ask(lab, "echo here", host="lab-02") == "here\n"
    host.clear()
    assert _answers(host.port, wanted=True)
    assert ask(lab, "echo back") == "back\n"


def _answers(port: int, *, wanted: bool) -> bool:
    """Whether the port gets into the wanted state within two seconds."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        with socket.socket() as one:
            if (one.connect_ex(("127.0.0.1", port)) == 0) == wanted:
                return True
        time.sleep(0.02)
    return False


def test_connection_is_cut_once_when_the_installer_starts(lab: Lab) -> None:
    """The client loses its connection, the installer goes on, a second connection lives."""
    host = lab.host("lab-01")
    host.fault("ssh-dropped-during-install")
    host.set(ssh={"down_after_drop_s": 0}, installer={"seconds": 0.5})
    file = next(lab.settings.cache_folder.glob("runfiles-*/*13.0.2*_linux.run"))
    command = f"sh {file} --silent --toolkit --toolkitpath=$LAB_ROOT/opt/t --override"
    assert ssh(lab, command)[0].rc is None
    version = host.root / "opt/t/version.json"
    assert ask(lab, f"for i in 1 2 3 4 5 6 7 8 9; do [ -e {version} ] || sleep 0.2; done; ls {version}")
    assert len(host.installs()) == 1


def test_latency_is_added_to_each_round_trip(lab: Lab) -> None:
    """A warm command is two round trips: open the channel, run."""
    lab.host("lab-01").set(ssh={"latency_ms": 40})

    async def work(connection: asyncssh.SSHClientConnection) -> float:
        started = time.monotonic()
        await connection.run("true")
        return time.monotonic() - started

    assert _answers(lab.host("lab-01").port, wanted=True)
    time.sleep(0.1)
    assert with_connection(lab, work) >= 0.08
