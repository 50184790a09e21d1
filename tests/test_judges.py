"""The judge of the kernels: raw numbers in, checks out, also for numbers no sane host sends."""

import math
from typing import Any

import pytest
from judge_samples import HOSTILE, bad, pins

from checks import kernels


def row(op: str, rows: int, **changes: Any) -> dict[str, Any]:
    """One right result."""
    found = {"op": op, "dtype": "bfloat16", "rows": rows, "hidden": 8, "device": 0, "elements": rows * 8}
    return {**found, "nonfinite": 0, "worst_ratio": 0.2, "tolerance": {"rtol": 0.01, "atol": 0.02}, **changes}


def measured(**changes: Any) -> dict[str, Any]:
    """What a healthy host with two GPUs prints."""
    device = {"name": "RTX PRO 6000", "capability": "12.0"}
    torch = {"version": "2.14.1+cu130", "cuda": "13.0", "arch_list": ["sm_90", "sm_120"], "cuda_available": True}
    ops = [row(op, rows) for op in kernels.OPS for rows in (1, 16, 64)] + [row(op, 4, device=1) for op in kernels.OPS]
    return {
        "torch": {**torch, "device_count": 2, "devices": [device, device]},
        "packages": {"sgl_kernel": "0.4.10", "sglang-kernel": "0.4.10", "sgl-kernel": None},
        "driver_cuda": "13.0",
        "ops": ops,
        "errors": [],
        **changes,
    }


def with_torch(**changes: Any) -> dict[str, Any]:
    """The same with another torch."""
    return measured(torch={**measured()["torch"], **changes})


def test_a_healthy_host_is_green() -> None:
    """Every check has positive evidence."""
    found = [*kernels.identity(measured(), pins(), 2, "12.0"), *kernels.accuracy(measured(), pins())]
    assert bad(found) == {}
    assert [check.name for check in found] == [
        "torch version",
        "CUDA of torch",
        "CUDA available to torch",
        "GPUs seen by torch",
        "compute capability",
        "architectures in torch",
        "CUDA of the driver",
        "sgl_kernel imports",
        "matmul bfloat16",
        "rmsnorm bfloat16",
        "silu_and_mul bfloat16",
        "every GPU computes",
    ]
    assert found[8].got == "worst 0.2 of the allowed error, at 1 rows; 648 elements"


@pytest.mark.parametrize(
    ("result", "name", "got"),
    [
        (with_torch(version="2.9.1+cu128"), "torch version", "2.9.1+cu128"),
        (with_torch(cuda="12.8"), "CUDA of torch", "12.8"),
        (with_torch(cuda=None), "CUDA of torch", "no CUDA: a CPU build"),
        (with_torch(cuda_available=False), "CUDA available to torch", "no"),
        (with_torch(device_count=1), "GPUs seen by torch", "1"),
        (
            with_torch(devices=[{"capability": "12.0"}, {"capability": "12.1"}]),
            "compute capability",
            "12.0 on 1, 12.1 on 1",
        ),
        (with_torch(devices=[]), "compute capability", "no GPU"),
        (with_torch(arch_list=["sm_90", "sm_100"]), "architectures in torch", "sm_90 sm_100"),
        (with_torch(arch_list=[]), "architectures in torch", "none"),
        (measured(driver_cuda="12.8"), "CUDA of the driver", "12.8"),
        (measured(driver_cuda=None), "CUDA of the driver", "unknown"),
        (measured(packages={"sgl_kernel": "0.4.9"}), "sgl_kernel imports", "0.4.9"),
        (measured(packages={}), "sgl_kernel imports", "not imported"),
        (measured(packages=None), "sgl_kernel imports", "not imported"),
        (
            measured(packages={"sgl_kernel": None}, errors=[{"op": "import sgl_kernel", "text": "libcudart.so.12"}]),
            "sgl_kernel imports",
            "libcudart.so.12",
        ),
        (
            measured(packages={"sgl_kernel": "0.4.10", "sglang-kernel": "0.4.10", "sgl-kernel": "0.3.21"}),
            "sgl_kernel imports",
            "sglang-kernel and sgl-kernel",
        ),
    ],
)
def test_each_wrong_identity_fails_its_own_check(result: dict[str, Any], name: str, got: str) -> None:
    """What was found is told, with a hint."""
    found = bad(kernels.identity(result, pins(), 2, "12.0"))
    assert name in found
    assert found[name].got == got
    assert found[name].hint


@pytest.mark.parametrize("result", [{}, {"torch": None}, {"torch": "yes"}, {"torch": {"device_count": "8"}}])
def test_without_an_answer_nothing_is_green(result: dict[str, Any]) -> None:
    """Missing or mistyped is a failure, not an exception."""
    assert list(bad(kernels.identity(result, pins(), 2, "12.0"))) == ["torch imports"]
    assert len(bad(kernels.accuracy(result, pins()))) == 4


