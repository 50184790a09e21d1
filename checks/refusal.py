"""Why no set fits: the pairs that do not go together, and the smallest changes that would help."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import msgspec

from checks.driver import cuda_facts, numbers
from checks.facts import driver_facts
from checks.hostfacts import HostFacts
from checks.pairs import Conflict, label
from checks.search import Parts, Search
from checks.wishes import PART_OF, PARTS

HOST_SIDE = {
    "driver": "install a newer driver on {}",
    "modules": "install the open kernel modules on {}",
    "glibc": "take hosts with a newer glibc in place of {}",
    "pythons": "install the interpreter on {}, or name it in hosts.toml",
    "gpu": "leave out {}",
    "platform": "leave out {}",
}
"""What a host may have to change -> how to say so."""
MOST_CHANGES = 4


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A smallest change that makes a set possible: what gives way, and how it is told."""

    gives_way: list[str]
    told: str


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """No set fits."""

    conflicts: list[Conflict]
    changes: list[Change]

    def __str__(self) -> str:
        lines = [str(conflict) for conflict in self.conflicts]
        return "\n".join([*lines, *(f"hint: {change.told}" for change in self.changes)])


def refusal(search: Search) -> Refusal:
    """The refusal of a search that found nothing."""
    return Refusal(conflicts=_blame(search), changes=_changes(search))


def _blame(search: Search) -> list[Conflict]:
    """The wishes that nothing meets, then pairs of wishes, then what was met after the most parts were chosen."""
    asked = {part: found[0].value for part in PARTS if len(found := search.allowed(part)) == 1}
    told = [*_unmet(search), *_among(search, asked), *_never_pinned(search, asked)]
    return unique(told) or search.first()[1]


def _unmet(search: Search) -> Iterator[Conflict]:
    for part in PARTS:
        if not search.allowed(part):
            nearest = min(search.domains[part], key=lambda one: len(one.against))
            blockers = ", ".join(what for what, _ in nearest.against)
            yield Conflict(
                left=label(part, nearest.value), right=blockers, why=" and ".join(why for _, why in nearest.against)
            )


def _among(search: Search, asked: Parts) -> Iterator[Conflict]:
    for index, rule in enumerate(search.rules):
        if all(need in asked for need in rule.needs):
            yield from search.judged(index, rule, asked)


def _never_pinned(search: Search, asked: Parts) -> Iterator[Conflict]:
    """Wishes that no release of sglang pins; told only while sglang itself is left open."""
    rows = [one.value for one in search.allowed("sglang")]
    for rule in search.rules:
        if rule.about[-1] == "sglang" and rule.pinned in asked and len(rows) > 1:
            value = asked[rule.pinned]
            if all(any(rule.judge({"sglang": row, rule.pinned: value}, ())) for row in rows):
                why = f"none of the {len(rows)} releases on record that are allowed pins it"
                yield Conflict(left=label(rule.pinned, value), right="every sglang", why=why)


def _changes(search: Search) -> list[Change]:
    """All changes of the smallest number of things that make a set possible."""
    against = {what for part in PARTS for one in search.domains[part] for what, _ in one.against}
    movable = sorted(against, key=lambda name: (name.startswith("policy"), name)) + list(HOST_SIDE)
    for size in range(1, MOST_CHANGES + 1):
        found = [_change(search, names) for names in combinations(movable, size)]
        if any(found):
            return [change for change in found if change]
    return []


def _change(search: Search, names: tuple[str, ...]) -> Change | None:
    parts, _ = search.first(frozenset(names))
    if parts is None:
        return None
    return Change(gives_way=list(names), told=" and ".join(_told(search, name, names, parts) for name in names))


def _told(search: Search, name: str, names: tuple[str, ...], parts: Parts) -> str:
    table, _, key = name.partition(".")
    if table == "wishes":
        return f"`{name}`: {search.request.wishes[key]} -> {label(PART_OF[key], parts[PART_OF[key]])}"
    if table == "overrides":
        return f"`{name}`: {search.request.overrides[key].version} -> {label(PART_OF[key], parts[PART_OF[key]])}"
    if table == "policy":
        return f"`{name}`: give it up, for {label(*_kept_out_by(search, name, parts))}"
    if name == "driver" and (needed := _driver_needed(search, frozenset(names) - {name})):
        older = [host.name for host in search.hosts if numbers(host.driver) < numbers(needed)]
        return f"install driver {needed} or newer on {', '.join(older)}"
    return HOST_SIDE[name].format(", ".join(_failing(search, name, parts))) + f" (for {_for_what(search, name, parts)})"


def _kept_out_by(search: Search, name: str, parts: Parts) -> tuple[str, Any]:
    for part in PARTS:
        for one in search.domains[part]:
            if one.value == parts[part] and any(what == name for what, _ in one.against):
                return part, one.value
    return PARTS[0], parts[PARTS[0]]


def _driver_needed(search: Search, loose: frozenset[str]) -> str:
    """The oldest driver on record with which a set fits."""
    known = [row.driver for row in cuda_facts().floor] + list(driver_facts().lines)
    for driver in sorted(known, key=numbers):
        newer = [_with_driver(host, driver) for host in search.hosts]
        if Search(newer, search.request, search.catalogue).first(loose)[0]:
            return driver
    return ""


def _with_driver(host: HostFacts, driver: str) -> HostFacts:
    return msgspec.structs.replace(host, driver=max(host.driver, driver, key=numbers))


def _failing(search: Search, name: str, parts: Parts) -> list[str]:
    """The hosts that what was loosened stands against."""
    rules = [rule for rule in search.rules if name in rule.about]
    return [host.name for host in search.hosts if any(any(rule.judge(parts, [host])) for rule in rules)]


def _for_what(search: Search, name: str, parts: Parts) -> str:
    rules = [rule for rule in search.rules if name in rule.about]
    return next(conflict.right for rule in rules for conflict in rule.judge(parts, search.hosts))


def unique(conflicts: Sequence[Conflict]) -> list[Conflict]:
    """The conflicts, each once."""
    return list({(one.left, one.right, one.why): one for one in conflicts}.values())
