"""What a lab host says of itself: state.json, and its twin state.sh for the shell stand-ins."""

import json
import shlex
import uuid
from collections.abc import Mapping
from typing import Any

import tomli

from lab.cache import HERE

State = dict[str, Any]


def defaults() -> State:
    """The state of a fresh host."""
    return tomli.loads((HERE / "data/state.toml").read_text())


def merged(state: Mapping[str, Any], change: Mapping[str, Any]) -> State:
    """`state` with `change` laid over it; tables are merged, everything else is replaced."""
    result = dict(state)
    for key, value in change.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if isinstance(old, Mapping) and both else value
    return result


def resolved(state: State) -> State:
    """The state as stand-ins read it: what follows from something else is filled in."""
    change: State = {"kernels": {"wrong_op": state["kernels"]["wrong_op"] or None}}
    if not state["driver_installed"]:
        change["driver_installed"] = state["driver"]
    return merged(state, change)


def as_json(state: State) -> str:
    """Text of state.json."""
    return json.dumps(resolved(state), indent=1) + "\n"


def as_shell(state: State, machine_id: str) -> str:
    """Text of state.sh: KEY='value' lines, tables as TABLE_KEY, with the GPUs' identities."""
    known = resolved(state)
    known["uuids"] = " ".join(gpu_uuid(machine_id, index) for index in range(max(state["gpus"], 1)))
    known["bus_ids"] = " ".join(f"00000000:{1 + 32 * n:02X}:00.0" for n in range(max(state["gpus"], 1)))
    known["driver_cuda"] = _driver_cuda(state["driver"])
    known["holders"] = "\n".join(_holder_lines(state))
    return "".join(f"{key}={shlex.quote(value)}\n" for key, value in _flat(known))


def gpu_uuid(machine_id: str, index: int) -> str:
    """The same GPU has the same UUID for as long as its host exists."""
    return f"GPU-{uuid.uuid5(uuid.UUID(machine_id), str(index))}"


def module_text(state: State) -> str:
    """Text of /proc/driver/nvidia/version for the loaded driver, as an open kernel module prints it."""
    return (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {state['driver']}  Release Build  "
        "(dvs-builder@U22-I3-AF01-09-1)  Tue Sep 23 09:55:41 UTC 2025\n"
        "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04) \n"
    )


def _driver_cuda(driver: str) -> str:
    table = tomli.loads((HERE / "data/toolkits.toml").read_text())["driver_cuda"]
    return str(table.get(driver.split(".", maxsplit=1)[0], "N/A"))


def _holder_lines(state: State) -> list[str]:
    lines = []
    for holder in state["holders"]:
        gpus = [holder["gpu"]] if "gpu" in holder else range(state["gpus"])
        lines += [f"{gpu} {holder['pid']} {holder['mib']} {holder['name']}" for gpu in gpus]
    return lines


def _flat(state: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Scalars by their shell names; the throughput table has keys no shell name can hold."""
    pairs: list[tuple[str, str]] = []
    for key, value in state.items():
        if isinstance(value, Mapping):
            pairs += [] if key == "throughput" else _flat(value, f"{prefix}{key}_")
        elif not isinstance(value, list):
            pairs.append((f"{prefix}{key}".upper(), _word(value)))
    return pairs


def _word(value: object) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool) else str(value)
