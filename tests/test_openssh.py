"""The same stages against OpenSSH's own server: host keys, file transfer, jump host, a private SSH config.

Needs sshd (package openssh-server); a lab host lies behind it, so that there are GPUs to ask for.
"""

import getpass
import hashlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from stages_kit import ROOT, Outcome, Scene, edited, until

from fleet.host import SshHost
from fleet.hosts import read_hosts
from fleet.model import Command
from fleet.run import Run
from fleet.work import Worker

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") or ""
pytestmark = pytest.mark.skipif(not SSHD, reason="no sshd here: install openssh-server")


class Sshd:
    """An OpenSSH server on loopback that serves a lab host."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.scene = scene
        self.folder = folder
        self.port = _free_port()
        self.host_key, self.user_key = folder / "host_key", folder / "user_key"
        for key in (self.host_key, self.user_key):
            _make_key(key)
        self.log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def known(self) -> str:
        """The line of known_hosts for this server."""
        return f"[127.0.0.1]:{self.port} {_public(self.host_key)}\n"

    def start(self) -> None:
        """Serves until `stop`."""
        config = self.folder / "sshd_config"
        config.write_text("".join(f"{line}\n" for line in self._settings()))
        if os.geteuid() == 0:
            # sshd run by root insists on its folder for unprivileged children.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._process = subprocess.Popen([SSHD, "-D", "-f", config, "-E", self.log])
        until(self._answers, f"sshd to listen: {self.log.read_text() if self.log.exists() else ''}")

    def stop(self) -> None:
        """Ends the server."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)

    def tell(self, **keys: object) -> None:
        """Lets hosts.toml name this server instead of the lab's own."""
        with edited(self.scene.lab.hosts_file) as file:
            file["hosts"]["lab-01"].update(keys)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as line:
            return line.recv(4) == b"SSH-"
        return False

    def _settings(self) -> list[str]:
        shown = " ".join(f'"{name}={value}"' for name, value in self.scene.host.environment().items())
        return [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {self.user_key}.pub",
            "PidFile none",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "PermitRootLogin yes",
            "AllowTcpForwarding yes",
            "Subsystem sftp internal-sftp",
            f"SetEnv {shown}",
        ]


def _make_key(path: Path) -> None:
    path.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, input=b"y\n")


def _public(key: Path) -> str:
    return " ".join(key.with_name(f"{key.name}.pub").read_text().split()[:2])


def _fingerprint(key: Path) -> str:
    said = subprocess.run(["ssh-keygen", "-lf", key], check=True, capture_output=True, text=True)
    return said.stdout.split()[1]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def sshd(scene: Callable[..., Scene], tmp_path: Path) -> Iterator[Sshd]:
    """A running sshd that hosts.toml points at; its key is known."""
    folder = tmp_path / "sshd"
    folder.mkdir()
    server = Sshd(scene(), folder)
    known = folder / "known_hosts"
    known.write_text(server.known)
    user = getpass.getuser()
    server.tell(port=server.port, user=user, key=str(server.user_key), known_hosts=str(known))
    server.start()
    yield server
    server.stop()


def _driver(server: Sshd, *options: str) -> Outcome:
    return server.scene.stages("plan", "--only=driver", *options)


def test_stages_run_over_openssh(sshd: Sshd) -> None:
    """Probe, jobs under sudo and the file transfer of uv: driver, toolkit and wheels end well, and again as a no-op."""
    stages = "--only=driver,toolkit,wheels"
    first, second = sshd.scene.stages("apply", stages), sshd.scene.stages("apply", stages)
    assert first.statuses() == {"driver": "ok", "toolkit": "changed", "wheels": "changed"}, first.stdout
    assert second.statuses() == dict.fromkeys(("driver", "toolkit", "wheels"), "ok")
    assert (first.rc, second.rc, len(sshd.scene.host.installs())) == (0, 0, 1)
    assert any(sshd.scene.base.glob("tools/uv-*/uv"))


