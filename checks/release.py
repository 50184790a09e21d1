"""Resolves a wish (`13.0.2`, `13.0`, `13`, `newest`, `newest in 13.0`) to the runfile that is really published.

Asks, in this order of trust: a release's md5sum.txt, its redistrib JSON, the shipped catalogue. Says where each
answer comes from, and where they contradict each other. `python -m checks.release 13.0` prints one answer.
"""

import argparse
import sys
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from checks import lists, sources, verdict
from checks.catalogue import Catalogue, numbers, shipped
from checks.mirror import Mirror, mirror
from checks.resolved import Resolved, decided, found, none, with_proof
from checks.sources import Asked
from checks.verdict import HEAD_BYTES, Finding
from checks.web import Web
from checks.wish import Wish, parse_wish
from fleet.decision import Evidence, Rejected
from fleet.problem import Problem

OFFICIAL = "https://developer.download.nvidia.com/compute/cuda"
OLDEST_MAJOR = 11
"""Releases before it lie under other paths (conda-forge/cudatoolkit-feedstock:recipe/meta.yaml)."""
MAX_OLDER_TOLD = 5
CLI_DEADLINE_S = 60.0


def resolve(wish: str, platform: str, mirrors: Sequence[Mirror] = (), known: Catalogue | None = None) -> Resolved:
    """The runfile a wish comes to; without mirrors by the catalogue alone. Raises Problem for what is no wish."""
    meant, known = parse_wish(wish), known or shipped()
    if meant.prefix and meant.prefix[0] < OLDEST_MAJOR:
        text = f"releases before 11.0 lie under other paths and are not known here: {meant.text}"
        return none(meant, platform, verdict.unreachable(text, "ask for 11.0.1 or newer"))
    if not meant.exact:
        return _series(meant, platform, mirrors, known)
    asked = sources.ask_all(mirrors, meant.exact, platform, known)
    finding = _judge(asked, mirrors)
    if finding.verdict != "published":
        decision = decided(meant, platform, [asked], finding.told, [])
        return none(meant, platform, finding, replace(decision, conflicts=asked.conflicts), asked)
    return found(meant, asked, [asked], [])


def _judge(asked: Asked, mirrors: Sequence[Mirror]) -> Finding:
    """The verdict on one release."""
    denied = asked.denied_by
    if denied is not None:
        nearest = _nearest(asked.release, asked.known.releases(asked.platform), leave=asked.release)
        ground = f"read to its end: {denied.listing.reply.url}"
        return verdict.no_runfile(asked.release, asked.platform, ground, nearest)
    if asked.named:
        return verdict.published(asked.release, asked.named[0].file, asked.named[0].source)
    if asked.absent or not mirrors:
        return _judge_absent(asked, mirrors)
    for said in asked.said:
        if said.listing.state == "forbidden":
            return verdict.forbidden(said.listing.reply)
    return _unknown(asked)


def _judge_absent(asked: Asked, mirrors: Sequence[Mirror]) -> Finding:
    """The verdict on a release of which no mirror has a list."""
    catalogue = sources.catalogue_name(asked.known)
    if asked.release in asked.known.releases():
        nearest = _nearest(asked.release, asked.known.releases(asked.platform))
        return verdict.no_runfile(asked.release, asked.platform, catalogue, nearest)
    indexed = indexes(mirrors)
    for base, releases in indexed.items():
        if asked.release in releases:
            return verdict.served(asked.said[0].listing.reply, "", 0, f"{base}/redist/")
    nearest = _nearest(asked.release, _all_known(asked.known, indexed))
    grounds = [f"404 for {said.listing.reply.url}" for said in asked.said]
    return verdict.unpublished(asked.release, nearest, "; ".join([*grounds, f"not in {catalogue}"]))


