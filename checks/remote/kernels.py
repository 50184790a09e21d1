"""Runs the kernels a model server lives on, on every GPU, and prints how far they are from float64.

    <venv>/bin/python kernels.py '<settings as JSON>'      (or @FILE)

Stand-alone: the standard library, and torch and sgl_kernel of the interpreter that runs it; Python 3.9 or
newer. Settings: {"rows": [...], "hidden": n, "dtypes": [...], "seed": n, "tolerance": {op: {"rtol", "atol"}}};
a further "device": "cpu" computes on the CPU, to try this script where there is no GPU. One JSON document on
stdout, raw numbers only: verdicts are made where the pins are. Exit 0 whenever that document was printed.

The reference is computed on the CPU in float64 from the inputs *after* they were rounded to the tested type,
so that the rounding of the inputs is not charged to the kernel. Shapes: matmul [rows, hidden] x
[hidden, hidden], rmsnorm [rows, hidden], silu_and_mul [rows, 2 * hidden]. The first GPU gets every shape, the
others one small batch of each.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import math
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

OPS = ("matmul", "rmsnorm", "silu_and_mul")
EPS = 1e-6
SMALL_BATCH = 4  # rows of one verification step of an EAGLE-3 chain with 4 draft tokens at batch 1
RELATIVE_FROM = 1e-3
LONGEST_TEXT = 600
DISTRIBUTIONS = ("sglang", "sglang-kernel", "sgl-kernel", "flashinfer-python", "triton")


@dataclass(frozen=True)
class Case:
    """One kernel at one shape on one device."""

    op: str
    dtype: str
    rows: int
    hidden: int
    device: int


def finite(value: float) -> float | None:
    """The number, or None where JSON has no word for it."""
    return value if math.isfinite(value) else None


def told(error: BaseException) -> str:
    """An exception in one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_TEXT]


def attempt(ask: Any, default: Any = None) -> Any:
    """The value of a call that not every build of torch has, or the default."""
    try:
        return ask()
    except Exception:
        return default


class Bench:
    """Inputs, kernels and references, on the torch and the sgl_kernel at hand."""

    def __init__(self, torch: Any, sgl_kernel: Any, settings: dict[str, Any]) -> None:
        self.torch = torch
        self.sgl_kernel = sgl_kernel
        self.seed = int(settings["seed"])
        self.kind = str(settings.get("device", "cuda"))
        self.tolerance: dict[str, dict[str, float]] = settings.get("tolerance") or {}
        self.weights: dict[tuple[str, str], Any] = {}

    def random(self, seed: int, *shape: int) -> Any:
        """Normal numbers that depend on the seed and the shape only: drawn on the CPU."""
        generator = self.torch.Generator()
        generator.manual_seed(seed)
        return self.torch.randn(*shape, generator=generator)

    def weight(self, case: Case) -> Any:
        """The weight of an operation, rounded to the tested type; matmul keeps the size of its input."""
        key = (case.op, case.dtype)
        if key not in self.weights:
            shape = (case.hidden, case.hidden) if case.op == "matmul" else (case.hidden,)
            scale = case.hidden**-0.5 if case.op == "matmul" else 1.0
            drawn = self.random(self.seed, *shape) * scale
            self.weights[key] = drawn.to(getattr(self.torch, case.dtype))
        return self.weights[key]

    def batch(self, case: Case) -> Any:
        """The activations of a case, rounded to the tested type."""
        width = case.hidden * 2 if case.op == "silu_and_mul" else case.hidden
        drawn = self.random(self.seed + 1 + case.rows, case.rows, width)
        return drawn.to(getattr(self.torch, case.dtype))

    def device(self, case: Case) -> str:
        """The device name torch knows."""
        return f"{self.kind}:{case.device}" if self.kind == "cuda" else self.kind

    def current(self, case: Case) -> Any:
        """A context in which the device is the current one: kernels take its stream."""
        return self.torch.cuda.device(case.device) if self.kind == "cuda" else contextlib.nullcontext()

    def computed(self, case: Case) -> Any:
        """What the kernel gives, brought back to the CPU; copying waits for the device."""
        device = self.device(case)
        batch = self.batch(case).to(device)
        if case.op == "silu_and_mul":
            return self.sgl_kernel.silu_and_mul(batch).cpu()
        weight = self.weight(case).to(device)
        if case.op == "rmsnorm":
            return self.sgl_kernel.rmsnorm(batch, weight, EPS).cpu()
        return (batch @ weight).cpu()

    def reference(self, case: Case) -> Any:
        """The same in float64 on the CPU."""
        batch = self.batch(case).double()
        if case.op == "silu_and_mul":
            gate = batch[:, : case.hidden]
            return gate * self.torch.sigmoid(gate) * batch[:, case.hidden :]
        weight = self.weight(case).double()
        if case.op == "rmsnorm":
            return batch * self.torch.rsqrt((batch * batch).mean(dim=-1, keepdim=True) + EPS) * weight
        return batch @ weight

    def row(self, case: Case) -> dict[str, Any]:
        """The numbers of one case. Raises what the kernel raises; ValueError for a wrong shape or type."""
        with self.current(case):
            got = self.computed(case)
        want = self.reference(case)
        if tuple(got.shape) != tuple(want.shape):
            raise ValueError(f"want shape {tuple(want.shape)}, got {tuple(got.shape)}")
        if got.dtype != getattr(self.torch, case.dtype):
            raise ValueError(f"want {case.dtype}, got {got.dtype}")
        return {**asdict(case), **self.difference(got.double(), want, self.tolerance.get(case.op))}

    def difference(self, got: Any, want: Any, tolerance: dict[str, float] | None) -> dict[str, Any]:
        """How far `got` is from `want` over the elements that are finite; both float64."""
        torch = self.torch
        sound = torch.isfinite(got)
        nothing = torch.zeros_like(want)
        error = torch.where(sound, (got - want).abs(), nothing)
        size = want.abs()
        relative = torch.where(size >= RELATIVE_FROM, error / size.clamp(min=RELATIVE_FROM), nothing)
        row = {
            "elements": int(want.numel()),
            "nonfinite": int(want.numel()) - int(sound.sum().item()),
            "max_abs": finite(torch.where(sound, got.abs(), nothing).max().item()),
            "max_abs_error": finite(error.max().item()),
            "max_rel_error": finite(relative.max().item()),
            "worst_ratio": None,
            "tolerance": tolerance,
        }
        if tolerance:
            ratio = error / (size * tolerance["rtol"] + tolerance["atol"])
            row["worst_ratio"] = finite(ratio.max().item())
        return row


