"""Today's pins against the newest consistent set: `python -m checks.propose [--write] [--probe FILE …]`.

Asks the wheel index and the CUDA mirrors what is published, solves once for all hosts, lets uv resolve the rest, and
prints a table. Writes nothing without --write.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec
from msgspec.structs import replace
from packaging.utils import canonicalize_name
from packaging.version import Version

from checks import proposal, published
from checks.driver import numbers
from checks.hostfacts import HostFacts, of_assumption, read_probes
from checks.lock import Locked, Wanted, make_lock, same_requirements, write_together
from checks.pinsfile import edited, followers, runfiles
from checks.record import Record, read_record, record_path
from checks.refusal import Refusal
from checks.solve import Solution, Stack, solve
from checks.together import clashes
from checks.web import Web
from checks.wishes import Request
from fleet.choice import Policy
from fleet.pins import PinsFile, locked_versions, read_pins_file
from fleet.problem import Problem
from fleet.run import find_run

ASK_S = 60.0
"""How long index and mirrors together may take."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found: the choice with its record, the table, and what would be written."""

    path: Path
    today: PinsFile
    hosts: list[HostFacts]
    solution: Solution
    packages: dict[str, str]
    rows: list[proposal.Pin]
    notes: list[str]
    lock: Locked | None
    sure: bool
    """Everything that was asked has answered."""
    enough: bool
    """What would be written stands on answers."""


def propose(path: Path, hosts: Sequence[HostFacts], web: Web | None) -> Proposal:
    """The newest consistent set for these hosts; without `web`, from the shipped facts alone.

    Raises Problem when no set fits, the index lacks what was chosen, or uv finds no resolution.
    """
    today = read_pins_file(path)
    hosts = list(hosts) or [_assumed(today, path)]
    solution = _solved(today, hosts, path)
    stack, said = solution.stack, None
    if web is not None:
        said = published.ask(stack, today.cuda, today.wheels, hosts, path.parent, web)
        published.require(said, hosts)
        decided = [published.with_evidence(said, one) for one in solution.decisions]
        solution = replace(solution, decisions=[*decided, *(one.decision for one in said.runfiles.values())])
    packages = {**stack.packages, **followers(today.wheels.packages, stack)}
    dates = {"sglang": stack.sglang.date, "torch": stack.torch.date, stack.kernel.name: stack.kernel.date}
    # uv would only say of the same index that it cannot be read.
    lock = make_lock(_wanted(today, stack, hosts, packages)) if said and said.readable else None
    packages = {name: _settled(name, version, lock, today) for name, version in packages.items()}
    dates |= published.dates(said, packages) if said else {}
    return Proposal(
        path=path,
        today=today,
        hosts=hosts,
        solution=solution,
        packages=packages,
        rows=list(proposal.pins(today, solution, packages, runfiles(stack, today), dates)),
        notes=[*_contradictions(today, hosts), *(published.notes(said) if said else []), *_back(path, today, lock)],
        lock=lock,
        sure=said is not None and said.sure,
        enough=said is not None and said.enough,
    )


def _assumed(today: PinsFile, path: Path) -> HostFacts:
    if today.assume is None:
        raise Problem(f"{path}: no hosts to solve for", "name probe records (--probe, --run), or fill `[assume]`")
    return of_assumption(today.assume)


def _solved(today: PinsFile, hosts: Sequence[HostFacts], path: Path) -> Solution:
    found = solve(hosts, _request(today, today.wishes, today.policy))
    if isinstance(found, Refusal):
        hint = ", or ".join(change.told for change in found.changes)
        raise Problem(f"{path}: no consistent set", hint, map(str, found.conflicts))
    for conflict in clashes(
        {name: one.version for name, one in today.extras.items()} | found.stack.packages, found.stack.lane
    ):
        raise Problem(f"{path}: `extras`: {conflict}", "set its version and label to those of flashinfer-python")
    return found


def _request(today: PinsFile, wishes: dict[str, str], policy: Policy) -> Request:
    now = {**today.wheels.packages, "cuda": today.cuda.version}
    day = datetime.now(timezone.utc).date()
    return Request(wishes=wishes, policy=policy, overrides=today.overrides, today=now, on=day)


def _contradictions(today: PinsFile, hosts: Sequence[HostFacts]) -> Iterator[str]:
    """What is wrong with the pins as they are."""
    known = ("sglang", "torch", "sgl-kernel", "sglang-kernel", "flashinfer-python")
    wishes = {name: version for name, version in today.wheels.packages.items() if name in known}
    try:
        found = solve(hosts, _request(today, {**wishes, "cuda": today.cuda.version}, Policy(checksum_sources=1)))
    except Problem as problem:
        yield f"today's pins: {problem}"
        return
    conflicts = found.conflicts if isinstance(found, Refusal) else []
    packages = {**today.wheels.packages, **{name: one.version for name, one in today.extras.items()}}
    conflicts += clashes(packages, numbers(today.cuda.version)[0])
    yield from (f"today's pins contradict each other: {conflict}" for conflict in conflicts)


