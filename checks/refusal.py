"""Why no set fits: the pairs that do not go together, and the smallest changes that would help."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import msgspec

from checks.driver import cuda_facts, numbers
from checks.facts import driver_facts
from checks.hostfacts import HostFacts
from checks.pairs import Conflict, label, named
from checks.search import Parts, Search
from checks.wishes import PART_OF, PARTS, Candidate

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
MOST_HOSTS = 10


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A smallest change that makes a set possible: what gives way, how it is told, what stands against it now."""

    gives_way: list[str]
    told: str
    against: list[Conflict] = []


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """No set fits."""

    conflicts: list[Conflict]
    changes: list[Change]

    def __str__(self) -> str:
        lines = [str(conflict) for conflict in self.conflicts]
        return "\n".join([*lines, *(f"hint: {change.told}" for change in self.changes)])


def refusal(search: Search) -> Refusal:
    """The refusal of a search that found nothing."""
    changes = _changes(search)
    return Refusal(conflicts=_blame(search, changes), changes=changes)


def _blame(search: Search, changes: Sequence[Change]) -> list[Conflict]:
    """The wishes that nothing meets, then pairs of wishes, then what a host has against the set it could have.

    What was met after the most parts were chosen comes last: it may belong to a set that nobody wants.
    """
    asked = {part: found[0].value for part in PARTS if len(found := search.allowed(part) or _wished(search, part)) == 1}
    told = [*_unmet(search), *_among(search, _with_torch(search, asked)), *_never_pinned(search, asked)]
    # What is sure before what is only not known.
    told.sort(key=lambda one: not one.known)
    return unique(told) or unique([one for change in changes for one in change.against]) or search.first()[1]


def _wished(search: Search, part: str) -> list[Candidate]:
    """What wishes and overrides ask for, whatever the policy says of it."""
    return [one for one in search.domains[part] if all(what.startswith("policy.") for what, _ in one.against)]


def _with_torch(search: Search, asked: Parts) -> Parts:
    """What is asked for, with the torch that an asked-for sglang brings along."""
    if "sglang" not in asked or "torch" in asked:
        return asked
    brought = [one.value for one in search.allowed("torch") if one.value.version == asked["sglang"].torch]
    return {**asked, "torch": brought[0]} if brought else asked


def _unmet(search: Search) -> Iterator[Conflict]:
    for part in PARTS:
        if not search.allowed(part):
            # Of what is asked for, what the policy is least against; nothing of it there: what comes nearest.
            nearest = min(_wished(search, part) or search.domains[part], key=lambda one: len(one.against))
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
    driver = _driver_needed(search, frozenset(names) - {"driver"}) if "driver" in names else ""
    if driver:
        parts = _with_driver(search, driver).first(frozenset(names) - {"driver"})[0] or parts
    told = [
        _told_driver(search, driver) if driver and name == "driver" else _told(search, name, parts) for name in names
    ]
    against = [one for name in names if name in HOST_SIDE for one in _objections(search, name, parts)]
    return Change(gives_way=list(names), told=" and ".join(told), against=against)


def _told(search: Search, name: str, parts: Parts) -> str:
    table, _, key = name.partition(".")
    if table == "wishes":
        return f"`{name}`: {search.request.wishes[key]} -> {label(PART_OF[key], parts[PART_OF[key]])}"
    if table == "overrides":
        return f"`{name}`: {search.request.overrides[key].version} -> {label(PART_OF[key], parts[PART_OF[key]])}"
    if table == "policy":
        return f"`{name}`: give it up, for {label(*_kept_out_by(search, name, parts))}"
    objections = _objections(search, name, parts)
    hosts = [host for host in search.hosts if _objections(search, name, parts, host)]
    return HOST_SIDE[name].format(named(hosts, MOST_HOSTS)) + f" (for {objections[0].right})"


def _told_driver(search: Search, driver: str) -> str:
    older = [host for host in search.hosts if numbers(host.driver) < numbers(driver)]
    return f"install driver {driver} or newer on {named(older, MOST_HOSTS)}"


def _objections(search: Search, name: str, parts: Parts, host: HostFacts | None = None) -> list[Conflict]:
    """What the hosts, or one of them, have against these parts by the rules about `name`."""
    rules = [rule for rule in search.rules if name in rule.about]
    return [one for rule in rules for one in rule.judge(parts, [host] if host else search.hosts)]


def _kept_out_by(search: Search, name: str, parts: Parts) -> tuple[str, Any]:
    for part in PARTS:
        for one in search.domains[part]:
            if one.value == parts[part] and any(what == name for what, _ in one.against):
                return part, one.value
    return PARTS[0], parts[PARTS[0]]


def _driver_needed(search: Search, loose: frozenset[str]) -> str:
    """The oldest driver on record with which a set fits; empty when none helps."""
    known = sorted([row.driver for row in cuda_facts().floor] + list(driver_facts().lines), key=numbers)
    # A newer driver is never worse, so the first that fits is found by halving.
    at = bisect_left(known, True, key=lambda one: _with_driver(search, one).first(loose)[0] is not None)
    return known[at] if at < len(known) else ""


def _with_driver(search: Search, driver: str) -> Search:
    """The same search, with this driver on every host that has an older one."""
    newer = [msgspec.structs.replace(host, driver=max(host.driver, driver, key=numbers)) for host in search.hosts]
    return Search(newer, search.request, search.catalogue)


def unique(conflicts: Sequence[Conflict]) -> list[Conflict]:
    """The conflicts, each once."""
    return list({(one.left, one.right, one.why): one for one in conflicts}.values())
