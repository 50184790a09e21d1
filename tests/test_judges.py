"""The judges of kernels and EAGLE-3: raw numbers in, checks out, also for numbers no sane host sends."""

import math
from pathlib import Path
from typing import Any

import pytest

from checks import eagle3, kernels
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
            tolerance={op: tolerance for op in kernels.OPS},
        ),
        eagle3=Eagle3(model="m", draft="d", num_steps=3, topk=1, num_draft_tokens=4, **gates),
        lock="",
        digest="",
        stack="",
    )


def bad(checks: Any) -> dict[str, Check]:
    """The checks that are not green, by name."""
    return {check.name: check for check in checks if check.ok is not True}


# -- kernels


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


# -- EAGLE-3

SERVER = {"version": "0.5.23", "max_running_requests": 48, "tp_size": 8, "kv_cache_dtype": "auto"}


def run(rate: float | None, steps: int | None = None, **changes: Any) -> dict[str, Any]:
    """One run of two prompts with ten tokens each."""
    found = {"tokens": 20, "seconds": 20 / rate if rate else 0.0, "tokens_per_s": rate, "verify_ct": steps}
    return {**found, "failed": 0, "requests": 2, "finish_reasons": {"length": 2}, **changes}


def arm(name: str, rates: list[float], steps: int | None = None, **changes: Any) -> dict[str, Any]:
    """A whole measurement."""
    algorithm = "EAGLE3" if name == "with" else None
    found = {"arm": name, "ready_s": 1.0, "runs": [run(rate, steps) for rate in rates], "error": None}
    return {**found, "server": {**SERVER, "speculative_algorithm": algorithm}, "cuda_graph": {"true": 9}, **changes}


WITHOUT = arm("without", [92.0, 92.4, 92.8])
WITH = arm("with", [121.0, 122.0, 123.0], 8)


def test_two_good_arms_are_green() -> None:
    """Server, runs, tokens, graphs, speculation, acceptance; then the comparison."""
    p = pins()
    assert bad(eagle3.arm_checks("without", WITHOUT, p)) == {}
    assert bad(eagle3.arm_checks("with", WITH, p)) == {}
    found = list(eagle3.comparison(WITHOUT, WITH, p))
    assert bad(found) == {}
    assert [check.name for check in found] == ["arms are comparable", "EAGLE-3 speed-up", "tokens/s with EAGLE-3"]
    assert found[1].got == "1.32 x (1.32 to 1.33, 3 pairs): better"


def broken(arm_name: str, **changes: Any) -> dict[str, Check]:
    """What is not green about a changed arm."""
    base = WITH if arm_name == "with" else WITHOUT
    return bad(eagle3.arm_checks("new", {**base, **changes}, pins()))


@pytest.mark.parametrize(
    ("changes", "name", "said"),
    [
        ({"runs": []}, "new: runs", "0 runs of 0 prompts"),
        ({"runs": WITH["runs"][:2]}, "new: runs", "2 runs of 2 prompts"),
        ({"runs": [run(1.0, 8, requests=1)] * 3}, "new: runs", "3 runs of 1 prompts"),
        (
            {"runs": [run(1.0, 8, failed=1, finish_reasons={"length": 1, "NaN happened": 1})] * 3},
            "new: runs",
            "3 failed: 3 x NaN happened",
        ),
        ({"runs": [run(None, 8, tokens=0)] * 3}, "new: tokens per run", "0"),
        ({"runs": [run(math.nan, 8)] * 3}, "new: tokens per run", "20"),
        ({"runs": [run(90.0, 8, tokens=19)] * 3}, "new: tokens per run", "19"),
        ({"cuda_graph": {"true": 1, "false": 9}}, "new: CUDA graphs in use", "1 of 10"),
        ({"runs": [run(90.0)] * 3}, "new: speculation", "algorithm EAGLE3, no acceptance length"),
        ({"server": SERVER}, "new: speculation", "algorithm none, acceptance length 2.50"),
        ({"server": {"speculative_algorithm": HOSTILE}}, "new: speculation", "algorithm [31m<script>"),
        ({"runs": [run(90.0, 20)] * 3}, "new: acceptance length", "1.00"),
        ({"runs": [run(90.0, 4)] * 3}, "new: acceptance length", "5.00"),
        ({"runs": [run(90.0, 40)] * 3}, "new: acceptance length", "0.50"),
    ],
)
def test_each_fault_of_an_arm_fails_its_own_check(changes: dict[str, Any], name: str, said: str) -> None:
    """What was found is told, with a hint, on one printable line."""
    check = broken("with", **changes)[name]
    assert check.ok is False
    assert said in check.got
    assert check.hint
    assert check.got.isprintable()


