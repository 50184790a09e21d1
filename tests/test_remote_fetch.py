"""checks/remote/fetch.py against a real HTTP server that misbehaves on purpose."""

import fcntl
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from checks.remote import fetch

SCRIPT = Path(fetch.__file__)
BODY = b"#!/bin/sh\n" + bytes(range(256)) * 1000
SHA256 = hashlib.sha256(BODY).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Hands each request to the test's own function."""

    server: "Mirror"
    disable_nagle_algorithm = True
    nth = 0

    def do_GET(self) -> None:
        """Answer."""
        self.server.ranges.append(self.headers.get("Range"))
        self.close_connection = True
        self.nth = len(self.server.ranges)
        self.server.respond(self)

    @property
    def offset(self) -> int:
        """First byte asked for."""
        return int((self.headers.get("Range") or "bytes=0-").split("=")[1].rstrip("-"))

    def head(self, status: int, **headers: Any) -> None:
        """Status and headers."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def whole(self, body: bytes = BODY, **headers: Any) -> None:
        """Everything, whatever was asked for."""
        self.head(200, Content_Length=len(body), **headers)
        self.wfile.write(body)

    def rest(self, body: bytes = BODY) -> None:
        """From the byte asked for, as a server with Range does."""
        if not self.headers.get("Range"):
            self.whole(body)
        elif self.offset >= len(body):
            self.head(416, Content_Range=f"bytes */{len(body)}", Content_Length=0)
        else:
            span = f"bytes {self.offset}-{len(body) - 1}/{len(body)}"
            self.head(206, Content_Length=len(body) - self.offset, Content_Range=span)
            self.wfile.write(body[self.offset :])

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Stay silent."""


class Mirror(ThreadingHTTPServer):
    """A server whose answer a test chooses; remembers the Range headers it got."""

    daemon_threads = True
    respond: Callable[[Handler], None] = staticmethod(lambda handler: handler.rest())
    ranges: list[str | None]

    @property
    def url(self) -> str:
        """Address of the file."""
        return f"http://127.0.0.1:{self.server_port}/cuda_13.0.2_linux.run"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up early is expected here."""


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    """A running mirror."""
    server = Mirror(("127.0.0.1", 0), Handler)
    server.ranges = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


Fetched = tuple[int, dict[str, Any], list[str]]


@pytest.fixture
def bring(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Fetched]:
    """Fetch the mirror's file; the exit status, the verdict, the progress lines."""
    monkeypatch.setenv("no_proxy", "*")

    def run(*more: str, url: str = "", name: str = "file.run", sha256: str = SHA256, size: int = len(BODY)) -> Fetched:
        argv = [url or mirror.url, str(tmp_path / name), "--size", str(size), "--sha256", sha256, "--backoff", "0"]
        rc = fetch.main([*argv, *more])
        *progress, verdict = capsys.readouterr().out.splitlines()
        return rc, json.loads(verdict), progress

    return run


def test_a_file_is_brought_verified_and_renamed(bring: Callable[..., Fetched], tmp_path: Path) -> None:
    """The ordinary case: progress first and last, one attempt, no part left."""
    rc, verdict, progress = bring()
    expected = {
        "ok": True,
        "verdict": "complete",
        "bytes": len(BODY),
        "sha256": SHA256,
        "resumed_from": 0,
        "attempts": 1,
        "error": None,
    }
    assert (rc, verdict) == (0, expected)
    assert progress[0] == f"progress 0 {len(BODY)}"
    assert progress[-1] == f"progress {len(BODY)} {len(BODY)}"
    assert (tmp_path / "file.run").read_bytes() == BODY
    assert list(tmp_path.iterdir()) == [tmp_path / "file.run"]


def test_a_complete_file_is_not_fetched_again(bring: Callable[..., Fetched], mirror: Mirror, tmp_path: Path) -> None:
    """Safe to run twice: the second time no request is made."""
    (tmp_path / "file.run").write_bytes(BODY)
    rc, verdict, _ = bring()
    assert (rc, verdict["verdict"], verdict["attempts"], mirror.ranges) == (0, "complete", 0, [])


def test_a_part_is_resumed(bring: Callable[..., Fetched], mirror: Mirror, tmp_path: Path) -> None:
    """Only the missing bytes are asked for."""
    (tmp_path / "file.run.part").write_bytes(BODY[:1000])
    rc, verdict, _ = bring()
    assert (rc, verdict["verdict"], verdict["resumed_from"]) == (0, "complete", 1000)
    assert mirror.ranges == ["bytes=1000-"]


def test_a_whole_part_needs_no_request(bring: Callable[..., Fetched], mirror: Mirror, tmp_path: Path) -> None:
    """Killed between the last byte and the rename."""
    (tmp_path / "file.run.part").write_bytes(BODY)
    assert bring()[0] == 0
    assert mirror.ranges == []


