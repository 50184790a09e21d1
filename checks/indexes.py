"""Reads wheel indexes: what files an index has of a project, and which of them a host would take.

Pages are parsed by pypi-simple (PEP 503 HTML and PEP 691 JSON), names, versions and tags by packaging.
"""

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Literal
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version
from pypi_simple import (
    ACCEPT_JSON_PREFERRED,
    PYPI_SIMPLE_ENDPOINT,
    DistributionPackage,
    ProjectPage,
    UnsupportedRepoVersionError,
)

from checks.reply import Reply
from checks.web import Web
from fleet.model import Data

LIMIT_BYTES = 16 * 1024 * 1024
"""The longest page seen has 0.5 MB."""
Verdict = Literal[
    "read", "no such project", "empty page", "not an index page", "garbage", "too long", "forbidden", "unreachable"
]
ARCHITECTURES = {"linux-x86_64": "x86_64", "linux-sbsa": "aarch64"}
# PEP 600: the names that manylinux had before the glibc version was in them.
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


class Row(Data, frozen=True, kw_only=True):
    """One file of a page; `sha256` empty: the index gives none; `label` is the local version, such as cu130."""

    project: str
    version: str
    label: str
    file: str
    url: str
    wheel: bool
    build: str = ""
    sha256: str = ""
    size_bytes: int = 0
    uploaded: str = ""
    requires_python: str = ""
    yanked: str = ""
    """Why it was withdrawn; empty when it was not."""


class Page(Data, frozen=True, kw_only=True):
    """What an index says about one project. Anything but `read` has no rows."""

    project: str
    url: str
    verdict: Verdict
    told: str
    rows: list[Row] = []
    status: int = 0
    at: str = ""
    """When it was read: UTC, ISO."""
    odd: list[str] = []
    """Names on the page that are no wheel and no source archive of any version."""

    @property
    def disputed(self) -> dict[str, list[str]]:
        """File name -> its hashes, for the names that have several rows with different ones. Only one can be right."""
        hashes: dict[str, list[str]] = {}
        for row in self.rows:
            hashes.setdefault(row.file, [])
            if row.sha256 and row.sha256 not in hashes[row.file]:
                hashes[row.file].append(row.sha256)
        return {file: found for file, found in hashes.items() if len(found) > 1}

    @property
    def unhashed(self) -> int:
        """How many files have no hash (nightly pages give none): such a pin rests on our own hash alone."""
        return sum(not row.sha256 for row in self.rows)

    @property
    def labels(self) -> list[str]:
        """The labels on the page, an empty one for files without; more than one says: do not choose by the highest."""
        return sorted({row.label for row in self.rows})

    @property
    def other_hosts(self) -> list[str]:
        """Servers other than the page's own that hold the files: a firewall must let them through too."""
        own = urlsplit(self.url).netloc
        return sorted({urlsplit(row.url).netloc for row in self.rows} - {own})


def default_index(named: str = "") -> str:
    """The index to read: the one named, else what uv's variables say, else PyPI."""
    return named or os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL") or PYPI_SIMPLE_ENDPOINT


def read_pages(web: Web, index: str, projects: Sequence[str]) -> dict[str, Page]:
    """The pages of some projects, asked at the same time."""
    with ThreadPoolExecutor(max_workers=max(1, min(8, len(projects)))) as pool:
        return dict(zip(projects, pool.map(lambda name: read_page(web, index, name), projects), strict=True))


def read_page(web: Web, index: str, project: str) -> Page:
    """What the index says about a project. Bounded in bytes and time by `web`; no fault raises."""
    url = f"{index.rstrip('/')}/{canonicalize_name(project)}/"
    reply = web.text(url, LIMIT_BYTES, accept=ACCEPT_JSON_PREFERRED)
    verdict, told = _answered(reply)
    if verdict != "read":
        page = Page(project=project, url=reply.url, verdict=verdict, told=told)
    else:
        here = reply.redirects[-1] if reply.redirects else reply.url
        page = parse(project, reply.body, here, reply.content_type)
    return replace(page, status=reply.status, at=reply.at)


def _answered(reply: Reply) -> tuple[Verdict, str]:
    if reply.absent:
        return "no such project", f"{reply.status}: the index has no such project"
    if reply.forbidden:
        return "forbidden", f"{reply.status}{reply.by_way_of}: refused, which is not absence"
    if not reply.found:
        return "unreachable", reply.error or f"status {reply.status}{reply.by_way_of}"
    if not reply.complete:
        return "too long", f"longer than {LIMIT_BYTES} bytes: no page of an index"
    return "read", ""


def parse(project: str, body: bytes, url: str, content_type: str) -> Page:
    """A page from its bytes; `url` is where it was found in the end, for its relative links."""
    try:
        packages = _packages(project, body, url, content_type)
    except (ValueError, TypeError, RecursionError, UnsupportedRepoVersionError) as error:
        why = " ".join(str(error).split())[:200]
        return Page(project=project, url=url, verdict="garbage", told=f"neither PEP 503 nor PEP 691: {why}")
    rows = [row for package in packages if (row := _row(project, package)) is not None]
    odd = [package.filename[:100] for package in packages if _row(project, package) is None]
    if rows:
        return Page(project=project, url=url, verdict="read", told=f"{len(rows)} files", rows=rows, odd=odd)
    if odd or (body.strip() and b"<" not in body and b"{" not in body):
        told = f"{len(odd)} links, none to a wheel or source archive of {project}"
        return Page(project=project, url=url, verdict="not an index page", told=told, odd=odd[:20])
    told = "a page without files: the index has none, or it is no page of an index"
    return Page(project=project, url=url, verdict="empty page", told=told)


