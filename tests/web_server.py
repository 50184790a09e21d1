"""A real HTTP server for tests: a table of paths, each with an answer or a misbehaviour."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """One connection; what is at a path is a function of the handler."""

    protocol_version = "HTTP/1.1"
    timeout = 5
    server: "Server"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is inherited
        """Nothing."""

    def do_GET(self) -> None:
        """Answer from the table."""
        self.server.asked.append(self.path)
        self.server.headers_seen.append(dict(self.headers.items()))
        answers = self.server.table.get(self.path, status(404))
        # A list is one answer per request; the last one stays.
        answer = (answers.pop(0) if len(answers) > 1 else answers[0]) if isinstance(answers, list) else answers
        with contextlib.suppress(OSError):
            answer(self)

    def head(self, code: int, headers: Mapping[str, str]) -> None:
        """Status and headers."""
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


class Server(ThreadingHTTPServer):
    """Listens on loopback."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, table: dict[str, Answer | list[Answer]]) -> None:
        self.table = table
        self.asked: list[str] = []
        self.headers_seen: list[dict[str, str]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are what some tests are about."""


@contextlib.contextmanager
def serving(table: dict[str, Answer | list[Answer]]) -> Iterator[Server]:
    """A server, for as long as the block runs."""
    server = Server(table)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def body(content: bytes, kind: str = "text/plain", *, code: int = 200, ranges: bool = False, **extra: str) -> Answer:
    """A whole answer; with `ranges`, or the part that was asked for. Extra headers: ETag='…', Retry_After='1'."""
    named = {name.replace("_", "-"): value for name, value in extra.items()}

    def answer(handler: Handler) -> None:
        etag = named.get("ETag")
        if etag and handler.headers.get("If-None-Match") == etag:
            handler.head(304, {"ETag": etag, "Content-Length": "0"})
            return
        part, status_code, more = content, code, dict(named)
        asked = handler.headers.get("Range", "") if ranges else ""
        if asked:
            end = min(int(asked.rpartition("-")[2]) + 1, len(content))
            part, status_code = content[:end], 206
            more["Content-Range"] = f"bytes 0-{end - 1}/{len(content)}"
        handler.head(status_code, {"Content-Type": kind, "Content-Length": str(len(part)), **more})
        handler.wfile.write(part)

    return answer


def status(code: int, **extra: str) -> Answer:
    """An error with a page, as servers send it."""
    page = b"<html><head><title>Error</title></head></html>"
    return body(page, "text/html", code=code, ranges=False, **extra)


def redirect(to: str, code: int = 301) -> Answer:
    """Another address."""
    return status(code, Location=to)


def runfile(size_bytes: int, start: bytes = b"#!/bin/sh\n", *, ranges: bool = True) -> Answer:
    """A file of so many bytes of which only the start is ever made: it may be 4 GB."""

    def answer(handler: Handler) -> None:
        asked = handler.headers.get("Range", "") if ranges else ""
        end = min(int(asked.rpartition("-")[2]) + 1, size_bytes) if asked else size_bytes
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(end)}
        headers |= {"Content-Range": f"bytes 0-{end - 1}/{size_bytes}"} if asked else {}
        handler.head(206 if asked else 200, headers)
        handler.wfile.write(start.ljust(min(end, 65536), b"#")[:end])
        _endless(handler, end - 65536)

    return answer


def endless(kind: str = "text/plain") -> Answer:
    """Bytes for as long as someone reads, without a length."""

    def answer(handler: Handler) -> None:
        handler.head(200, {"Content-Type": kind, "Connection": "close"})
        handler.close_connection = True
        _endless(handler, 3_000_000_000)

    return answer


def endless_redirect(to: str) -> Answer:
    """A redirect whose own body does not end."""

    def answer(handler: Handler) -> None:
        handler.head(302, {"Location": to, "Connection": "close"})
        handler.close_connection = True
        _endless(handler, 3_000_000_000)

    return answer


def _endless(handler: Handler, left: int) -> None:
    block = b"x" * 65536
    while left > 0:
        handler.wfile.write(block[:left])
        left -= len(block)


def cut(content: bytes) -> Answer:
    """An answer that ends before its Content-Length."""

    def answer(handler: Handler) -> None:
        handler.head(200, {"Content-Type": "text/plain", "Content-Length": str(len(content) + 50)})
        handler.wfile.write(content)
        handler.close_connection = True

    return answer


def slow_headers(pause_s: float = 0.02) -> Answer:
    """Headers that go on and on."""

    def answer(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for _ in range(90):
            handler.wfile.write(b"X: y\r\n")
            handler.wfile.flush()
            time.sleep(pause_s)

    return answer


def drip(pause_s: float = 0.02) -> Answer:
    """One byte now and then: each read of a socket is in time, the whole never."""

    def answer(handler: Handler) -> None:
        handler.head(200, {"Content-Type": "text/plain", "Content-Length": "100000"})
        for _ in range(200):
            handler.wfile.write(b"0")
            handler.wfile.flush()
            time.sleep(pause_s)

    return answer


def reset(after: bytes = b"") -> Answer:
    """A connection that is reset, before the answer or within it."""

    def answer(handler: Handler) -> None:
        if after:
            handler.head(200, {"Content-Type": "text/plain", "Content-Length": "100000"})
            handler.wfile.write(after)
            handler.wfile.flush()
            time.sleep(0.01)
        handler.close_connection = True
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.rfile.close()
        handler.connection.close()

    return answer