def _wanted(today: PinsFile, stack: Stack, hosts: Sequence[HostFacts], packages: dict[str, str]) -> Wanted:
    return Wanted(
        packages=packages,
        overrides=today.overrides,
        extras=today.extras,
        python=stack.python,
        glibc=min((host.glibc for host in hosts), key=numbers),
        platforms=tuple(sorted({host.platform for host in hosts})),
        index=today.wheels.index,
        cuda_major=stack.lane,
    )


def _settled(name: str, version: str, lock: Locked | None, today: PinsFile) -> str:
    if lock is not None:
        return lock.versions[str(canonicalize_name(name))]
    return version or today.wheels.packages.get(name, "")


def _back(path: Path, today: PinsFile, lock: Locked | None) -> Iterator[str]:
    """Packages of the lock that would become older: told, since nobody asked for them."""
    old = path.parent / today.wheels.lock
    before = locked_versions(old.read_text("utf-8")) if lock and old.is_file() else {}
    for name, version in before.items():
        now = lock.versions.get(name, "") if lock else ""
        if now and Version(now) < Version(version):
            yield f"lock: {name} would go back from {version} to {now}"


def write(found: Proposal) -> list[Path]:
    """Writes pins.toml, the lock and the decision record, as far as they change; returns what was written.

    Raises Problem when something could not be asked or written; then everything is as it was.
    """
    if found.lock is None or not found.enough:
        raise Problem("not written: not everything could be asked", "see the notes above, then try again")
    stack, text = found.solution.stack, found.path.read_text("utf-8")
    lock_path = found.path.parent / found.today.wheels.lock
    old_lock = lock_path.read_text("utf-8") if lock_path.is_file() else ""
    new_text = edited(text, stack, found.packages, runfiles(stack, found.today), found.path)
    files = {} if same_requirements(old_lock, found.lock.text) else {lock_path: _heading(found) + found.lock.text}
    files |= {found.path: new_text} if new_text != text else {}
    files |= _record(found)
    # The lock first: pins.toml with a lock of other pins is refused when it is read.
    write_together(files)
    return list(files)


def _heading(found: Proposal) -> str:
    host = min(found.hosts, key=lambda host: numbers(host.glibc))
    place = f"CPython {found.solution.stack.python}, {host.platform}, glibc {host.glibc} or newer"
    return (
        "# The whole closure of [wheels.packages] in pins.toml, with the SHA-256 of every file of each version.\n"
        f"# Made by `nox -s pins -- --write` for {place}.\n"
    )


def _record(found: Proposal) -> dict[Path, str]:
    day = datetime.now(timezone.utc).date().isoformat()
    record = Record(schema=1, on=day, hosts=found.hosts, decisions=found.solution.decisions)
    before = read_record(found.path)
    if before is not None and before.timeless == record.timeless:
        return {}
    return {record_path(found.path): msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n"}


def main(argv: Sequence[str]) -> int:
    """Prints the table; 0: it stands on answers, 1: something could not be asked or does not fit."""
    parser = argparse.ArgumentParser(prog="checks.propose", description=__doc__)
    parser.add_argument("--pins", type=Path, default=Path("pins.toml"))
    parser.add_argument("--probe", type=Path, nargs="+", default=[], help="probe records, or folders that hold some")
    parser.add_argument("--run", default="", help="the probe records of that run: its id, or latest")
    parser.add_argument("--write", action="store_true", help="write pins.toml, the lock and the decision record")
    parser.add_argument("--offline", action="store_true", help="ask nobody: from the shipped facts alone")
    given = parser.parse_args(argv)
    try:
        return _shown(given)
    except Problem as problem:
        sys.stderr.write(f"{problem}\n")
        return 1


def _shown(given: argparse.Namespace) -> int:
    if given.write and given.offline:
        raise Problem("--write with --offline: a lock cannot be made without asking the index")
    folders = [find_run(Path("reports"), given.run).path] if given.run else []
    web = None if given.offline else Web(Path(".nox/lists")).within(ASK_S)
    found = propose(given.pins, read_probes([*given.probe, *folders]), web)
    sys.stdout.write(proposal.told(found.rows, found.hosts, found.solution.decisions, found.notes))
    if given.write:
        written = write(found)
        sys.stdout.write("".join(f"written: {path}\n" for path in written) or "nothing to write\n")
    elif any(row.changed for row in found.rows):
        sys.stdout.write("hint: `nox -s pins -- --write` writes them\n")
    return 0 if found.sure or given.offline else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
