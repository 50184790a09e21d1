"""The bounded HTTP of discovery, against a real server that misbehaves."""

import gzip
import threading
import time
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from web_server import (
    Answer,
    body,
    cut,
    drip,
    endless,
    endless_redirect,
    redirect,
    reset,
    runfile,
    serving,
    slow_headers,
    status,
)

from checks import kept, reply
from checks.mirror import Folder, Served, mirror
from checks.web import Limits, Web

QUICK = Limits(attempt_s=2.0, total_s=4.0, attempts=3, backoff_s=0.001, longest_pause_s=0.01)


def web(cache: Path | None = None, **changes: Any) -> Web:
    """A client that does not wait long."""
    return Web(cache, QUICK._replace(**changes))


def test_a_list_is_read_whole() -> None:
    """Status, type, body and that it is all of it."""
    with serving({"/a": body(b"one\n")}) as server:
        got = web().text(f"{server.url}/a", 100)
        assert (
            got.status,
            got.content_type,
            got.body,
            got.complete,
            got.size_bytes,
        ) == (200, "text/plain", b"one\n", True, 4)


def test_the_read_is_bounded() -> None:
    """A server that sends 3 GB where a list was expected is hung up on after the limit."""
    with serving({"/a": endless()}) as server:
        started = time.monotonic()
        got = web().text(f"{server.url}/a", 1024)
        assert (len(got.body), got.complete, got.status) == (1024, False, 200)
        assert time.monotonic() - started < 1.0


def test_the_body_of_a_redirect_is_not_read() -> None:
    """A redirect with an endless body costs nothing."""
    with serving({"/a": endless_redirect("/b"), "/b": body(b"here")}) as server:
        assert web().text(f"{server.url}/a", 100).body == b"here"


def test_a_compressed_bomb_is_bounded() -> None:
    """A gzip body of a few kB that unpacks to 50 MB is read to the limit only."""
    bomb = gzip.compress(bytes(50_000_000))
    with serving({"/a": body(bomb, Content_Encoding="gzip")}) as server:
        got = web().text(f"{server.url}/a", 1000)
        assert (len(got.body), got.complete, got.size_bytes) == (1000, False, -1)


@pytest.mark.parametrize("answer", [drip(), drip(0.05)])
def test_a_slow_server_meets_the_deadline(answer: Answer) -> None:
    """A byte now and then keeps every socket read in time; the attempt ends all the same."""
    with serving({"/a": answer}) as server:
        started = time.monotonic()
        got = web(attempt_s=0.1, total_s=0.2, attempts=2).text(f"{server.url}/a", 100_000)
        assert got.error
        assert not got.absent
        assert time.monotonic() - started < 0.5


def test_slow_headers_meet_the_deadline() -> None:
    """Headers that never end are given up too."""
    with serving({"/a": slow_headers()}) as server:
        started = time.monotonic()
        assert web(attempt_s=0.1, total_s=0.1, attempts=1).text(f"{server.url}/a", 100).error
        assert time.monotonic() - started < 0.5


def test_a_round_has_a_deadline_of_its_own() -> None:
    """What there was no time for is unreachable, and not asked."""
    with serving({"/a": body(b"x")}) as server:
        got = web().within(0.0).text(f"{server.url}/a", 10)
        assert (got.error, server.asked) == ("no time left to ask", [])


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_busy_servers_are_asked_again(code: int) -> None:
    """5xx and 429 pass."""
    with serving({"/a": [status(code), status(code), body(b"x")]}) as server:
        got = web().text(f"{server.url}/a", 10)
        assert (got.body, got.attempts) == (b"x", 3)


def test_a_server_that_stays_busy_gives_its_status() -> None:
    """The last answer is told; it is not an absence."""
    with serving({"/a": status(503)}) as server:
        got = web().text(f"{server.url}/a", 10)
        assert (got.status, got.attempts, got.absent, got.found) == (503, 3, False, False)


@pytest.mark.parametrize("broken", [reset(), reset(b"0123")])
def test_resets_are_asked_again(broken: Answer) -> None:
    """A connection reset before or within the answer passes."""
    with serving({"/a": [broken, broken, body(b"x")]}) as server:
        assert web().text(f"{server.url}/a", 1000).body == b"x"
    with serving({"/a": broken}) as server:
        got = web().text(f"{server.url}/a", 1000)
        assert (got.status, got.attempts) == (0, 3)
        assert "reset" in got.error or "Incomplete" in got.error or "aborted" in got.error


