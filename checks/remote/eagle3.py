"""Starts SGLang, measures output tokens per second and acceptance length with or without EAGLE-3, stops it.

    <venv>/bin/python eagle3.py '<settings as JSON>'      (or @FILE)

Stand-alone: the standard library, and `sglang.launch_server` of the interpreter that runs it; Python 3.9 or newer.
Settings: "arm" ("without" or "with"), "model", "draft", "num_steps", "topk", "num_draft_tokens", "args", "env", "runs",
"prompts" (texts), "max_new_tokens", "ready_timeout_s", "timeout_s", "cuda_home" (or null), "server_log". One JSON
document on stdout, raw numbers only. Exit 0 whenever it was printed; the server is stopped in any case.

One request at a time through POST /generate, temperature 0 and ignore_eos, so that both arms make equally many
tokens. Seconds are wall time, prefill included. Tokens come from meta_info.completion_tokens: under speculation one
chunk carries several. Acceptance length is tokens over spec_verify_ct, both summed; without the latter null, not 1.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

# Left unset, SGLang takes 48 with speculation and far more without: the arms would be two different servers.
RUNNING_REQUESTS = ("--max-running-requests", "48")
REQUEST_TIMEOUT_S, POLL_S = 600.0, (0.05, 1.0)
# SGLang ends its own children after about 6 s; whoever stops this script waits 10 s.
STOPPING = ((signal.SIGTERM, 8.0), (signal.SIGKILL, 1.0))
TAIL_LINES, TAIL_BYTES = 20, 1 << 16
MOST_WARNINGS, LONGEST_LINE = 30, 300
# A list of what to keep, not of what to hide: /server_info repeats every argument, API keys among them.
SERVER_KEYS = re.compile(
    r"version|simulated|model_path|\w*attention_backend|max_\w+|mem_fraction_static|kv_cache_dtype|dtype|quantization"
    r"|context_length|tp_size|dp_size|page_size|chunked_prefill_size|(?:speculative|disable|enable)_\w+"
)
STATE_KEYS = ("avg_spec_accept_length", "effective_max_running_requests_per_dp")
SECRET = re.compile(r"((?:api[-_]key|\w+[-_]token|password|secret)['\"]?\s*[=: ]\s*)(['\"]?)[^\s'\",)]+", re.IGNORECASE)
WARNING = re.compile(r"\bwarn|disabl(?:ed|ing)|fall(?:s|ing)?[ -]?back|not supported|deprecated|\bnan\b", re.I)
CUDA_GRAPH = re.compile(r"Decode batch.*cuda graph: (True|False)")
PREFIX = re.compile(r"^\[[^\]]*\]\s*")


class Fault(Exception):
    """What ends the measurement of this arm early."""


def redacted(text: str) -> str:
    """The text with the values of keys and tokens hidden."""
    return SECRET.sub(r"\1\2***", text)


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies: no server survives the measurement."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG of <linux/prctl.h>


def command(settings: dict[str, Any], port: int) -> list[str]:
    """The server's command line for this arm."""
    argv = [sys.executable, "-m", "sglang.launch_server", "--model-path", settings["model"]]
    argv += ["--host", "127.0.0.1", "--port", str(port), *settings["args"]]
    if not any(arg.split("=")[0] == RUNNING_REQUESTS[0] for arg in settings["args"]):
        argv += RUNNING_REQUESTS
    if settings["arm"] == "with":
        argv += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", settings["draft"]]
        for flag, key in (("num-steps", "num_steps"), ("eagle-topk", "topk"), ("num-draft-tokens", "num_draft_tokens")):
            argv += [f"--speculative-{flag}", str(settings[key])]
    return argv


