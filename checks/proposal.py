"""Today's pins against the newest consistent set: the rows of the table, and how they are told."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from checks.facts import Torch
from checks.hostfacts import HostFacts
from checks.pinsfile import python_range
from checks.solve import Solution
from checks.wishes import PART_OF
from fleet.decision import Decision
from fleet.pins import PinsFile, Runfile

WIDTH = 110
SAYING = ("catalogue", "wheel index", "probe records")
"""Sources whose name alone tells nothing."""


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """One row: a key of pins.toml, what it is, what it would be, and on what ground."""

    key: str
    current: str
    proposed: str
    why: str
    source: str = ""
    date: str = ""

    @property
    def changed(self) -> bool:
        """The pin would be written."""
        return self.current != self.proposed


def pins(
    today: PinsFile,
    solution: Solution,
    packages: Mapping[str, str],
    files: Mapping[str, Runfile],
    dates: Mapping[str, str],
) -> Iterator[Pin]:
    """A row for each pin that a solve decides; `packages` and `files` are all that would be pinned.

    `dates`: package -> the day its version came out, where the index tells.
    """
    by_part = {decision.subject: decision for decision in solution.decisions}
    stack = solution.stack
    yield _pin("cuda.version", today.cuda.version, stack.cuda.version, by_part["cuda"], stack.cuda.date)
    for platform in dict.fromkeys([*today.cuda.runfile, *files]):
        yield _runfile(platform, today.cuda.runfile.get(platform), files.get(platform))
    yield _pin("wheels.python", today.wheels.python, python_range(solution.stack.python), by_part["python"])
    for name in dict.fromkeys([*packages, *today.wheels.packages]):
        decision = by_part.get(PART_OF.get(str(canonicalize_name(name)), ""))
        pin = _package(name, today.wheels.packages.get(name, ""), packages.get(name, ""), decision, stack.torch)
        yield replace(pin, date=dates.get(name, "") if pin.proposed else "")


def _pin(key: str, current: str, proposed: str, decision: Decision, date: str = "") -> Pin:
    evidence = decision.candidates[0].evidence
    return Pin(
        key=key,
        current=current,
        proposed=proposed,
        why=decision.reason,
        source="; ".join(f"{one.source}: {one.says}" if one.source in SAYING else one.source for one in evidence),
        date=date,
    )


def _runfile(platform: str, current: Runfile | None, proposed: Runfile | None) -> Pin:
    why = "the release's own file" if proposed else "no source gives its SHA-256: a runfile without one is not pinned"
    return Pin(
        key=f"cuda.runfile.{platform}",
        current=current.file if current else "",
        proposed=proposed.file if proposed else "",
        why=why,
        source=proposed.source if proposed else "",
    )


def _package(name: str, current: str, proposed: str, decision: Decision | None, torch: Torch) -> Pin:
    key = f"wheels.packages.{name}"
    if decision is not None and proposed:
        return _pin(key, current, proposed, decision)
    if not proposed:
        why = "what takes its place is pinned under another name"
        return Pin(key=key, current=current, proposed="", why=why)
    return Pin(
        key=key,
        current=current,
        proposed=proposed,
        why=f"torch {torch.version} asks for it",
        source=torch.source,
        date=torch.date,
    )


def told(rows: Sequence[Pin], hosts: Sequence[HostFacts], decisions: Sequence[Decision], notes: Sequence[str]) -> str:
    """The table for a terminal: what changes, why, and what was left out."""
    lines = [f"solved for {_of_hosts(hosts)}", "", *_table(rows), "", "left out:"]
    lines += [_wrapped(f"{', '.join(names)}: {reason}", "  ") for reason, names in _left_out(decisions).items()]
    lines += ["", *(_wrapped(note, "") for note in notes)] if notes else []
    changed = sum(row.changed for row in rows)
    lines += [
        "",
        f"{changed} of {len(rows)} pins would change"
        if changed
        else f"all {len(rows)} pins are the newest consistent set",
    ]
    return "\n".join(lines) + "\n"


def _left_out(decisions: Sequence[Decision]) -> dict[str, list[str]]:
    """Reason -> what was left out for it."""
    grouped: dict[str, list[str]] = {}
    for decision in decisions:
        for one in decision.rejected:
            grouped.setdefault(one.reason, []).append(one.name)
    return grouped


def _of_hosts(hosts: Sequence[HostFacts]) -> str:
    first = hosts[0]
    simulated = "SIMULATED: " if any(host.simulated for host in hosts) else ""
    about = f"driver {first.driver}, compute capability {', '.join(first.capabilities)}, glibc {first.glibc}"
    count = f"{len(hosts)} hosts, the first with" if len(hosts) > 1 else f"one host ({first.name}):"
    return f"{simulated}{count} {about}, Python {', '.join(first.pythons)}, {first.platform}"


def _table(rows: Sequence[Pin]) -> Iterator[str]:
    widths = [max(len(text) for text in column) for column in zip(*(_cells(row) for row in rows), strict=True)]
    for row in rows:
        cells = "  ".join(cell.ljust(width) for cell, width in zip(_cells(row), widths, strict=True))
        yield f"{'*' if row.changed else ' '} {cells}".rstrip()
        yield _wrapped(row.why + (f" (since {row.date})" if row.date else ""), "      ")
        if row.source:
            yield _wrapped(f"source: {row.source}", "      ")


def _cells(row: Pin) -> tuple[str, str, str]:
    arrow = f"-> {row.proposed or '(none)'}" if row.changed else "stays"
    return row.key, row.current or "(none)", arrow


def _wrapped(text: str, indent: str) -> str:
    wrap = textwrap.TextWrapper(
        WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False
    )
    return wrap.fill(text)
