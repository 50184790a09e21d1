"""The locked wheels are in the own venv of the stack, each file as its RECORD says. Leaves: <stack>/venv/, tools/uv."""

from collections.abc import Iterator

from checks import record, stack, wheels
from fleet.model import Check, Command
from fleet.pins import Pins
from fleet.plugin import StageCall
from fleet.view import View

READS = {**wheels.READS, **stack.READS}
explain = wheels.explain


def plan(host: View, pins: Pins) -> Iterator[Command]:
    """Brings uv where there is none, makes the venv, installs the lock."""
    if wheels.is_complete(host, pins):
        return
    stack.require_not_in_use(host, pins)
    wheels.require_interpreter(host, pins)
    uv = wheels.uv_on_host(host)
    if not uv:
        yield wheels.bring_uv(host)
    yield wheels.make_venv(host, pins, stack.pinned(host, pins), uv or wheels.brought_uv(host))


def verify(host: View, pins: Pins) -> Iterator[Check]:
    """Every package at its version, every file as its wheel recorded it."""
    target = stack.target(host, pins)
    if target is None:
        yield stack.none_found()
        return
    record.keep(host, pins, record.WHEELS)
    yield from wheels.installed(host, target)


def test_wheels_are_installed(stage: StageCall) -> None:
    """The stack's venv holds exactly the locked wheels."""
    stage(plan, verify, explain)
