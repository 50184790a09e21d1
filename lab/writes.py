"""Counts what a connection wrote: two looks at a tree, and the difference."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Mark = tuple[int, int, int]
"""Size, time of the last change of content, inode; of a folder only the inode."""

Snapshot = dict[str, Mark]


@dataclass(frozen=True)
class Changes:
    """Paths that differ between two snapshots, relative to the root."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many paths differ."""
        return len(self.added) + len(self.removed) + len(self.changed)


def snapshot(root: Path) -> Snapshot:
    """All paths under `root`; /proc is left out, as it is no disk."""
    return dict(_marks(str(root), "", {"proc"}))


def _marks(root: str, below: str, skip: set[str]) -> Iterator[tuple[str, Mark]]:
    try:
        entries = list(os.scandir(os.path.join(root, below)))  # noqa: PTH118 - the inner loop of large trees
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name in skip:
            continue
        path = f"{below}{entry.name}"
        try:
            seen = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield path, (-1, -1, seen.st_ino)
            yield from _marks(root, f"{path}/", set())
        else:
            yield path, (seen.st_size, seen.st_mtime_ns, seen.st_ino)


def changes(before: Snapshot, after: Snapshot) -> Changes:
    """What differs between two snapshots of the same root."""
    if before == after:
        return Changes()
    return Changes(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        changed=tuple(sorted(path for path, mark in after.items() if before.get(path, mark) != mark)),
    )
