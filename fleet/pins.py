"""pins.toml: the versions every host should have, where they come from, and the gates they must pass."""

import hashlib
import math
import re
from pathlib import Path
from typing import Any, Literal

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from fleet.config import convert, read_toml
from fleet.problem import Problem


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all tables of pins.toml and hosts.toml share: immutable, no key that we do not know."""


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


class Assume(Settings, frozen=True, kw_only=True):
    """The host that the pins are solved for when no probe record is given."""

    platform: str = "linux-x86_64"
    driver: str
    capabilities: list[str]
    open_modules: bool = True
    glibc: str
    pythons: list[str]


class Policy(Settings, frozen=True, kw_only=True):
    """How `nox -s pins` chooses among what fits.

    `newest` takes the newest consistent set, `line` the newest one in today's release lines.
    """

    prefer: Literal["newest", "line"] = "newest"
    hold_days: int = 0
    """A release is taken only when it has been out for so many days."""
    exclude: list[str] = []
    """Requirements that are never chosen, such as `sglang==0.5.22`; `cuda` stands for the toolkit."""
    checksum_sources: int = 2
    """How many independent public sources must give a runfile's SHA-256 (the publisher gives MD5 only)."""


class Override(Settings, frozen=True, kw_only=True):
    """A version that goes against what sglang's own metadata pins, and why."""

    version: str
    reason: str


class Extra(Settings, frozen=True, kw_only=True):
    """A package that lives outside the default index, and where."""

    version: str
    index: str


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


class PinsFile(Settings, frozen=True, kw_only=True):
    """The tables of pins.toml."""

    schema: int
    cuda: Cuda
    wheels: Wheels
    kernels: Kernels
    eagle3: Eagle3
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
        _require_version(version, f"{path}: `wheels.packages.{name}`")
    try:
        SpecifierSet(file.wheels.python)
    except InvalidSpecifier:
        raise Problem(f"{path}: `wheels.python`: want a range like >=3.11,<3.14, got {file.wheels.python!r}") from None
    _require_counts(file, path)
    _require_bounds(file, path)
    _require_choice(file, path)


def _require_choice(file: PinsFile, path: Path) -> None:
    for name, override in file.overrides.items():
        _require_version(override.version, f"{path}: `overrides.{name}.version`")
        if not override.reason.strip():
            raise Problem(f"{path}: `overrides.{name}.reason`: want the reason, got none")
    for name, extra in file.extras.items():
        _require_version(extra.version, f"{path}: `extras.{name}.version`")
    if file.policy.hold_days < 0:
        raise Problem(f"{path}: `policy.hold_days`: want 0 or more, got {file.policy.hold_days}")
    if file.policy.checksum_sources < 1:
        # A runfile is run as root only after its SHA-256 matched: one source at least must give it.
        raise Problem(f"{path}: `policy.checksum_sources`: want 1 or more, got {file.policy.checksum_sources}")


def _require_runfile(runfile: Runfile, where: str) -> None:
    if not re.fullmatch(r"[\w.-]+\.run", runfile.file):
        raise Problem(f"{where}.file`: want a bare file name ending in .run, got {runfile.file!r}")
    if not re.fullmatch(r"[0-9a-f]{64}", runfile.sha256):
        raise Problem(f"{where}.sha256`: want 64 hex digits, got {runfile.sha256!r}")
    if runfile.size_bytes < 1:
        raise Problem(f"{where}.size_bytes`: want a size, got {runfile.size_bytes}")


def _require_version(version: str, where: str) -> None:
    try:
        Version(version)
    except InvalidVersion:
        raise Problem(f"{where}: want one exact version, got {version!r}") from None


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