def device_facts(torch: Any, index: int) -> dict[str, Any]:
    """Name and compute capability of one GPU as torch sees it."""
    capability = attempt(lambda: torch.cuda.get_device_capability(index))
    return {
        "name": attempt(lambda: str(torch.cuda.get_device_name(index))),
        "capability": ".".join(str(part) for part in capability) if capability else None,
    }


def torch_facts(torch: Any) -> dict[str, Any]:
    """What torch says of itself and of the GPUs."""
    count = attempt(lambda: int(torch.cuda.device_count()), 0)
    arch_list = attempt(lambda: list(torch.cuda.get_arch_list()), [])
    if not arch_list:
        # get_arch_list() is empty without a usable GPU; the build's own flags are there all the same.
        arch_list = attempt(lambda: str(torch._C._cuda_getArchFlags() or ""), "").split()
    nccl = attempt(lambda: ".".join(str(part) for part in torch.cuda.nccl.version()))
    return {
        "version": str(torch.__version__),
        "cuda": attempt(lambda: torch.version.cuda),
        "arch_list": arch_list,
        "device_count": count,
        "devices": [device_facts(torch, index) for index in range(count)],
        "cuda_available": bool(attempt(torch.cuda.is_available, False)),
        "nccl": nccl,
    }


def driver_cuda(torch: Any) -> str | None:
    """The newest CUDA the loaded driver knows, as `13.0`: the driver's own answer, through torch."""
    number = attempt(lambda: int(torch._C._cuda_getDriverVersion()), 0)
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def installed(name: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def package_facts(sgl_kernel: Any) -> dict[str, Any]:
    """Versions of the distributions, and of sgl_kernel as imported: null when it cannot be imported."""
    facts: dict[str, Any] = {name: installed(name) for name in DISTRIBUTIONS}
    own = attempt(lambda: str(sgl_kernel.__version__)) if sgl_kernel else None
    named = facts["sglang-kernel"] or facts["sgl-kernel"]
    facts["sgl_kernel"] = (named or own or "unknown") if sgl_kernel else None
    return facts


def imported(name: str, errors: list[dict[str, Any]]) -> Any:
    """A module, or None with the reason among the errors."""
    try:
        return importlib.import_module(name)
    except BaseException as error:  # a broken native library may raise anything, SystemExit too
        if isinstance(error, KeyboardInterrupt):
            raise
        errors.append({"op": f"import {name}", "dtype": "", "rows": 0, "device": 0, "text": told(error)})
        return None


def cases(settings: dict[str, Any], ops: list[str], devices: int) -> list[Case]:
    """Every op x type x batch on the first device, one small batch of the first type on each other one."""
    hidden = int(settings["hidden"])
    every = [(op, dtype, int(rows)) for op in ops for dtype in settings["dtypes"] for rows in settings["rows"]]
    found = [Case(op, dtype, rows, hidden, 0) for op, dtype, rows in every]
    small = [(op, settings["dtypes"][0], device) for device in range(1, devices) for op in ops]
    return found + [Case(op, dtype, SMALL_BATCH, hidden, device) for op, dtype, device in small]


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """The whole answer."""
    errors: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    torch = imported("torch", errors)
    sgl_kernel = imported("sgl_kernel", errors) if torch else None
    answer: dict[str, Any] = {
        "torch": torch_facts(torch) if torch else None,
        "packages": package_facts(sgl_kernel),
        "driver_cuda": driver_cuda(torch) if torch else None,
        "ops": rows,
        "errors": errors,
    }
    if torch:
        bench = Bench(torch, sgl_kernel, settings)
        devices = answer["torch"]["device_count"] if bench.kind == "cuda" else 1
        for case in cases(settings, [*OPS] if sgl_kernel else ["matmul"], devices):
            try:
                rows.append(bench.row(case))
            except Exception as error:
                errors.append({**asdict(case), "text": told(error)})
    return answer


def settings_from(argument: str) -> dict[str, Any]:
    """The settings of the command line: JSON, or @FILE with JSON in it."""
    text = Path(argument[1:]).read_text("utf-8") if argument.startswith("@") else argument
    settings: dict[str, Any] = json.loads(text)
    return settings


def main(argv: list[str]) -> int:
    """Measure and print."""
    if len(argv) != 1:
        sys.stderr.write("usage: kernels.py '<settings as JSON>' | @FILE\n")
        return 2
    settings = settings_from(argv[0])
    # Libraries print to stdout when they load; only the answer may stand there.
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    text = json.dumps(measure(settings), allow_nan=False)
    with os.fdopen(answer_fd, "w", encoding="utf-8") as out:
        out.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