def test_lock_of_the_real_size_reaches_the_host(sshd: Sshd) -> None:
    """A command line holds 128 KiB; the shipped lock has 400 kB, and goes another way, whole."""
    spec = read_hosts(sshd.scene.lab.hosts_file)[0]
    run = Run(sshd.scene.reports / "by-hand")
    run.path.mkdir(parents=True)
    lock = (ROOT / "pins.lock").read_text("utf-8")
    files = {"lock.txt": lock, "a.txt": "it's\n"}
    command = Command(why="look at it", shell="sha256sum lock.txt", undo="", files=files)
    host = SshHost(spec)
    ran, _ = Worker(host, run, "wheels").do(command, 1)
    left = host.run(f"ls {spec.tmp}").out.split()
    host.close()
    assert ran.rc == 0
    assert run.log_tail(spec.name, ran.log).split()[0] == hashlib.sha256(lock.encode()).hexdigest()
    assert [name for name in left if name.startswith("fleet-upload")] == []


def test_unknown_host_key_is_refused(sshd: Sshd) -> None:
    """A host that was never met is not logged in to, and the hint names both ways on."""
    (sshd.folder / "known_hosts").write_text("")
    outcome = _driver(sshd)
    assert (outcome.rc, outcome.statuses()) == (1, {"driver": "unreachable"})
    assert f"the host key of 127.0.0.1:{sshd.port} is not known" in outcome.told
    assert "--accept-new-host-keys" in outcome.told
    assert "Accepted publickey" not in sshd.log.read_text()
    assert (sshd.folder / "known_hosts").read_text() == ""


def test_new_host_key_is_recorded_when_asked_for(sshd: Sshd) -> None:
    """With the switch the key is kept, so that the next run needs no switch."""
    (sshd.folder / "known_hosts").write_text("")
    first = _driver(sshd, "--accept-new-host-keys")
    second = _driver(sshd)
    assert (first.rc, second.rc) == (0, 0)
    assert sshd.known.split() == (sshd.folder / "known_hosts").read_text().split()


@pytest.mark.parametrize("options", [[], ["--accept-new-host-keys"]], ids=["plain", "accepting"])
def test_changed_host_key_is_refused_with_both_fingerprints(sshd: Sshd, options: list[str]) -> None:
    """Another key than the known one stops everything, also for whoever accepts new ones."""
    old = sshd.folder / "old_key"
    _make_key(old)
    line = f"[127.0.0.1]:{sshd.port} {_public(old)}\n"
    (sshd.folder / "known_hosts").write_text(line)
    outcome = _driver(sshd, *options)
    assert (outcome.rc, outcome.statuses()) == (1, {"driver": "unreachable"})
    assert "has changed" in outcome.told
    assert [key for key in (old, sshd.host_key) if _fingerprint(key) not in outcome.told] == []
    assert "ssh-keygen -R" in outcome.told
    assert (sshd.folder / "known_hosts").read_text() == line


def test_refused_login_is_told(sshd: Sshd) -> None:
    """A key that the host does not know: one line, and a command to try by hand."""
    other = sshd.folder / "other_key"
    _make_key(other)
    sshd.tell(key=str(other))
    outcome = _driver(sshd)
    assert (outcome.rc, outcome.statuses()) == (1, {"driver": "unreachable"})
    assert "login on 127.0.0.1" in outcome.told
    assert f"`ssh -p {sshd.port} {getpass.getuser()}@127.0.0.1`" in outcome.told


def test_host_behind_a_jump_host_of_ssh_config(sshd: Sshd) -> None:
    """Address, port, key and jump host come from ~/.ssh/config; the inventory has no more than a name."""
    ssh = sshd.scene.home / ".ssh"
    ssh.mkdir(mode=0o700)
    (ssh / "known_hosts").write_text(sshd.known)
    common = f"  HostName 127.0.0.1\n  Port {sshd.port}\n  User {getpass.getuser()}\n  IdentityFile {sshd.user_key}\n"
    (ssh / "config").write_text(f"Host jump\n{common}\nHost gpu-behind\n{common}  ProxyJump jump\n")
    with edited(sshd.scene.lab.hosts_file) as file:
        for name in ("user", "key", "known_hosts"):
            del file["defaults"][name]
            del file["hosts"]["lab-01"][name]
        del file["hosts"]["lab-01"]["port"]
        file["hosts"]["lab-01"]["address"] = "gpu-behind"
    outcome = _driver(sshd)
    assert (outcome.rc, outcome.statuses()) == (0, {"driver": "ok"}), outcome.stdout
    assert sshd.log.read_text().count("Accepted publickey") == 2