def test_a_server_without_range_sends_everything(bring: Callable[..., Fetched], mirror: Mirror, tmp_path: Path) -> None:
    """A 200 to a Range request starts the file again."""
    mirror.respond = lambda handler: handler.whole()
    (tmp_path / "file.run.part").write_bytes(b"#!" + bytes(998))
    rc, verdict, _ = bring()
    assert (rc, verdict["verdict"], verdict["resumed_from"]) == (0, "complete", 0)


@pytest.mark.parametrize("have", [b"#!" + bytes(5000), b"#!" + bytes(len(BODY)), b"#!" + bytes(len(BODY) - 2)])
def test_a_part_of_another_file_is_thrown_away(bring: Callable[..., Fetched], tmp_path: Path, have: bytes) -> None:
    """Shorter, longer or just as long: the checksum decides, and one fresh download mends it."""
    (tmp_path / "file.run.part").write_bytes(have)
    assert bring()[:1] == (0,)
    assert (tmp_path / "file.run").read_bytes() == BODY


def test_416_starts_again(bring: Callable[..., Fetched], mirror: Mirror, tmp_path: Path) -> None:
    """The server refuses the offset of the part."""
    mirror.respond = lambda handler: handler.head(416, Content_Length=0) if handler.nth == 1 else handler.rest()
    (tmp_path / "file.run.part").write_bytes(BODY[:50])
    assert bring()[0] == 0
    assert mirror.ranges == ["bytes=50-", None]


def test_a_range_that_was_not_asked_for_is_refused(
    bring: Callable[..., Fetched], mirror: Mirror, tmp_path: Path
) -> None:
    """A 206 from another offset would be stitched into rubbish."""

    def respond(handler: Handler) -> None:
        if handler.nth > 1:
            handler.rest()
            return
        handler.head(206, Content_Length=10, Content_Range=f"bytes 7-16/{len(BODY)}")
        handler.wfile.write(BODY[7:17])

    mirror.respond = respond
    (tmp_path / "file.run.part").write_bytes(BODY[:50])
    assert bring()[0] == 0
    assert mirror.ranges == ["bytes=50-", None]


def test_a_redirect_keeps_the_range(bring: Callable[..., Fetched], mirror: Mirror, tmp_path: Path) -> None:
    """Mirrors answer 301: the rest is asked for at the new address."""

    def respond(handler: Handler) -> None:
        if handler.path == "/elsewhere":
            handler.rest()
        else:
            handler.head(301, Location="/elsewhere", Content_Length=0)

    mirror.respond = respond
    (tmp_path / "file.run.part").write_bytes(BODY[:50])
    assert bring()[0] == 0
    assert mirror.ranges == ["bytes=50-"] * 2