@pytest.mark.parametrize(
    ("steps", "said"),
    [(20, "do not fit"), (15, "fit badly"), (4, "counted wrongly")],
)
def test_the_acceptance_length_tells_the_cause(steps: int, said: str) -> None:
    """Near 1: the wrong draft; low: a poor one; beyond steps + 1: a counting error."""
    assert said in broken("with", runs=[run(90.0, steps)] * 3)["new: acceptance length"].hint


def test_a_baseline_that_speculates_is_no_baseline() -> None:
    """By the server's word or by evidence."""
    assert "new: speculation" in broken("without", server={**SERVER, "speculative_algorithm": "EAGLE3"})
    assert "new: speculation" in broken("without", runs=[run(90.0, 8)] * 3)


def test_graphs_switched_off_on_purpose_are_no_fault() -> None:
    """The pins asked for it."""
    p = pins(args=["--disable-cuda-graph"])
    result = {**WITH, "cuda_graph": {"false": 9}}
    assert bad(eagle3.arm_checks("new", result, p)) == {}


def test_a_dead_server_is_quoted_with_its_exception() -> None:
    """The line that names the error, not the shutdown that follows it; no further checks without runs."""
    tail = ["RuntimeError: CUDA error: no kernel image is available", "Received sigquit from a child process."]
    found = broken("with", runs=[], error={"what": "server died", "rc": -9, "log_tail": tail})
    assert list(found) == ["new: server"]
    check = found["new: server"]
    assert check.got == "server died, exit -9: RuntimeError: CUDA error: no kernel image is available"
    assert "nox -s kernels" in check.hint


@pytest.mark.parametrize(
    ("what", "line", "said"),
    [
        ("server died", "launch_server.py: error: unrecognized arguments: --x", "eagle3.args"),
        ("server died", "error: ambiguous option: --cuda-graph-max-bs", "renamed"),
        ("not ready in time", "Load weight begin.", "eagle3.ready_timeout_s"),
        ("server died", HOSTILE, "nox -s eagle3"),
    ],
)
def test_why_a_server_did_not_start_leads_to_a_next_step(what: str, line: str, said: str) -> None:
    """A hint for each known cause, and one for the rest."""
    check = broken("with", runs=[], error={"what": what, "log_tail": [line]})["new: server"]
    assert said in check.hint
    assert check.got.isprintable()
    assert len(check.got) <= 300


@pytest.mark.parametrize(
    "result",
    [{}, {"arm": "with"}, {"arm": "both", "runs": []}, {"arm": "with", "runs": [{"tokens": "20"}]}, {"x": HOSTILE}],
)
def test_an_unreadable_arm_is_red_everywhere(result: dict[str, Any]) -> None:
    """Never an exception, never green."""
    found = list(eagle3.arm_checks("new", result, pins()))
    assert [(check.name, check.ok) for check in found] == [("new: measurement", False)]
    assert [check.ok for check in eagle3.comparison(result, WITH, pins())] == [False]
    assert [check.ok for check in eagle3.comparison(WITHOUT, result, pins())] == [False]
    assert eagle3.arms_for_plot([eagle3.PlotArm("new", "13.0", "now", result)], pins())["arms"] == []


@pytest.mark.parametrize(
    ("rates", "ok", "verdict"),
    [
        ([110.0, 111.0, 112.0], True, "better"),
        ([92.0, 92.4, 92.8], True, "same"),
        ([54.0, 54.1, 54.2], False, "worse"),
        ([80.0, 92.0, 105.0], None, "cannot tell"),
        ([110.0, 111.0], None, "cannot tell"),
        ([], False, ""),
    ],
)
def test_the_speed_up_ends_in_one_of_four_words(rates: list[float], ok: bool | None, verdict: str) -> None:
    """The lower bound makes it green, the upper bound red, neither: more runs."""
    found = {c.name: c for c in eagle3.comparison(WITHOUT, arm("with", rates, 8), pins())}["EAGLE-3 speed-up"]
    assert found.ok is ok
    assert found.got.endswith(verdict)
    assert bool(found.hint) is (ok is not True)


