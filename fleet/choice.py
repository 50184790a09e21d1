"""The tables of pins.toml that say how `nox -s pins` chooses."""

from pathlib import Path
from typing import Literal

from packaging.version import InvalidVersion, Version

from fleet.config import Settings
from fleet.problem import Problem


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


def require_choice(overrides: dict[str, Override], extras: dict[str, Extra], policy: Policy, path: Path) -> None:
    """Raises Problem for a value of these tables that cannot be meant."""
    for name, override in overrides.items():
        require_version(override.version, f"{path}: `overrides.{name}.version`")
        if not override.reason.strip():
            raise Problem(f"{path}: `overrides.{name}.reason`: want the reason, got none")
    for name, extra in extras.items():
        require_version(extra.version, f"{path}: `extras.{name}.version`")
    if policy.hold_days < 0:
        raise Problem(f"{path}: `policy.hold_days`: want 0 or more, got {policy.hold_days}")
    if policy.checksum_sources < 1:
        # A runfile is run as root only after its SHA-256 matched: one source at least must give it.
        raise Problem(f"{path}: `policy.checksum_sources`: want 1 or more, got {policy.checksum_sources}")


def require_version(version: str, where: str) -> None:
    """Raises Problem for what is not one exact version; `where` is the file and the key."""
    try:
        Version(version)
    except InvalidVersion:
        raise Problem(f"{where}: want one exact version, got {version!r}") from None
