"""Judges what checks/remote/eagle3.py measured: that EAGLE-3 is active, that drafts are accepted, that it pays.

Pure functions from the script's JSON of one or two arms and the pins to checks. A comparison ends in better, same,
worse or cannot tell, and only evidence that leaves no doubt is green.
"""

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

import msgspec

from fleet.model import Check
from fleet.pins import Pins

READ = "checks/remote/eagle3.py"
RESAMPLES = 4000
SEED = 20
FEWEST_PAIRS = 3
"""Fewer paired runs give an interval that looks exact and means nothing."""
TIE = 0.01
BROKEN_DRAFT = 1.1
POOR_DRAFT = 1.6
"""Acceptance lengths: below 1.1 a draft does not fit its target at all; 1.8 to 3.2 is usual for a chain of 3."""
LONGEST_TEXT = 300
SAME_IN_BOTH = (
    "version",
    "model_path",
    "max_running_requests",
    "tp_size",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "context_length",
    "disable_cuda_graph",
    "disable_radix_cache",
)
ARMS = ("without", "with")


class Run(msgspec.Struct, frozen=True):
    """One pass over the prompts."""

    tokens: int
    seconds: float
    tokens_per_s: float | None = None
    verify_ct: int | None = None
    failed: int = 0
    requests: int = 0
    finish_reasons: dict[str, int] = {}


class Failure(msgspec.Struct, frozen=True):
    """Why an arm ended early."""

    what: str
    rc: int | None = None
    log_tail: list[str] = []


class Arm(msgspec.Struct, frozen=True):
    """One server, with or without speculation, measured."""

    arm: Literal["without", "with"]
    runs: list[Run]
    ready_s: float | None = None
    server: dict[str, Any] = {}
    error: Failure | None = None
    cuda_graph: dict[str, int] = {}

    @property
    def samples(self) -> list[float]:
        """Tokens per second of each run; nothing when one of them has none."""
        rates = [run.tokens_per_s or 0.0 for run in self.runs]
        return rates if all(math.isfinite(rate) and rate > 0 for rate in rates) else []

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per verification step over all runs; None where a run does not say."""
        steps = [run.verify_ct or 0 for run in self.runs]
        tokens = sum(run.tokens for run in self.runs)
        return tokens / sum(steps) if steps and all(count > 0 for count in steps) and tokens > 0 else None


class Ratio(NamedTuple):
    """The median of a ratio of paired runs, and its 95 % interval."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def verdict(self) -> str:
        """better, same, worse or cannot tell."""
        if self.pairs < FEWEST_PAIRS:
            return "cannot tell"
        if self.low >= 1 - TIE and self.high <= 1 + TIE:
            return "same"
        if self.low > 1:
            return "better"
        return "worse" if self.high < 1 else "cannot tell"

    def __str__(self) -> str:
        return f"{self.value:.2f} x ({self.low:.2f} to {self.high:.2f}, {self.pairs} pairs): {self.verdict}"


class PlotArm(NamedTuple):
    """One measured arm, for the plot: which stack, its CUDA as `12.8`, when, and the script's JSON."""

    stack: Literal["in use", "new"]
    cuda: str
    measured_at: str
    result: Mapping[str, Any]


def settings(pins: Pins, arm: str, prompts: Sequence[str], cuda_home: str | None) -> dict[str, Any]:
    """What checks/remote/eagle3.py is to do for one arm ("without" or "with") under these pins."""
    if arm not in ARMS:
        raise ValueError(f"want an arm out of {ARMS}, got {arm!r}")
    pinned = pins.eagle3
    return {
        "arm": arm,
        "model": pinned.model,
        "draft": pinned.draft,
        "num_steps": pinned.num_steps,
        "topk": pinned.topk,
        "num_draft_tokens": pinned.num_draft_tokens,
        "args": list(pinned.args),
        "env": dict(pinned.env),
        "runs": pinned.runs,
        "prompts": list(prompts[: pinned.prompts]),
        "max_new_tokens": pinned.max_new_tokens,
        "ready_timeout_s": pinned.ready_timeout_s,
        "timeout_s": pinned.timeout_s,
        "cuda_home": cuda_home,
        "server_log": f"server-{arm}.log",
    }


