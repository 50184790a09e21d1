"""Asks the wheel index and the CUDA mirrors whether what was chosen is really published, and what is newer there."""

from collections.abc import Iterator, Sequence
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
from checks.resolved import Resolved
from checks.solve import Stack
from checks.web import Web
from checks.wishes import PART_OF
from fleet.decision import Candidate, Decision, Evidence, Rejected
from fleet.pins import Cuda, Wheels
from fleet.problem import Problem


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

    @property
    def sure(self) -> bool:
        """Everything that was asked has answered."""
        return self.readable and all(one.finding.ok for one in self.runfiles.values())

    @property
    def readable(self) -> bool:
        """The index has a page for every chosen package."""
        return all(page.verdict == "read" for page in self.pages.values())


def ask(stack: Stack, cuda: Cuda, wheels: Wheels, hosts: Sequence[HostFacts], beside: Path, web: Web) -> Published:
    """The pages of the chosen packages and the lists of the chosen release; relative mirrors begin at `beside`."""
    platforms = sorted({host.platform for host in hosts})
    mirrors = [mirror(place, web, beside) for place in (cuda.mirror, *cuda.mirrors)]
    with ThreadPoolExecutor(len(platforms) + 1) as pool:
        pages = pool.submit(read_pages, web, default_index(wheels.index), list(stack.packages))
        runfiles = pool.map(lambda platform: release.resolve(stack.cuda.version, platform, mirrors), platforms)
        found = dict(zip(platforms, runfiles, strict=True))
        return Published(
            stack=stack, cuda=cuda, pages=pages.result(), runfiles=found, host=hosts[0], index=wheels.index
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
    for platform, resolved in published.runfiles.items():
        yield from (f"CUDA {resolved.release}: {text}" for text in _doubts(published, platform, resolved))


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
    if not resolved.answered:
        yield f"no mirror could be asked; the name is from {', '.join(resolved.sources[:1])}"
    yield from resolved.conflicts
    row, pinned = published.stack.cuda.files.get(platform), published.cuda.runfile.get(platform)
    if row and pinned and row.file == pinned.file and row.sha256 not in ("", pinned.sha256):
        yield f"{pinned.file} is pinned with another SHA-256 than the catalogue's"


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


def dates(published: Published) -> dict[str, str]:
    """Package -> the day on which the index got the chosen version, where it tells."""
    days: dict[str, list[str]] = {}
    for name, page in published.pages.items():
        version = published.stack.packages[name]
        days[name] = [row.uploaded for row in page.rows if row.version == version and row.uploaded]
    return {name: min(found) for name, found in days.items() if found}


def _seen(published: Published, name: str, page: Page) -> Iterator[Evidence]:
    version, host = published.stack.packages[name], published.host
    row = best(page.rows, published.stack.python, host.glibc, host.platform, f"=={version}")
    day = dates(published).get(name, "")
    yield Evidence(
        source="wheel index",
        says=row.file + (f", there since {day}" if day else "") if row else page.told,
        # The default index stands for whatever mirror of it a host uses.
        url=page.url if published.index else "",
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