def environment(settings: dict[str, Any]) -> dict[str, str]:
    """The server's environment: kernels are compiled at run time, so nvcc and ninja must be on PATH."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    folders = [str(Path(sys.executable).parent), env.get("PATH", os.defpath)]
    if settings.get("cuda_home"):
        env["CUDA_HOME"] = settings["cuda_home"]
        folders.insert(0, settings["cuda_home"] + "/bin")
    env["PATH"] = os.pathsep.join(folders)
    return {**env, **settings["env"]}


@dataclass
class Server:
    """A running server: its process group, its port, its log."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    ends_at: float

    def ask(self, method: str, path: str, body: Any = None, timeout_s: float = 30.0) -> tuple[int, bytes]:
        """Status and body of one request. Raises OSError or HTTPException when the connection fails."""
        left_s = self.ends_at - time.monotonic()
        if left_s <= 0:
            raise Fault("out of time")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=min(timeout_s, left_s))
        try:
            sent = None if body is None else json.dumps(body).encode()
            connection.request(method, path, body=sent, headers={"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def require_alive(self) -> None:
        """Raise Fault when the server has exited."""
        if self.process.poll() is not None:
            in_use = any("address already in use" in line.lower() for line in tail(self.log))
            raise Fault("port taken" if in_use else "server died")

    def gone(self) -> bool:
        """Neither the server nor anything it started in its process group is left."""
        if self.process.poll() is None:
            return False
        try:
            os.killpg(self.process.pid, 0)
        except OSError:
            return True
        return False

    def stop(self) -> None:
        """End the whole process group: politely, then for good."""
        for number, patience_s in STOPPING:
            try:
                os.killpg(self.process.pid, number)
            except OSError:
                break
            ends_at = time.monotonic() + patience_s
            while not self.gone() and time.monotonic() < ends_at:
                time.sleep(POLL_S[0])
        self.process.wait(5.0)


def start(settings: dict[str, Any], argv: list[str], port: int) -> Server:
    """Start the server in a process group of its own."""
    log = Path(settings["server_log"])
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment(settings),
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # this script has no threads
        )
    return Server(process, port, log, time.monotonic() + settings["timeout_s"])


def tail(log: Path) -> list[str]:
    """The last lines of the server's log, without secrets."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return [redacted(line)[:LONGEST_LINE] for line in lines if line.strip()][-TAIL_LINES:]


def log_facts(log: Path) -> tuple[list[str], dict[str, int]]:
    """Distinct warnings of the log, and how many decode lines ran with and without CUDA graphs."""
    warnings: dict[str, None] = {}
    graphs: Counter[str] = Counter()
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            found = CUDA_GRAPH.search(line)
            if found:
                graphs[found.group(1).lower()] += 1
            elif WARNING.search(line) and "ServerArgs(" not in line:
                warnings[redacted(PREFIX.sub("", line.strip()))[:LONGEST_LINE]] = None
    return list(warnings)[:MOST_WARNINGS], dict(graphs)


def parsed(body: bytes) -> Any:
    """A JSON body, with null for the NaN and Infinity that JSON does not have. Raises ValueError."""
    return json.loads(body, parse_constant=lambda _: None)


def healthy(server: Server) -> bool:
    """GET /health says 200."""
    try:
        return server.ask("GET", "/health")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def wait_until_ready(server: Server, settings: dict[str, Any]) -> None:
    """Return when the server is healthy and has generated something: some die at the first request."""
    ends_at = time.monotonic() + settings["ready_timeout_s"]
    pause_s = POLL_S[0]
    while not healthy(server):
        server.require_alive()
        if time.monotonic() >= ends_at:
            raise Fault("not ready in time")
        time.sleep(pause_s)
        pause_s = min(POLL_S[1], pause_s * 1.3)
    answer = generated(server, settings["prompts"][0], 8)
    if "meta" not in answer:
        raise Fault(f"first request failed: {answer['reason']}")


def generated(server: Server, prompt: str, tokens: int) -> dict[str, Any]:
    """One request: {"seconds", "meta", "reason"}, or only {"reason"} when it failed."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    began = time.perf_counter()
    try:
        status, body = server.ask("POST", "/generate", {"text": prompt, "sampling_params": sampling}, REQUEST_TIMEOUT_S)
        seconds = time.perf_counter() - began
        meta = parsed(body)["meta_info"] if status == 200 else None
    except (OSError, http.client.HTTPException) as error:
        settle(server)
        return {"reason": f"error: {type(error).__name__}"}
    except (ValueError, KeyError, TypeError) as error:
        return {"reason": f"error: unreadable answer: {type(error).__name__}"}
    if not isinstance(meta, dict):
        return {"reason": f"error: http {status}"}
    return judged(meta, seconds)


def settle(server: Server) -> None:
    """After a broken connection: give a dying server the time to be seen dead."""
    try:
        server.process.wait(1.0)
    except subprocess.TimeoutExpired:
        return
    server.require_alive()


def judged(meta: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The answer with its finish reason; without its numbers when nothing usable was generated."""
    finish = meta.get("finish_reason")
    finish = finish if isinstance(finish, dict) else {"type": finish}
    reason = str(finish.get("type"))
    if finish.get("matched") == "NaN happened":
        return {"reason": "NaN happened"}
    if reason == "abort":
        return {"reason": f"abort: {finish.get('message')}"[:LONGEST_LINE]}
    if not isinstance(meta.get("completion_tokens"), int) or meta["completion_tokens"] < 1:
        return {"reason": f"no tokens ({reason})"}
    return {"reason": reason, "meta": meta, "seconds": seconds}


@dataclass
class Tally:
    """The sums of one run over the prompts."""

    tokens: int = 0
    seconds: float = 0.0
    verify_ct: int = 0
    unverified: int = 0
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, answer: dict[str, Any]) -> None:
        """Count one answer."""
        self.reasons[answer["reason"]] += 1
        if "meta" not in answer:
            self.failed += 1
            return
        self.tokens += answer["meta"]["completion_tokens"]
        self.seconds += answer["seconds"]
        steps = answer["meta"].get("spec_verify_ct")
        # 0.5.6 and 0.5.7 send 0 when there is no speculation: no evidence either.
        if isinstance(steps, int) and steps > 0:
            self.verify_ct += steps
        else:
            self.unverified += 1

    def row(self) -> dict[str, Any]:
        """The run as JSON."""
        known = self.verify_ct > 0 and not self.unverified
        return {
            "requests": sum(self.reasons.values()),
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_s": self.tokens / self.seconds if self.seconds else None,
            "verify_ct": self.verify_ct if known else None,
            "acceptance_length": self.tokens / self.verify_ct if known else None,
            "failed": self.failed,
            "finish_reasons": dict(self.reasons),
        }


def flushed(server: Server) -> bool:
    """The prefix cache is empty; a server that is still busy with the last request says 400."""
    for _ in range(5):
        try:
            if server.ask("POST", "/flush_cache")[0] == 200:
                return True
        except (OSError, http.client.HTTPException):
            settle(server)
        time.sleep(POLL_S[0])
    return False


def measured_run(server: Server, settings: dict[str, Any]) -> dict[str, Any]:
    """All prompts once, one at a time."""
    server.require_alive()
    emptied = flushed(server)
    tally = Tally()
    for prompt in settings["prompts"]:
        server.require_alive()
        tally.add(generated(server, prompt, settings["max_new_tokens"]))
    return {**tally.row(), "cache_flushed": emptied}


def server_facts(server: Server) -> dict[str, Any]:
    """What /server_info says of the settings that count (/get_server_info before 0.5.6)."""
    for path in ("/server_info", "/get_server_info"):
        try:
            status, body = server.ask("GET", path)
            info = parsed(body) if status == 200 else None
        except (OSError, http.client.HTTPException, ValueError):
            continue
        if isinstance(info, dict):
            states = info.get("internal_states")
            inner = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
            kept = {key: value for key, value in info.items() if SERVER_KEYS.fullmatch(key)}
            return {**kept, **{key: inner[key] for key in STATE_KEYS if key in inner}}
    return {}


def measure(server: Server, settings: dict[str, Any], answer: dict[str, Any]) -> None:
    """Fill the answer while the server lives. Raises Fault when it can go no further."""
    began = time.monotonic()
    wait_until_ready(server, settings)
    answer["ready_s"] = time.monotonic() - began
    answer["server"] = server_facts(server)
    # The first run compiles kernels and fills caches; its numbers are not used.
    measured_run(server, settings)
    for _ in range(settings["runs"]):
        answer["runs"].append(measured_run(server, settings))
    answer["server"] = server_facts(server) or answer["server"]


def on_signals(action: Any) -> None:
    """What to do when told to stop."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, action)


def stopped_by(number: int, _frame: Any) -> NoReturn:
    """Turn a signal into the end of the measurement, so that the server is stopped."""
    raise Fault(f"stopped by {signal.Signals(number).name}")


def arm_answer(settings: dict[str, Any]) -> dict[str, Any]:
    """The whole answer of this arm."""
    port = free_port()
    argv = command(settings, port)
    answer: dict[str, Any] = {
        "arm": settings["arm"],
        "command": redacted(" ".join(argv)),
        "prompts": len(settings["prompts"]),
        "ready_s": None,
        "runs": [],
        "server": {},
        "error": None,
    }
    early: list[int] = []
    on_signals(lambda number, _frame: early.append(number))  # until there is a server to stop
    server = start(settings, argv, port)
    try:
        on_signals(stopped_by)
        for number in early:
            stopped_by(number, None)
        measure(server, settings, answer)
    except Fault as fault:
        lines = tail(server.log)
        answer["error"] = {"what": str(fault), "rc": server.process.poll(), "log_tail": lines}
    finally:
        on_signals(signal.SIG_IGN)
        server.stop()
    answer["log_warnings"], answer["cuda_graph"] = log_facts(server.log)
    return answer


def main(argv: list[str]) -> None:
    """Measure and print."""
    if len(argv) != 1:
        raise SystemExit("usage: eagle3.py '<settings as JSON>' | @FILE")
    text = Path(argv[0][1:]).read_text("utf-8") if argv[0].startswith("@") else argv[0]
    sys.stdout.write(json.dumps(arm_answer(json.loads(text)), allow_nan=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
