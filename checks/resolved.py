"""What a wish for a CUDA release came to, with the decision record that says why."""

from msgspec.structs import replace

from checks import lists, verdict
from checks.catalogue import Row
from checks.reply import Reply
from checks.sources import Asked, Named
from checks.verdict import Finding
from checks.wish import Wish
from fleet.decision import Candidate, Decision, Evidence, Rejected
from fleet.model import Data


class Resolved(Data, frozen=True, kw_only=True):
    """What a wish comes to. `file` is empty unless the verdict is `published`."""

    wish: str
    platform: str
    finding: Finding
    release: str = ""
    file: str = ""
    url: str = ""
    """At the mirror that names it; empty when only the catalogue does."""
    md5: str = ""
    sha256: str = ""
    size_bytes: int = 0
    sources: list[str] = []
    """Those that name this file, the most trusted first."""
    held: bool = False
    """A mirror names it, not only the catalogue."""
    answered: bool = False
    """A mirror could be asked."""
    conflicts: list[str] = []
    decision: Decision


def found(wish: Wish, asked: Asked, all_asked: list[Asked], rejected: list[Rejected]) -> Resolved:
    """The most trusted name of a release, chosen among all that was asked."""
    best = asked.named[0]
    agreeing = [one for one in asked.named if one.file == best.file]
    finding = verdict.published(asked.release, best.file, best.source)
    decision = decided(wish, asked.platform, all_asked, finding.sentence, [*asked.other_names, *rejected], best.file)
    row = asked.row if asked.row is not None and _same(asked.row, best) else None
    return Resolved(
        wish=wish.text,
        platform=asked.platform,
        finding=finding,
        release=asked.release,
        file=best.file,
        url=_url(asked, best.file),
        md5=best.md5 or (row.md5 if row else ""),
        sha256=row.sha256 if row else "",
        size_bytes=row.size_bytes if row else 0,
        sources=[one.source for one in agreeing],
        held=asked.held,
        answered=asked.answered,
        conflicts=asked.conflicts,
        decision=replace(decision, conflicts=asked.conflicts),
    )


def _same(row: Row, best: Named) -> bool:
    """The catalogue's sums are of this very file: nothing contradicts it."""
    return row.file == best.file and (not best.md5 or not row.md5 or best.md5 == row.md5)


def _url(asked: Asked, file: str) -> str:
    """The file's address at the first mirror that names it."""
    for said in asked.said:
        names = [*said.listing.names(asked.release, asked.platform), said.manifest.file(asked.release, asked.platform)]
        if file in names:
            return f"{said.mirror.base}/{lists.file_path(asked.release, file)}"
    return ""


def none(
    wish: Wish, platform: str, finding: Finding, decision: Decision | None = None, asked: Asked | None = None
) -> Resolved:
    """No runfile, and why."""
    return Resolved(
        wish=wish.text,
        platform=platform,
        finding=finding,
        release=wish.exact,
        answered=bool(asked and asked.answered),
        conflicts=asked.conflicts if asked else [],
        decision=decision or decided(wish, platform, [], finding.told, []),
    )


def decided(
    wish: Wish, platform: str, asked: list[Asked], reason: str, rejected: list[Rejected], chosen: str = ""
) -> Decision:
    """The record of the choice; `chosen` is empty when nothing fits."""
    return Decision(
        subject=f"CUDA runfile for {platform}",
        wish=wish.text,
        candidates=[one.candidate for one in asked],
        chosen=chosen,
        reason=reason,
        rejected=rejected,
    )


def with_proof(decision: Decision, file: str, reply: Reply, finding: Finding, seen_from: str = "here") -> Decision:
    """The decision with what the file's own address says, as one more piece of evidence for that candidate."""
    proof = Evidence(
        source=f"first bytes, from {seen_from}",
        says=finding.told,
        url=reply.url,
        status=reply.status,
        size_bytes=reply.size_bytes,
        date=reply.at,
    )
    names = [one.name for one in decision.candidates]
    candidates = list(decision.candidates) if file in names else [*decision.candidates, Candidate(name=file)]
    changed = [replace(one, evidence=[*one.evidence, proof]) if one.name == file else one for one in candidates]
    return replace(decision, candidates=changed)