def _unknown(asked: Asked) -> Finding:
    """The verdict when no list could be read and the catalogue does not know the release."""
    whys = [
        f"{said.listing.reply.url}: {said.listing.why or 'names none, as far as it was read'}" for said in asked.said
    ]
    proved = any(said.manifest.state == "read" for said in asked.said)
    ground = "redistrib JSON shows the release, not the runfile's name" if proved else "nobody tells whether it exists"
    catalogue = f"{sources.catalogue_name(asked.known)} has no such runfile"
    return verdict.unreachable("; ".join([f"{asked.release}: {ground}", *whys, catalogue]))


def _series(wish: Wish, platform: str, mirrors: Sequence[Mirror], known: Catalogue) -> Resolved:
    """The newest release that is meant and that a mirror has; by the catalogue when no mirror can be asked."""
    indexed = indexes(mirrors)
    fitting = [release for release in reversed(_all_known(known, indexed)) if wish.fits(release)]
    if not fitting:
        return none(wish, platform, _no_series(wish, mirrors, known, indexed))
    asked: list[Asked] = []
    rejected: list[Rejected] = []
    for release in fitting:
        if reason := _not_indexed(release, indexed):
            rejected.append(Rejected(name=release, reason=reason))
            continue
        asked.append(sources.ask_all(mirrors, release, platform, known))
        finding = _judge(asked[-1], mirrors)
        if finding.verdict == "published" and (asked[-1].held or not asked[-1].answered):
            return found(wish, asked[-1], asked, [*rejected, *_older(release, fitting)])
        reason = finding.told if finding.verdict != "published" else "no mirror that answers has it"
        rejected.append(Rejected(name=release, reason=reason))
    return _by_catalogue_only(wish, platform, fitting, asked, rejected, known)


def _by_catalogue_only(
    wish: Wish, platform: str, fitting: list[str], asked: list[Asked], rejected: list[Rejected], known: Catalogue
) -> Resolved:
    """No mirror that answers has any of them: the newest that the catalogue knows."""
    by_release = {one.release: one for one in asked}
    for release in fitting:
        one = by_release.get(release) or Asked(release, platform, [], known.row(release, platform), known)
        if one.row is not None and one.denied_by is None:
            return found(wish, one, asked or [one], [entry for entry in rejected if entry.name != release])
    last = _judge(asked[0], []) if asked else verdict.unreachable(f"{wish.text}: no source names a runfile")
    decision = decided(wish, platform, asked, last.told, rejected)
    return none(wish, platform, last, decision, asked[0] if asked else None)


def _no_series(wish: Wish, mirrors: Sequence[Mirror], known: Catalogue, indexed: dict[str, list[str]]) -> Finding:
    near = _nearest(".".join(map(str, wish.prefix)), _all_known(known, indexed))
    grounds = [f"not in {base}/redist/" for base in indexed] + [f"not in {sources.catalogue_name(known)}"]
    if indexed or not mirrors:
        return verdict.unpublished(wish.text, near, "; ".join(grounds))
    return verdict.unreachable(
        f"{wish.text}: no mirror lists its releases, and {grounds[-1]}; nearest: {', '.join(near)}"
    )


def _not_indexed(release: str, indexed: dict[str, list[str]]) -> str:
    """Why a release need not be asked for: the mirrors' indexes, where they reach back as far, do not name it."""
    covering = {base: named for base, named in indexed.items() if numbers(named[0]) <= numbers(release)}
    missing = bool(covering) and len(covering) == len(indexed) and not any(release in one for one in covering.values())
    return f"not in {' nor '.join(f'{base}/redist/' for base in covering)}" if missing else ""


def indexes(mirrors: Sequence[Mirror]) -> dict[str, list[str]]:
    """Base of each mirror that has an index of releases -> the releases, oldest first."""
    if not mirrors:
        return {}
    with ThreadPoolExecutor(len(mirrors)) as pool:
        replies = pool.map(lambda one: one.text("redist/", lists.INDEX_LIMIT_BYTES), mirrors)
        named = {one.base: lists.releases_in_index(reply) for one, reply in zip(mirrors, replies, strict=True)}
    return {base: releases for base, releases in named.items() if releases}


