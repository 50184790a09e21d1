"""The simulated model: paces tokens to the host's throughput, and accepts drafts as often as the host says."""

import argparse
import math
import os
import signal
import sys
import threading
import time
import zlib
from importlib import import_module
from typing import Any, NoReturn

from ._arguments import Version, numbers

# By name: a type checker would look for PyTorch, not for the stand-in beside this package.
cuda: Any = import_module("torch.cuda")
torch_version: Any = import_module("torch.version")
_host: Any = import_module("torch._host")

# tokens/s of one request. 90.2 and 54.1: a slow EAGLE-3 on 12.8; 92.4 and 122.0: published figures of
# Kimi-K2.6 on 8x RTX PRO 6000 (github.com/local-inference-lab/rtx6kpro, kimi-k26-v4).
_THROUGHPUT: dict[str, dict[str, float]] = {
    "12": {"without": 90.2, "with": 54.1, "acceptance_length": 2.3},
    "13": {"without": 92.4, "with": 122.0, "acceptance_length": 2.6},
}
_JITTER = {"without": 0.01, "with": 0.05}
_WORDS = ("so", "the", "next", "step", "is", "to", "look", "at", "what", "was", "measured", "and", "why")


def log(text: str) -> None:
    """One line of the server's log."""
    sys.stderr.write(time.strftime("[%Y-%m-%d %H:%M:%S] ") + text + "\n")
    sys.stderr.flush()


def die(error: str) -> NoReturn:
    """End as SGLang does when its scheduler fails: a traceback, then SIGKILL to itself."""
    log(f"Scheduler hit an exception: Traceback (most recent call last):\n{error}\n")
    log("Received sigquit from a child process. It usually means the child failed.")
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit(1)


