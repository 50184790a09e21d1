"""pins.toml: the versions every host should have, where they come from, and the gates they must pass."""

import hashlib
import math
import re
from pathlib import Path
from typing import Any

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from fleet.choice import Assume, Extra, Override, Policy, require_choice, require_version
from fleet.config import Settings, convert, read_toml
from fleet.problem import Problem, did_you_mean

GATES = ("kernels", "eagle3")
"""The stages that measure a stack."""


class Runfile(Settings, frozen=True, kw_only=True):
    """One installer file of a CUDA release, for one platform."""

    file: str
    size_bytes: int
    md5: str = ""
    sha256: str
    source: str = ""


class Cuda(Settings, frozen=True, kw_only=True):
    """The CUDA toolkit: release `X.Y.Z`, where it is served, its runfile per platform.

    Hosts download from `mirror`; `mirrors` are further places to ask what is published, in this order: addresses,
    or folders of this machine (a relative one begins at the folder of pins.toml).
    """

    version: str
    mirror: str
    mirrors: list[str] = []
    runfile: dict[str, Runfile]


class Wheels(Settings, frozen=True, kw_only=True):
    """The Python packages of the stack; `lock` holds the whole closure with hashes."""

    python: str
    index: str = ""
    lock: str
    disk_bytes: int = 0
    packages: dict[str, str]


class Tolerance(Settings, frozen=True, kw_only=True):
    """How far a kernel may be from the float64 reference: |got - want| <= atol + rtol * |want|."""

    rtol: float
    atol: float
    source: str = ""


class Kernels(Settings, frozen=True, kw_only=True):
    """Which kernels are validated, and at which shapes."""

    rows: list[int]
    hidden: int
    dtypes: list[str]
    seed: int = 20
    timeout_s: float = 900.0
    tolerance: dict[str, Tolerance]


class Eagle3(Settings, frozen=True, kw_only=True):
    """The throughput measurement and the floor it must reach. `args` and `env` go to both arms."""

    model: str
    draft: str
    num_steps: int
    topk: int
    num_draft_tokens: int
    args: list[str] = []
    env: dict[str, str] = {}
    runs: int = 5
    prompts: int = 20
    max_new_tokens: int = 256
    ready_timeout_s: float = 1800.0
    timeout_s: float = 7200.0
    min_tokens_per_s: float
    min_speedup: float = 1.0
    min_acceptance_length: float = 1.6


class Switch(Settings, frozen=True, kw_only=True):
    """Which measuring stages must be green for a stack before it is put in use."""

    require: list[str] = msgspec.field(default_factory=lambda: list(GATES))


class PinsFile(Settings, frozen=True, kw_only=True):
    """The tables of pins.toml."""

    schema: int
    cuda: Cuda
    wheels: Wheels
    kernels: Kernels
    eagle3: Eagle3
    switch: Switch = Switch()
    wishes: dict[str, str] = {}
    """What is asked of the solver: `cuda`, `python` or a package -> a version, a range, or `newest`."""
    policy: Policy = Policy()
    overrides: dict[str, Override] = {}
    extras: dict[str, Extra] = {}
    assume: Assume | None = None


class Pins(msgspec.Struct, frozen=True, kw_only=True):
    """pins.toml with its lock, checked.

    `stack` names the stack that these pins make: a digest of what is installed (CUDA and the lock), not of
    the gates, so that a changed gate does not ask for a new installation.
    """

    path: Path
    cuda: Cuda
    wheels: Wheels
    kernels: Kernels
    eagle3: Eagle3
    switch: Switch = Switch()
    lock: str
    digest: str
    stack: str

    @property
    def cuda_major(self) -> int:
        """The major number of the pinned CUDA."""
        return int(self.cuda.version.split(".")[0])


def digest_of(value: Any) -> str:
    """Twelve hex digits that change when the value (anything msgspec can encode) does."""
    encoded = msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:12]


def read_pins(path: Path) -> Pins:
    """The pins of a file, with the lock it names.

    Raises Problem for a missing file, bad TOML, an unknown, missing or mistyped key, an impossible value.
    """
    file = read_pins_file(path)
    lock_path = path.parent / file.wheels.lock
    if not lock_path.is_file():
        raise Problem(f"{path}: `wheels.lock`: no such file: {lock_path}")
    try:
        lock = lock_path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"{path}: `wheels.lock`: {lock_path} is unreadable: {error}") from None
    _require_locked(file.wheels, lock, path, lock_path)
    stack = digest_of([file.cuda.version, file.cuda.runfile, file.wheels.python, lock])
    return Pins(
        path=path,
        cuda=file.cuda,
        wheels=file.wheels,
        kernels=file.kernels,
        eagle3=file.eagle3,
        switch=file.switch,
        lock=lock,
        digest=digest_of([file, lock]),
        stack=stack,
    )


def read_pins_file(path: Path) -> PinsFile:
    """The tables of a file, checked each for itself; its lock is not looked at.

    Raises Problem for a missing file, bad TOML, an unknown, missing or mistyped key, an impossible value.
    """
    file = convert(read_toml(path), PinsFile, path)
    _require(file, path)
    return file


