"""The catalogue of runfiles that comes with the checks, read as data: what the lab lists but has no stand-in for."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lab.cache import HERE

FILE = HERE.parent / "checks/data/runfiles.json"
UNKNOWN_BYTES = 4_000_000_000
"""Size of a runfile whose size no source gives."""


@dataclass(frozen=True)
class Row:
    """One runfile of the catalogue."""

    file: str
    platform: str
    driver: str
    md5: str
    size_bytes: int

    @property
    def head(self) -> bytes:
        """The bytes that the file begins with; there are no others."""
        start = f"#!/bin/sh\n# SIMULATED: the first bytes of {self.file}; the lab has no more of it.\nexit 1\n"
        return start.encode().ljust(4096, b"#")


def text(file: Path = FILE) -> str:
    """The catalogue as it lies in the checkout; empty where there is none."""
    return file.read_text("utf-8") if file.is_file() else ""


@cache
def releases(file: Path = FILE) -> Mapping[str, tuple[Row, ...]]:
    """Release -> its runfiles, in the order of the real lists: sbsa first."""
    found: dict[str, list[Row]] = {}
    for entry in json.loads(text(file) or "{}").get("rows", []):
        size = int(entry["size_bytes"]) or UNKNOWN_BYTES
        md5 = entry["md5"] or made_up(entry["file"])
        row = Row(entry["file"], entry["platform"], entry["driver"], md5, size)
        found.setdefault(entry["cuda"], []).append(row)
    return {release: tuple(sorted(rows, key=lambda row: row.platform)) for release, rows in found.items()}


def driver(version: str) -> str:
    """The driver in the runfiles' names of a release; empty where they carry none or nobody tells."""
    return next((row.driver for row in releases().get(version, ())), "")


def made_up(name: str) -> str:
    """A checksum for a file that is listed but that the lab does not have."""
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
