"""The simulated host: what $LAB_STATE says of its GPUs, its driver and its faults."""

import json
import os
from typing import Any

_DEFAULTS: dict[str, Any] = {
    "gpus": 8,
    "gpu_name": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "compute_cap": "12.0",
    "driver": "580.95.05",
}

# Newest CUDA of each driver branch: the release notes of the CUDA toolkit, table "CUDA Toolkit and Corresponding
# Driver Versions".
_CUDA_OF_BRANCH = (
    (590, (13, 1)),
    (580, (13, 0)),
    (575, (12, 9)),
    (570, (12, 8)),
    (560, (12, 6)),
    (555, (12, 5)),
    (550, (12, 4)),
    (545, (12, 3)),
    (535, (12, 2)),
    (530, (12, 1)),
    (525, (12, 0)),
)

_cache: dict[str, Any] = {}


def state() -> dict[str, Any]:
    """The host's facts, read once per process; a whole healthy host where the file does not say otherwise."""
    if not _cache:
        path = os.environ.get("LAB_STATE", "")
        found: dict[str, Any] = {}
        if path:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123  # pathlib costs import time here
                found = json.load(file)
        _cache.update(_DEFAULTS, **found)
    return _cache


def driver_cuda() -> tuple[int, int]:
    """The newest CUDA the loaded driver can run; (0, 0) without a driver."""
    loaded = str(state()["driver"]).split(".")[0]
    branch = int(loaded) if loaded.isdigit() else 0
    return next((cuda for floor, cuda in _CUDA_OF_BRANCH if branch >= floor), (0, 0))


def wrong(op: str, rows: int) -> bool:
    """The host has the fault that this kernel computes nonsense for a batch of so many rows."""
    kernels: dict[str, Any] = state().get("kernels") or {}
    return kernels.get("wrong_op") == op and rows <= int(kernels.get("wrong_rows_up_to") or 16)
