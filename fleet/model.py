"""The words of the engine as plain data: what a stage asks for, what was run, what came out.

Every type is a frozen msgspec Struct: immutable here, JSON in the run directory.
"""

from typing import Any, Literal

import msgspec

Mode = Literal["plan", "apply", "validate", "rollback", "replay"]
Status = Literal[
    "running",
    "ok",
    "changed",
    "would change",
    "would run",
    "failed",
    "unreachable",
    "blocked",
    "interrupted",
    "not run",
]

GOOD: frozenset[Status] = frozenset({"ok", "changed", "would change", "would run"})
"""Statuses that neither block a later stage nor make a run fail."""


class Refused(Exception):
    """A stage cannot say what is missing on a host, because the host lacks what the stage builds on."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class Data(msgspec.Struct, frozen=True):
    """Common settings of all recorded types."""


class Answer(Data, frozen=True, kw_only=True):
    """What a host answered to one command; an exit status is an answer, not an error."""

    command: str
    rc: int
    out: str
    err: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """The command exited 0."""
        return self.rc == 0


class Irreversible(Data, frozen=True, kw_only=True, tag=True):
    """A command without an undo, and why that is so."""

    reason: str


class Command(Data, frozen=True, kw_only=True):
    """One step a stage asks the engine to run on a host as a job.

    `shell` must be safe to run twice. `measures` names a measurement: such a command changes nothing and prints
    one JSON document on stdout; its result is recorded, and reused while `inputs` (a digest) stays the same.
    `keep`: what it leaves serves the next attempt too, so a failed stage does not undo it.
    """

    why: str
    shell: str
    undo: str | Irreversible
    timeout_s: float = 600.0
    size_bytes: int = 0
    measures: str = ""
    inputs: str = ""
    keep: bool = False
    files: dict[str, str] = {}
    """Small files to lay into the job's directory: name -> text; the shell starts in that directory."""
    uploads: dict[str, str] = {}
    """Large files to copy to the host first: path there -> path here."""


class Check(Data, frozen=True, kw_only=True):
    """One comparison of a host with the pins. `ok` is None when the host could not tell: never green."""

    name: str
    want: str
    got: str
    ok: bool | None
    hint: str = ""
    read: str = ""
    """The command or file that `got` comes from."""


class Ran(Data, frozen=True, kw_only=True):
    """A command as it was run (or, with rc None, as it would be run)."""

    why: str
    shell: str
    undo: str
    reversible: bool = True
    rc: int | None = None
    started: str = ""
    seconds: float = 0.0
    log: str = ""
    """File name of the whole log inside the host's folder of the run."""
    attached: bool = False
    """The job was already running when this run came to it."""
    undone: bool = False
    size_bytes: int = 0
    measures: bool = False
    keep: bool = False


class Measured(Data, frozen=True, kw_only=True):
    """A measurement and what it depended on: equal inputs need not be measured again."""

    inputs: str
    at: str
    """UTC time of the measurement, ISO."""
    result: dict[str, Any]


class StageResult(Data, frozen=True, kw_only=True):
    """What one stage found and did on one host: the unit of the run directory, the grid and the report."""

    host: str
    stage: str
    status: Status
    reason: str = ""
    hint: str = ""
    started: str = ""
    seconds: float = 0.0
    commands: list[Ran] = []
    checks: list[Check] = []
    facts: dict[str, Any] = {}
    measured: dict[str, Measured] = {}
    simulated: bool = False
    reused: str = ""
    """UTC time of the oldest reused measurement; empty when all were made in this run."""

    @property
    def failed_checks(self) -> list[Check]:
        """The checks that are not green, in order."""
        return [check for check in self.checks if check.ok is not True]


class RunRecord(Data, frozen=True, kw_only=True):
    """run.json: what a run is about. `schema` grows when a reader of version 1 would misread it."""

    schema: int = 1
    id: str
    mode: Mode
    started: str
    finished: str = ""
    outcome: Literal["", "passed", "failed", "interrupted"] = ""
    hosts: list[str]
    addresses: dict[str, str] = {}
    stages: list[str]
    pins_file: str
    pins_digest: str
    stack: str
    argv: list[str] = []
    versions: dict[str, str] = {}
    simulated: list[str] = []
    """Hosts that said of themselves that they are simulated."""
