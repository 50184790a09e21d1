"""Asks web servers small questions: reads bounded in bytes and in time, and no fault of a network raises."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urljoin

import requests
import urllib3

from checks import kept, reply
from checks.reply import Reply, nothing, parts, public
from fleet.clock import now

AGENT = "gpu-stack-upgrade"  # NVIDIA has refused requests without one (NVIDIA/cuvs#551)
REDIRECTS = 8
SOON_AGAIN = frozenset({429, 500, 502, 503, 504})
_FINAL = (
    requests.exceptions.SSLError,
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
    requests.exceptions.TooManyRedirects,
)
"""Faults that the next attempt would meet again."""
_PASSING = (requests.RequestException, urllib3.exceptions.HTTPError, OSError)
"""Faults of a network; whatever else is raised is a mistake of ours or in the address, and stays."""


class Limits(NamedTuple):
    """How long to wait for what."""

    attempt_s: float = 10.0
    """One request, from the name's lookup to the last byte."""
    total_s: float = 30.0
    """All attempts at one address, with the pauses between them."""
    attempts: int = 4
    backoff_s: float = 0.5
    """The first pause; doubles each time."""
    longest_pause_s: float = 10.0
    """However long a server asks to wait."""


PATIENT = Limits()


class _Session(requests.Session):
    """A session that follows no redirect."""

    # Else requests reads the body of each redirect to its end, however long, even with allow_redirects=False.
    def resolve_redirects(self, *args: Any, **kwargs: Any) -> Iterator[requests.Response]:
        del args, kwargs
        return iter(())


class _Question(NamedTuple):
    url: str
    limit_bytes: int
    headers: dict[str, str]


