"""Asks the wheel index and the CUDA mirrors whether what was chosen is really published, and what is newer there."""

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec.structs import replace
from packaging.utils import canonicalize_name
from packaging.version import Version

from checks import release
from checks.facts import read_on, sglang_rows
from checks.hostfacts import HostFacts
from checks.indexes import Page, best, default_index, read_pages, why_none
from checks.mirror import mirror
from checks.pinsfile import followers
from checks.resolved import Resolved
from checks.solve import Stack
from checks.web import Web
from checks.wishes import PART_OF
from fleet.decision import Candidate, Decision, Evidence, Rejected
from fleet.pins import Cuda, Wheels
from fleet.problem import Problem

_SLOW = re.compile(r"too slowly|no whole answer|Read timed out|no time left")
_WHOLE = re.compile(r"names no runfile for \S*")


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What index and mirrors said about a stack."""

    stack: Stack
    pages: dict[str, Page]
    runfiles: dict[str, Resolved]
    """By platform."""
    cuda: Cuda
    """As pinned today."""
    host: HostFacts
    """The one whose files are quoted."""
    index: str
    """The index as pins.toml names it; empty for uv's default one."""
    others: dict[str, Page] = {}
    """The pages of what is pinned beside the stack, for their dates only."""

    @property
    def sure(self) -> bool:
        """Everything that was asked has answered."""
        return self.readable and all(one.finding.ok and _answered(one) for one in self.runfiles.values())

    @property
    def enough(self) -> bool:
        """What may be written stands on answers: the index is read, and no unanswered runfile would change."""
        return self.readable and all(
            one.finding.ok and (_answered(one) or _stays(self, platform)) for platform, one in self.runfiles.items()
        )

    @property
    def readable(self) -> bool:
        """The index has a page for every chosen package."""
        return all(page.verdict == "read" for page in self.pages.values())


def _answered(resolved: Resolved) -> bool:
    """A mirror gave a list that tells of this file, or said that it has none."""
    return len(_bad_lists(resolved)) < len(_lists(resolved))


def _stays(published: Published, platform: str) -> bool:
    row, pinned = published.stack.cuda.files.get(platform), published.cuda.runfile.get(platform)
    same = published.stack.cuda.version == published.cuda.version and row is not None and pinned is not None
    return bool(same and row and pinned and (row.file, row.sha256) == (pinned.file, pinned.sha256))


def ask(stack: Stack, cuda: Cuda, wheels: Wheels, hosts: Sequence[HostFacts], beside: Path, web: Web) -> Published:
    """The pages of chosen and pinned packages and the lists of the release; relative mirrors begin at `beside`."""
    platforms = sorted({host.platform for host in hosts})
    mirrors = [mirror(place, web, beside) for place in (cuda.mirror, *cuda.mirrors)]
    beside_it = [*followers(wheels.packages, stack)]
    with ThreadPoolExecutor(len(platforms) + 2) as pool:
        pages = pool.submit(read_pages, web, default_index(wheels.index), list(stack.packages))
        others = pool.submit(read_pages, web, default_index(wheels.index), beside_it)
        runfiles = pool.map(lambda platform: release.resolve(stack.cuda.version, platform, mirrors), platforms)
        found = dict(zip(platforms, runfiles, strict=True))
        return Published(
            stack=stack,
            cuda=cuda,
            pages=pages.result(),
            runfiles=found,
            host=hosts[0],
            index=wheels.index,
            others=others.result(),
        )


def require(published: Published, hosts: Sequence[HostFacts]) -> None:
    """Raises Problem when the index has no file of a chosen package for a host, or the release another runfile."""
    for name, version in published.stack.packages.items():
        page = published.pages[name]
        for host in hosts if page.verdict == "read" else []:
            python, place = published.stack.python, (host.glibc, host.platform)
            if best(page.rows, python, *place, f"=={version}") is None:
                raise Problem(f"{name} on {host.name}: {why_none(page.rows, version, python, *place)}")
    for platform, resolved in published.runfiles.items():
        _require_runfile(published, platform, resolved)


def _require_runfile(published: Published, platform: str, resolved: Resolved) -> None:
    if resolved.finding.verdict not in ("published", "unreachable"):
        raise Problem(f"CUDA {resolved.release}: {resolved.finding.told}", resolved.finding.hint)
    row, pinned = published.stack.cuda.files[platform], published.cuda.runfile.get(platform)
    ours, whose = (row.md5, "the catalogue") if pinned is None or pinned.file != row.file else (pinned.md5, "pins.toml")
    if resolved.file and (resolved.file != row.file or (resolved.md5 and ours and resolved.md5 != ours)):
        said = f"{resolved.sources[0]} has {resolved.file} with md5 {resolved.md5 or 'not told'}"
        hint = "the file was replaced, or one of the two is wrong: nothing may be installed before that is clear"
        raise Problem(f"CUDA {resolved.release}: {said}, {whose} {row.file} with md5 {ours}", hint)


