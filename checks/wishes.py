"""What may be chosen for each part of a stack: every candidate on record, and what wishes and policy say against it."""

from collections.abc import Iterator
from datetime import date
from typing import Any

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from checks.catalogue import Catalogue, shipped
from checks.facts import driver_facts, kernel_of, kernel_rows, sglang_rows, torch_of, torch_rows
from checks.pairs import Toolkit
from fleet.choice import Override, Policy
from fleet.problem import Problem, did_you_mean

PARTS = ("sglang", "torch", "kernel", "flashinfer", "python", "cuda")
"""In the order they are chosen: what pins the others comes first."""
PART_OF = {
    "sglang": "sglang",
    "torch": "torch",
    "sgl-kernel": "kernel",
    "sglang-kernel": "kernel",
    "flashinfer-python": "flashinfer",
    "python": "python",
    "cuda": "cuda",
}
PYTHONS = ("3.14", "3.13", "3.12", "3.11", "3.10")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the solver. `today`: the versions pinned now, by package, with `cuda`; `on`: the day it is."""

    wishes: dict[str, str] = {}
    policy: Policy = Policy()
    overrides: dict[str, Override] = {}
    today: dict[str, str] = {}
    on: date

    def exact(self, part: str) -> str:
        """The one version asked for, by override or wish; empty when a choice is left."""
        for name in (name for name, its in PART_OF.items() if its == part):
            asked = self.overrides[name].version if name in self.overrides else self.wishes.get(name, "")
            if _is_version(asked) and part not in ("cuda", "python"):
                return asked
        return ""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a part, and what stands against it before any rule: (what would have to give way, why)."""

    value: Any
    against: tuple[tuple[str, str], ...] = ()


def candidates(request: Request, platforms: set[str], catalogue: Catalogue | None = None) -> dict[str, list[Candidate]]:
    """Every candidate of every part, newest first.

    Raises Problem for a wish that cannot be read, and for a release of sglang or CUDA that is not on record.
    """
    _require(request, catalogue or shipped())
    found: dict[str, list[Any]] = {
        "sglang": list(sglang_rows()),
        "torch": list(torch_rows()),
        "kernel": list(kernel_rows()),
        "flashinfer": _newest({row.flashinfer for row in sglang_rows()}),
        "python": list(PYTHONS),
        "cuda": toolkits(catalogue or shipped()),
    }
    for part, value in _asked(request):
        known = {str(getattr(one, "version", one)) for one in found[part]}
        if str(getattr(value, "version", value)) not in known:
            found[part].insert(0, value)
    return {part: [_candidate(part, value, request, platforms) for value in found[part]] for part in PARTS}


def toolkits(catalogue: Catalogue) -> list[Toolkit]:
    """The CUDA releases of the catalogue, newest first."""
    rows = {release: [row for row in catalogue.rows if row.cuda == release] for release in catalogue.releases()}
    dates = driver_facts().dates
    return [
        Toolkit(version=release, date=dates.get(release, ""), files={row.platform: row for row in rows[release]})
        for release in reversed(catalogue.releases())
    ]


def _asked(request: Request) -> Iterator[tuple[str, Any]]:
    if version := request.exact("torch"):
        yield "torch", torch_of(version)
    for name in ("sgl-kernel", "sglang-kernel"):
        version = request.overrides[name].version if name in request.overrides else request.wishes.get(name, "")
        if _is_version(version):
            yield "kernel", kernel_of(name, version)
    if version := request.exact("flashinfer"):
        yield "flashinfer", version


