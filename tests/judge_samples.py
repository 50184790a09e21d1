"""Pins and hostile text for the tests of the judges."""

from pathlib import Path
from typing import Any

from checks import kernels
from fleet.model import Check
from fleet.pins import Cuda, Eagle3, Kernels, Pins, Tolerance, Wheels

HOSTILE = "\x1b[31m<script>alert(1)</script>\n\x00" + "x" * 5000


def pins(**eagle: Any) -> Pins:
    """Pins with small numbers."""
    tolerance = Tolerance(rtol=0.01, atol=0.02)
    packages = {"torch": "2.14.1", "sglang": "0.5.23", "sglang-kernel": "0.4.10"}
    gates = {"runs": 3, "prompts": 2, "max_new_tokens": 10, "min_tokens_per_s": 90.2, **eagle}
    return Pins(
        path=Path("pins.toml"),
        cuda=Cuda(version="13.0.2", mirror="https://example.org", runfile={}),
        wheels=Wheels(python=">=3.11", lock="pins.lock", packages=packages),
        kernels=Kernels(
            rows=[1, 16, 64],
            hidden=8,
            dtypes=["bfloat16"],
            tolerance=dict.fromkeys(kernels.OPS, tolerance),
        ),
        eagle3=Eagle3(model="m", draft="d", num_steps=3, topk=1, num_draft_tokens=4, **gates),
        lock="",
        digest="",
        stack="",
    )


def bad(checks: Any) -> dict[str, Check]:
    """The checks that are not green, by name."""
    return {check.name: check for check in checks if check.ok is not True}
