"""A place that serves CUDA releases: a web server or a folder, asked in the same way."""

from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from checks.reply import Reply, nothing, parts, public
from checks.web import Web
from fleet.clock import now


class Mirror(Protocol):
    """Answers about files below `base`; nothing it does raises, and what cannot be asked is an error, never a 404."""

    @property
    def base(self) -> str:
        """Address of the mirror, without a slash at its end."""

    def text(self, path: str, limit_bytes: int) -> Reply:
        """A whole small file; of a folder (path ends in a slash) the names in it."""

    def first(self, path: str, count: int) -> Reply:
        """The first bytes of a file, with its whole size."""


class Served(NamedTuple):
    """A mirror on a web server."""

    web: Web
    address: str

    @property
    def base(self) -> str:
        """Address without a password."""
        return public(self.address)

    def text(self, path: str, limit_bytes: int) -> Reply:
        """A whole small file."""
        return self.web.text(f"{self.address}/{path}", limit_bytes)

    def first(self, path: str, count: int) -> Reply:
        """The first bytes of a file."""
        return self.web.first(f"{self.address}/{path}", count)


class Folder(NamedTuple):
    """A mirror in a folder of this machine: a copy of the server's tree, or a mounted share."""

    root: Path

    @property
    def base(self) -> str:
        """The folder's path."""
        return str(self.root)

    def text(self, path: str, limit_bytes: int) -> Reply:
        """A whole small file, or the names in a folder."""
        return self._read(path, limit_bytes, whole=True)

    def first(self, path: str, count: int) -> Reply:
        """The first bytes of a file."""
        return self._read(path, count, whole=False)

    def _read(self, path: str, limit_bytes: int, *, whole: bool) -> Reply:
        file = self.root / path
        try:
            if not self.root.is_dir():
                # A share that is not mounted is not a mirror without releases.
                return nothing(str(file), f"no such folder: {self.root}")
            if path.endswith("/") and file.is_dir():
                body = "".join(f"{one.name}\n" for one in sorted(file.iterdir())).encode()
                return self._reply(file, 200, body[:limit_bytes], len(body))
            if not file.is_file():
                return self._reply(file, 404, b"", -1)
            with file.open("rb") as opened:
                return self._reply(file, 200 if whole else 206, opened.read(limit_bytes), file.stat().st_size)
        except OSError as error:
            return nothing(str(file), f"{type(error).__name__}: {error.strerror}")

    def _reply(self, file: Path, status: int, body: bytes, size_bytes: int) -> Reply:
        complete = len(body) == size_bytes
        return Reply(url=str(file), status=status, size_bytes=size_bytes, body=body, complete=complete, at=now())


def mirror(base: str, web: Web, beside: Path = Path()) -> Mirror:
    """The mirror at an address, a file:// address or a path; a relative path begins at `beside`."""
    base = base.rstrip("/") or "/"
    split = parts(base)
    if split.scheme in ("http", "https"):
        return Served(web, base)
    if split.scheme == "file":
        return Folder(Path(unquote(split.path)))
    return Folder(beside / Path(base).expanduser())
