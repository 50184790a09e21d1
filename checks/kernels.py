"""Judges what checks/remote/kernels.py measured: that it is the pinned torch, and that its kernels are right.

Pure functions from the script's JSON and the pins to checks. What a host says is read with suspicion: a row that
cannot be read, holds no element or is missing never counts as right.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from fleet.model import Check
from fleet.pins import Pins, Tolerance

OPS = ("matmul", "rmsnorm", "silu_and_mul")
READ = "checks/remote/kernels.py"
SMALL_BATCH = 16
"""Rows of a decode batch: kernels often have a variant of their own up to here (flashinfer #3903 was such a fault)."""
KERNEL_PACKAGES = ("sglang-kernel", "sgl-kernel")
LONGEST_TEXT = 300


class Device(msgspec.Struct, frozen=True):
    """One GPU as torch sees it."""

    name: str | None = None
    capability: str | None = None


class Torch(msgspec.Struct, frozen=True):
    """What torch says of itself."""

    version: str = ""
    cuda: str | None = None
    arch_list: list[str] = []
    device_count: int = 0
    devices: list[Device] = []
    cuda_available: bool = False


class Row(msgspec.Struct, frozen=True):
    """One kernel at one shape on one device."""

    op: str
    dtype: str
    rows: int
    device: int
    elements: int
    nonfinite: int
    worst_ratio: float | None = None
    tolerance: dict[str, float] | None = None


class Failure(msgspec.Struct, frozen=True):
    """A kernel, or an import, that raised."""

    op: str
    text: str
    dtype: str = ""
    rows: int = 0
    device: int = 0


def settings(pins: Pins) -> dict[str, Any]:
    """What checks/remote/kernels.py is to do under these pins."""
    tolerance = {op: {"rtol": each.rtol, "atol": each.atol} for op, each in pins.kernels.tolerance.items()}
    return {
        "rows": list(pins.kernels.rows),
        "hidden": pins.kernels.hidden,
        "dtypes": list(pins.kernels.dtypes),
        "seed": pins.kernels.seed,
        "tolerance": tolerance,
    }


def title(result: Mapping[str, Any]) -> str:
    """The measurement in a line: torch, how many comparisons, the worst of them."""
    rows = [row for row in map(_row, _listed(result, "ops")) if row is not None]
    torch = _read(result.get("torch"), Torch) or Torch()
    worst = max((row.worst_ratio for row in rows if row.worst_ratio is not None), default=math.nan)
    return f"torch {_line(torch.version)}, {len(rows)} comparisons with float64, worst at {worst:.0%} of its tolerance"


def identity(result: Mapping[str, Any], pins: Pins, host_gpus: int, capability: str) -> Iterator[Check]:
    """Checks of torch, its CUDA, its code for these GPUs, the driver, and of sgl_kernel against the pins."""
    torch = _read(result.get("torch"), Torch)
    if torch is None:
        got = _import_failure(result, "torch") or "no answer from torch"
        hint = "look at the stage's log; `nox -s wheels -- --on HOST` installs and verifies the wheels"
        yield Check(name="torch imports", want="yes", got=got, ok=False, hint=hint, read=READ)
        return
    yield from _build(torch, pins)
    yield from _gpus(torch, host_gpus, capability)
    yield _driver(result.get("driver_cuda"), torch)
    yield _sgl_kernel(result, pins)


def accuracy(result: Mapping[str, Any], pins: Pins) -> Iterator[Check]:
    """One check per kernel and element type on the first GPU, and one over all GPUs."""
    rows = [row for row in map(_row, _listed(result, "ops")) if row is not None]
    failures = _failures(result)
    for op in OPS:
        for dtype in pins.kernels.dtypes:
            yield _accuracy(op, dtype, rows, failures, pins)
    torch = _read(result.get("torch"), Torch) or Torch()
    yield _every_gpu(torch.device_count, rows, failures, pins)


# -- identity


def _build(torch: Torch, pins: Pins) -> Iterator[Check]:
    want = pins.wheels.packages.get("torch", "")
    if want:
        public = torch.version.partition("+")[0]
        hint = "another torch shadows the locked one; `nox -s wheels -- --on HOST` verifies the venv"
        yield _check("torch version", want, _line(torch.version), public == want, hint)
    major = pins.cuda.version.partition(".")[0]
    got = torch.cuda or "no CUDA: a CPU build"
    hint = f"the wheel was built for another CUDA: wrong index or wrong pin; pin a torch for cu{major}0 in pins.toml"
    yield _check("CUDA of torch", f"{major}.x", _line(got), got.partition(".")[0] == major, hint)
    hint = "the loaded driver is older than torch's CUDA, or no GPU is visible; `nox -s driver -- --on HOST` tells"
    got = "yes" if torch.cuda_available else "no"
    yield _check("CUDA available to torch", "yes", got, torch.cuda_available, hint)


def _gpus(torch: Torch, host_gpus: int, capability: str) -> Iterator[Check]:
    hint = (
        "compare `nvidia-smi -L` with CUDA_VISIBLE_DEVICES; a GPU that fell off the bus is in the kernel log (Xid 79)"
    )
    count = torch.device_count
    yield _check("GPUs seen by torch", str(host_gpus), str(count), host_gpus > 0 and count == host_gpus, hint)
    seen = Counter(_line(device.capability or "unknown") for device in torch.devices)
    got = ", ".join(f"{each} on {times}" for each, times in sorted(seen.items())) or "no GPU"
    ok = count > 0 and seen == {capability: count}
    hint = "the inventory's compute_capability and the GPUs differ"
    yield _check("compute capability", f"{capability} on {host_gpus}", got, ok, hint)
    arch = "sm_" + capability.replace(".", "")
    got = _line(" ".join(torch.arch_list)) or "none"
    hint = (
        f"this torch has no code for {arch}: kernels would fail with `no kernel image is available`; pin another torch"
    )
    yield _check("architectures in torch", arch, got, _covered(torch.arch_list, capability), hint)


def _covered(arch_list: Iterable[str], capability: str) -> bool:
    """Machine code of the same major and no newer minor runs (sm_86 on 8.9); `a` and `f` variants only exactly."""
    major, _, minor = capability.partition(".")
    exact = "sm_" + major + minor
    same = [arch[3:] for arch in arch_list if arch.startswith("sm_" + major)]
    older = [arch for arch in same if arch.isdigit() and arch[:-1] == major and arch[-1:] <= (minor or "0")]
    return bool(older) or any(arch in {exact, exact + "a", exact + "f"} for arch in arch_list)


def _driver(driver_cuda: object, torch: Torch) -> Check:
    major = (torch.cuda or "").partition(".")[0]
    want = f"CUDA {major}.0 or newer"
    hint = "install a newer driver first; `nox -s driver -- --on HOST` names the floor"
    if not isinstance(driver_cuda, str) or not major.isdigit():
        return Check(name="CUDA of the driver", want=want, got="unknown", ok=None, hint=hint, read=READ)
    known = driver_cuda.partition(".")[0]
    ok = known.isdigit() and int(known) >= int(major)
    return _check("CUDA of the driver", want, _line(driver_cuda), ok, hint)


def _sgl_kernel(result: Mapping[str, Any], pins: Pins) -> Check:
    packages = result.get("packages")
    packages = packages if isinstance(packages, Mapping) else {}
    name = next((name for name in KERNEL_PACKAGES if name in pins.wheels.packages), KERNEL_PACKAGES[0])
    want = pins.wheels.packages.get(name, "any version")
    got = packages.get("sgl_kernel")
    if not isinstance(got, str):
        why = _import_failure(result, "sgl_kernel") or "not imported"
        hint = f"a {name} wheel for another CUDA cannot load its libraries; `nox -s wheels -- --on HOST` verifies them"
        return _check("sgl_kernel imports", want, why, False, hint)
    both = [name for name in KERNEL_PACKAGES if packages.get(name)]
    if len(both) > 1:
        hint = "both own the folder sgl_kernel; make the venv again: `nox -s wheels -- --on HOST`"
        return _check("sgl_kernel imports", f"{name} {want} alone", " and ".join(both), False, hint)
    ok = want in {got, "any version"}
    hint = f"`nox -s wheels -- --on HOST` installs the pinned {name}"
    return _check("sgl_kernel imports", want, _line(got), ok, hint)


# -- accuracy


def _accuracy(op: str, dtype: str, rows: list[Row], failures: list[Failure], pins: Pins) -> Check:
    name = f"{op} {dtype}"
    tolerance = pins.kernels.tolerance.get(op)
    if tolerance is None:
        hint = f"add [kernels.tolerance.{op}] to pins.toml"
        return _check(name, "a pinned tolerance", "none", False, hint)
    mine = {row.rows: row for row in rows if (row.op, row.dtype, row.device) == (op, dtype, 0)}
    raised = [each for each in failures if (each.op, each.dtype, each.device) == (op, dtype, 0)]
    missing = [count for count in pins.kernels.rows if count not in mine or mine[count].elements < 1]
    checked = [mine[count] for count in pins.kernels.rows if count not in missing]
    wrong = [row for row in checked if not _right(row)]
    want = f"error <= {tolerance.atol:g} + {tolerance.rtol:g} |x|, rows {_numbers(pins.kernels.rows)}"
    got = "; ".join(_findings(checked, wrong, missing, raised))
    hint = _hint(op, checked, wrong, raised)
    if missing or wrong:
        return _check(name, want, got, False, hint)
    if any(not _same(row.tolerance, tolerance) for row in checked):
        return Check(
            name=name,
            want=want,
            got=got + "; measured against another tolerance",
            ok=None,
            hint="measure again: `nox -s kernels -- --on HOST`",
            read=READ,
        )
    return _check(name, want, got, True)


def _right(row: Row) -> bool:
    return row.nonfinite == 0 and row.worst_ratio is not None and 0.0 <= row.worst_ratio <= 1.0


def _same(used: dict[str, float] | None, pinned: Tolerance) -> bool:
    return used is not None and (used.get("rtol"), used.get("atol")) == (pinned.rtol, pinned.atol)


def _findings(checked: list[Row], wrong: list[Row], missing: list[int], raised: list[Failure]) -> Iterator[str]:
    elements = sum(row.elements for row in checked)
    known = [row for row in checked if row.worst_ratio is not None and math.isfinite(row.worst_ratio)]
    if known:
        worst = max(known, key=lambda row: row.worst_ratio or 0.0)
        yield f"worst {worst.worst_ratio:.3g} of the allowed error, at {worst.rows} rows"
    yield f"{elements} elements"
    if wrong:
        yield f"wrong at {_numbers(row.rows for row in wrong)} rows"
    if lost := sum(row.nonfinite for row in checked):
        yield f"{lost} not finite"
    if missing:
        yield f"not checked: {_numbers(missing)} rows"
    if raised:
        yield f"raised: {_line(raised[0].text)}"


def _hint(op: str, checked: list[Row], wrong: list[Row], raised: list[Failure]) -> str:
    package = "torch" if op == "matmul" else KERNEL_PACKAGES[0]
    then = f"pin another {package} in pins.toml, then `nox -s upgrade -- --on HOST --from wheels`"
    text = " ".join(each.text for each in raised).lower()
    if "no kernel image" in text:
        return f"the {package} wheel has no code for this GPU; {then}"
    if "out of memory" in text:
        return "another process holds the GPU's memory; `nvidia-smi` names it; then `nox -s kernels -- --on HOST`"
    right = [row.rows for row in checked if row not in wrong]
    small = [row.rows for row in wrong]
    if small and right and max(small) <= SMALL_BATCH and max(small) < min(right):
        return (
            f"only batches of up to {max(small)} rows are wrong, the ones decoding uses: the kernel variant for small "
            f"batches is broken on this architecture, larger tests would not see it; {then}"
        )
    if not checked and not raised:
        return "sgl_kernel did not load or the script was stopped: look at the stage's log"
    return f"{op} of {package} computes wrong values on this GPU; {then}"


def _every_gpu(count: int, rows: list[Row], failures: list[Failure], pins: Pins) -> Check:
    wanted = set(range(count))
    bad = {row.device for row in rows if row.elements < 1 or not _right(row)}
    bad |= {failure.device for failure in failures}
    good = {row.device for row in rows if row.elements > 0} - bad
    lost = sorted(wanted - good)
    want = f"right results on all {count} GPUs" if count else "right results on every GPU"
    got = f"on {len(good & wanted)} of {count}" + (f"; not on {_numbers(lost)}" if lost else "")
    why = next((f"; GPU {each.device}: {_line(each.text)}" for each in failures if each.device in lost), "")
    if len(lost) < count:
        hint = "the wheels work on the other GPUs: look at this GPU's hardware (`nvidia-smi -q -i INDEX`, kernel log)"
    else:
        hint = "no GPU computes right: see the checks of the single kernels"
    covered = bool(count) and not lost and bool(pins.kernels.rows)
    return _check("every GPU computes", want, got + why, covered, hint)


# -- reading


def _read(raw: object, kind: type[Any]) -> Any:
    """The raw JSON as that type; None when it is not."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError:
        return None


def _row(raw: object) -> Row | None:
    row: Row | None = _read(raw, Row)
    return row


def _listed(result: Mapping[str, Any], key: str) -> list[Any]:
    found = result.get(key)
    return found if isinstance(found, list) else []


def _failures(result: Mapping[str, Any]) -> list[Failure]:
    read = (_read(raw, Failure) for raw in _listed(result, "errors"))
    return [each for each in read if each is not None and each.op in OPS]


def _import_failure(result: Mapping[str, Any], module: str) -> str:
    for raw in _listed(result, "errors"):
        failure: Failure | None = _read(raw, Failure)
        if failure is not None and failure.op == f"import {module}":
            return _line(failure.text)
    return ""


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(str(value) for value in values)


def _line(text: str) -> str:
    """A host's text on one line, without control characters, not too long."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:LONGEST_TEXT]


def _check(name: str, want: str, got: str, ok: bool, hint: str = "") -> Check:
    return Check(name=name, want=want, got=got, ok=ok, hint="" if ok else hint, read=READ)
