"""Asks the sources for one CUDA release, in the order of trust: md5sum.txt, redistrib JSON, the catalogue."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from checks import lists
from checks.catalogue import Catalogue, Row
from checks.lists import Listing, Manifest
from checks.mirror import Mirror
from fleet.decision import Candidate, Evidence, Rejected


class Said(NamedTuple):
    """What one mirror said about one release."""

    mirror: Mirror
    listing: Listing
    manifest: Manifest


class Named(NamedTuple):
    """A runfile's name, and the source that gives it."""

    source: str
    file: str
    md5: str = ""


class Asked(NamedTuple):
    """All that is known about a release's runfile for one platform."""

    release: str
    platform: str
    said: list[Said]
    row: Row | None
    known: Catalogue

    @property
    def named(self) -> list[Named]:
        """The names the sources give, the most trusted first."""
        return [*self._by_lists(), *self._by_manifests(), *self._by_catalogue()]

    def _by_lists(self) -> Iterator[Named]:
        others = {one.file for one in (*self._by_manifests(), *self._by_catalogue())}
        for said in self.said:
            # Two names in one list: the one that another source knows is the better guess.
            for file in sorted(said.listing.names(self.release, self.platform), key=lambda file: file not in others):
                yield Named(f"md5sum.txt of {said.mirror.base}", file, said.listing.files[file])

    def _by_manifests(self) -> Iterator[Named]:
        for said in self.said:
            if file := said.manifest.file(self.release, self.platform):
                yield Named(f"redistrib JSON of {said.mirror.base}", file)

    def _by_catalogue(self) -> Iterator[Named]:
        if self.row is not None:
            yield Named(catalogue_name(self.known), self.row.file, self.row.md5)

    @property
    def denied_by(self) -> Said | None:
        """A mirror whose whole list names no such runfile, when no other mirror's list does."""
        if any(said.listing.names(self.release, self.platform) for said in self.said):
            return None
        return next((said for said in self.said if said.listing.shows_absence), None)

    @property
    def held(self) -> bool:
        """A mirror, not only the catalogue, names the runfile."""
        return any(True for _ in (*self._by_lists(), *self._by_manifests()))

    @property
    def answered(self) -> bool:
        """A mirror had an answer that means something: a list, or that there is none."""
        return any(said.listing.state in ("read", "absent") for said in self.said)

    @property
    def absent(self) -> bool:
        """No mirror has any list of the release, and each of them said so."""
        lists_read = [state for said in self.said for state in (said.listing.state, said.manifest.state)]
        return bool(lists_read) and set(lists_read) == {"absent"}

    @property
    def candidate(self) -> Candidate:
        """The release with its evidence, for the decision record."""
        named = self.named
        return Candidate(name=named[0].file if named else f"CUDA {self.release}", evidence=list(self._evidence()))

    def _evidence(self) -> Iterator[Evidence]:
        for said in self.said:
            yield _list_evidence(said.listing, self.release, self.platform)
            yield _manifest_evidence(said.manifest, said.manifest.file(self.release, self.platform))
        if self.row is not None:
            yield _row_evidence(self.row, self.known)

    @property
    def other_names(self) -> list[Rejected]:
        """The names that less trusted sources give in place of the chosen one."""
        best, *rest = self.named or [Named("", "")]
        others = {one.file: one.source for one in reversed(rest) if one.file != best.file}
        return [
            Rejected(name=file, reason=f"only in {source}; {best.source} is trusted more")
            for file, source in others.items()
        ]

    @property
    def conflicts(self) -> list[str]:
        """Where the sources contradict each other."""
        return list(dict.fromkeys((*self._name_conflicts(), *self._sum_conflicts(), *self._absence_conflicts())))

    def _name_conflicts(self) -> Iterator[str]:
        best, *rest = self.named or [Named("", "")]
        for other in rest:
            if other.file != best.file:
                yield f"{other.source} names {other.file}, {best.source} {best.file}"

    def _sum_conflicts(self) -> Iterator[str]:
        sums = [one for one in self.named if one.md5 and one.file == self.named[0].file]
        for other in sums[1:]:
            if other.md5 != sums[0].md5:
                yield f"{other.file}: md5 {other.md5} in {other.source}, {sums[0].md5} in {sums[0].source}"

    def _absence_conflicts(self) -> Iterator[str]:
        named = self.named
        for said in self.said:
            whole = said.listing.shows_absence and not said.listing.names(self.release, self.platform)
            if named and (whole or said.listing.state == "absent"):
                lacks = (
                    f"does not name a runfile for {self.platform}" if whole else f"is not there ({said.listing.why})"
                )
                yield f"{said.listing.reply.url} {lacks}; {named[0].source} has {named[0].file}"


def ask(mirror: Mirror, release: str) -> Said:
    """Both lists of a release, read at the same time."""
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(mirror.text, lists.list_path(release), lists.LIST_LIMIT_BYTES)
        second = pool.submit(mirror.text, lists.manifest_path(release), lists.MANIFEST_LIMIT_BYTES)
        return Said(mirror, lists.listing(first.result()), lists.manifest(second.result(), release))


def ask_all(mirrors: Iterable[Mirror], release: str, platform: str, known: Catalogue) -> Asked:
    """The mirrors in order, up to the first whose list names the runfile, and the catalogue."""
    said = []
    for mirror in mirrors:
        said.append(ask(mirror, release))
        if said[-1].listing.names(release, platform):
            break
    return Asked(release, platform, said, known.row(release, platform), known)


def catalogue_name(known: Catalogue) -> str:
    """The catalogue as a source is named: with its date."""
    return f"the catalogue of {known.read}"


def _list_evidence(listing: Listing, release: str, platform: str) -> Evidence:
    names = listing.names(release, platform)
    none = f"names no runfile for {platform}" + ("" if listing.reply.complete else ", as far as it was read")
    return Evidence(
        source="md5sum.txt",
        says=", ".join(names) if names else none if listing.state == "read" else listing.why,
        url=listing.reply.url,
        status=listing.reply.status,
        checksum=f"md5:{listing.files[names[0]]}" if names else "",
        date=listing.reply.at,
    )


def _manifest_evidence(manifest: Manifest, file: str) -> Evidence:
    driver = "no nvidia_driver" if not manifest.driver else f"nvidia_driver {manifest.driver}"
    says = f"{driver}, hence {file}" if file else f"{driver}: no name follows"
    return Evidence(
        source="redistrib JSON",
        says=says if manifest.state == "read" else manifest.why,
        url=manifest.reply.url,
        status=manifest.reply.status,
        date=manifest.reply.at,
    )


def _row_evidence(row: Row, known: Catalogue) -> Evidence:
    checksum = f"sha256:{row.sha256}" if row.sha256 else f"md5:{row.md5}" if row.md5 else ""
    return Evidence(
        source="catalogue",
        says=f"{row.file}; from {'; '.join(row.sources)}",
        size_bytes=row.size_bytes or -1,
        checksum=checksum,
        date=known.read,
    )
