"""checks/remote/eagle3.py, run as a program against the lab's stand-in for SGLang: real process, real HTTP."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from checks.remote import eagle3

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "checks/remote/eagle3.py"
STANDINS = ROOT / "lab/standins"
FAST = {"without": 4000.0, "with": 6000.0, "acceptance_length": 2.5}
MEASURED = ("speculative_algorithm", "speculative_num_steps", "max_running_requests", "attention_backend", "simulated")


def settings(tmp_path: Path, arm: str, **changes: Any) -> dict[str, Any]:
    """Settings of one quick arm."""
    return {
        "arm": arm,
        "model": "vendor/model",
        "draft": "vendor/draft",
        "num_steps": 3,
        "topk": 1,
        "num_draft_tokens": 4,
        "args": ["--tp-size", "2"],
        "env": {},
        "runs": 2,
        "prompts": ["one", "two"],
        "max_new_tokens": 20,
        "ready_timeout_s": 20,
        "timeout_s": 60,
        "cuda_home": None,
        "server_log": str(tmp_path / "server.log"),
        **changes,
    }


def started(tmp_path: Path, asked: dict[str, Any], fault: str = "", path: str = "") -> subprocess.Popen[str]:
    """The script, running on a lab host with that fault."""
    state = {"server_start_s": 0, "throughput": {"13.0": FAST}, "server": {"fault": fault or None}}
    (tmp_path / "state.json").write_text(json.dumps(state))
    env = {**os.environ, "PYTHONPATH": f"{STANDINS}:{path}", "LAB_STATE": str(tmp_path / "state.json")}
    argv = [sys.executable, str(SCRIPT), json.dumps(asked)]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def measured(tmp_path: Path, asked: dict[str, Any], fault: str = "", path: str = "") -> Any:
    """The script's answer."""
    with started(tmp_path, asked, fault, path) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return json.loads(out)


def test_an_arm_with_eagle3_is_measured(tmp_path: Path) -> None:
    """Tokens, seconds and acceptance of each run; what the server says of itself."""
    answer = measured(tmp_path, settings(tmp_path, "with"))
    assert answer["error"] is None
    assert answer["ready_s"] > 0
    assert [(run["tokens"], run["failed"], run["requests"]) for run in answer["runs"]] == [(40, 0, 2)] * 2
    assert [run["finish_reasons"] for run in answer["runs"]] == [{"length": 2}] * 2
    assert all(run["tokens_per_s"] == run["tokens"] / run["seconds"] for run in answer["runs"])
    assert all(run["acceptance_length"] == run["tokens"] / run["verify_ct"] for run in answer["runs"])
    assert all(2.2 < run["acceptance_length"] < 2.9 for run in answer["runs"])
    assert all(run["cache_flushed"] for run in answer["runs"])
    told = {key: answer["server"][key] for key in MEASURED}
    assert told == {
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 3,
        "max_running_requests": 48,
        "attention_backend": "flashinfer",
        "simulated": True,
    }


def test_an_arm_without_speculation_has_no_acceptance_length(tmp_path: Path) -> None:
    """Missing is null, not 1.0; the same limit on running requests as the other arm."""
    answer = measured(tmp_path, settings(tmp_path, "without"))
    assert [(run["verify_ct"], run["acceptance_length"]) for run in answer["runs"]] == [(None, None)] * 2
    assert answer["server"]["speculative_algorithm"] is None
    assert answer["server"]["max_running_requests"] == 48
    assert "--speculative" not in answer["command"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [([], 1), (["--max-running-requests", "8"], 1), (["--max-running-requests=8"], 0)],
)
def test_the_limit_on_running_requests_is_set_once(tmp_path: Path, args: list[str], expected: int) -> None:
    """The pins' own limit wins."""
    argv = eagle3.command(settings(tmp_path, "without", args=args), 1)
    assert argv.count("--max-running-requests") == expected


