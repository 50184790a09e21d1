"""Keys, known_hosts and hosts.toml of a lab."""

from pathlib import Path

import asyncssh
import tomlkit

from lab import furnish, state
from lab.cache import put
from lab.host import USER, Host


def _key(file: Path, comment: str) -> asyncssh.SSHKey:
    """The ed25519 key in a file, made if there is none."""
    if not file.exists():
        key = asyncssh.generate_private_key("ssh-ed25519", comment)
        put(file, key.export_private_key(), 0o600)
        put(file.with_suffix(".pub"), key.export_public_key())
    return asyncssh.read_private_key(file)


def user_key(folder: Path) -> asyncssh.SSHAuthorizedKeys:
    """Who may log in: the one key of the lab."""
    key = _key(folder / "keys/user", "lab user")
    return asyncssh.import_authorized_keys(key.export_public_key().decode())


def host_key(host: Host) -> asyncssh.SSHKey:
    """The key a host shows."""
    return _key(host.folder / "ssh_host_ed25519_key", host.name)


def known_hosts(hosts: list[Host]) -> str:
    """Text of known_hosts."""
    lines = []
    for host in hosts:
        kind, data = host_key(host).export_public_key().decode().split()[:2]
        lines.append(f"[127.0.0.1]:{host.port} {kind} {data}\n")
    return "".join(lines)


def hosts_toml(folder: Path, hosts: list[Host]) -> str:
    """Text of hosts.toml; what it expects of a host is what the lab builds, whatever a fault makes of it."""
    fresh = state.defaults()
    document = tomlkit.document()
    document.add(tomlkit.comment("SIMULATED: written by the lab; `python -m lab up` starts these hosts."))
    document["defaults"] = {
        "address": "127.0.0.1",
        "user": USER,
        "key": str(folder / "keys/user"),
        "known_hosts": str(folder / "known_hosts"),
        "sudo": True,
        "simulated": True,
        "gpus": fresh["gpus"],
        "compute_capability": fresh["compute_cap"],
        "python": str(furnish.python()),
    }
    document["hosts"] = {host.name: _entry(host) for host in hosts}
    return tomlkit.dumps(document)


def _entry(host: Host) -> dict[str, object]:
    entry: dict[str, object] = {
        "port": host.port,
        "groups": ["canary" if host.number == 1 else "fleet"],
        "root": str(host.root),
        "base": str(host.root / "opt/fleet"),
        "tmp": str(host.root / "tmp"),
    }
    in_use = {"cuda": str(host.root / "usr/local/cuda")}
    if (python := host.root / furnish.STACK / "venv/bin/python").exists():
        in_use["python"] = str(python)
    return entry | {"in_use": in_use}