def _newest(versions: set[str]) -> list[str]:
    return sorted(versions, key=Version, reverse=True)


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _require(request: Request, catalogue: Catalogue) -> None:
    for name, wish in request.wishes.items():
        if name not in PART_OF:
            raise Problem(f"`wishes.{name}`: nothing is known of it" + did_you_mean(name, PART_OF))
        _range(name, wish)
    for name, override in request.overrides.items():
        if not override.reason.strip():
            raise Problem(f"`overrides.{name}.reason`: want a reason, got none")
    for text in request.policy.exclude:
        _excluded(text)
    for part, known in (("sglang", [row.version for row in sglang_rows()]), ("cuda", catalogue.releases())):
        asked = request.wishes.get(part, "")
        exact = _is_version(asked) and (part != "cuda" or asked.count(".") >= 2)
        if exact and asked not in known:
            raise Problem(f"`wishes.{part}`: release {asked} is not on record" + did_you_mean(asked, known))


def _range(name: str, wish: str) -> SpecifierSet:
    """A wish as a range: `13.0` means 13.0.* for cuda and python, `newest` and an empty text mean any."""
    text = wish.strip()
    if text.startswith("newest in "):
        text = f"=={text.removeprefix('newest in ').strip()}.*"
    elif text in ("", "newest"):
        text = ""
    elif _is_version(text):
        whole = name not in ("cuda", "python") or text.count(".") >= 2
        text = f"=={text}" if whole else f"=={text}.*"
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        raise Problem(f"`wishes.{name}`: want a version, a range or `newest`, got {wish!r}") from None


def _excluded(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement:
        raise Problem(f"`policy.exclude`: want a requirement such as sglang==0.5.22, got {text!r}") from None


def _candidate(part: str, value: Any, request: Request, platforms: set[str]) -> Candidate:
    name = getattr(value, "name", next(name for name, its in PART_OF.items() if its == part))
    name = "flashinfer-python" if part == "flashinfer" else name
    version = str(getattr(value, "version", value))
    against = [
        *_against_wish(part, name, version, request),
        *_against_policy(name, version, getattr(value, "date", ""), request),
    ]
    if isinstance(value, Toolkit):
        against += _against_checksums(value, platforms, request.policy)
    return Candidate(value=value, against=tuple(against))


def _against_wish(part: str, name: str, version: str, request: Request) -> Iterator[tuple[str, str]]:
    for wished in (one for one, its in PART_OF.items() if its == part):
        if wished in request.overrides:
            if (name, version) != (wished, request.overrides[wished].version):
                yield f"overrides.{wished}", f"{wished} {request.overrides[wished].version} is set by an override"
        elif request.wishes.get(wished, "").strip():
            wish = request.wishes[wished]
            if wished != name or not _range(wished, wish).contains(version, prereleases=True):
                yield f"wishes.{wished}", f"{wished} {wish} is asked for"


def _against_policy(name: str, version: str, day: str, request: Request) -> Iterator[tuple[str, str]]:
    policy = request.policy
    for text in policy.exclude:
        banned = _excluded(text)
        if banned.name == name and banned.specifier.contains(version, prereleases=True):
            yield "policy.exclude", f"{text} is excluded"
    age = (request.on - date.fromisoformat(day)).days if day else policy.hold_days
    if age < policy.hold_days:
        yield "policy.hold_days", f"out for {age} days, {policy.hold_days} are asked for"
    now = request.today.get(name, "")
    if policy.prefer == "line" and now and numbers_of(now)[:2] != numbers_of(version)[:2]:
        yield "policy.prefer", f"not in today's line {'.'.join(map(str, numbers_of(now)[:2]))}"


def numbers_of(version: str) -> tuple[int, ...]:
    """The release numbers of any version: 2.11.0.dev1+cu130 -> (2, 11, 0)."""
    return Version(version).release


def _against_checksums(toolkit: Toolkit, platforms: set[str], policy: Policy) -> Iterator[tuple[str, str]]:
    for platform in sorted(platforms & set(toolkit.files)):
        row = toolkit.files[platform]
        known = [one for one in row.sources if any(one.startswith(by["by"]) for by in driver_facts().sha256)]
        count = len(known) if row.sha256 else 0
        if count < policy.checksum_sources or not row.size_bytes:
            why = f"its SHA-256 is known from {count} public source{'' if count == 1 else 's'}"
            yield "policy.checksum_sources", f"{why}, the policy asks for {policy.checksum_sources}"
