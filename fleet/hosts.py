"""hosts.toml: the inventory. What is left out comes from ~/.ssh/config or from what is usual on a server."""

import re
from pathlib import Path
from typing import Any

import msgspec

from fleet.config import Settings, convert, read_toml
from fleet.problem import Problem, did_you_mean


class InUse(Settings, frozen=True, kw_only=True):
    """The stack in use on a host that nothing else tells of: its interpreter and its toolkit directory."""

    python: str = ""
    cuda: str = ""


class HostSpec(Settings, frozen=True, kw_only=True):
    """One host. `address`, `user`, `port` and `key` win over ~/.ssh/config when given."""

    name: str = ""
    address: str = ""
    user: str = ""
    port: int = 0
    key: str = ""
    known_hosts: str = ""
    groups: list[str] = []
    root: str = "/"
    """The file-system root the checks read: `/`, or e.g. `/host` inside a privileged container."""
    base: str = "/opt/fleet"
    """Where stacks live; absolute, as seen by the commands on the host."""
    tmp: str = "/tmp"  # noqa: S108 - the host's default, not a file of ours
    """Where the installer unpacks itself."""
    sudo: bool = False
    """Changing commands run under `sudo -n`; without it, `base` must be writable by the user."""
    gpus: int = 0
    """How many GPUs must be visible; 0: at least one."""
    compute_capability: str = ""
    """Expected compute capability of each GPU, e.g. 12.0; empty: whatever is there."""
    python: str = ""
    """The interpreter that carries the venv; empty: the newest fitting python3 on the host."""
    in_use: InUse = InUse()
    simulated: bool = False
    """Written by the lab: the host is SIMULATED, also when it cannot be asked."""


class HostsFile(Settings, frozen=True, kw_only=True):
    """The tables of hosts.toml."""

    defaults: dict[str, Any] = {}
    hosts: dict[str, dict[str, Any]]


def read_hosts(path: Path) -> list[HostSpec]:
    """All hosts of an inventory, in its order.

    Raises Problem for a missing file, bad TOML, an unknown, missing or mistyped key, an unusable name or path.
    """
    tables = read_toml(path)
    file = convert(tables, HostsFile, path)
    convert(file.defaults, HostSpec, path, "defaults")
    if not file.hosts:
        raise Problem(f"{path}: `hosts`: want at least one host, got none")
    return [_host(name, file, path) for name in file.hosts]


def _host(name: str, file: HostsFile, path: Path) -> HostSpec:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise Problem(f"{path}: `hosts.{name}`: want a name of letters, digits, `.`, `_`, `-`")
    if name.endswith((".json", ".toml", ".log", ".html", ".xml")):
        # A host has a folder of its name in the run directory, beside run.json and the like.
        raise Problem(f"{path}: `hosts.{name}`: want a name that is not one of a file")
    for table, keys in (("defaults", file.defaults), (f"hosts.{name}", file.hosts[name])):
        if "name" in keys:
            raise Problem(f"{path}: unknown key `{table}.name`: the name of a host is that of its table")
    spec = convert({**file.defaults, **file.hosts[name]}, HostSpec, path, f"hosts.{name}")
    for key in ("root", "base", "tmp"):
        value = getattr(spec, key)
        if not value.startswith("/") or "\n" in value:
            raise Problem(f"{path}: `hosts.{name}.{key}`: want an absolute path, got {value!r}")
    _require_numbers(spec, f"{path}: `hosts.{name}")
    return msgspec.structs.replace(spec, name=name, address=spec.address or name)


def _require_numbers(spec: HostSpec, where: str) -> None:
    if not 0 <= spec.port <= 65535:
        raise Problem(f"{where}.port`: want a port of 1 to 65535, got {spec.port}")
    if spec.gpus < 0:
        raise Problem(f"{where}.gpus`: want a count, got {spec.gpus}")
    if spec.compute_capability and not re.fullmatch(r"\d+\.\d+", spec.compute_capability):
        raise Problem(f"{where}.compute_capability`: want one like 12.0, got {spec.compute_capability!r}")


def chosen_hosts(hosts: list[HostSpec], on: str, path: Path) -> list[HostSpec]:
    """The hosts that `--on` names (names or groups, comma-separated), in inventory order; all for an empty one.

    Raises Problem for a word that is neither a host nor a group.
    """
    words = [word.strip() for word in on.split(",") if word.strip()]
    if not on:
        return hosts
    if not words:
        # `--on "$names,"` with nothing in $names must not mean every host.
        raise Problem(f"--on: want names of hosts or groups, got {on!r}")
    groups = {group for host in hosts for group in host.groups}
    known = {host.name for host in hosts} | groups
    for word in words:
        if word not in known:
            raise Problem(f"--on: unknown host or group `{word}` in {path}" + did_you_mean(word, known))
    return [host for host in hosts if host.name in words or set(host.groups) & set(words)]
