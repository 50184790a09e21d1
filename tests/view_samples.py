"""Hosts as probe records: what the tests of checks look at instead of a machine."""

import random
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli
from msgspec.structs import replace

from fleet.hosts import HostSpec
from fleet.model import Answer, Check
from fleet.pins import Pins, read_pins
from fleet.view import View

DATA = Path(__file__).parent / "data"


def cases(name: str) -> list[dict[str, Any]]:
    """The cases of a data file."""
    found: list[dict[str, Any]] = tomli.loads((DATA / name).read_text("utf-8"))["case"]
    return found


def dice(seed: int | str) -> random.Random:
    """The same chances in every run."""
    return random.Random(seed)  # noqa: S311 - damages texts, guards nothing


def some_pins(**changes: Any) -> Pins:
    """Good pins with small numbers, of a stack named 0123456789ab."""
    return replace(read_pins(DATA / "bad_input" / "pins.toml"), **{"stack": "0123456789ab", **changes})


def view(reads: Mapping[str, str | tuple[int, str]], connection: Any = None, mode: Any = "apply", **spec: Any) -> View:
    """A host that gave these answers: a text, or an exit status and a text."""
    pairs = {name: one if isinstance(one, tuple) else (0, one) for name, one in reads.items()}
    answers = {name: {"rc": rc, "out": out, "read": f"read {name}"} for name, (rc, out) in pairs.items()}
    host = HostSpec(name="gpu-01", **{"base": "/opt/fleet", **spec})
    return View(host, {"reads": answers}, mode=mode, connection=connection)


def seen(found: Any) -> dict[str, list[Any]]:
    """What checks say, by name: what they got, and whether that is good."""
    checks: list[Check] = list(found)
    return {check.name: [check.got, "unknown" if check.ok is None else check.ok] for check in checks}


class Here:
    """The machine of the tests in the place of a host: commands are really run."""

    def __init__(self, noise: str = "") -> None:
        self.spec = HostSpec(name="gpu-01")
        self.noise = noise

    def run(self, command: str, timeout_s: float = 30.0) -> Answer:
        """The answer of a shell whose start-up files print `noise`."""
        rc, out, err = self.run_bytes(command, timeout_s)
        return Answer(command=command, rc=rc, out=out.decode("utf-8", "replace"), err=err.decode("utf-8", "replace"))

    def run_bytes(self, command: str, timeout_s: float = 30.0) -> tuple[int, bytes, bytes]:
        """The same, byte for byte."""
        done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=timeout_s)
        return done.returncode, self.noise.encode() + done.stdout, done.stderr

    def put(self, local: Path, remote: str, timeout_s: float = 600.0) -> None:
        """Nothing in these tests is copied."""
        raise NotImplementedError

    def close(self) -> None:
        """There is no connection."""
