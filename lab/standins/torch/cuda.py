"""torch.cuda of a simulated host."""

from types import TracebackType
from typing import Any

from . import _host, version

# The SASS targets of PyTorch's own builds (.ci/manywheel/build_cuda.sh of the PyTorch repository).
_ARCHES = {
    12: ["sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
    13: ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
}


def _built_for() -> int:
    """The CUDA major this build links; 0 for a CPU build."""
    return int((version.cuda or "0").split(".")[0])


def is_available() -> bool:
    """There is a GPU, and the loaded driver runs this build's CUDA major."""
    return 0 < _built_for() <= _host.driver_cuda()[0] and int(_host.state()["gpus"]) > 0


def device_count() -> int:
    """GPUs this build can use."""
    return int(_host.state()["gpus"]) if is_available() else 0


def require(index: int) -> None:
    """Raise what CUDA raises for a GPU that cannot be used."""
    if not _built_for():
        raise AssertionError("Torch not compiled with CUDA enabled")
    if not is_available():
        major, minor = _host.driver_cuda()
        raise RuntimeError(
            f"The NVIDIA driver on your system is too old (found version {major * 1000 + minor * 10})."
            if major
            else "Found no NVIDIA driver on your system."
        )
    if index >= device_count():
        raise RuntimeError("CUDA error: invalid device ordinal")
    if "sm_" + "".join(map(str, get_device_capability(index))) not in get_arch_list():
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")


def get_device_capability(index: int = 0) -> tuple[int, int]:  # noqa: ARG001  # all GPUs of a lab host are equal
    """Major and minor of the compute capability."""
    major, _, minor = str(_host.state()["compute_cap"]).partition(".")
    return int(major), int(minor or 0)


def get_device_name(index: int = 0) -> str:  # noqa: ARG001
    """The GPU's name."""
    return str(_host.state()["gpu_name"])


def get_arch_list() -> list[str]:
    """Architectures this build has machine code for; empty without a usable GPU, as in torch."""
    return list(_ARCHES.get(_built_for(), [])) if is_available() else []


def arch_flags() -> str | None:
    """The same with or without a GPU; None for a CPU build."""
    return " ".join(_ARCHES[_built_for()]) if _built_for() in _ARCHES else None


def synchronize(device: Any = None) -> None:
    """Nothing to wait for."""


def manual_seed_all(seed: int) -> None:
    """Accepted: nothing random runs on a simulated GPU."""


class device:  # noqa: N801  # torch's name
    """A context in which the GPU is the current one."""

    def __init__(self, index: Any) -> None:
        self.index = int(str(index).rpartition(":")[2])

    def __enter__(self) -> None:
        require(self.index)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to restore."""