def test_an_older_server_is_measured_the_same_way(tmp_path: Path) -> None:
    """0.5.9 names its numbers differently; acceptance comes from what all versions share."""
    info = tmp_path / "old" / "sglang-0.5.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n")
    answer = measured(tmp_path, settings(tmp_path, "with", runs=1), path=str(tmp_path / "old"))
    assert answer["server"]["version"] == "0.5.9"
    assert answer["runs"][0]["acceptance_length"] > 2


def test_a_server_that_dies_is_quoted(tmp_path: Path) -> None:
    """What, the exit status, and the end of its log."""
    error = measured(tmp_path, settings(tmp_path, "with"), "dies_at_load")["error"]
    assert (error["what"], error["rc"]) == ("server died", -signal.SIGKILL)
    assert any("no kernel image is available" in line for line in error["log_tail"])


def test_a_server_that_dies_at_its_first_request_is_not_ready(tmp_path: Path) -> None:
    """Health alone is not enough."""
    answer = measured(tmp_path, settings(tmp_path, "with"), "dies_at_first_request")
    assert (answer["error"]["what"], answer["runs"]) == ("server died", [])


def test_a_server_that_hangs_is_stopped_at_the_deadline(tmp_path: Path) -> None:
    """Not ready in time, and nothing is left of it."""
    answer = measured(tmp_path, settings(tmp_path, "with", ready_timeout_s=0.3), "hangs_at_load")
    assert answer["error"]["what"] == "not ready in time"
    assert answer["ready_s"] is None
    assert server_pids(tmp_path) == []


def test_an_unknown_flag_ends_as_it_does_in_sglang(tmp_path: Path) -> None:
    """Argparse's status 2 and its words."""
    error = measured(tmp_path, settings(tmp_path, "without", args=["--no-such-flag"]))["error"]
    assert (error["what"], error["rc"]) == ("server died", 2)
    assert "unrecognized arguments: --no-such-flag" in error["log_tail"][-1]


def test_a_removed_flag_is_ambiguous(tmp_path: Path) -> None:
    """--cuda-graph-max-bs went in 0.5.20; what argparse says then is ambiguous."""
    error = measured(tmp_path, settings(tmp_path, "without", args=["--cuda-graph-max-bs", "8"]))["error"]
    assert (error["rc"], "ambiguous option" in error["log_tail"][-1]) == (2, True)


def test_no_tokens_is_a_failure_of_the_first_request(tmp_path: Path) -> None:
    """A server that answers 200 with nothing generated is not ready."""
    answer = measured(tmp_path, settings(tmp_path, "without"), "zero_tokens")
    assert answer["error"]["what"] == "first request failed: no tokens (length)"


def test_secrets_stay_on_the_host(tmp_path: Path) -> None:
    """An API key stands in the arguments, the log and, twice, in /server_info: nowhere in the answer."""
    args = ["--api-key", "sesame-1", "--admin-api-key=sesame-2", "--no-such-flag"]
    for asked in (args[:3], args):
        answer = measured(tmp_path, settings(tmp_path, "without", args=asked, runs=1))
        assert "sesame" not in json.dumps(answer)
    assert "sesame" in (tmp_path / "server.log").read_text() + " ".join(args)


