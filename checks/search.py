"""Chooses part after part, newest first, and asks each rule as soon as its parts are chosen."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from checks.catalogue import Catalogue
from checks.hostfacts import HostFacts
from checks.pairs import RULES, Conflict, Rule, label
from checks.wishes import PART_OF, PARTS, Candidate, Request, candidates
from fleet.problem import Problem

Parts = Mapping[str, Any]
NOTHING: frozenset[str] = frozenset()


class Search:
    """All choices for some hosts and wishes.

    Hosts with equal facts are asked once. `loose` in its methods names what is not held to: a wish, a policy, or
    what a host has. Raises Problem for a wish that cannot be read, and for no hosts at all.
    """

    def __init__(self, hosts: Sequence[HostFacts], request: Request, catalogue: Catalogue | None = None) -> None:
        if not hosts:
            raise Problem("no hosts to solve for", "name probe records, or fill `[assume]` in pins.toml")
        self.hosts = _distinct(hosts)
        self.request = request
        self.catalogue = catalogue
        self.domains = candidates(request, {host.platform for host in hosts}, catalogue)
        skipped = {PART_OF.get(name, name) for name in request.overrides}
        self.rules = [rule for rule in RULES if rule.pinned not in skipped]
        self._judged: dict[tuple[int, tuple[str, ...]], list[Conflict]] = {}

    def first(
        self, loose: frozenset[str] = NOTHING, fixed: Parts | None = None
    ) -> tuple[dict[str, Any] | None, list[Conflict]]:
        """The first set that fits, and else the conflicts met after the most parts had been chosen."""
        deepest: tuple[int, list[Conflict]] = (-1, [])

        def choose(parts: dict[str, Any]) -> dict[str, Any] | None:
            nonlocal deepest
            if len(parts) == len(PARTS):
                return parts
            part = PARTS[len(parts)]
            for value in self._values(part, loose, fixed):
                chosen = {**parts, part: value}
                conflicts = self.conflicts(chosen, part, loose)
                if conflicts and len(parts) > deepest[0]:
                    deepest = (len(parts), conflicts)
                if not conflicts and (found := choose(chosen)):
                    return found
            return None

        return choose({}), deepest[1]

    def _values(self, part: str, loose: frozenset[str], fixed: Parts | None) -> Iterator[Any]:
        if fixed and part in fixed:
            yield fixed[part]
            return
        yield from (one.value for one in self.domains[part] if all(what in loose for what, _ in one.against))

    def conflicts(self, parts: Parts, newest: str, loose: frozenset[str] = NOTHING) -> list[Conflict]:
        """What the rules that `newest` completes say against these parts: the first rule that objects."""
        for index, rule in enumerate(self.rules):
            asked = newest in rule.needs and all(need in parts for need in rule.needs) and not loose & set(rule.about)
            if asked and (found := self.judged(index, rule, parts)):
                return found
        return []

    def judged(self, index: int, rule: Rule, parts: Parts) -> list[Conflict]:
        """What one rule says against these parts, asked once for the same ones."""
        # sglang too: a pair that it pins itself is vouched for.
        key = (index, tuple(label(part, parts[part]) for part in (*rule.needs, "sglang") if part in parts))
        if key not in self._judged:
            self._judged[key] = list(rule.judge(parts, self.hosts))
        return self._judged[key]

    def allowed(self, part: str) -> list[Candidate]:
        """The candidates that neither a wish nor the policy is against."""
        return [one for one in self.domains[part] if not one.against]


def _distinct(hosts: Sequence[HostFacts]) -> list[HostFacts]:
    groups: dict[HostFacts, list[str]] = {}
    for host in hosts:
        groups.setdefault(msgspec.structs.replace(host, name="", simulated=False), []).append(host.name)
    return [msgspec.structs.replace(facts, name=_joined(names)) for facts, names in groups.items()]


def _joined(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} like them" if len(names) > 3 else "")
