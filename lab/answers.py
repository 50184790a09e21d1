"""How the HTTP server of a lab answers one request, rightly or as a rule says."""

import hashlib
import socket
import struct
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol, cast
from urllib.parse import unquote, urlsplit

from lab.catalogue import Page
from lab.faults import Rule

CHUNK_BYTES = 65536


@dataclass(frozen=True)
class Request:
    """One request as it was answered."""

    method: str
    path: str
    range: str
    status: int


class Source(Protocol):
    """What answers are made from."""

    requests: list[Request]

    def rule_for(self, method: str, path: str) -> Rule:
        """The rule that applies to a request."""

    def page(self, path: str) -> Page | None:
        """What is at a path."""


class Server(Protocol):
    """What a handler knows of its server."""

    mirror: Source


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version = "lab"
    sys_version = ""
    timeout = 300

    @property
    def _mirror(self) -> Source:
        return cast(Server, self.server).mirror

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is inherited
        """Nothing: requests are kept in Mirror.requests."""

    def do_GET(self) -> None:
        """Answer with the body."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answer without the body."""
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        rule = self._mirror.rule_for(self.command, path)
        if rule.delay_s:
            time.sleep(rule.delay_s)
        if path.startswith("/compute/cuda/"):
            self._short(301, b"", {"Location": self.path.removeprefix("/compute")})
        elif rule.status:
            self._refuse(rule)
        elif rule.html200:
            self._short(200, _PAGE_OF_ERRORS)
        else:
            self._page(path, rule)

    def _refuse(self, rule: Rule) -> None:
        path = unquote(urlsplit(self.path).path)
        extra = {"Location": rule.location.replace("{path}", path)} if rule.location else {}
        extra |= {"Retry-After": rule.retry_after} if rule.retry_after else {}
        self._short(rule.status, b"" if rule.location else _error_page(rule.status), extra)

    def _page(self, path: str, rule: Rule) -> None:
        page = self._mirror.page(path)
        if page is None and self._mirror.page(f"{path}/") is not None:
            self._short(301, b"", {"Location": f"{self.path}/"})
        elif page is None:
            self._short(404, _error_page(404))
        else:
            self._send(page, rule)

    def _short(self, status: int, body: bytes, extra: dict[str, str] | None = None) -> None:
        self._head(status, len(body), "text/html; charset=utf-8", extra or {})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, size: int, kind: str, extra: dict[str, str]) -> None:
        asked = self.headers.get("Range", "")
        self._mirror.requests.append(Request(self.command, unquote(self.path), asked, status))
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(size), **extra}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, page: Page, rule: Rule) -> None:
        data = page.content if isinstance(page.content, bytes) else page.content.read_bytes()
        size = page.size_bytes or len(data)
        if rule.short >= 0:
            size = min(size, rule.short)
        tag = {"Accept-Ranges": "bytes", "ETag": _etag(page, size)}
        asked = "" if rule.ignore_range else self.headers.get("Range", "")
        if self.headers.get("If-Range", tag["ETag"]) != tag["ETag"]:
            asked = ""
        part = byte_range(asked, size)
        if part is None:
            self._head(200, size, page.kind, tag)
            self._body(data, (0, size), rule)
        elif part[0] >= part[1]:
            self._short(416, b"", tag | {"Content-Range": f"bytes */{size}"})
        else:
            where = {"Content-Range": f"bytes {part[0]}-{part[1] - 1}/{size}"}
            self._head(206, part[1] - part[0], page.kind, tag | where)
            self._body(data, part, rule)

    def _body(self, data: bytes, part: tuple[int, int], rule: Rule) -> None:
        """Send a part of the file as far as the rule lets it, and the file has it."""
        if self.command == "HEAD":
            return
        start, promised = part
        end = min(promised, len(data)) if rule.truncate < 0 else min(promised, len(data), rule.truncate)
        if rule.reset_after >= 0:
            end = min(end, start + rule.reset_after)
        for at in range(start, end, CHUNK_BYTES):
            self.wfile.write(data[at : min(at + CHUNK_BYTES, end)])
        if end < promised:
            self._break_off(reset=rule.reset_after >= 0)

    def _break_off(self, *, reset: bool) -> None:
        self.wfile.flush()
        self.close_connection = True
        if reset:
            # lingering for 0 s turns the close into a reset; let what was sent leave first
            time.sleep(0.02)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()
            self.connection.close()


def byte_range(header: str, size: int) -> tuple[int, int] | None:
    """Start and end of a Range header; None = send all, start >= end = cannot be satisfied."""
    unit, _, spec = header.partition("=")
    first, dash, last = spec.partition("-")
    if unit.strip() != "bytes" or not dash or "," in spec:
        return None
    try:
        if not first:
            return max(0, size - int(last)), size if int(last) else 0
        return int(first), min(size, int(last) + 1) if last else size
    except ValueError:
        return None


def _etag(page: Page, size: int) -> str:
    if isinstance(page.content, bytes):
        return f'"{hashlib.sha256(page.content[:size]).hexdigest()[:20]}"'
    return f'"{page.content.stat().st_mtime_ns:x}-{size:x}"'


def _error_page(status: int) -> bytes:
    title = {404: "404 Not Found", 403: "403 Forbidden", 503: "503 Service Unavailable"}.get(status, str(status))
    body = f"<center><h1>{title}</h1></center>"
    return f"<html>\n<head><title>{title}</title></head>\n<body>{body}</body>\n</html>\n".encode()


_PAGE_OF_ERRORS = b"""<!DOCTYPE html>
<html><head><title>Page not found | Developer</title></head>
<body><h1>We cannot find that page.</h1><p>It may have been moved.</p></body></html>
"""
