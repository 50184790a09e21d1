"""The HTTP server of a lab: CUDA mirror, package index, and rules that make both misbehave."""

import json
import socket
import threading
from collections.abc import Callable
from fnmatch import fnmatchcase
from http.server import ThreadingHTTPServer
from typing import Any

from lab.answers import Handler, Request
from lab.catalogue import Page
from lab.faults import Rule


class Mirror:
    """Serves pages on loopback from a thread of its own; pages and rules may be changed while it runs."""

    def __init__(self, pages: dict[str, Page], rules: list[Rule], status: Callable[[], dict[str, Any]]) -> None:
        self.pages = pages
        self._rules = list(rules)
        self.requests: list[Request] = []
        self.status = status
        self._used: dict[Rule, int] = {}
        self._lock = threading.Lock()
        self._server: _Server | None = None

    @property
    def rules(self) -> list[Rule]:
        """The rules in force; new ones begin to count anew."""
        return self._rules

    @rules.setter
    def rules(self, rules: list[Rule]) -> None:
        with self._lock:
            self._rules, self._used = rules, {}

    @property
    def port(self) -> int:
        """Port of the running server."""
        assert self._server is not None
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Address of the running server."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, port: int = 0) -> None:
        """Listen on `port` if it is free, else on any."""
        try:
            self._server = _Server(("127.0.0.1", port), Handler)
        except OSError:
            self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.mirror = self
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="lab-http").start()

    def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.hang_up()
            self._server = None

    def rule_for(self, method: str, path: str) -> Rule:
        """The first rule that applies; a rule with `times` counts down."""
        with self._lock:
            for rule in self.rules:
                if not fnmatchcase(path, rule.path) or rule.method not in ("", method):
                    continue
                used = self._used.get(rule, 0)
                if rule.times < 0 or used < rule.times:
                    self._used[rule] = used + 1
                    return rule
        return Rule(path)

    def page(self, path: str) -> Page | None:
        """What is at a path; the state of the lab is a page too."""
        if path == "/lab/status":
            return Page(json.dumps(self.status()).encode(), "application/json")
        return self.pages.get(path.removeprefix("/cn"))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    mirror: Mirror

    def __init__(self, *args: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are no news."""

    def hang_up(self) -> None:
        for one in list(self._open):
            self._open.discard(one)
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
