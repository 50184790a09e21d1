"""The pinned CUDA toolkit is complete in the stack's own directory and compiles. Leaves: <stack>/cuda-<version>/."""

from collections.abc import Iterator

from checks import runfile, stack, toolkit
from fleet.model import Check, Command
from fleet.pins import Pins
from fleet.plugin import StageCall
from fleet.view import View

READS = {**toolkit.READS, **stack.READS, **runfile.READS}
explain = toolkit.explain


def plan(host: View, pins: Pins) -> Iterator[Command]:
    """Download and install, unless the installation is complete."""
    pinned = stack.pinned(host, pins)
    if not toolkit.is_complete(host, pinned):
        stack.require_not_in_use(host, pins)
        yield toolkit.download(host, pins)
        yield toolkit.install(host, pins, pinned)


def verify(host: View, pins: Pins) -> Iterator[Check]:
    """By use: version.json, and a kernel compiled for the host's GPUs."""
    target = stack.target(host, pins)
    if target is None:
        yield stack.none_found()
        return
    host.facts["told"] = toolkit.title(host, target)
    yield from toolkit.works(host, target)


def test_toolkit_is_installed(stage: StageCall) -> None:
    """The stack's toolkit is the pinned one, and works."""
    stage(plan, verify, explain)
