"""SIMULATED: a small stand-in for PyTorch in pure Python, for lab hosts. It computes; it is no GPU library."""

import math
import random as _random
from typing import Any

from . import _C, cuda, version
from ._number import bfloat16, bool_, double, dtype, float16, float32, float64, half, int64, rounded
from ._tensor import Tensor, device
from .version import __version__

__all__ = [
    "_C",
    "Generator",
    "Tensor",
    "__version__",
    "bfloat16",
    "bool_",
    "cuda",
    "device",
    "double",
    "dtype",
    "float16",
    "float32",
    "float64",
    "half",
    "int64",
    "isfinite",
    "manual_seed",
    "matmul",
    "randn",
    "rsqrt",
    "sigmoid",
    "tensor",
    "version",
    "where",
    "zeros",
    "zeros_like",
]

bool = bool_  # noqa: A001  # torch's name
float = float32  # noqa: A001


class Generator:
    """A source of random numbers of its own."""

    def __init__(self, device: Any = "cpu") -> None:
        self.device = device
        self._source = _random.Random(0)  # noqa: S311  # test data

    def manual_seed(self, seed: int) -> "Generator":
        """Start again from a seed."""
        self._source.seed(seed)
        return self


_default = Generator()


def manual_seed(seed: int) -> Generator:
    """Seed the default generator."""
    return _default.manual_seed(seed)


def randn(*size: Any, generator: Generator | None = None, dtype: dtype = float32, device: Any = "cpu") -> Tensor:
    """Normal numbers; the same for the same seed and shape, but not those of PyTorch."""
    shape: tuple[int, ...] = tuple(size[0]) if len(size) == 1 and isinstance(size[0], tuple | list) else size
    draw = (generator or _default)._source.gauss
    values = [draw(0.0, 1.0) for _ in range(math.prod(shape))]
    return Tensor(rounded(values, dtype), shape, dtype).to(device)


def tensor(data: Any, dtype: dtype = float32, device: Any = "cpu") -> Tensor:
    """A tensor of a number, a list, or a list of lists."""
    if not isinstance(data, list):
        return Tensor(rounded([data], dtype), (), dtype).to(device)
    if data and isinstance(data[0], list):
        flat = [value for row in data for value in row]
        return Tensor(rounded(flat, dtype), (len(data), len(data[0])), dtype).to(device)
    return Tensor(rounded(data, dtype), (len(data),), dtype).to(device)


def zeros(*size: int, dtype: dtype = float32, device: Any = "cpu") -> Tensor:
    """All zero."""
    return Tensor([0.0] * math.prod(size), size, dtype).to(device)


def zeros_like(like: Tensor) -> Tensor:
    """All zero, in the shape, type and place of another."""
    return Tensor([0.0] * like.numel(), like.shape, like.dtype, like.device)


def where(condition: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    """Element by element one or the other; equal shapes."""
    picks = zip(condition._data, chosen._data, other._data, strict=True)
    return Tensor([a if yes else b for yes, a, b in picks], chosen.shape, chosen.dtype, chosen.device)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`."""
    return a @ b


def rsqrt(x: Tensor) -> Tensor:
    """One over the square root."""
    return x.rsqrt()


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return x.sigmoid()


def isfinite(x: Tensor) -> Tensor:
    """Neither infinite nor not a number."""
    return x.isfinite()
