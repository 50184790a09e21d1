"""Copies of lists that were read before, with the marks (ETag, Last-Modified) to ask whether they still hold."""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from checks.reply import Reply


class Kept(msgspec.Struct, frozen=True):
    """One kept answer, with the digest of the address that was asked: an address may hold a password."""

    asked: str
    answer: Reply

    @property
    def conditions(self) -> dict[str, str]:
        """The headers that ask for news only."""
        marks = {"If-None-Match": self.answer.etag, "If-Modified-Since": self.answer.modified}
        return {name: value for name, value in marks.items() if value}

    def renewed(self, answer: Reply) -> Reply:
        """The kept answer, confirmed by a 304."""
        return replace(self.answer, at=answer.at, attempts=answer.attempts, redirects=answer.redirects, cached=True)


def load(folder: Path | None, url: str) -> Kept | None:
    """The kept copy; None when there is none, or none that can be read."""
    if folder is None:
        return None
    try:
        found = msgspec.json.decode(_file(folder, url).read_bytes(), type=Kept)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    return found if found.asked == _digest(url) else None


def save(folder: Path | None, url: str, answer: Reply) -> None:
    """Keeps a whole answer that has a mark; by rename, so that a copy is whole or not there."""
    if folder is None or answer.status != 200 or not answer.complete or not (answer.etag or answer.modified):
        return
    # A cache that cannot be written is no cache: the answer is here all the same.
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        _write(_file(folder, url), msgspec.json.encode(Kept(_digest(url), answer)))


def _write(target: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(target)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _file(folder: Path, url: str) -> Path:
    return folder / f"{_digest(url)[:32]}.json"


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()