def arm_of(result: Mapping[str, Any]) -> Arm | None:
    """The script's JSON as an Arm; None when it is not what the script prints."""
    try:
        return msgspec.convert(result, Arm)
    except msgspec.ValidationError:
        return None


def ratio(of: Sequence[float], to: Sequence[float]) -> Ratio | None:
    """The ratio `of / to`, run by run: median and percentile bootstrap interval; None without a pair."""
    pairs = [a / b for a, b in zip(of, to, strict=False)]
    if not pairs:
        return None
    draw = random.Random(SEED)  # noqa: S311  # a fixed seed: the same samples give the same verdict
    middles = sorted(median(draw.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    edge = round(RESAMPLES * 0.025)
    return Ratio(median(pairs), middles[edge], middles[-edge - 1], len(pairs))


# -- one arm


def arm_checks(label: str, result: Mapping[str, Any], pins: Pins) -> Iterator[Check]:
    """Checks that the server ran, generated what was asked, and speculated exactly when told to."""
    arm = arm_of(result)
    if arm is None:
        hint = "the script was stopped or printed something else: look at the stage's log"
        yield _check(f"{label}: measurement", "readable", f"not readable: {_line(str(result))}", False, hint)
        return
    yield _server(label, arm)
    if not arm.runs and arm.error:
        return
    yield _runs(label, arm, pins)
    yield _tokens(label, arm, pins)
    yield from _graphs(label, arm, pins)
    yield from _speculation(label, arm, pins)


def _server(label: str, arm: Arm) -> Check:
    name, want = f"{label}: server", "started, answered, stopped"
    if arm.error is None:
        ready = "" if arm.ready_s is None else f", ready after {arm.ready_s:.1f} s"
        return _check(name, want, want + ready, True)
    said = _telling(arm.error.log_tail)
    rc = "" if arm.error.rc is None else f", exit {arm.error.rc}"
    got = _line(f"{arm.error.what}{rc}" + (f": {said}" if said else ""))
    return _check(name, want, got, False, _server_hint(arm.error))


def _telling(log_tail: list[str]) -> str:
    """The log's last line, or the last one that names an exception: what follows it is only the shutdown."""
    lines = [line for line in log_tail if line.strip()]
    named = [line for line in lines if re.search(r"\w(?:Error|Exception)\b|\berror: ", line)]
    return (named or lines or [""])[-1]


def _server_hint(error: Failure) -> str:
    text = "\n".join(error.log_tail).lower()
    known = {
        "unrecognized arguments": "this SGLang does not know a flag of eagle3.args in pins.toml: remove or rename it",
        "ambiguous option": "this SGLang renamed a flag of eagle3.args in pins.toml: write the new name",
        "no kernel image": "a wheel has no code for this GPU: `nox -s kernels -- --on HOST` names it",
        "out of memory": "lower --mem-fraction-static in eagle3.args, or free the GPUs (`nvidia-smi`)",
        "requires sm90 or sm10x": "remove --enable-flashinfer-allreduce-fusion from eagle3.args: not for this GPU",
        "nvcc": "kernels are compiled at start: the toolkit of the stack must be whole; `nox -s toolkit -- --on HOST`",
    }
    found = next((hint for mark, hint in known.items() if mark in text), "")
    if found:
        return found
    if error.what == "not ready in time":
        return "it hangs, or loads longer than eagle3.ready_timeout_s in pins.toml; the log of the server tells"
    return "the last lines of the server's log are in the stage's facts; then `nox -s eagle3 -- --on HOST`"


def _runs(label: str, arm: Arm, pins: Pins) -> Check:
    prompts = min((run.requests for run in arm.runs), default=0)
    failed = sum(run.failed for run in arm.runs)
    want = f"{pins.eagle3.runs} runs of {pins.eagle3.prompts} prompts, none failed"
    got = f"{len(arm.runs)} runs of {prompts} prompts, {failed or 'none'} failed"
    bad: dict[str, int] = {}
    for run in arm.runs:
        for reason, count in run.finish_reasons.items():
            if reason != "length":
                bad[reason] = bad.get(reason, 0) + count
    if failed and bad:
        got += ": " + _line(", ".join(f"{count} x {reason}" for reason, count in bad.items()))
    ok = len(arm.runs) == pins.eagle3.runs and prompts == pins.eagle3.prompts and not failed
    hint = "a benchmark with failed requests measures nothing; the server's log tells why; NaN means wrong kernels"
    return _check(f"{label}: runs", want, got, ok, hint)


def _tokens(label: str, arm: Arm, pins: Pins) -> Check:
    each = pins.eagle3.prompts * pins.eagle3.max_new_tokens
    counts = sorted({run.tokens for run in arm.runs})
    got = " or ".join(str(count) for count in counts) or "none"
    rates = arm.samples
    if rates:
        got += f", median {median(rates):.1f} tokens/s"
    hint = "the server answers without generating, or ignores ignore_eos: look at its log"
    ok = counts == [each] and bool(rates)
    return _check(f"{label}: tokens per run", str(each), got, ok, hint)


def _graphs(label: str, arm: Arm, pins: Pins) -> Iterator[Check]:
    """Only with evidence from the log, and only where CUDA graphs were not switched off on purpose."""
    switched_off = any("cuda-graph" in arg and "disable" in arg for arg in pins.eagle3.args)
    without, total = arm.cuda_graph.get("false", 0), sum(arm.cuda_graph.values())
    if total and not switched_off:
        got = f"{total - without} of {total} logged decode steps"
        hint = "the batch is larger than the captured graphs, or capture failed: see the server's log"
        yield _check(f"{label}: CUDA graphs in use", "decode runs in graphs", got, without * 10 <= total, hint)


def _speculation(label: str, arm: Arm, pins: Pins) -> Iterator[Check]:
    algorithm = arm.server.get("speculative_algorithm")
    said = _line(str(algorithm)) if algorithm else "none"
    length = arm.acceptance_length
    evidence = "no acceptance length" if length is None else f"acceptance length {length:.2f}"
    got = f"algorithm {said}, {evidence}"
    name = f"{label}: speculation"
    if arm.arm == "without":
        ok = said.lower() == "none" and length is None
        hint = "the baseline must not speculate: remove --speculative-* from eagle3.args and env"
        yield _check(name, "off", got, ok, hint)
        return
    ok = said.upper() == "EAGLE3" and length is not None
    hint = "requested is not active: the server took the flags and does not speculate; look at its log for `disabled`"
    yield _check(name, "EAGLE3 active: drafts verified", got, ok, hint)
    if length is not None:
        yield _acceptance(label, length, pins)


def _acceptance(label: str, length: float, pins: Pins) -> Check:
    most = pins.eagle3.num_steps + 1
    want = f">= {pins.eagle3.min_acceptance_length:g}, at most {most}"
    name = f"{label}: acceptance length"
    if not 1 <= length <= most:
        hint = "impossible: tokens or verification steps were counted wrongly; not a property of the draft"
        return _check(name, want, f"{length:.2f}", False, hint)
    return _check(name, want, f"{length:.2f}", length >= pins.eagle3.min_acceptance_length, _draft_hint(length, pins))


def _draft_hint(length: float, pins: Pins) -> str:
    pair = f"draft {pins.eagle3.draft} and target {pins.eagle3.model}"
    if length < BROKEN_DRAFT:
        return (
            f"{pair} do not fit: no draft token is accepted; check repository, revision and vocabulary map of the draft"
        )
    if length < POOR_DRAFT:
        return f"{pair} fit badly, or wrong hidden states reach the draft: compare revisions, then `nox -s kernels`"
    return "lower than pinned: another draft revision, sampling or prompts; compare with the last good run"


# -- two arms


def comparison(without: Mapping[str, Any], with_: Mapping[str, Any], pins: Pins) -> Iterator[Check]:
    """Checks that both arms are the same server, that EAGLE-3 is faster than without, and fast enough."""
    plain, eagle = arm_of(without), arm_of(with_)
    if plain is None or eagle is None:
        hint = "measure again: `nox -s eagle3 -- --on HOST`"
        yield _check("EAGLE-3 speed-up", "two readable arms", "an arm is not readable", False, hint)
        return
    yield _comparable(plain, eagle)
    yield _speedup(plain, eagle, pins)
    yield _throughput(eagle, pins)


def _comparable(plain: Arm, eagle: Arm) -> Check:
    name, want = "arms are comparable", "the same server but for speculation"
    told = [key for key in SAME_IN_BOTH if key in plain.server or key in eagle.server]
    pairs = [(key, plain.server.get(key), eagle.server.get(key)) for key in told]
    differ = [f"{key} {_line(str(a))} without, {_line(str(b))} with" for key, a, b in pairs if a != b]
    tokens = sum(run.tokens for run in plain.runs), sum(run.tokens for run in eagle.runs)
    if tokens[0] != tokens[1]:
        differ.append(f"tokens {tokens[0]} without, {tokens[1]} with")
    hint = "set the differing ones in eagle3.args of pins.toml: left unset, SGLang chooses by speculation"
    if differ:
        return _check(name, want, "; ".join(differ), False, hint)
    if not told:
        return Check(name=name, want=want, got="the servers did not say", ok=None, hint=hint, read=READ)
    return _check(name, want, f"{len(told)} settings equal", True)


def _speedup(plain: Arm, eagle: Arm, pins: Pins) -> Check:
    name, floor = "EAGLE-3 speed-up", pins.eagle3.min_speedup
    want = f">= {floor:g} x"
    found = ratio(eagle.samples, plain.samples)
    if found is None:
        hint = "an arm has no throughput: see its own checks"
        return _check(name, want, "no pair of runs", False, hint)
    ok: bool | None = None
    if found.pairs >= FEWEST_PAIRS:
        ok = True if found.low >= floor else (False if found.high < floor else None)
    hint = "" if ok else _speedup_hint(found, eagle.acceptance_length, ok)
    return Check(name=name, want=want, got=str(found), ok=ok, hint=hint, read=READ)


def _speedup_hint(found: Ratio, length: float | None, ok: bool | None) -> str:
    if ok is None:
        return "the interval holds the floor: more runs decide; raise eagle3.runs in pins.toml, leave the host idle"
    if length is None:
        return "no acceptance length: speculation may be inactive and only cost time; see the check of speculation"
    if length < BROKEN_DRAFT:
        return (
            f"acceptance length {length:.2f}: the draft does not fit the target, each draft is wasted; fix that first"
        )
    cost = length / found.value
    return (
        f"acceptance length {length:.2f} is sound, so the cost is: one round takes {cost:.1f} plain steps; look at "
        "`cuda graph` in the server's log, all-reduce over PCIe, draft kernels; then fewer eagle3.num_steps"
    )


def _throughput(eagle: Arm, pins: Pins) -> Check:
    floor = pins.eagle3.min_tokens_per_s
    got = f"median {median(eagle.samples):.1f}" if eagle.samples else "no throughput"
    ok = bool(eagle.samples) and median(eagle.samples) >= floor
    hint = "compare clocks, power cap and throttling of the GPUs, then the same model and arguments as the floor's"
    return _check("tokens/s with EAGLE-3", f">= {floor:g}", got, ok, hint)


# -- the plot


def arms_for_plot(measured: Sequence[PlotArm], pins: Pins) -> dict[str, Any]:
    """The facts `arms` and `floor` of the report; arms without a throughput are left out."""
    read = [(each, arm_of(each.result)) for each in measured]
    return {
        "arms": [
            {
                "stack": each.stack,
                "cuda": each.cuda,
                "speculation": arm.arm,
                "tokens_per_s": arm.samples,
                "acceptance_length": arm.acceptance_length,
                "measured_at": each.measured_at,
            }
            for each, arm in read
            if arm is not None and arm.samples
        ],
        "floor": {"tokens_per_s": pins.eagle3.min_tokens_per_s, "speedup": pins.eagle3.min_speedup},
    }


def _line(text: str) -> str:
    """A host's text on one line, without control characters, not too long."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:LONGEST_TEXT]


def _check(name: str, want: str, got: str, ok: bool, hint: str = "") -> Check:
    return Check(name=name, want=want, got=got, ok=ok, hint="" if ok else hint, read=READ)
