"""SIMULATED: a stand-in for sgl_kernel on the stand-in torch, with the faults of $LAB_STATE."""

from importlib import import_module
from typing import Any

# By name: a type checker would look for PyTorch, not for the stand-in beside this package.
torch: Any = import_module("torch")
_host: Any = import_module("torch._host")
Tensor = Any

__all__ = ["__version__", "fused_add_rmsnorm", "rmsnorm", "silu_and_mul"]


def __getattr__(name: str) -> str:
    """`__version__`, looked up when asked for: reading metadata costs more than all the rest."""
    if name != "__version__":
        raise AttributeError(f"module 'sgl_kernel' has no attribute {name!r}")
    from importlib import metadata  # noqa: PLC0415

    for distribution in ("sglang-kernel", "sgl-kernel"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "0.4.10"


def _require_cuda(*tensors: Tensor) -> None:
    if not all(tensor.is_cuda for tensor in tensors):
        raise RuntimeError("input must be a CUDA tensor")


def _result(op: str, exact: Tensor, like: Tensor) -> Tensor:
    """The exact result in the input's type, or zeros when the host has the fault."""
    if _host.wrong(op, like.shape[0]):
        return torch.zeros_like(exact).to(like.dtype)
    return exact.to(like.dtype)


def rmsnorm(
    input: Tensor,  # noqa: A002  # sgl_kernel's name
    weight: Tensor,
    eps: float = 1e-6,
    out: Any = None,  # noqa: ARG001
    enable_pdl: bool | None = None,  # noqa: ARG001
) -> Tensor:
    """Each row divided by its root mean square, times the weight."""
    _require_cuda(input, weight)
    x = input.double()
    scale = ((x * x).mean(dim=-1, keepdim=True) + eps).rsqrt()
    return _result("rmsnorm", x * scale * weight.double(), input)


def fused_add_rmsnorm(
    input: Tensor,  # noqa: A002
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,  # noqa: ARG001
) -> None:
    """In place: residual <- input + residual, input <- its rmsnorm."""
    _require_cuda(input, residual, weight)
    total = input + residual
    residual._data = total._data
    input._data = rmsnorm(total, weight, eps)._data


def silu_and_mul(input: Tensor, out: Any = None) -> Tensor:  # noqa: A002, ARG001
    """The first half of each row through silu, times the second half."""
    _require_cuda(input)
    if input.shape[-1] % 2:
        raise ValueError("the last dimension must be even")
    half = input.shape[-1] // 2
    gate = input[..., :half].double()
    return _result("silu_and_mul", gate * gate.sigmoid() * input[..., half:].double(), input)