def _all_known(known: Catalogue, indexed: dict[str, list[str]]) -> list[str]:
    return sorted({*known.releases(), *(release for one in indexed.values() for release in one)}, key=numbers)


def _nearest(release: str, known: list[str], leave: str = "") -> list[str]:
    """Up to three known releases: two before it, one after it."""
    others = [one for one in known if one != leave]
    at = bisect_left([numbers(one) for one in others], numbers(release))
    return others[max(0, at - 2) : at + 1]


def _older(chosen: str, fitting: list[str]) -> list[Rejected]:
    older = fitting[fitting.index(chosen) + 1 :]
    told = [Rejected(name=release, reason=f"older than {chosen}") for release in older[:MAX_OLDER_TOLD]]
    left = len(older) - len(told)
    return [*told, Rejected(name=f"{left} more", reason=f"older than {told[-1].name}")] if left else told


def proved(resolved: Resolved, mirrors: Sequence[Mirror]) -> Resolved:
    """The answer with the first bytes of its file as proof, from the first mirror that says anything of it."""
    if not resolved.file:
        return resolved
    path = lists.file_path(resolved.release, resolved.file)
    replies = [reply for reply in (one.first(path, HEAD_BYTES) for one in mirrors) if not reply.error]
    if not replies:
        return resolved
    reply = next((reply for reply in replies if reply.found), replies[0])
    finding = verdict.served(reply, resolved.file, resolved.size_bytes, resolved.sources[0])
    decision = with_proof(resolved.decision, resolved.file, reply, finding)
    good = finding.verdict in ("published", "unreachable")
    return replace(resolved, decision=decision, finding=resolved.finding if good else finding)


def shown(resolved: Resolved) -> str:
    """The answer for a terminal: the sentence, then the evidence."""
    known = {"url": resolved.url, "size_bytes": resolved.size_bytes, "md5": resolved.md5, "sha256": resolved.sha256}
    lines = [resolved.finding.told, *(f"  {name}: {value}" for name, value in known.items() if value)]
    for candidate in resolved.decision.candidates:
        lines += [f"  {candidate.name}", *(f"    {_line(evidence)}" for evidence in candidate.evidence)]
    lines += [f"  rejected: {one.name}: {one.reason}" for one in resolved.decision.rejected]
    lines += [f"  conflict: {text}" for text in resolved.conflicts]
    return "\n".join([*lines, *([f"hint: {resolved.finding.hint}"] if resolved.finding.hint else [])])


def _line(evidence: Evidence) -> str:
    status = str(evidence.status or "")
    return ", ".join(
        part for part in (f"{evidence.source}: {evidence.says}", evidence.url, status, evidence.date) if part
    )


def main(argv: Sequence[str]) -> int:
    """Prints the runfile that a wish comes to, and the evidence; 0 when it is published, 1 when not, 2 for no wish."""
    parser = argparse.ArgumentParser(prog="checks.release", description="Which runfile a CUDA release really has.")
    parser.add_argument("wish", nargs="+", help="13.0.2, 13.0, 13, newest, newest in 13.0")
    parser.add_argument("--platform", default="linux-x86_64", choices=["linux-x86_64", "linux-sbsa"])
    parser.add_argument("--mirror", action="append", help="address or folder; again for more; `none`: catalogue only")
    parser.add_argument("--cache", type=Path, help="folder for copies of the lists")
    given = parser.parse_args(argv)
    web = Web(given.cache).within(CLI_DEADLINE_S)
    mirrors = [mirror(one, web) for one in given.mirror or [OFFICIAL] if one != "none"]
    try:
        resolved = proved(resolve(" ".join(given.wish), given.platform, mirrors), mirrors)
    except Problem as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    sys.stdout.write(shown(resolved) + "\n")
    return 0 if resolved.finding.verdict == "published" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