def test_an_answer_that_ends_too_early_is_no_answer() -> None:
    """A body shorter than its Content-Length is not taken for the file."""
    with serving({"/a": cut(b"short")}) as server:
        assert "Incomplete" in web().text(f"{server.url}/a", 1000).error


@pytest.mark.parametrize(
    ("header", "low_s", "high_s"),
    [
        ("3", 3.0, 3.0),
        ("86400", 7.0, 7.0),
        ("nonsense", 0.5, 0.5),
        (format_datetime(datetime.now(timezone.utc) + timedelta(hours=1), usegmt=True), 7.0, 7.0),
        (format_datetime(datetime.now(timezone.utc) - timedelta(hours=1), usegmt=True), 0.0, 0.0),
    ],
    # Names without the time of day: every xdist worker must collect the same ones.
    ids=["seconds", "too long", "nonsense", "a date to come", "a date gone by"],
)
def test_retry_after_is_honoured_and_capped(header: str, low_s: float, high_s: float) -> None:
    """Seconds or a date; never longer than the cap."""
    pauses: list[float] = []
    client = Web(None, Limits(attempts=2, backoff_s=0.5, longest_pause_s=7.0), pauses.append)
    with serving({"/a": [status(503, Retry_After=header), body(b"x")]}) as server:
        assert client.text(f"{server.url}/a", 10).body == b"x"
    assert len(pauses) == 1
    assert low_s <= pauses[0] <= high_s


def test_pauses_grow() -> None:
    """Each pause is twice the one before."""
    pauses: list[float] = []
    with serving({"/a": status(500)}) as server:
        Web(None, Limits(attempts=4, backoff_s=0.5), pauses.append).text(f"{server.url}/a", 10)
    assert pauses == [0.5, 1.0, 2.0]


def test_redirects_are_followed_and_recorded() -> None:
    """The reply knows where it was sent."""
    with serving({"/a": redirect("/b"), "/b": redirect("/c", 308), "/c": body(b"x")}) as server:
        got = web().text(f"{server.url}/a", 10)
        assert ([f"{server.url}/b", f"{server.url}/c"], b"x") == (got.redirects, got.body)


@pytest.mark.parametrize("target", ["/a", "file:///etc/passwd", "gopher://x/"])
def test_bad_redirects_end(target: str) -> None:
    """A loop, and a way out of the web, are faults, at once."""
    with serving({"/a": redirect(target)}) as server:
        got = web().text(f"{server.url}/a", 10)
        assert got.error
        assert got.attempts == 1


@pytest.mark.parametrize("ranges", [True, False])
def test_first_bytes_prove_a_file(ranges: bool) -> None:
    """206 or, from servers that ignore Range, 200: the whole size either way, and 4 GB are not sent."""
    with serving({"/a": runfile(4_328_066_903, ranges=ranges)}) as server:
        started = time.monotonic()
        got = web().first(f"{server.url}/a", 512)
        assert (206 if ranges else 200, 4_328_066_903, 512) == (got.status, got.size_bytes, len(got.body))
        assert time.monotonic() - started < 1.0


def test_nothing_listens() -> None:
    """A place that cannot be connected to is asked twice, once for all its addresses."""
    with serving({}) as server:
        url = server.url
    client = web()
    first, second = client.text(f"{url}/a", 10), client.text(f"{url}/b", 10)
    assert "refused" in first.error
    assert (first.attempts, second.attempts) == (2, 1)
    assert first.error == second.error


@pytest.mark.parametrize("url", ["http://[::1", "http://", "ftp://x/y", "http://a b/", "", "http://127.0.0.1:99999/"])
def test_no_address_raises(url: str) -> None:
    """Whatever is wrong with an address is told, not raised."""
    assert web().text(url, 10).error


def test_passwords_are_not_told() -> None:
    """An address with a password is shown, and kept, without it."""
    with serving({}) as server:
        pass
    got = web().text(server.url.replace("//", "//me:secret@") + "/a", 10)
    assert "secret" not in repr(got)
    assert got.url == f"{server.url}/a"


def test_the_kept_copy_is_confirmed(tmp_path: Path) -> None:
    """A list with an ETag is sent once; after that a 304 confirms it."""
    with serving({"/a": body(b"list", ETag='"1"')}) as server:
        first, second = (web(tmp_path).text(f"{server.url}/a", 100) for _ in range(2))
        assert (
            first.body,
            first.cached,
            second.body,
            second.cached,
            second.status,
        ) == (b"list", False, b"list", True, 200)
        assert server.headers_seen[-1]["If-None-Match"] == '"1"'
        server.table["/a"] = body(b"new", ETag='"2"')
        assert web(tmp_path).text(f"{server.url}/a", 100).body == b"new"


