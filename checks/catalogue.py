"""The shipped, dated catalogue of CUDA runfiles, and how their names are made. Asks nobody."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

FILE = Path(__file__).parent / "data" / "runfiles.json"
PLATFORMS = {"x86_64": "linux-x86_64", "aarch64": "linux-sbsa"}
"""What `uname -m` says -> the platform as CUDA names it."""
ENDINGS = {"linux-x86_64": "linux", "linux-sbsa": "linux_sbsa", "linux-ppc64le": "linux_ppc64le"}
_DRIVER = r"\d+(?:\.\d+){1,2}"
_NAME = re.compile(rf"cuda_(\d+\.\d+\.\d+)(?:_({_DRIVER}))?_(linux(?:_sbsa|_ppc64le)?)\.run", re.ASCII)
NAMES_WITHOUT_DRIVER_FROM = (13, 4)
"""From 13.4 on the runfile brings no driver, and its name carries none (spack/spack-packages#6490)."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One runfile of the catalogue; an empty text or a size of 0 says that no source gives it."""

    cuda: str
    platform: str
    driver: str
    file: str
    md5: str
    sha256: str
    size_bytes: int
    release_notes_driver: str = ""
    sources: list[str]


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, and the day on which their sources were read."""

    schema: int
    read: str
    about: str
    rows: list[Row]

    def row(self, cuda: str, platform: str) -> Row | None:
        """The runfile of a release for a platform."""
        return next((row for row in self.rows if (row.cuda, row.platform) == (cuda, platform)), None)

    def releases(self, platform: str = "") -> list[str]:
        """The releases, oldest first; with `platform`, those that have a runfile for it."""
        return sorted({row.cuda for row in self.rows if platform in ("", row.platform)}, key=numbers)

    def releases_with_driver(self, driver: str) -> list[str]:
        """The releases whose runfile names carry that driver; two updates can share one."""
        return sorted({row.cuda for row in self.rows if driver and row.driver == driver}, key=numbers)


@cache
def shipped() -> Catalogue:
    """The catalogue that comes with this copy of the tool."""
    return msgspec.json.decode(FILE.read_bytes(), type=Catalogue)


class Name(NamedTuple):
    """What the name of a runfile says; `driver` is empty in names without one."""

    cuda: str
    driver: str
    platform: str


def parse_name(file: str) -> Name | None:
    """The parts of a runfile's name; None when it is not one."""
    match = _NAME.fullmatch(file)
    if match is None:
        return None
    platform = next(name for name, ending in ENDINGS.items() if ending == match[3])
    return Name(match[1], match[2] or "", platform)


def file_name(cuda: str, driver: str, platform: str) -> str:
    """The name of a runfile, from its parts."""
    return "_".join(["cuda", cuda, *([driver] if driver else []), ENDINGS[platform]]) + ".run"


def is_driver(text: str) -> bool:
    """The text has the shape of a driver version: two or three dotted numbers."""
    return re.fullmatch(_DRIVER, text, re.ASCII) is not None


def numbers(release: str) -> tuple[int, ...]:
    """A release as numbers, for sorting: 13.0.10 comes after 13.0.9."""
    return tuple(int(part) for part in release.split("."))