def notes(published: Published) -> Iterator[str]:
    """What a person should know of what was read: silence, quirks of the pages, contradictions."""
    for name, page in published.pages.items():
        yield from (f"index, {name}: {text}" for text in _quirks(page, published.stack.packages[name]))
    doubts = [
        f"CUDA {resolved.release}: {text}"
        for platform, resolved in published.runfiles.items()
        for text in _doubts(published, platform, resolved)
    ]
    yield from dict.fromkeys(doubts)


def _quirks(page: Page, version: str) -> Iterator[str]:
    if page.verdict != "read":
        yield f"{page.verdict}: {page.told}"
    mine = [row for row in page.rows if row.version == version]
    for file in sorted({row.file for row in mine} & set(page.disputed)):
        hashes = ", ".join(one[:12] for one in page.disputed[file])
        yield f"{file} has rows with different SHA-256 ({hashes} …): only one can be right"
    if not all(row.sha256 for row in mine):
        yield f"no hashes for {version}"
    if len(page.labels) > 1:
        yield f"one page holds the labels {', '.join(one or 'none' for one in page.labels)}"


def _doubts(published: Published, platform: str, resolved: Resolved) -> Iterator[str]:
    yield from (f"{row.url}: {_said(row)}" for row in _bad_lists(resolved))
    if not _answered(resolved):
        yield f"no mirror gave a list of its files; the name is from {', '.join(resolved.sources[:1])}"
    yield from resolved.conflicts
    row, pinned = published.stack.cuda.files.get(platform), published.cuda.runfile.get(platform)
    if row and pinned and row.file == pinned.file and row.sha256 not in ("", pinned.sha256):
        yield f"{pinned.file} is pinned with another SHA-256 than the catalogue's"


def _lists(resolved: Resolved) -> list[Evidence]:
    """What each mirror said when it was asked for its list."""
    return [row for one in resolved.decision.candidates for row in one.evidence if row.source == "md5sum.txt"]


def _bad_lists(resolved: Resolved) -> list[Evidence]:
    """What was said in place of a list; that there is none is an answer, and so is a whole list without the file."""
    good = [row.checksum or row.status in (404, 410) or _WHOLE.fullmatch(row.says) for row in _lists(resolved)]
    return [row for row, is_good in zip(_lists(resolved), good, strict=True) if not is_good]


def _said(row: Evidence) -> str:
    if row.status in (401, 403, 451):
        return f"{row.says}: refused, which is not absence"
    if row.status:
        return row.says if row.says.startswith(str(row.status)) else f"{row.status}, {row.says}"
    return f"too slow: {row.says.removeprefix('unreachable: ')}" if _SLOW.search(row.says) else row.says


def with_evidence(published: Published, decision: Decision) -> Decision:
    """The decision with what the index says about the chosen version, and its newer releases that are not on record."""
    for name, page in published.pages.items():
        if PART_OF[str(canonicalize_name(name))] == decision.subject and decision.candidates:
            first, *rest = decision.candidates
            changed = replace(first, evidence=[*first.evidence, *_seen(published, name, page)])
            unknown = list(_unknown(decision.subject, page))
            return replace(
                decision,
                candidates=[changed, *rest, *(Candidate(name=one.name) for one in unknown)],
                rejected=[*unknown, *decision.rejected],
            )
    return decision


def dates(published: Published, packages: Mapping[str, str]) -> dict[str, str]:
    """Package -> the day on which the index got this version of it, where it tells."""
    days: dict[str, list[str]] = {}
    for name, page in (published.others | published.pages).items():
        version = Version(packages[name]) if packages.get(name) else None
        days[name] = [row.uploaded for row in page.rows if row.uploaded and Version(row.version) == version]
    return {name: min(found) for name, found in days.items() if found}


def _seen(published: Published, name: str, page: Page) -> Iterator[Evidence]:
    version, host = published.stack.packages[name], published.host
    row = best(page.rows, published.stack.python, host.glibc, host.platform, f"=={version}")
    day = dates(published, published.stack.packages).get(name, "")
    yield Evidence(
        source="wheel index",
        says=row.file + (f", there since {day}" if day else "") if row else page.told,
        # The default index stands for whatever mirror of it a host uses: its address is told without a host.
        url=page.url if published.index else f"simple/{canonicalize_name(name)}/",
        status=page.status,
        size_bytes=row.size_bytes or -1 if row else -1,
        checksum=f"sha256:{row.sha256}" if row and row.sha256 else "",
        date=page.at,
    )


def _unknown(part: str, page: Page) -> Iterator[Rejected]:
    """Newer releases of sglang on the index, whose pins are not on record here."""
    if part == "sglang":
        newest = Version(sglang_rows()[0].version)
        seen = {Version(row.version) for row in page.rows if not row.yanked}
        for version in sorted((one for one in seen if one > newest and not one.is_prerelease), reverse=True):
            yield Rejected(name=f"sglang {version}", reason=f"its pins are not on record here (facts of {read_on()})")