@pytest.mark.parametrize(
    ("steps", "said"),
    [(8, "one round takes 4.3 plain steps"), (20, "does not fit the target"), (None, "no acceptance length")],
)
def test_the_pair_of_speed_up_and_acceptance_tells_the_cause(steps: int | None, said: str) -> None:
    """At 0.585 x: with 2.5 accepted tokens the cost is to blame, with 1.0 the draft."""
    slow = arm("with", [54.0, 54.1, 54.2], steps)
    assert said in bad(eagle3.comparison(WITHOUT, slow, pins()))["EAGLE-3 speed-up"].hint


def test_cannot_tell_asks_for_more_runs() -> None:
    """Unknown is never green, and says what would decide."""
    check = bad(eagle3.comparison(WITHOUT, arm("with", [80.0, 92.0, 105.0], 8), pins()))["EAGLE-3 speed-up"]
    assert "eagle3.runs" in check.hint


def test_servers_that_differ_are_not_compared() -> None:
    """48 running requests with speculation, 2048 without: not the same server."""
    other = {**WITH, "server": {**WITH["server"], "max_running_requests": 2048}}
    check = bad(eagle3.comparison(WITHOUT, other, pins()))["arms are comparable"]
    assert (check.ok, check.got) == (False, "max_running_requests 48 without, 2048 with")


def test_servers_that_say_nothing_cannot_be_compared() -> None:
    """No evidence: unknown."""
    check = bad(eagle3.comparison({**WITHOUT, "server": {}}, {**WITH, "server": {}}, pins()))["arms are comparable"]
    assert check.ok is None


def test_the_floor_is_on_the_median() -> None:
    """Two of three below: red."""
    found = bad(eagle3.comparison(arm("without", [50.0] * 3), arm("with", [80.0, 90.0, 130.0], 8), pins()))
    assert found["tokens/s with EAGLE-3"].got == "median 90.0"


def test_the_interval_is_that_of_the_samples() -> None:
    """Golden values of the bootstrap: the same samples give the same interval; one pair is no interval."""
    found = eagle3.ratio([1.2, 1.3, 1.1, 1.25, 1.15], [1.0] * 5)
    assert found == (1.2, 1.1, 1.3, 5)
    assert eagle3.ratio([1.0], []) is None
    assert eagle3.Ratio(2.0, 2.0, 2.0, 1).verdict == "cannot tell"


def test_the_plot_gets_samples_acceptance_and_floor() -> None:
    """One row for each arm with a throughput."""
    measured_arms = [
        eagle3.PlotArm("in use", "12.8", "2026-01-01T00:00:00Z", WITHOUT),
        eagle3.PlotArm("new", "13.0", "2026-01-01T00:01:00Z", WITH),
        eagle3.PlotArm("new", "13.0", "2026-01-01T00:02:00Z", {**WITH, "runs": []}),
    ]
    facts = eagle3.arms_for_plot(measured_arms, pins())
    assert facts["floor"] == {"tokens_per_s": 90.2, "speedup": 1.0}
    assert facts["arms"][1] == {
        "stack": "new",
        "cuda": "13.0",
        "speculation": "with",
        "tokens_per_s": [121.0, 122.0, 123.0],
        "acceptance_length": 2.5,
        "measured_at": "2026-01-01T00:01:00Z",
    }
    assert [row["acceptance_length"] for row in facts["arms"]] == [None, 2.5]


def test_the_script_is_told_both_arms_alike() -> None:
    """But for the arm's name and log, the settings are equal; an unknown arm is refused."""
    plain = eagle3.settings(pins(), "without", ["a", "b", "c"], None)
    eagle = eagle3.settings(pins(), "with", ["a", "b", "c"], None)
    assert {key for key in plain if plain[key] != eagle[key]} == {"arm", "server_log"}
    assert plain["prompts"] == ["a", "b"]
    with pytest.raises(ValueError, match="want an arm"):
        eagle3.settings(pins(), "both", [], None)
