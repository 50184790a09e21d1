"""checks/remote/kernels.py, run as a program on the lab's stand-ins for torch and sgl_kernel."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.standins.torch import _number

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "checks/remote/kernels.py"
STANDINS = ROOT / "lab/standins"
TOLERANCE = {op: {"rtol": 0.016, "atol": 0.02} for op in ("matmul", "rmsnorm", "silu_and_mul")}
SETTINGS: dict[str, Any] = {
    "rows": [1, 16, 17],
    "hidden": 16,
    "dtypes": ["bfloat16", "float16"],
    "seed": 20,
    "tolerance": TOLERANCE,
}


def measured(tmp_path: Path, path: Path = STANDINS, settings: dict[str, Any] | None = None, **state: Any) -> Any:
    """The script's answer on a lab host in that state."""
    (tmp_path / "state.json").write_text(json.dumps({"gpus": 2, **state}))
    env = {**os.environ, "PYTHONPATH": str(path), "LAB_STATE": str(tmp_path / "state.json")}
    argv = [sys.executable, str(SCRIPT), json.dumps(settings or SETTINGS)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def wrong(answer: Any) -> set[tuple[str, int, int]]:
    """Which kernels miss the tolerance: (op, rows, device)."""
    return {(row["op"], row["rows"], row["device"]) for row in answer["ops"] if row["worst_ratio"] > 1}


def test_a_healthy_host_is_right_everywhere(tmp_path: Path) -> None:
    """Identity, every op x type x batch on the first GPU, one small batch of each op on the other."""
    answer = measured(tmp_path)
    assert answer["errors"] == []
    assert answer["torch"]["cuda"] == "13.0"
    assert "sm_120" in answer["torch"]["arch_list"]
    assert answer["torch"]["device_count"] == len(answer["torch"]["devices"]) == 2
    assert answer["torch"]["devices"][1]["capability"] == "12.0"
    assert answer["driver_cuda"] == "13.0"
    assert answer["packages"]["sgl_kernel"] == "0.4.10"
    assert [row["device"] for row in answer["ops"]] == [0] * 18 + [1] * 3
    assert wrong(answer) == set()
    assert all(row["nonfinite"] == 0 < row["elements"] for row in answer["ops"])


def test_rounding_is_charged_to_the_result_only(tmp_path: Path) -> None:
    """The stand-in rounds once, so the error is at most half a unit in the last place: 2^-8 and 2^-11."""
    answer = measured(tmp_path, settings={**SETTINGS, "hidden": 64})
    unit = {"bfloat16": 2**-8, "float16": 2**-11}
    normal = [row for row in answer["ops"] if row["op"] == "rmsnorm"]
    assert normal
    assert all(0 < row["max_rel_error"] <= unit[row["dtype"]] * 1.001 for row in normal)


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    """A measurement can be repeated."""
    assert measured(tmp_path)["ops"] == measured(tmp_path)["ops"]


@pytest.mark.parametrize("op", ["matmul", "rmsnorm", "silu_and_mul"])
def test_a_kernel_wrong_for_small_batches_is_seen(tmp_path: Path, op: str) -> None:
    """Wrong up to 16 rows, right above: exactly those rows stand out."""
    answer = measured(tmp_path, kernels={"wrong_op": op, "wrong_rows_up_to": 16})
    assert wrong(answer) == {(op, 1, 0), (op, 16, 0), (op, 4, 1)}


def test_without_tolerance_the_raw_errors_remain(tmp_path: Path) -> None:
    """The ratio is null, the errors are there."""
    answer = measured(tmp_path, settings={**SETTINGS, "tolerance": None})
    assert {row["worst_ratio"] for row in answer["ops"]} == {None}
    assert all(row["max_abs_error"] is not None for row in answer["ops"])


@pytest.mark.parametrize("driver", ["570.124.06", "none"])
def test_a_driver_too_old_is_an_answer(tmp_path: Path, driver: str) -> None:
    """No GPU usable: the facts say so, and each kernel has its error."""
    answer = measured(tmp_path, driver=driver)
    assert answer["torch"]["cuda_available"] is False
    assert answer["torch"]["device_count"] == 0
    assert "sm_120" in answer["torch"]["arch_list"]
    assert answer["ops"] == []
    assert len(answer["errors"]) == 18
    assert "NVIDIA driver" in answer["errors"][0]["text"]


def test_an_architecture_without_code_is_an_error_of_each_kernel(tmp_path: Path) -> None:
    """A capability that this torch was not built for."""
    answer = measured(tmp_path, compute_cap="7.0")
    assert "no kernel image" in answer["errors"][0]["text"]


def test_a_kernel_wheel_that_does_not_load_leaves_matmul(tmp_path: Path) -> None:
    """The import error is quoted once; torch is measured all the same; chatter stays out of stdout."""
    (tmp_path / "sgl_kernel.py").write_text("print('hello')\nraise ImportError('libcudart.so.12: cannot open')\n")
    (tmp_path / "torch").symlink_to(STANDINS / "torch")
    (tmp_path / "state.json").write_text("{}")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "LAB_STATE": str(tmp_path / "state.json")}
    argv = [sys.executable, str(SCRIPT), json.dumps(SETTINGS)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert done.stderr == "hello\n"
    assert [(error["op"], error["text"]) for error in answer["errors"]] == [
        ("import sgl_kernel", "ImportError: libcudart.so.12: cannot open")
    ]
    assert answer["packages"]["sgl_kernel"] is None
    assert {row["op"] for row in answer["ops"]} == {"matmul"}


def test_without_torch_there_is_still_a_document(tmp_path: Path) -> None:
    """Torch is broken: one error, nothing measured."""
    (tmp_path / "torch.py").write_text("raise OSError('libcudnn.so.9: no such file')\n")
    answer = measured(tmp_path, path=tmp_path)
    assert answer["torch"] is None
    assert [error["op"] for error in answer["errors"]] == ["import torch"]


def test_settings_come_from_a_file_too(tmp_path: Path) -> None:
    """`@FILE`, for settings too long for a command line."""
    (tmp_path / "settings.json").write_text(json.dumps({**SETTINGS, "rows": [2], "dtypes": ["float16"]}))
    argv = [sys.executable, str(SCRIPT), f"@{tmp_path / 'settings.json'}"]
    env = {**os.environ, "PYTHONPATH": str(STANDINS), "LAB_STATE": ""}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["ops"]) == 3 + 7 * 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0 + 2**-8, 1.0),  # a tie goes to the even neighbour, here down
        (1.0 + 3 * 2**-8, 1.0 + 2**-6),  # and here up
        (1.0 + 2**-8 + 2**-40, 1.0 + 2**-7),  # just above the tie
        (-2.0 + 2**-9, -2.0),  # carries into the exponent
        (3.4e38, float("inf")),
        (-3.4e38, float("-inf")),
        (2**-133, 2**-133),  # smallest subnormal
        (2**-134, 0.0),
        (0.0, 0.0),
    ],
)
def test_bfloat16_rounds_to_nearest_even(value: float, expected: float) -> None:
    """Golden values of the stand-in's rounding."""
    assert _number.rounded([value], _number.bfloat16) == [expected]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2049.0, 2048.0),
        (2051.0, 2052.0),
        (65504.0, 65504.0),
        (65520.0, float("inf")),
        (2**-25, 0.0),
        (-0.1, -0.0999755859375),
    ],
)
def test_float16_rounds_to_nearest_even(value: float, expected: float) -> None:
    """The same for float16."""
    assert _number.rounded([value], _number.float16) == [expected]


def test_rounding_twice_changes_nothing() -> None:
    """What is a bfloat16 already stays."""
    source = random.Random(1)  # noqa: S311
    values = [source.uniform(-1, 1) * 2.0 ** source.randint(-140, 127) for _ in range(2000)]
    once = _number.rounded(values, _number.bfloat16)
    assert _number.rounded(once, _number.bfloat16) == once
    assert all(abs(a - b) <= max(abs(b) * 2**-8, 2**-134) for a, b in zip(once, values, strict=True))


def test_not_a_number_stays_that() -> None:
    """NaN and infinities survive rounding."""
    nan, inf = _number.rounded([float("nan"), float("inf")], _number.bfloat16)
    assert nan != nan  # noqa: PLR0124
    assert inf == float("inf")
