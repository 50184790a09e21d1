"""Builds the runfile stand-in: a shell header, a tar.gz of a toolkit, and padding."""

import gzip
import hashlib
import io
import random
import tarfile
from dataclasses import dataclass
from pathlib import Path

from lab import toolkit
from lab.toolkit import Release


@dataclass(frozen=True)
class Runfile:
    """A runfile as a list of downloads describes it."""

    file: str
    size_bytes: int
    md5: str
    sha256: str


def described(file: str, data: bytes) -> Runfile:
    """Size and checksums of the bytes of a runfile."""
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    return Runfile(file, len(data), md5, hashlib.sha256(data).hexdigest())


def runfile(rel: Release, platform: str, padding_bytes: int) -> bytes:
    """The whole archive; the same arguments give the same bytes."""
    payload = _payload(rel, toolkit.target_name(platform))
    # random bytes, so that a compressing proxy or file system cannot make a download quick
    padding = random.Random(rel.version + platform).randbytes(padding_bytes)  # noqa: S311 - not a secret
    body = payload + padding
    header = toolkit.fill("runfile.sh", rel)
    values = {
        "LINES": str(header.count("\n")),
        "BODY": str(len(body)),
        "PAYLOAD": str(len(payload)),
        "MD5": hashlib.md5(body, usedforsecurity=False).hexdigest(),
    }
    for name, value in values.items():
        header = header.replace(f"@{name}@", value)
    return header.encode() + body


def _payload(rel: Release, target: str) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        _add(tar, "cuda-installer", toolkit.fill("cuda-installer.sh", rel), 0o755)
        for path, text in toolkit.files(rel, target).items():
            part = "late" if path in toolkit.LATE else "early"
            mode = 0o755 if toolkit.is_program(path) else 0o644
            _add(tar, f"builds/{part}/{path}", text, mode)
        for path, text in toolkit.links(rel, target).items():
            _link(tar, f"builds/early/{path}", text)
    return gzip.compress(raw.getvalue(), 6, mtime=0)


def _add(tar: tarfile.TarFile, name: str, text: str, mode: int) -> None:
    data = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(data), mode, 1_758_600_000
    tar.addfile(entry, io.BytesIO(data))


def _link(tar: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mtime = tarfile.SYMTYPE, text, 1_758_600_000
    tar.addfile(entry)


def write(folder: Path, file: str, rel: Release, platform: str, padding_bytes: int) -> Runfile:
    """Build a runfile into `folder` and say what it is."""
    data = runfile(rel, platform, padding_bytes)
    (folder / file).write_bytes(data)
    return described(file, data)
