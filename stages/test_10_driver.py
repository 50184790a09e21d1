"""The loaded driver carries the pinned CUDA on the expected GPUs, and nobody holds them. Leaves: nothing."""

from collections.abc import Iterator

from checks import driver, stack
from fleet.model import Check, Command
from fleet.pins import Pins
from fleet.plugin import StageCall
from fleet.view import View

READS = {**driver.READS, **stack.READS}
NEED_GPUS = {"kernels", "eagle3"}


def plan(host: View, pins: Pins) -> Iterator[Command]:
    """Nothing: a driver is replaced by its owner, with a restart, not by an upgrade of the stack."""
    del host, pins
    yield from ()


def verify(host: View, pins: Pins) -> Iterator[Check]:
    """GPUs, driver floor, architecture, loaded against installed driver, holders."""
    target = stack.target(host, pins)
    cuda = (target.cuda_version if target else "") or pins.cuda.version
    host.facts["gpus"] = [gpu._asdict() for gpu in driver.gpus(host)]
    host.facts["told"] = driver.title(host)
    # A host that is validated serves: its GPUs are held by right.
    needed = host.mode != "validate" and bool(NEED_GPUS & set(host.stages))
    yield from driver.checks(host, cuda, gpus_needed=needed)


def test_driver_supports_cuda(stage: StageCall) -> None:
    """The driver of the host supports the pinned CUDA."""
    stage(plan, verify)
