"""The judge of EAGLE-3: raw numbers in, checks out, also for numbers no sane host sends."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from judge_samples import HOSTILE, bad, pins

from checks import eagle3
from fleet.model import Check

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


def test_the_prompts_are_many_different_and_neither_short_nor_long() -> None:
    """20 prompts of 30 to 120 words, no two alike."""
    prompts = json.loads((Path(eagle3.__file__).parent / "data/prompts.json").read_text("utf-8"))["prompts"]
    assert len(prompts) == len(set(prompts)) == 20
    assert all(30 <= len(prompt.split()) <= 120 for prompt in prompts)
