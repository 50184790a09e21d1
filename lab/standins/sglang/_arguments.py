"""SGLang's launch flags, each with the versions that know it; an unknown flag ends the launcher with status 2."""

import argparse
import re
from typing import Any

Version = tuple[int, ...]

# Name, type (bool: a switch), default, first version with it, first version without it.
# Source: server_args.py of the SGLang wheels on PyPI.
_FLAGS: tuple[tuple[str, Any, Any, str, str], ...] = (
    ("tokenizer-path", str, None, "", ""),
    ("tokenizer-mode", str, "auto", "", ""),
    ("served-model-name", str, None, "", ""),
    ("host", str, "127.0.0.1", "", ""),
    ("port", int, 30000, "", ""),
    ("nccl-port", int, None, "", ""),
    ("device", str, "cuda", "", ""),
    ("dtype", str, "auto", "", ""),
    ("quantization", str, None, "", ""),
    ("kv-cache-dtype", str, "auto", "", ""),
    ("context-length", int, None, "", ""),
    ("trust-remote-code", bool, False, "", ""),
    ("revision", str, None, "", ""),
    ("load-format", str, "auto", "", ""),
    ("download-dir", str, None, "", ""),
    ("mem-fraction-static", float, 0.85, "", ""),
    ("max-running-requests", int, None, "", ""),
    ("max-total-tokens", int, None, "", ""),
    ("chunked-prefill-size", int, 8192, "", ""),
    ("max-prefill-tokens", int, 16384, "", ""),
    ("schedule-policy", str, "fcfs", "", ""),
    ("schedule-conservativeness", float, 1.0, "", ""),
    ("page-size", int, 1, "", ""),
    ("dp-size", int, 1, "", ""),
    ("ep-size", int, 1, "", ""),
    ("pp-size", int, 1, "", ""),
    ("nnodes", int, 1, "", ""),
    ("node-rank", int, 0, "", ""),
    ("dist-init-addr", str, None, "", ""),
    ("random-seed", int, 0, "", ""),
    ("stream-interval", int, 1, "", ""),
    ("watchdog-timeout", float, 300.0, "", ""),
    ("log-level", str, "info", "", ""),
    ("log-level-http", str, None, "", ""),
    ("log-requests", bool, False, "", ""),
    ("decode-log-interval", int, 40, "", ""),
    ("enable-metrics", bool, False, "", ""),
    ("api-key", str, None, "", ""),
    ("admin-api-key", str, None, "0.5.9", ""),
    ("chat-template", str, None, "", ""),
    ("reasoning-parser", str, None, "", ""),
    ("tool-call-parser", str, None, "", ""),
    ("attention-backend", str, None, "", ""),
    ("prefill-attention-backend", str, None, "", ""),
    ("decode-attention-backend", str, None, "", ""),
    ("sampling-backend", str, "flashinfer", "", ""),
    ("grammar-backend", str, "xgrammar", "", ""),
    ("moe-runner-backend", str, "auto", "0.5.3", ""),
    ("fp8-gemm-backend", str, "auto", "0.5.9", ""),
    ("fp4-gemm-backend", str, "auto", "0.5.9", ""),
    ("speculative-algorithm", str, None, "", ""),
    ("speculative-draft-model-path", str, None, "", ""),
    ("speculative-draft-model-revision", str, None, "0.5.2", ""),
    ("speculative-draft-model-quantization", str, None, "0.5.9", ""),
    ("speculative-draft-attention-backend", str, None, "0.5.9", ""),
    ("speculative-attention-mode", str, "prefill", "0.5.2", ""),
    ("speculative-num-steps", int, None, "", ""),
    ("speculative-eagle-topk", int, None, "", ""),
    ("speculative-num-draft-tokens", int, None, "", ""),
    ("cuda-graph-max-bs", int, None, "", "0.5.20"),
    ("cuda-graph-max-bs-decode", int, None, "0.5.14", ""),
    ("cuda-graph-max-bs-prefill", int, None, "0.5.14", ""),
    ("disable-cuda-graph", bool, False, "", ""),
    ("cuda-graph-backend-decode", str, None, "0.5.23", ""),
    ("cuda-graph-backend-prefill", str, None, "0.5.23", ""),
    ("disable-radix-cache", bool, False, "", ""),
    ("disable-overlap-schedule", bool, False, "", ""),
    ("disable-custom-all-reduce", bool, False, "", ""),
    ("disable-cuda-graph-padding", bool, False, "", ""),
    ("disable-shared-experts-fusion", bool, False, "", ""),
    ("disable-flashinfer-autotune", bool, False, "0.5.9", ""),
    ("enable-flashinfer-allreduce-fusion", bool, False, "0.4.10", ""),
    ("enforce-disable-flashinfer-allreduce-fusion", bool, False, "0.5.10", ""),
    ("flashinfer-allreduce-fusion-backend", str, None, "0.5.14", ""),
    ("enable-torch-symm-mem", bool, False, "0.5.3", ""),
    ("enable-symm-mem", bool, False, "0.4.10", ""),
    ("enable-p2p-check", bool, False, "", ""),
    ("enable-mixed-chunk", bool, False, "", ""),
    ("enable-dp-attention", bool, False, "", ""),
    ("enable-torch-compile", bool, False, "", ""),
    ("skip-server-warmup", bool, False, "0.4.8", ""),
    ("skip-tokenizer-init", bool, False, "", ""),
)
_ALIASES = {
    "speculative-algorithm": ["speculative-algo"],
    "speculative-draft-model-path": ["speculative-draft-model"],
    "dp-size": ["data-parallel-size"],
    "ep-size": ["expert-parallel-size"],
    "pp-size": ["pipeline-parallel-size"],
}


def numbers(version: str) -> Version:
    """`0.5.10.post1` as (0, 5, 10, 1), to compare."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def parsed(argv: list[str], version: str) -> argparse.Namespace:
    """The arguments as this version of SGLang takes them. Ends the process with status 2 where it would."""
    parser = argparse.ArgumentParser(prog="launch_server.py")
    parser.add_argument("--model-path", "--model", required=True)
    parser.add_argument("--tp-size", "--tensor-parallel-size", type=int, default=1)
    own = numbers(version)
    for name, kind, default, since, until in _FLAGS:
        if own < numbers(since) or (until and own >= numbers(until)):
            continue
        names = ["--" + each for each in [name, *_ALIASES.get(name, [])]]
        if kind is bool:
            parser.add_argument(*names, action="store_true")
        else:
            parser.add_argument(*names, type=kind, default=default)
    return parser.parse_args(argv)