def server_pids(tmp_path: Path) -> list[int]:
    """Live stand-in servers whose state is that of this test."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            about = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(tmp_path).encode() in about[0] and b"launch_server" in about[1] and b"eagle3.py" not in about[1]:
            found.append(int(entry.name))
    return found


def until(condition: Any) -> None:
    """Wait for something, a minute at most."""
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it did not happen within a minute")


def test_told_to_stop_it_stops_the_server(tmp_path: Path) -> None:
    """SIGTERM to the script: an answer that says so, and no server left."""
    with started(tmp_path, settings(tmp_path, "with"), "hangs_at_load") as process:
        until(lambda: server_pids(tmp_path))
        process.terminate()
        out, _ = process.communicate(timeout=60)
    assert json.loads(out)["error"]["what"] == "stopped by SIGTERM"
    assert server_pids(tmp_path) == []


def test_killed_it_takes_the_server_along(tmp_path: Path) -> None:
    """SIGKILL gives no chance to clean up: the kernel ends the server."""
    with started(tmp_path, settings(tmp_path, "with"), "hangs_at_load") as process:
        until(lambda: server_pids(tmp_path))
        process.kill()
        process.communicate(timeout=60)
    until(lambda: not server_pids(tmp_path))


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"completion_tokens": 5, "finish_reason": {"type": "length"}}, "length"),
        ({"completion_tokens": 5, "finish_reason": {"type": "stop", "matched": "NaN happened"}}, "NaN happened"),
        ({"completion_tokens": 5, "finish_reason": {"type": "abort", "message": "oom"}}, "abort: oom"),
        ({"completion_tokens": 0, "finish_reason": {"type": "stop"}}, "no tokens (stop)"),
        ({"completion_tokens": "5", "finish_reason": None}, "no tokens (None)"),
        ({}, "no tokens (None)"),
    ],
)
def test_each_finish_reason_is_told(meta: dict[str, Any], expected: str) -> None:
    """Only the first has numbers worth counting."""
    answer = eagle3.judged(meta, 1.0)
    assert (answer["reason"], "meta" in answer) == (expected, expected == "length")


def test_zero_verification_steps_are_no_evidence() -> None:
    """0.5.6 and 0.5.7 send zeros without speculation; one answer without steps spoils the run's average."""
    tally = eagle3.Tally()
    tally.add({"reason": "length", "seconds": 1.0, "meta": {"completion_tokens": 10, "spec_verify_ct": 4}})
    assert tally.row()["acceptance_length"] == 2.5
    tally.add({"reason": "length", "seconds": 1.0, "meta": {"completion_tokens": 10, "spec_verify_ct": 0}})
    assert (tally.row()["acceptance_length"], tally.row()["verify_ct"]) == (None, None)


def test_a_run_without_success_has_no_rate() -> None:
    """Null, not zero and not a division by zero."""
    tally = eagle3.Tally()
    tally.add({"reason": "error: http 500"})
    assert (tally.row()["tokens_per_s"], tally.row()["failed"]) == (None, 1)


def test_the_log_tells_of_graphs_and_warnings(tmp_path: Path) -> None:
    """Counts of decode lines, distinct warnings without their prefix, no ServerArgs, no secrets."""
    log = tmp_path / "log"
    log.write_text(
        "[2026-11-30 01:00:00 TP0] server_args=ServerArgs(disable_cuda_graph=False, warn='x')\n"
        "[2026-11-30 01:00:00 TP0] Decode batch, #running-req: 1, cuda graph: True, gen throughput (token/s): 9\n"
        "[2026-11-30 01:00:01 TP0] Decode batch. #running-req: 1, cuda graph: False, gen throughput (token/s): 9\n"
        "[2026-11-30 01:00:02 TP0] Custom allreduce is disabled because of PCIe\n"
        "[2026-11-30 01:00:02 TP1] Custom allreduce is disabled because of PCIe\n"
        "[2026-11-30 01:00:03] WARNING: api_key='sesame' is weak\n"
    )
    assert eagle3.log_facts(log) == (
        ["Custom allreduce is disabled because of PCIe", "WARNING: api_key='***' is weak"],
        {"true": 1, "false": 1},
    )


def test_kernels_find_the_toolkit_of_the_stack(tmp_path: Path) -> None:
    """CUDA_HOME, and nvcc and ninja before everything else on PATH; the pins' own environment wins."""
    asked = settings(tmp_path, "with", cuda_home="/opt/cuda-13", env={"NCCL_P2P_LEVEL": "SYS"})
    env = eagle3.environment(asked)
    folders = env["PATH"].split(":")
    assert (env["CUDA_HOME"], env["NCCL_P2P_LEVEL"]) == ("/opt/cuda-13", "SYS")
    assert folders[:2] == ["/opt/cuda-13/bin", str(Path(sys.executable).parent)]