def _packages(project: str, body: bytes, url: str, content_type: str) -> list[DistributionPackage]:
    kind = content_type.partition(";")[0].strip().lower()
    if kind.endswith("+json") or kind == "application/json" or body.lstrip()[:1] == b"{":
        return ProjectPage.from_json_data(json.loads(body), url).packages
    return ProjectPage.from_html(project, body, url).packages


def _row(project: str, package: DistributionPackage) -> Row | None:
    file = unquote(package.filename)
    try:
        if file.endswith(".whl"):
            name, version, build, _ = parse_wheel_filename(file)
        else:
            (name, version), build = parse_sdist_filename(file), ()
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
    if name != canonicalize_name(project):
        return None
    return Row(
        project=name,
        version=str(version),
        label=version.local or "",
        file=file,
        url=package.url,
        wheel=file.endswith(".whl"),
        build="".join(map(str, build)),
        sha256=package.digests.get("sha256", "").lower(),
        size_bytes=package.size or 0,
        uploaded=package.upload_time.strftime("%Y-%m-%d") if package.upload_time else "",
        requires_python=package.requires_python or "",
        yanked=(package.yanked_reason or "yes") if package.is_yanked else "",
    )


@cache
def host_tags(python: str, glibc: str, platform: str) -> dict[Tag, int]:
    """The tags of wheels that a CPython (`3.12`) on a Linux host takes -> their rank, the best first (PEP 425, 600)."""
    version = tuple(int(part) for part in python.split("."))
    platforms = list(_platforms(glibc, ARCHITECTURES.get(platform, platform)))
    interpreter = f"cp{version[0]}{version[1]}"
    tags = [*cpython_tags(version, platforms=platforms), *compatible_tags(version, interpreter, platforms)]
    return {tag: rank for rank, tag in enumerate(dict.fromkeys(tags))}


def _platforms(glibc: str, machine: str) -> Iterator[str]:
    major, minor = (int(part) for part in glibc.split(".")[:2])
    for older in range(minor, 4, -1):
        yield f"manylinux_{major}_{older}_{machine}"
        if older in _OLD_NAMES:
            yield f"{_OLD_NAMES[older]}_{machine}"
    yield f"linux_{machine}"


def fits(row: Row, python: str, glibc: str, platform: str) -> bool:
    """A host would take this file."""
    return _rank(row, python, glibc, platform) is not None


def _rank(row: Row, python: str, glibc: str, platform: str) -> int | None:
    if row.yanked or not _python_allowed(row, python):
        return None
    if not row.wheel:
        return 1_000_000
    ranks = host_tags(python, glibc, platform)
    return min((ranks[tag] for tag in parse_wheel_filename(row.file)[3] if tag in ranks), default=None)


def _python_allowed(row: Row, python: str) -> bool:
    try:
        return SpecifierSet(row.requires_python).contains(f"{python}.0", prereleases=True)
    except InvalidSpecifier:
        # Old pages have ranges that PEP 440 does not know; installers pass over such files.
        return False


def best(rows: Sequence[Row], python: str, glibc: str, platform: str, wanted: str = "") -> Row | None:
    """The file a host would take of those in the range `wanted`: highest version, best tags, highest build.

    Pre-releases are taken only when the range names one.
    Of several rows with one name the first is taken, as uv does; `Page.disputed` tells of them.
    """
    range_ = SpecifierSet(wanted)
    early = bool(range_.prereleases)
    inside = [row for row in rows if range_.contains(row.version, prereleases=early)]
    ranked = [(row, _rank(row, python, glibc, platform)) for row in inside]
    able = [(row, rank) for row, rank in ranked if rank is not None]
    if not able:
        return None
    return max(able, key=lambda one: (Version(one[0].version), -one[1], _build(one[0])))[0]


def _build(row: Row) -> tuple[int, str]:
    digits = row.build[: len(row.build) - len(row.build.lstrip("0123456789"))]
    return int(digits or 0), row.build[len(digits) :]


def why_none(rows: Sequence[Row], version: str, python: str, glibc: str, platform: str) -> str:
    """Why a host takes no file of this version: what there is, and what the host is."""
    found = [row for row in rows if Version(row.version) == Version(version)]
    if not found:
        return f"the index has no file of {version}"
    if all(row.yanked for row in found):
        return f"{version} was withdrawn: {found[0].yanked}"
    offered = sorted({"-".join(row.file.removesuffix(".whl").rsplit("-", 3)[1:]) for row in found if row.wheel})
    asked = ", ".join(sorted({row.requires_python for row in found if row.requires_python})) or "any Python"
    there = f"{', '.join(offered[:6]) or 'no wheel'}{' …' if len(offered) > 6 else ''} for {asked}"
    return f"no file of {version} fits Python {python} with glibc {glibc} on {platform}; there are {there}"