def test_a_dropped_connection_is_continued(bring: Callable[..., Fetched], mirror: Mirror) -> None:
    """The server promises everything and closes after half of it."""

    def respond(handler: Handler) -> None:
        if handler.nth > 1:
            handler.rest()
            return
        handler.head(200, Content_Length=len(BODY))
        handler.wfile.write(BODY[: len(BODY) // 2])

    mirror.respond = respond
    rc, verdict, _ = bring()
    assert (rc, verdict["attempts"]) == (0, 2)
    assert mirror.ranges == [None, f"bytes={len(BODY) // 2}-"]


def test_a_reset_connection_is_continued(bring: Callable[..., Fetched], mirror: Mirror) -> None:
    """A TCP reset in the middle."""

    def respond(handler: Handler) -> None:
        if handler.nth > 1:
            handler.rest()
            return
        handler.head(200, Content_Length=len(BODY))
        handler.wfile.write(BODY[:100])
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()

    mirror.respond = respond
    rc, verdict, _ = bring()
    assert (rc, verdict["verdict"], verdict["attempts"]) == (0, "complete", 2)


def test_busy_servers_are_asked_again(bring: Callable[..., Fetched], mirror: Mirror) -> None:
    """503 with Retry-After, then 429, then the file."""

    def respond(handler: Handler) -> None:
        if handler.nth > 2:
            handler.rest()
        else:
            handler.head(503 if handler.nth == 1 else 429, Retry_After="0", Content_Length=0)

    mirror.respond = respond
    rc, verdict, _ = bring()
    assert (rc, verdict["attempts"]) == (0, 3)


def test_a_pause_beyond_the_deadline_is_not_waited_for(bring: Callable[..., Fetched], mirror: Mirror) -> None:
    """Retry-After is honoured; when it ends after the deadline, the verdict comes at once."""
    mirror.respond = lambda handler: handler.head(503, Retry_After="3600", Content_Length=0)
    rc, verdict, _ = bring("--deadline", "30")
    assert (rc, verdict["verdict"], verdict["attempts"]) == (1, "deadline passed", 1)
    assert "http 503" in verdict["error"]


@pytest.mark.parametrize(
    ("respond", "expected", "attempts"),
    [
        (lambda handler: handler.head(404, Content_Length=0), "http 404", 1),
        (lambda handler: handler.head(403, Content_Length=0), "http 403", 1),
        (lambda handler: handler.head(500, Content_Length=0), "http 500", fetch.FAILURES_IN_A_ROW),
        (lambda handler: handler.whole(BODY, Content_Type="text/html"), "not a runfile", 1),
        (lambda handler: handler.whole(b"\n<!DOCTYPE html>" + bytes(len(BODY) - 16)), "not a runfile", 1),
        (lambda handler: handler.whole(b"PK" + bytes(len(BODY) - 2)), "not a runfile", 1),
        (lambda handler: handler.whole(BODY[:5000]), "truncated", 1),
        (lambda handler: handler.whole(BODY + b"x"), "size differs", 1),
        (lambda handler: handler.whole(BODY[:-1] + b"x"), "checksum differs", 1),
    ],
)
def test_a_wrong_answer_has_its_own_verdict(
    bring: Callable[..., Fetched],
    mirror: Mirror,
    tmp_path: Path,
    respond: Callable[[Handler], None],
    expected: str,
    attempts: int,
) -> None:
    """Final faults are final at once; those that may pass are tried a few times. DEST never appears."""
    mirror.respond = respond
    rc, verdict, _ = bring()
    assert (rc, verdict["ok"], verdict["verdict"], verdict["attempts"]) == (1, False, expected, attempts)
    assert verdict["error"]
    assert not (tmp_path / "file.run").exists()


def test_a_body_cut_at_the_same_byte_each_time_ends(bring: Callable[..., Fetched], mirror: Mirror) -> None:
    """Attempts count while nothing new comes, also when the server starts from 0 each time."""

    def respond(handler: Handler) -> None:
        handler.head(200, Content_Length=len(BODY))
        handler.wfile.write(BODY[:300])

    mirror.respond = respond
    rc, verdict, _ = bring()
    assert (rc, verdict["verdict"], verdict["bytes"]) == (1, "truncated", 300)
    assert verdict["attempts"] == fetch.FAILURES_IN_A_ROW


def test_an_endless_body_is_read_to_one_byte_more(bring: Callable[..., Fetched], mirror: Mirror) -> None:
    """Without a length, not more than size + 1 bytes are taken."""

    def respond(handler: Handler) -> None:
        handler.head(200)
        while True:
            handler.wfile.write(BODY)

    mirror.respond = respond
    rc, verdict, _ = bring()
    assert (rc, verdict["verdict"], verdict["bytes"]) == (1, "size differs", len(BODY) + 1)


def test_a_corrupt_file_leaves_nothing_to_resume(bring: Callable[..., Fetched], mirror: Mirror, tmp_path: Path) -> None:
    """A fresh file with a wrong checksum is removed, so that the next call starts clean."""
    mirror.respond = lambda handler: handler.whole(BODY[:-1] + b"x")
    bring()
    assert list(tmp_path.iterdir()) == []


def test_no_space_is_found_before_the_download(bring: Callable[..., Fetched], mirror: Mirror) -> None:
    """No disk holds so much: no request is made."""
    rc, verdict, _ = bring(size=10**18)
    assert (rc, verdict["verdict"], mirror.ranges) == (1, "no space", [])


def test_a_full_disk_is_told_apart_from_the_network(mirror: Mirror) -> None:
    """/dev/full says ENOSPC at the first byte."""
    job = fetch.Job(mirror.url, Path("/dev/full"), len(BODY), SHA256, time.monotonic() + 10, 0.0)
    state = fetch.State(job.size)
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(fetch.Final) as caught:  # noqa: PTH123
        fetch.keep(BODY[:10], full, job, state)
    assert caught.value.verdict == "no space"


def test_a_folder_that_cannot_be_made_is_told(bring: Callable[..., Fetched], tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "blocked").write_text("")
    rc, verdict, _ = bring(name="blocked/file.run")
    assert (rc, verdict["verdict"]) == (1, "not writable")


def test_two_downloads_of_one_file_do_not_mix(bring: Callable[..., Fetched], tmp_path: Path) -> None:
    """The part is locked while it is written."""
    with (tmp_path / "file.run.part").open("wb") as part:
        fcntl.flock(part, fcntl.LOCK_EX)
        rc, verdict, _ = bring()
    assert (rc, verdict["verdict"]) == (1, "busy")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/file.run", "file:///etc/passwd", "http://[::bad/x"])
def test_an_address_nobody_answers_is_unreachable(bring: Callable[..., Fetched], url: str) -> None:
    """Refused, of another scheme, or no address at all."""
    rc, verdict, _ = bring(url=url)
    assert rc == 1
    assert verdict["verdict"] in {"unreachable", "broken"}


def test_as_a_program_it_ends_with_one_json_line(mirror: Mirror, tmp_path: Path) -> None:
    """Run the way a host runs it; a relative DEST is fine."""
    argv = [sys.executable, str(SCRIPT), mirror.url, "x.run", "--size", str(len(BODY)), "--sha256", SHA256.upper()]
    env = {**os.environ, "no_proxy": "*"}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout.splitlines()[-1])["verdict"] == "complete"
