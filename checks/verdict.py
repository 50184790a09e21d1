"""The verdicts about a runfile, each with a sentence for a person and a hint. Asks nobody: answers in, words out."""

from typing import Literal

from checks.catalogue import Catalogue, parse_name
from checks.reply import Reply
from fleet.clock import sized
from fleet.model import Data

Verdict = Literal[
    "published",
    "wrong name",
    "unpublished release",
    "no runfile for this platform",
    "listed but 404",
    "forbidden",
    "not a runfile",
    "truncated",
    "size differs",
    "checksum differs",
    "unreachable",
]
"""unreachable: unknown, never absent."""
HEAD_BYTES = 512
AGAIN = "`nox -s runfile` asks again"


class Finding(Data, frozen=True, kw_only=True):
    """One verdict, told to a person."""

    verdict: Verdict
    sentence: str
    hint: str = ""

    @property
    def ok(self) -> bool | None:
        """As a check counts it: None when nothing is known."""
        return {"published": True, "unreachable": None}.get(self.verdict, False)

    @property
    def told(self) -> str:
        """The sentence, after the verdict unless it is the good one."""
        return self.sentence if self.verdict == "published" else f"{self.verdict}: {self.sentence}"


def published(release: str, file: str, source: str) -> Finding:
    """The release has this runfile."""
    return Finding(verdict="published", sentence=f"{release} is published as {file} ({source})")


def wrong_name(release: str, right: str, pinned: str, known: Catalogue) -> Finding:
    """The release has a runfile, under another name than the pinned one; whose name that is, if it is anyone's."""
    sentence = f"{release} is published as {right}; {_whose(release, right, pinned, known)}"
    return Finding(verdict="wrong name", sentence=sentence, hint=f'set `file = "{right}"` in pins.toml, with its sums')


def _whose(release: str, right: str, pinned: str, known: Catalogue) -> str:
    name, should = parse_name(pinned), parse_name(right)
    if name is None or should is None:
        return f"{pinned} is not the name of a runfile"
    if name.platform != should.platform:
        return f"{pinned} is for {name.platform}"
    if name.driver and name.driver != should.driver:
        return f"the name with {name.driver} {_owner(name.driver, release, known)}"
    if name.cuda != release:
        return f"{pinned} belongs to {name.cuda}"
    return f"{pinned} lacks the driver in the name"


def _owner(driver: str, release: str, known: Catalogue) -> str:
    owners = [one for one in known.releases_with_driver(driver) if one != release]
    if owners:
        return f"belongs to {' and '.join(owners)}"
    noted = [row.cuda for row in known.rows if row.release_notes_driver == driver]
    if noted:
        return f"comes from the release notes of {noted[0]}, which are no source of file names"
    return "belongs to no release known here"


def unpublished(wish: str, nearest: list[str], ground: str) -> Finding:
    """No release of this number; `ground` says which lists would have shown it."""
    near = f"; nearest: {', '.join(nearest)}" if nearest else ""
    return Finding(
        verdict="unpublished release",
        sentence=f"{wish} is no published release ({ground}){near}",
        hint="correct the release, or the mirror it is asked at",
    )


def no_runfile(release: str, platform: str, ground: str, nearest: list[str]) -> Finding:
    """The release is there, with no runfile for the platform."""
    has = f"; {', '.join(nearest)} have one" if nearest else ""
    return Finding(
        verdict="no runfile for this platform",
        sentence=f"{release} has no runfile for {platform or 'this platform'} ({ground}){has}",
        hint="choose another release or mirror in pins.toml",
    )


def forbidden(reply: Reply) -> Finding:
    """A rule of the CDN, a proxy or a mirror: it says nothing about the file."""
    return Finding(
        verdict="forbidden",
        sentence=f"{reply.status}{reply.by_way_of}: refused, which is not absence",
        hint="a rule for this region or proxy: name another mirror in pins.toml (`cuda.mirrors`)",
    )


def unreachable(
    what: str, hint: str = "unknown is not absent: check network, proxy and firewall on that side"
) -> Finding:
    """Nobody could be asked, or nobody gave an answer that means anything."""
    return Finding(verdict="unreachable", sentence=what, hint=hint)


def checksum_differs(source: str, got: str, pinned: str) -> Finding:
    """A list gives another MD5 than the pins."""
    return Finding(
        verdict="checksum differs",
        sentence=f"{source} says md5 {got}, pinned {pinned}",
        hint="the release was replaced, or the pin is wrong: compare both before anything is installed",
    )


def served(reply: Reply, file: str, size_bytes: int, listed_by: str, otherwise: Finding | None = None) -> Finding:
    """What a file's own address says of it: the same judge for what was seen from here and from a host.

    `size_bytes` is the size it must have (0: unknown); `listed_by` the source that names it, empty when none does:
    then a 404 is told as `otherwise`, since a 404 on a name is no proof of anything by itself.
    """
    if reply.error:
        return unreachable(reply.error)
    if reply.absent:
        return _absent(reply, listed_by, otherwise)
    if reply.forbidden:
        return forbidden(reply)
    if reply.status == 416:
        return _not_a_runfile(reply, "an empty file")
    if not reply.found:
        hint = "the proxy wants a login" if reply.status == 407 else f"the server is in trouble: wait, then {AGAIN}"
        return unreachable(f"status {reply.status}{reply.by_way_of}", hint)
    return _content(reply, file, size_bytes)


def _absent(reply: Reply, listed_by: str, otherwise: Finding | None) -> Finding:
    if listed_by:
        return Finding(
            verdict="listed but 404",
            sentence=f"{reply.status}{reply.by_way_of}, although {listed_by} names it",
            hint=f"the mirror lags behind, or lacks this release: wait, then {AGAIN}, or name another mirror",
        )
    return otherwise or unreachable(f"{reply.status}: no file of this name, which does not tell what the release has")


def _content(reply: Reply, file: str, size_bytes: int) -> Finding:
    if reply.is_page:
        return _not_a_runfile(reply, "an HTML page")
    if not reply.body.startswith(b"#!/bin/sh"):
        start = f"begins {reply.body[:16]!r}" if reply.body else "an empty answer"
        return _not_a_runfile(reply, f"{reply.content_type or 'no type'}, {start}")
    if len(reply.body) < min(HEAD_BYTES, size_bytes):
        return _not_a_runfile(reply, f"only {len(reply.body)} bytes")
    if size_bytes and reply.size_bytes not in (-1, size_bytes):
        return _size(reply.size_bytes, size_bytes)
    size = f"{sized(reply.size_bytes)}" if reply.size_bytes >= 0 else "size not told"
    told = f"{file}: {reply.status}, {size}, {reply.content_type or 'a shell archive'}{reply.by_way_of}"
    return Finding(verdict="published", sentence=told)


def _not_a_runfile(reply: Reply, what: str) -> Finding:
    return Finding(
        verdict="not a runfile",
        sentence=f"{what} (status {reply.status}{reply.by_way_of})",
        hint="a proxy, login or error page answers in its place: look at the address with a browser",
    )


def _size(got: int, wanted: int) -> Finding:
    verdict: Verdict = "truncated" if got < wanted else "size differs"
    return Finding(
        verdict=verdict,
        sentence=f"{got} bytes, want {wanted}",
        hint="the file was replaced or cut on the mirror, or the pin is wrong",
    )
