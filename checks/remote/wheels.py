"""Lists the distributions of the interpreter that runs this, and compares every installed file with its RECORD.

Prints one JSON document: `packages` (normalised name -> version), `files` (how many were compared), `wrong` (at most
50 of them, as `path: what`), `wrong_count`, `leftovers` (what an interrupted pip leaves behind). `pip check` stays
green on a half-copied package; only the RECORD tells.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import sys
import sysconfig
from pathlib import Path


def digest(path: Path, algorithm: str) -> str:
    """The file's digest as RECORD writes it: urlsafe base64 without padding."""
    hasher = hashlib.new(algorithm)
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            hasher.update(chunk)
    return base64.urlsafe_b64encode(hasher.digest()).decode().rstrip("=")


def fault(path: Path, expected: str, size: str, contents: bool) -> str:
    """What is wrong with one file; empty when nothing is."""
    try:
        got = path.stat().st_size
    except OSError as error:
        return f"missing ({error.strerror})"
    if size and got != int(size):
        return f"{got} bytes, want {size}"
    if contents and expected:
        algorithm, _, want = expected.partition("=")
        if digest(path, algorithm) != want:
            return "content differs"
    return ""


def compared(site: Path, info: Path, contents: bool) -> tuple[int, list[str]]:
    """(files compared, faults) of one distribution."""
    record = info / "RECORD"
    if not record.is_file():
        return 0, [f"{info.name}: no RECORD"]
    faults: list[str] = []
    files = 0
    with record.open(newline="", encoding="utf-8") as lines:
        for row in csv.reader(lines):
            if len(row) != 3:
                faults.append(f"{info.name}: RECORD is cut: {','.join(row)[:80]}")
                continue
            name, expected, size = row
            if not expected:
                continue
            files += 1
            wrong = fault(site / name, expected, size, contents)
            if wrong:
                faults.append(f"{name}: {wrong}")
    if not files:
        faults.append(f"{info.name}: RECORD lists no file")
    return files, faults


def named(info: Path) -> tuple[str, str]:
    """(normalised name, version) of a .dist-info directory, from its METADATA."""
    text = (info / "METADATA").read_text("utf-8", "replace") if (info / "METADATA").is_file() else ""
    name = re.search(r"^Name: *(\S+)", text, re.MULTILINE)
    version = re.search(r"^Version: *(\S+)", text, re.MULTILINE)
    plain = name.group(1) if name else info.name.partition("-")[0]
    return re.sub(r"[-_.]+", "-", plain).lower(), version.group(1) if version else ""


def main() -> None:
    """Prints what is installed, and what of it is not as its RECORD says."""
    contents = "--sizes-only" not in sys.argv
    sites = {Path(sysconfig.get_path(key)) for key in ("purelib", "platlib")}
    packages: dict[str, str] = {}
    files = 0
    wrong: list[str] = []
    leftovers: list[str] = []
    for site in sorted(sites):
        for info in sorted(site.glob("*.dist-info")):
            name, version = named(info)
            packages[name] = version
            count, faults = compared(site, info, contents)
            files += count
            wrong += faults
        leftovers += [path.name for path in site.glob("~*")]
    told = {"packages": packages, "files": files, "leftovers": leftovers}
    print(json.dumps({**told, "wrong": wrong[:50], "wrong_count": len(wrong)}))  # noqa: T201 - stdout is how the result leaves the host


if __name__ == "__main__":
    main()