def _require(file: PinsFile, path: Path) -> None:
    if file.schema != 1:
        raise Problem(f"{path}: `schema`: want 1, got {file.schema}", "this copy of the tool is older than the file")
    if not re.fullmatch(r"\d+\.\d+\.\d+", file.cuda.version):
        raise Problem(f"{path}: `cuda.version`: want a release like 13.0.2, got {file.cuda.version!r}")
    if not re.match(r"https?://[^/\s]", file.cuda.mirror):
        raise Problem(f"{path}: `cuda.mirror`: want an http or https address, got {file.cuda.mirror!r}")
    for platform, runfile in file.cuda.runfile.items():
        _require_runfile(runfile, f"{path}: `cuda.runfile.{platform}")
    if not file.wheels.packages:
        raise Problem(f"{path}: `wheels.packages`: want at least one package, got none")
    for name, version in file.wheels.packages.items():
        require_version(version, f"{path}: `wheels.packages.{name}`")
    try:
        SpecifierSet(file.wheels.python)
    except InvalidSpecifier:
        raise Problem(f"{path}: `wheels.python`: want a range like >=3.11,<3.14, got {file.wheels.python!r}") from None
    _require_counts(file, path)
    _require_bounds(file, path)
    require_choice(file.overrides, file.extras, file.policy, path)
    _require_gates(file.switch, path)


def _require_gates(switch: Switch, path: Path) -> None:
    for name in switch.require:
        if name not in GATES:
            raise Problem(f"{path}: `switch.require`: unknown gate `{name}`" + did_you_mean(name, GATES))


def _require_runfile(runfile: Runfile, where: str) -> None:
    if not re.fullmatch(r"[\w.-]+\.run", runfile.file):
        raise Problem(f"{where}.file`: want a bare file name ending in .run, got {runfile.file!r}")
    if not re.fullmatch(r"[0-9a-f]{64}", runfile.sha256):
        raise Problem(f"{where}.sha256`: want 64 hex digits, got {runfile.sha256!r}")
    if runfile.size_bytes < 1:
        raise Problem(f"{where}.size_bytes`: want a size, got {runfile.size_bytes}")


def _require_counts(file: PinsFile, path: Path) -> None:
    counts = {
        "cuda.runfile": len(file.cuda.runfile),
        "kernels.rows": min(file.kernels.rows, default=0),
        "kernels.hidden": file.kernels.hidden,
        "kernels.dtypes": len(file.kernels.dtypes),
        "kernels.tolerance": len(file.kernels.tolerance),
        "eagle3.num_steps": file.eagle3.num_steps,
        "eagle3.topk": file.eagle3.topk,
        "eagle3.num_draft_tokens": file.eagle3.num_draft_tokens,
        "eagle3.runs": file.eagle3.runs,
        "eagle3.prompts": file.eagle3.prompts,
        "eagle3.max_new_tokens": file.eagle3.max_new_tokens,
    }
    for key, count in counts.items():
        if count < 1:
            # A gate that measures nothing would pass anything.
            raise Problem(f"{path}: `{key}`: want at least one, got {count}")


def _require_bounds(file: PinsFile, path: Path) -> None:
    bounds = {
        f"kernels.tolerance.{op}.{key}": value
        for op, tolerance in file.kernels.tolerance.items()
        for key, value in (("rtol", tolerance.rtol), ("atol", tolerance.atol))
    }
    bounds |= {f"eagle3.{key}": getattr(file.eagle3, key) for key in ("min_tokens_per_s", "min_speedup")}
    bounds["eagle3.min_acceptance_length"] = file.eagle3.min_acceptance_length
    for key, value in bounds.items():
        # TOML knows inf and nan: as a bound they pass anything, or nothing.
        if not (math.isfinite(value) and value >= 0):
            raise Problem(f"{path}: `{key}`: want a number of 0 or more, got {value}")
    times = {"kernels.timeout_s": file.kernels.timeout_s}
    times |= {f"eagle3.{key}": getattr(file.eagle3, key) for key in ("ready_timeout_s", "timeout_s")}
    for key, value in times.items():
        if not (math.isfinite(value) and value >= 1):
            raise Problem(f"{path}: `{key}`: want at least one second, got {value}")


def locked_versions(lock: str) -> dict[str, str]:
    """Name (normalised) -> version of each requirement of a lock in requirements format."""
    found = re.findall(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", lock, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def _require_locked(wheels: Wheels, lock: str, path: Path, lock_path: Path) -> None:
    locked = locked_versions(lock)
    for name, version in wheels.packages.items():
        got = locked.get(re.sub(r"[-_.]+", "-", name).lower())
        if got != version:
            hint = "the lock belongs to other pins; make it again (docs/pins.md)"
            told = got or "no such package"
            raise Problem(f"{path}: `wheels.packages.{name}`: want {version}, {lock_path.name} has {told}", hint)