@pytest.mark.parametrize(
    ("capability", "arch_list", "expected"),
    [
        ("12.0", ["sm_120"], True),
        ("12.0", ["sm_120a"], True),
        ("12.0", ["sm_100", "compute_100"], False),
        ("12.1", ["sm_120"], True),
        ("12.1", ["sm_120a"], False),
        ("8.9", ["sm_80", "sm_86"], True),
        ("8.0", ["sm_86"], False),
        ("9.0", ["sm_90a"], True),
        ("", ["sm_120"], False),
    ],
)
def test_code_of_the_same_major_runs(capability: str, arch_list: list[str], expected: bool) -> None:
    """Binary compatibility within a major, architecture-specific code only exactly."""
    result = with_torch(arch_list=arch_list)
    check = {c.name: c for c in kernels.identity(result, pins(), 2, capability)}["architectures in torch"]
    assert check.ok is expected


def test_a_kernel_wrong_for_small_batches_is_named_as_such() -> None:
    """Cause and next command, in the hint."""
    ops = [row("rmsnorm", 1, worst_ratio=40.0), row("rmsnorm", 16, worst_ratio=55.5), row("rmsnorm", 64)]
    check = bad(kernels.accuracy(measured(ops=ops), pins()))["rmsnorm bfloat16"]
    assert check.got == "worst 55.5 of the allowed error, at 16 rows; 648 elements; wrong at 1, 16 rows"
    assert "only batches of up to 16 rows are wrong" in check.hint
    assert "nox -s upgrade -- --on HOST --from wheels" in check.hint


@pytest.mark.parametrize(
    ("ops", "errors", "said"),
    [
        ([], [], "not checked: 1, 16, 64 rows"),
        ([row("matmul", 1), row("matmul", 16)], [], "not checked: 64 rows"),
        ([row("matmul", 1, elements=0), row("matmul", 16), row("matmul", 64)], [], "not checked: 1 rows"),
        ([row("matmul", 1, nonfinite=3), row("matmul", 16), row("matmul", 64)], [], "3 not finite"),
        ([row("matmul", 1, worst_ratio=None), row("matmul", 16), row("matmul", 64)], [], "wrong at 1 rows"),
        ([row("matmul", 1, worst_ratio=math.nan), row("matmul", 16), row("matmul", 64)], [], "wrong at 1 rows"),
        ([row("matmul", 1, worst_ratio=math.inf), row("matmul", 16), row("matmul", 64)], [], "wrong at 1 rows"),
        ([row("matmul", 1, worst_ratio=-1.0), row("matmul", 16), row("matmul", 64)], [], "wrong at 1 rows"),
        ([row("matmul", 1, worst_ratio="0"), row("matmul", 16), row("matmul", 64)], [], "not checked: 1 rows"),
        ([row("matmul", 1, device=1), row("matmul", 16), row("matmul", 64)], [], "not checked: 1 rows"),
        ([None, "x", {}, row("matmul", 16), row("matmul", 64)], [], "not checked: 1 rows"),
        (
            [row("matmul", 16), row("matmul", 64)],
            [{"op": "matmul", "dtype": "bfloat16", "rows": 1, "device": 0, "text": "CUDA error"}],
            "not checked: 1 rows; raised: CUDA error",
        ),
    ],
)
def test_what_is_not_shown_right_is_wrong(ops: list[Any], errors: list[Any], said: str) -> None:
    """Missing, empty, not finite, mistyped: failed, and told."""
    check = bad(kernels.accuracy(measured(ops=ops, errors=errors), pins()))["matmul bfloat16"]
    assert check.ok is False
    assert said in check.got
    assert check.hint


def test_another_tolerance_cannot_tell() -> None:
    """A ratio to a tolerance that is not pinned any more is no verdict."""
    ops = [row("matmul", rows, tolerance={"rtol": 1.0, "atol": 1.0}) for rows in (1, 16, 64)]
    check = bad(kernels.accuracy(measured(ops=ops), pins()))["matmul bfloat16"]
    assert check.ok is None


def test_one_gpu_that_computes_wrong_is_named() -> None:
    """Of two GPUs, the second: its error is quoted."""
    ops = [row(op, rows) for op in kernels.OPS for rows in (1, 16, 64)]
    errors = [{"op": "matmul", "dtype": "bfloat16", "rows": 4, "device": 1, "text": "CUDA error: uncorrectable ECC"}]
    found = bad(kernels.accuracy(measured(ops=ops, errors=errors), pins()))
    assert list(found) == ["every GPU computes"]
    assert found["every GPU computes"].got == "on 1 of 2; not on 1; GPU 1: CUDA error: uncorrectable ECC"


def test_hostile_text_becomes_one_short_line() -> None:
    """No escape sequences, no line breaks, no page of it."""
    result = with_torch(version=HOSTILE, cuda=HOSTILE, arch_list=[HOSTILE], devices=[{"capability": HOSTILE}])
    result["packages"] = {"sgl_kernel": HOSTILE}
    result["driver_cuda"] = HOSTILE
    for check in kernels.identity(result, pins(), 2, "12.0"):
        assert check.got.isprintable()
        assert len(check.got) < 350


def test_the_script_is_told_what_is_pinned() -> None:
    """Settings hold rows, types, seed and every tolerance."""
    told = kernels.settings(pins())
    assert (told["rows"], told["hidden"], told["dtypes"], told["seed"]) == ([1, 16, 64], 8, ["bfloat16"], 20)
    assert told["tolerance"]["rmsnorm"] == {"rtol": 0.01, "atol": 0.02}
