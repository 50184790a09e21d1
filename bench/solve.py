"""How long one solve takes for many hosts, each with facts of its own."""

from datetime import date

from checks.hostfacts import HostFacts
from checks.refusal import Refusal
from checks.solve import Solution, solve
from checks.wishes import Request

HOSTS = 100


def hosts(count: int = HOSTS) -> list[HostFacts]:
    """Hosts no two of which are alike."""
    return [
        HostFacts(
            name=f"gpu-{number:03}",
            platform="linux-x86_64",
            driver=f"580.{95 + number}.05",
            capabilities=("12.0",),
            open_modules=True,
            glibc=f"2.{34 + number % 6}",
            pythons=("3.11", "3.12") if number % 2 else ("3.12", "3.13"),
        )
        for number in range(count)
    ]


def solved() -> Solution | Refusal:
    """One solve for 100 hosts that ends in a set."""
    return solve(hosts(), Request(on=date(2026, 11, 30)))


def refused() -> Solution | Refusal:
    """One solve for 100 hosts that ends in a refusal, with the smallest changes that would help."""
    return solve(hosts(), Request(wishes={"cuda": "13.2"}, on=date(2026, 11, 30)))
