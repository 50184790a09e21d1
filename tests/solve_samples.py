"""Hosts and requests that several tests of the solver use."""

from datetime import date
from typing import Any

from checks.hostfacts import HostFacts
from checks.refusal import Refusal
from checks.solve import Solution, solve
from checks.wishes import Request
from fleet.choice import Policy

DAY = date(2026, 11, 30)
STORY = {"torch": "2.11.0.dev20260126+cu130", "sgl-kernel": "0.3.21", "flashinfer-python": "0.6.4"}


def host(name: str = "gpu-01", **changes: Any) -> HostFacts:
    """A host with 8 x RTX PRO 6000 and the driver of the story, changed as told."""
    facts: dict[str, Any] = {
        "name": name,
        "platform": "linux-x86_64",
        "driver": "580.95.05",
        "capabilities": ("12.0",),
        "open_modules": True,
        "glibc": "2.35",
        "pythons": ("3.12",),
    }
    return HostFacts(**{**facts, **changes})


def request(wishes: dict[str, str] | None = None, **changes: Any) -> Request:
    """A request of a fixed day."""
    return Request(wishes=wishes or {}, on=DAY, **changes)


def chosen(*hosts: HostFacts, wishes: dict[str, str] | None = None, **changes: Any) -> Solution:
    """The solution; fails when there is none."""
    found = solve(hosts or (host(),), request(wishes, **changes))
    assert isinstance(found, Solution), str(found)
    return found


def refused(*hosts: HostFacts, wishes: dict[str, str] | None = None, **changes: Any) -> Refusal:
    """The refusal; fails when something fits."""
    found = solve(hosts or (host(),), request(wishes, **changes))
    assert isinstance(found, Refusal)
    return found


def policy(**changes: Any) -> Policy:
    """A policy, changed as told."""
    return Policy(**changes)