class Web:
    """One round of discovery: what could not be connected to is not tried again, lists are kept in `cache`."""

    def __init__(
        self, cache: Path | None = None, limits: Limits = PATIENT, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.limits = limits
        self.cache = cache
        self._sleep = sleep
        self._ends_at = float("inf")
        self._dead: dict[str, str] = {}
        self._session = _Session()
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self._session.headers.update({"User-Agent": AGENT, "Accept-Encoding": "identity"})

    def within(self, seconds: float) -> "Web":
        """The same, for a round that must end in so many seconds; what it could not ask then is unreachable."""
        other = Web(self.cache, self.limits, self._sleep)
        other._ends_at = min(self._ends_at, time.monotonic() + seconds)
        other._dead, other._session = self._dead, self._session
        return other

    def text(self, url: str, limit_bytes: int, accept: str = "*/*") -> Reply:
        """A whole small file, never more than `limit_bytes` of it; asked with the marks of the kept copy."""
        have = kept.load(self.cache, url)
        headers = {"Accept": accept, **(have.conditions if have else {})}
        answer = self._persistent(_Question(url, limit_bytes, headers))
        if answer.status == 304 and have is not None:
            return have.renewed(answer)
        kept.save(self.cache, url, answer)
        return answer

    def first(self, url: str, count: int) -> Reply:
        """The first bytes of a file, with its whole size; servers that ignore Range are cut off after them."""
        return self._persistent(_Question(url, count, {"Range": f"bytes=0-{count - 1}"}))

    def _persistent(self, question: _Question) -> Reply:
        place = parts(question.url).netloc
        ends_at = min(self._ends_at, time.monotonic() + self.limits.total_s)
        answer = nothing(question.url, "no time left to ask")
        for attempt in range(1, self.limits.attempts + 1):
            if place in self._dead:
                return nothing(question.url, self._dead[place])
            left_s = min(self.limits.attempt_s, ends_at - time.monotonic())
            if left_s <= 0:
                return answer
            answer, again = self._attempt(question, left_s, attempt)
            if not again or not self._paused(answer, attempt, ends_at):
                return answer
        return answer

    def _paused(self, answer: Reply, attempt: int, ends_at: float) -> bool:
        """Waits before the next attempt; False when there is none."""
        asked_s = reply.retry_after_s(answer.retry_after)
        pause_s = self.limits.backoff_s * 2 ** (attempt - 1) if asked_s is None else asked_s
        pause_s = min(pause_s, self.limits.longest_pause_s)
        if attempt >= self.limits.attempts or time.monotonic() + pause_s >= ends_at:
            return False
        self._sleep(pause_s)
        return True

    def _attempt(self, question: _Question, limit_s: float, attempt: int) -> tuple[Reply, bool]:
        """One request, and whether another may fare better."""
        outcome = self._in_time(question, limit_s)
        if isinstance(outcome, Reply):
            return reply.counted(outcome, attempt), outcome.status in SOON_AGAIN
        told = reply.told(outcome)
        final = isinstance(outcome, _FINAL) or not isinstance(outcome, _PASSING)
        never_connected = isinstance(outcome, requests.ConnectionError) and _never_connected(outcome)
        # One more attempt is for a server that restarts; more would make every question to a dead place slow.
        if never_connected and attempt > 1:
            self._dead[parts(question.url).netloc], final = told, True
        return reply.counted(nothing(question.url, told), attempt), not final

    def _in_time(self, question: _Question, limit_s: float) -> Reply | Exception:
        """The outcome of one request; a time-out when it has none in time."""
        # A thread, because the time-outs of sockets are for one read each, and a name's lookup has none at all.
        box: queue.SimpleQueue[Reply | Exception] = queue.SimpleQueue()
        ends_at = time.monotonic() + limit_s

        def work() -> None:
            try:
                box.put(self._ask(question, ends_at))
            except Exception as error:
                box.put(error)

        threading.Thread(target=work, daemon=True, name="web").start()
        try:
            return box.get(timeout=limit_s)
        except queue.Empty:
            return requests.Timeout(f"no whole answer in {limit_s:.3g} s")

    def _ask(self, question: _Question, ends_at: float) -> Reply:
        here = question.url
        hops: list[str] = []
        while True:
            timeout_s = max(0.05, ends_at - time.monotonic())
            with self._session.get(here, headers=question.headers, stream=True, timeout=timeout_s) as answer:
                target = self._session.get_redirect_target(answer)
                if target is None:
                    return _reply(question, answer, hops, ends_at)
            here = urljoin(here, target)
            hops.append(public(here))
            if parts(here).scheme not in ("http", "https"):
                raise requests.exceptions.InvalidSchema(f"redirected to {public(here)}")
            if len(hops) > REDIRECTS:
                raise requests.TooManyRedirects(f"more than {REDIRECTS} redirects, the last to {public(here)}")


def _reply(question: _Question, answer: requests.Response, hops: list[str], ends_at: float) -> Reply:
    body, complete = _body(answer.raw, question.limit_bytes, ends_at)
    headers: Mapping[str, str] = answer.headers
    return Reply(
        url=public(question.url),
        status=answer.status_code,
        content_type=headers.get("Content-Type", ""),
        size_bytes=reply.whole_size(headers),
        body=body,
        complete=complete,
        redirects=hops,
        etag=headers.get("ETag", ""),
        modified=headers.get("Last-Modified", ""),
        retry_after=headers.get("Retry-After", ""),
        at=now(),
    )


def _body(raw: urllib3.BaseHTTPResponse, limit_bytes: int, ends_at: float) -> tuple[bytes, bool]:
    """At most `limit_bytes`, and whether that is all: one byte more is asked for to know."""
    got = bytearray()
    while len(got) <= limit_bytes:
        # read1 gives what has come; read would wait for all of it, past any deadline.
        chunk = raw.read1(limit_bytes + 1 - len(got), decode_content=True)
        if not chunk:
            return bytes(got), True
        got += chunk
        if time.monotonic() > ends_at:
            raise requests.Timeout("the answer came too slowly")
    return bytes(got[:limit_bytes]), False


def _never_connected(error: requests.ConnectionError) -> bool:
    """No connection came about: wrong name, nothing listening, no route, no answer to the first packet."""
    inner = error.args[0] if error.args else None
    reason = getattr(inner, "reason", inner)
    return isinstance(reason, (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError))
