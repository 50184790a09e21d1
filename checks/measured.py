"""A measurement on a host: a script of checks/remote under a stack's interpreter, its inputs, and its kept result."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from checks import driver
from checks.stack import Stack, environment
from fleet.model import Check, Command, Measured
from fleet.pins import digest_of
from fleet.view import View
from fleet.work import q, sh

REMOTE = Path(__file__).parent / "remote"


class Measurement(NamedTuple):
    """What to measure: a name unique within the stage, a script of checks/remote, its settings, the stack."""

    name: str
    why: str
    script: str
    settings: Mapping[str, Any]
    stack: Stack
    timeout_s: float

    @property
    def text(self) -> str:
        """The script itself."""
        return (REMOTE / self.script).read_text("utf-8")


def inputs(host: View, wanted: Measurement) -> str:
    """A digest of all a result depends on: the script, its settings, the stack, the machine, its driver and GPUs."""
    loaded, _ = driver.parse_loaded(host.read("driver.loaded").out)
    uuids = [gpu.uuid for gpu in driver.gpus(host)]
    stack = wanted.stack
    claims = [stack.cuda_version, stack.python, stack.cuda_dir, stack.packages]
    return digest_of([wanted.text, wanted.settings, claims, host.machine, loaded, uuids])


def missing(host: View, wanted: Iterable[Measurement], stage: str) -> Iterator[Command]:
    """The measurements that no equal inputs have a result for; none while others hold the GPUs."""
    if not driver.holders(host):
        yield from (command(host, one) for one in wanted if result(host, one, stage) is None)


def unmeasured(host: View, name: str, stage: str) -> Check:
    """The check of a measurement that could not be made: unknown, which is never green."""
    held = driver.holders(host)
    got = f"not measured: the GPUs are held by {'; '.join(held[:8])}" if held else "not measured"
    again = f"`nox -s validate -- --only {stage}`" if host.mode == "validate" else f"`nox -s {stage}`"
    hint = f"stop what holds them, then {again}" if held else again
    return Check(name=name, want="measured", got=got, ok=None, hint=hint)


def result(host: View, wanted: Measurement, stage: str) -> Measured | None:
    """The result from equal inputs that the named stage recorded, in this run or an earlier one."""
    return host.measured(wanted.name, inputs(host, wanted), stage)


def command(host: View, wanted: Measurement) -> Command:
    """Measures: changes nothing on the host, prints one JSON document."""
    python = wanted.stack.python
    return Command(
        why=wanted.why,
        shell=sh(
            *environment(wanted.stack),
            # A measurement leaves nothing behind in the venv it measures.
            "export PYTHONDONTWRITEBYTECODE=1",
            f"exec {q(python)} ./{wanted.script} {q(json.dumps(wanted.settings, sort_keys=True))}",
        ),
        undo="",
        timeout_s=wanted.timeout_s,
        measures=wanted.name,
        inputs=inputs(host, wanted),
        files={wanted.script: wanted.text},
    )
