"""Command line of the lab: up, serve, stop, status, reset, set, writes, installs."""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab import daemon, faults
from lab.errors import LabError
from lab.host import Host, Visit
from lab.output import say
from lab.settings import Settings, ssh_lines


def main(argv: list[str] | None = None) -> int:
    """Do what the command line asks; 0 = done, 2 = a user's mistake."""
    options = _parser().parse_args(argv)
    try:
        code: int = options.action(options)
    except LabError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description="Simulated GPU hosts.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, action, text in (
        ("up", _up, "start the hosts in the background, or find them running"),
        ("serve", _serve, "the same in the foreground, until Ctrl-C"),
    ):
        starter = _command(commands, name, action, text)
        _add_settings(starter)
        if name == "up":
            starter.add_argument("--keep", action="store_true", help="a lab that runs keeps its hosts and faults")
    _command(commands, "stop", _stop, "stop the hosts; their disks stay")
    _command(commands, "status", _status, "what runs")
    _command(commands, "reset", _reset, "stop the hosts and forget their disks")
    _command(commands, "faults", _faults, "all faults, one a line")
    change = _command(commands, "set", _set, "change the state of a host, at once")
    change.add_argument("host")
    change.add_argument("values", nargs="*", metavar="KEY=VALUE", help="ssh.refuse=true; none: back to the defaults")
    writes = _command(commands, "writes", _writes, "what each SSH connection wrote on a host")
    writes.add_argument("host", nargs="?")
    writes.add_argument("--json", action="store_true")
    _command(commands, "installs", _installs, "how often the installer ran").add_argument("host")
    return parser


def _command(commands: Any, name: str, action: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.add_argument("--dir", type=Path, default=Path(".lab"), help="folder of the lab (default .lab)")
    parser.set_defaults(action=action)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", type=int, default=1, metavar="N")
    parser.add_argument("--fault", action="append", default=[], metavar="NAME[@HOST]")
    parser.add_argument("--pins", type=Path, default=Path("pins.toml"))
    parser.add_argument("--cache", type=Path, help="folder for wheels and runfiles (default: in --dir)")
    parser.add_argument("--minimal", action="store_true", help="hosts without a venv in use, for many hosts")
    parser.add_argument("--reset", action="store_true", help="forget the disks of the hosts first")
    parser.add_argument("--linger-s", type=float, help="stop after so long without a connection")
    parser.add_argument("--detached", action="store_true", help=argparse.SUPPRESS)


def settings(argv: list[str]) -> Settings:
    """What a command line that starts a lab asks for."""
    return _settings(_parser().parse_args(argv))


def _settings(options: argparse.Namespace) -> Settings:
    faults.collect(options.fault)
    return Settings(
        folder=options.dir.absolute(),
        pins=options.pins.absolute(),
        hosts=options.hosts,
        faults=tuple(options.fault),
        minimal=options.minimal,
        cache=options.cache.absolute() if options.cache else None,
    )


def _up(options: argparse.Namespace) -> int:
    wanted = _settings(options)
    if options.keep:
        wanted = daemon.kept(wanted)
    linger_s = 900.0 if options.linger_s is None else options.linger_s
    about = daemon.up(wanted, linger_s, reset=options.reset)
    say("\n".join(ssh_lines(wanted.folder, about)))
    return 0


def _serve(options: argparse.Namespace) -> int:
    wanted = _settings(options)
    if options.reset:
        daemon.reset(wanted.folder)
    from lab import service  # noqa: PLC0415 - asyncssh takes a third of a second to import

    service.serve(wanted, options.linger_s or 0.0, detached=options.detached)
    return 0


def _stop(options: argparse.Namespace) -> int:
    say("stopped" if daemon.stop(options.dir.absolute()) else "nothing was running")
    return 0


def _reset(options: argparse.Namespace) -> int:
    daemon.reset(options.dir.absolute())
    return 0


def _status(options: argparse.Namespace) -> int:
    folder = options.dir.absolute()
    about = daemon.running(folder)
    if about is None:
        say("nothing is running")
        return 1
    now = daemon.status(about) or about
    say(f"pid {now['pid']}, mirror {now['url']}/cuda, index {now['url']}/simple, idle {now['idle_s']} s")
    for name, host in now["hosts"].items():
        say(f"{name}  port {host['port']}  connections {host['connections']}  {host['root']}")
    return 0


def _faults(_: argparse.Namespace) -> int:
    for name in faults.names():
        say(f"{name:<28} {faults.load(name)['what']}")
    return 0


def _host(options: argparse.Namespace, name: str) -> Host:
    folder = options.dir.absolute() / "hosts" / name
    if not folder.is_dir():
        known = sorted(one.name for one in folder.parent.glob("*"))
        raise LabError(f"no host `{name}`; there are: {', '.join(known) or 'none'}")
    return Host(folder, name, 0)


def _set(options: argparse.Namespace) -> int:
    host = _host(options, options.host)
    if not options.values:
        host.clear()
    for word in options.values:
        key, _, text = word.partition("=")
        change: Any = _value(text)
        for part in reversed(key.split(".")):
            change = {part: change}
        host.set(change)
    return 0


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _writes(options: argparse.Namespace) -> int:
    _settle(options.dir.absolute())
    names = [options.host] if options.host else sorted(p.name for p in (options.dir / "hosts").glob("*"))
    found = {name: _host(options, name).visits() for name in names}
    if options.json:
        table = {name: [asdict(visit) | {"count": visit.count} for visit in visits] for name, visits in found.items()}
        say(json.dumps(table))
        return 0
    for name, visits in found.items():
        for visit in visits:
            say("\n".join(_visit_lines(name, visit)))
    return 0


def _visit_lines(host: str, visit: Visit) -> list[str]:
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(visit.started))
    seconds = visit.ended - visit.started
    head = f"{host}  {when}  {visit.kind}, {seconds:.1f} s, {visit.commands} commands: {visit.count} paths changed"
    parts = (("added", visit.changes.added), ("removed", visit.changes.removed), ("changed", visit.changes.changed))
    return [head, *(f"  {word:<8} {path}" for word, paths in parts for path in paths)]


def _settle(folder: Path) -> None:
    """Wait a moment for connections that are just being closed."""
    about = daemon.running(folder)
    deadline = time.monotonic() + 2
    while about and time.monotonic() < deadline:
        if not any(host["connections"] for host in (daemon.status(about) or about)["hosts"].values()):
            return
        time.sleep(0.05)


def _installs(options: argparse.Namespace) -> int:
    lines = _host(options, options.host).installs()
    say(f"{options.host}: the installer ran {len(lines)} times")
    for line in lines:
        say(f"  {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