def test_last_modified_is_a_mark_too(tmp_path: Path) -> None:
    """Without an ETag the date is asked with."""
    date = "Mon, 30 Nov 2026 00:00:00 GMT"
    with serving({"/a": body(b"list", Last_Modified=date)}) as server:
        for _ in range(2):
            web(tmp_path).text(f"{server.url}/a", 100)
        assert server.headers_seen[-1]["If-Modified-Since"] == date


def test_only_whole_answers_are_kept(tmp_path: Path) -> None:
    """Cut, failed and unmarked answers leave no file; nothing is left half-written."""
    table: dict[str, Answer | list[Answer]] = {
        "/cut": body(b"0123456789", ETag='"1"'),
        "/bad": status(404, ETag='"1"'),
        "/unmarked": body(b"x"),
    }
    with serving(table) as server:
        for path in table:
            web(tmp_path).text(server.url + path, 5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"{", b"null", b'{"asked": "other", "answer": {"url": ""}}'])
def test_a_damaged_copy_is_no_copy(tmp_path: Path, damage: bytes) -> None:
    """What cannot be read is asked for again, and mended."""
    with serving({"/a": body(b"list", ETag='"1"')}) as server:
        url = f"{server.url}/a"
        web(tmp_path).text(url, 100)
        (file,) = tmp_path.iterdir()
        file.write_bytes(damage)
        assert not web(tmp_path).text(url, 100).cached
        assert kept.load(tmp_path, url) is not None


def test_a_cache_that_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    """The answer comes without it."""
    (tmp_path / "file").write_text("")
    with serving({"/a": body(b"list", ETag='"1"')}) as server:
        assert web(tmp_path / "file" / "cache").text(f"{server.url}/a", 100).body == b"list"


def test_many_threads_share_one_client(tmp_path: Path) -> None:
    """Fifty hosts at once get fifty right answers and one whole copy."""
    client = web(tmp_path)
    got: list[bytes] = []
    with serving({"/a": body(b"list", ETag='"1"')}) as server:
        threads = [
            threading.Thread(target=lambda: got.append(client.text(f"{server.url}/a", 100).body)) for _ in range(50)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got == [b"list"] * 50
    assert len(list(tmp_path.iterdir())) == 1


# -- folders


def test_a_folder_answers_like_a_server(tmp_path: Path) -> None:
    """Found, absent, first bytes, and the names in a folder."""
    (tmp_path / "redist").mkdir()
    (tmp_path / "redist" / "redistrib_13.0.2.json").write_text("{}")
    (tmp_path / "big.run").write_bytes(b"#!/bin/sh\n" + bytes(5000))
    place = Folder(tmp_path)
    assert place.text("redist/redistrib_13.0.2.json", 10).body == b"{}"
    assert place.text("redist/redistrib_13.0.1.json", 10).absent
    first = place.first("big.run", 512)
    assert (first.status, first.size_bytes, len(first.body), first.complete) == (206, 5010, 512, False)
    assert place.text("redist/", 100).body == b"redistrib_13.0.2.json\n"


def test_a_folder_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    """A share that is not mounted says nothing about releases."""
    got = Folder(tmp_path / "gone").text("a", 10)
    assert "no such folder" in got.error
    assert not got.absent


def test_the_kind_of_mirror_follows_from_its_address(tmp_path: Path) -> None:
    """http, file and path; relative paths begin beside the pins."""
    client = web()
    assert mirror("https://example.org/cuda/", client) == Served(client, "https://example.org/cuda")
    assert mirror(f"file://{tmp_path}/my%20mirror", client) == Folder(tmp_path / "my mirror")
    assert mirror(str(tmp_path), client) == Folder(tmp_path)
    assert mirror("mirror", client, tmp_path) == Folder(tmp_path / "mirror")


@pytest.mark.parametrize(
    ("headers", "size_bytes"),
    [
        ({"Content-Range": "bytes 0-511/4328066903", "Content-Length": "512"}, 4328066903),
        ({"Content-Range": "bytes 0-511/*", "Content-Length": "512"}, -1),
        ({"Content-Length": "12"}, 12),
        ({"Content-Length": "-1"}, -1),
        ({"Content-Length": "12", "Content-Encoding": "gzip"}, -1),
        ({}, -1),
    ],
)
def test_the_whole_size(headers: dict[str, str], size_bytes: int) -> None:
    """From the range, else the length; else unknown."""
    assert size_bytes == reply.whole_size(headers)
