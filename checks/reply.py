"""What a server, a host or a folder said about one address, in one form for all three."""

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from urllib.parse import SplitResult, urlsplit, urlunsplit

import msgspec
from msgspec.structs import replace

from fleet.clock import now


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One answer; with `error`, nobody answered, and nothing can be said about the address."""

    url: str
    status: int = 0
    content_type: str = ""
    size_bytes: int = -1
    """The whole file; -1 when the server does not tell."""
    body: bytes = b""
    complete: bool = False
    """`body` is all there is."""
    redirects: list[str] = []
    etag: str = ""
    modified: str = ""
    retry_after: str = ""
    at: str = ""
    """UTC, ISO."""
    attempts: int = 1
    cached: bool = False
    """The server said that the kept copy is still right."""
    error: str = ""

    @property
    def found(self) -> bool:
        """The file is there: 200, or 206 for a part of it."""
        return not self.error and self.status in (200, 206)

    @property
    def absent(self) -> bool:
        """The server answered, and has nothing of this name."""
        return not self.error and self.status in (404, 410)

    @property
    def forbidden(self) -> bool:
        """The server answered, and will not say."""
        return not self.error and self.status in (401, 403, 451)

    @property
    def is_page(self) -> bool:
        """The body is a page for people, whatever its status and type say."""
        start = self.body[:256].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
        return "html" in self.content_type.lower() or start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head"))

    @property
    def told(self) -> str:
        """What came, in a few words."""
        if self.error:
            return f"unreachable: {self.error}"
        kind = "an HTML page" if self.is_page else self.content_type or "no type"
        return f"{self.status}, {kind}{self.by_way_of}"

    @property
    def by_way_of(self) -> str:
        """` after a redirect to …`, or nothing."""
        return f", after a redirect to {self.redirects[-1]}" if self.redirects else ""


def nothing(url: str, error: str) -> Reply:
    """The reply of an address that could not be asked."""
    return Reply(url=public(url), error=error[:300], at=now())


def counted(answer: Reply, attempts: int) -> Reply:
    """The same, with the number of attempts it took."""
    return replace(answer, attempts=attempts)


def public(url: str) -> str:
    """The address without a user name and password."""
    split = parts(url)
    return urlunsplit(split._replace(netloc=split.netloc.rpartition("@")[2])) if "@" in split.netloc else url


def parts(url: str) -> SplitResult:
    """The parts of an address; all empty when it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")


def whole_size(headers: Mapping[str, str]) -> int:
    """The size of the whole file, from Content-Range or Content-Length; -1 when neither tells."""
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        return -1
    total = re.search(r"/([0-9]{1,18})$", headers.get("Content-Range", ""))
    if total or "Content-Range" in headers:
        return int(total[1]) if total else -1
    length = headers.get("Content-Length", "")
    return int(length) if re.fullmatch(r"[0-9]{1,18}", length) else -1


def retry_after_s(value: str) -> float | None:
    """Seconds a Retry-After header asks for, given as a number or a date; None when it asks for nothing."""
    if re.fullmatch(r"[0-9]{1,9}", value.strip()):
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError):
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return max(0.0, (aware - datetime.now(timezone.utc)).total_seconds())


def told(error: BaseException) -> str:
    """The reason at the bottom of a network fault, on one line, without addresses of objects in memory."""
    inner: object = error
    for _ in range(5):
        below = getattr(inner, "reason", None) or (
            inner.args[0] if isinstance(inner, Exception) and inner.args else None
        )
        if not isinstance(below, BaseException):
            break
        inner = below
    text = re.sub(r"<[^<>]*object at 0x[0-9a-f]+>:?\s*|HTTPS?Connection(Pool)?\([^)]*\):\s*", "", str(inner))
    text = re.sub(r"//[^/@\s]+@", "//", " ".join(text.split()))
    return f"{type(inner).__name__}: {text}"[:200] if text else type(inner).__name__
