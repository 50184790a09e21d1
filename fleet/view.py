"""A host as stages and checks see it: its probe record, live questions, and what was measured before."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fleet.host import READ_TIMEOUT_S, Host, Unreachable
from fleet.hosts import HostSpec
from fleet.model import Answer, Measured, Mode
from fleet.probe import reading

# Start-up files of the login shell may print before the answer; the probe has a mark of its own.
_MARK = "fleet-answer"


class View:
    """What `plan(host, pins)` and `verify(host, pins)` get as `host`: it can be asked, it cannot be changed."""

    def __init__(
        self,
        spec: HostSpec,
        probe: Mapping[str, Any],
        *,
        mode: Mode = "plan",
        stages: tuple[str, ...] = (),
        connection: Host | None = None,
        measured: Callable[[str, str, str], Measured | None] | None = None,
    ) -> None:
        self.spec = spec
        self.probe = probe
        self.mode: Mode = mode
        self.stages = stages
        self.facts: dict[str, Any] = {}
        """What a stage wants to be kept with its result: plain data."""
        self._connection = connection
        self._measured = measured

    @property
    def name(self) -> str:
        """The host's name in the inventory."""
        return self.spec.name

    def read(self, name: str) -> Answer:
        """The answer to a declared read, from the probe record."""
        return reading(self.probe, name)

    def ask(self, command: str, timeout_s: float = READ_TIMEOUT_S) -> Answer:
        """The answer to a read-only command, asked now. Raises Unreachable."""
        if self._connection is None:
            raise Unreachable("only a probe record is at hand, not the host")
        answer = self._connection.run(f"printf '\\n{_MARK}\\n'; {command}", timeout_s)
        _, marked, out = answer.out.partition(f"\n{_MARK}\n")
        return msgspec.structs.replace(answer, command=command, out=out if marked else answer.out)

    def measured(self, name: str, inputs: str, stage: str) -> Measured | None:
        """The measurement of that name that the named stage made from equal inputs, if there is one."""
        return self._measured(name, inputs, stage) if self._measured else None

    @property
    def simulated(self) -> bool:
        """The host says of itself that it is simulated."""
        return self.spec.simulated or self.read("host.lab").ok

    @property
    def machine(self) -> str:
        """What tells this machine from another that has the same name."""
        return self.read("host.machine_id").out.strip()


HOST_READS: Mapping[str, str] = {
    "host.lab": 'cat "$ROOT/etc/lab-host"',
    "host.machine_id": 'cat "$ROOT/etc/machine-id"',
    "host.boot_id": 'cat "$ROOT/proc/sys/kernel/random/boot_id"',
    "host.os": 'cat "$ROOT/etc/os-release"',
    "host.platform": "uname -m; getconf GNU_LIBC_VERSION; id -u",
}
"""What the engine itself wants to know of every host."""


def plain(value: Any) -> Any:
    """The value as JSON-able plain data; what is put on a pytest report must be nothing else."""
    return msgspec.to_builtins(value)