class Engine:
    """One loaded model."""

    def __init__(self, args: argparse.Namespace, version: str) -> None:
        self.args = args
        self.version = version
        self.since: Version = numbers(version)
        self.arm = "with" if args.speculative_algorithm else "without"
        self.lock = threading.Lock()
        self.requests = 0
        self.tokens = 0
        self.verify_debt = 0.0
        self.steps = 0
        self.logged_acceptance: float | None = None
        self.last_tokens_per_s = 0.0
        self._settle()

    def _settle(self) -> None:
        """Fill in what SGLang decides by itself."""
        args = self.args
        if self.arm == "with":
            given = (args.speculative_num_steps, args.speculative_eagle_topk, args.speculative_num_draft_tokens)
            if None in given:
                given = (3, 1, 4)
            args.speculative_num_steps, args.speculative_eagle_topk, args.speculative_num_draft_tokens = given
        if args.max_running_requests is None:
            args.max_running_requests = 48 if self.arm == "with" else 2048
            if self.arm == "with":
                log("Max running requests is reset to 48 for speculative decoding.")
        args.attention_backend = args.attention_backend or "flashinfer"
        args.served_model_name = args.served_model_name or args.model_path

    @property
    def fault(self) -> str:
        """The fault of the host's state, or nothing."""
        server: dict[str, Any] = _host.state().get("server") or {}
        return str(server.get("fault") or "")

    def figures(self) -> dict[str, float]:
        """The host's throughput and acceptance length under this CUDA."""
        release = str(torch_version.cuda)
        known = dict(_THROUGHPUT.get(release.split(".", maxsplit=1)[0], _THROUGHPUT["12"]))
        known.update((_host.state().get("throughput") or {}).get(release, {}))
        return known

    def load(self) -> None:
        """Take the time of a start, or fail as the host's state says."""
        log("Load weight begin. avail mem=93.21 GB")
        if self.fault == "hangs_at_load":
            while True:
                time.sleep(60)
        try:
            for index in range(self.args.tp_size):
                cuda.require(index)
        except (RuntimeError, AssertionError) as error:
            die(f"{type(error).__name__}: {error}")
        if self.fault == "dies_at_load":
            die("RuntimeError: CUDA error: no kernel image is available for execution on the device")
        self._gates()
        time.sleep(float(_host.state().get("server_start_s", 0.2)))
        log("Load weight end. type=SimulatedForCausalLM, dtype=torch.bfloat16, avail mem=21.40 GB")
        if not self.args.disable_cuda_graph:
            log("Capture cuda graph begin. This can take up to several minutes.")

    def _gates(self) -> None:
        """Features that SGLang refuses, or quietly leaves off, on more than two PCIe GPUs of this generation."""
        major = cuda.get_device_capability(0)[0]
        if self.args.tp_size > 2 and not self.args.disable_custom_all_reduce:
            log(
                "WARNING: Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. "
                "To silence this warning, specify disable_custom_all_reduce=True explicitly."
            )
        fusion = getattr(self.args, "enable_flashinfer_allreduce_fusion", False)
        if fusion and self.args.tp_size > 1 and major not in {9, 10} and self.since >= (0, 5, 14):
            die("ValueError: FlashInfer allreduce fusion requires SM90 or SM10X NVIDIA GPUs.")
        if getattr(self.args, "enable_torch_symm_mem", False) and major not in {9, 10}:
            if self.since < (0, 5, 14):
                die(f"KeyError: {major}")
            log(
                f"WARNING: TorchSymmMemCommunicator: Device capability {major} not supported, "
                "communicator is not available."
            )

    def generate(self, text: str, wanted: int) -> dict[str, Any]:
        """The answer to /generate, after the time a model would take."""
        began = time.monotonic()
        if self.fault == "dies_at_first_request":
            die("RuntimeError: CUDA error: an illegal memory access was encountered")
        tokens = 0 if self.fault == "zero_tokens" else max(wanted, 1)
        figures = self.figures()
        with self.lock:
            self.requests += 1
            self.tokens += tokens
            swing = zlib.crc32(f"{self.requests} {text}".encode()) / 2**31 - 1.0
            factor = 1.0 + _JITTER[self.arm] * swing
            steps = self._verify_steps(tokens, figures["acceptance_length"] * factor)
        self._wait_until(began + tokens / (figures[self.arm] * factor))
        seconds = time.monotonic() - began
        self._log_decode(tokens, steps, seconds)
        return {
            "text": " ".join(_WORDS[index % len(_WORDS)] for index in range(tokens)),
            "output_ids": [1000 + index % 97 for index in range(tokens)],
            "meta_info": {
                "id": f"{self.requests:032x}",
                "finish_reason": {"type": "length", "length": wanted},
                "prompt_tokens": max(1, len(text.split()) * 4 // 3),
                "weight_version": "default",
                "total_retractions": 0,
                "completion_tokens": tokens,
                "cached_tokens": 0,
                **(self._spec_info(tokens, steps) if self.arm == "with" else {}),
                "e2e_latency": seconds,
            },
        }

    @staticmethod
    def _wait_until(moment: float) -> None:
        left = moment - time.monotonic()
        if left > 0:
            time.sleep(left)

    def _verify_steps(self, tokens: int, acceptance_length: float) -> int:
        """Whole steps for these tokens; what rounding leaves is carried on, so that the sum over requests is right."""
        most = (self.args.speculative_num_steps or 0) + 1
        self.verify_debt += tokens / min(max(acceptance_length, 1.0), most)
        steps = min(max(round(self.verify_debt), math.ceil(tokens / most)), tokens)
        self.verify_debt -= steps
        return steps

    def _spec_info(self, tokens: int, steps: int) -> dict[str, Any]:
        """The speculation keys of meta_info, under the names of this version."""
        correct = tokens - steps
        drafts = self.args.speculative_num_draft_tokens
        proposed = steps * (drafts - 1)
        each, more = divmod(correct, steps) if steps else (0, 0)
        histogram = [0] * (self.args.speculative_num_steps + 1)
        histogram[each] += steps - more
        if more:
            histogram[each + 1] += more
        rate = correct / proposed if proposed else 0.0
        info: dict[str, Any] = {
            "spec_accept_rate": rate,
            "spec_accept_length": tokens / steps if steps else 0.0,
            "spec_verify_ct": steps,
        }
        if self.since < (0, 5, 11):
            info["spec_accept_rate"] = tokens / (steps * drafts) if steps else 0.0
            old = {"spec_accept_token_num": correct, "spec_draft_token_num": proposed}
            return {**info, **old, "spec_accept_histogram": histogram}
        if self.since < (0, 5, 22):
            info.update(spec_accepted_drafts=correct, spec_proposed_drafts=proposed)
            info["spec_accept_histogram"] = histogram
        if self.since >= (0, 5, 12):
            info.update(spec_num_correct_drafts=correct, spec_num_proposed_drafts=proposed)
            info["spec_correct_drafts_histogram"] = histogram
        return info

    def _log_decode(self, tokens: int, steps: int, seconds: float) -> None:
        """A decode line whenever another interval of steps is full."""
        speculating = self.arm == "with"
        before = self.steps
        self.steps += steps if speculating else tokens
        self.last_tokens_per_s = tokens / seconds if seconds else 0.0
        interval = self.args.decode_log_interval
        if before // interval == self.steps // interval:
            return
        accepted = ""
        if speculating and steps:
            self.logged_acceptance = tokens / steps
            rate = (tokens - steps) / (steps * (self.args.speculative_num_draft_tokens - 1))
            accepted = f"accept len: {tokens / steps:.2f}, accept rate: {rate:.2f}, "
        log(
            f"Decode batch, #running-req: 1, #token: {tokens}, token usage: 0.00, {accepted}"
            f"cuda graph: {not self.args.disable_cuda_graph}, "
            f"gen throughput (token/s): {self.last_tokens_per_s:.2f}, #queue-req: 0"
        )

    def flush(self) -> None:
        """Forget the acceptance length so far, as SGLang does."""
        self.logged_acceptance = None
