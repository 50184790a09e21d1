"""Tensors of one or two dimensions as flat lists: what a comparison of kernels with a reference needs, no more.

Arithmetic is done in double and rounded once to the type of the result, as an ideal kernel would.
"""

import math
from collections.abc import Callable
from operator import add, ge, mul, sub
from typing import Any, Union

from . import _host, _number
from ._number import Numbers, bfloat16, bool_, dtype, float16, float32, float64, int64, rounded

Operand = Union["Tensor", float, int]
_RANK = {bool_: 0, int64: 1, float16: 2, bfloat16: 2, float32: 3, float64: 4}


def _divided(a: float, b: float) -> float:
    """IEEE division, which has no exception for zero."""
    if b:
        return a / b
    return math.nan if not a or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _sigmoid(value: float) -> float:
    if value < 0.0:
        power = math.exp(value)
        return power / (1.0 + power)
    return 1.0 / (1.0 + math.exp(-value))


def _rsqrt(value: float) -> float:
    return 1.0 / math.sqrt(value) if value > 0.0 else (math.inf if value == 0.0 else math.nan)


class device:  # noqa: N801  # torch's name
    """Where a tensor is: `cpu`, or `cuda` with an index."""

    def __init__(self, name: Union[str, "device"], index: int | None = None) -> None:
        kind, _, number = str(name).partition(":")
        if kind not in {"cpu", "cuda"}:
            raise RuntimeError(f"Expected one of cpu, cuda device type at start of device string: {kind}")
        self.type = kind
        self.index = index if index is not None else (int(number or 0) if kind == "cuda" else None)

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device(type={self.type!r}, index={self.index})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


CPU = device("cpu")


class Tensor:
    """A dense tensor: `data` is flat, row after row."""

    def __init__(self, data: Numbers, shape: tuple[int, ...], kind: dtype, where: device = CPU) -> None:
        self._data = data
        self.shape = shape
        self.dtype = kind
        self.device = where

    # -- what it is

    def numel(self) -> int:
        """How many elements."""
        return math.prod(self.shape)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one part of it."""
        return self.shape if dim is None else self.shape[dim]

    @property
    def is_cuda(self) -> bool:
        """On a GPU."""
        return self.device.type == "cuda"

    def item(self) -> float | int | bool:
        """The only element."""
        if self.numel() != 1:
            raise RuntimeError(f"a Tensor with {self.numel()} elements cannot be converted to Scalar")
        value = self._data[0]
        if self.dtype is bool_:
            return bool(value)
        return int(value) if self.dtype is int64 else value

    def tolist(self) -> Any:
        """Nested lists."""
        if not self.shape:
            return self.item()
        if len(self.shape) == 1:
            return list(self._data)
        width = self.shape[1]
        return [self._data[at : at + width] for at in range(0, len(self._data), width)]

    def __repr__(self) -> str:
        return f"tensor({self.tolist()}, dtype={self.dtype!r}, device='{self.device}')"

    # -- moving and rounding

    def to(self, *targets: Any, device: Any = None, dtype: Any = None) -> "Tensor":
        """A copy of another type, on another device, or both."""
        kind, where = dtype, device
        for target in targets:
            if isinstance(target, _number.dtype):
                kind = target
            else:
                where = target
        place = self.device if where is None else _place(where)
        kind = kind or self.dtype
        data = self._data if kind is self.dtype else rounded(self._data, kind)
        return Tensor(data, self.shape, kind, place)

    def double(self) -> "Tensor":
        """In float64."""
        return self.to(float64)

    def cpu(self) -> "Tensor":
        """On the CPU."""
        return self.to("cpu")

    def cuda(self, index: int = 0) -> "Tensor":
        """On a GPU."""
        return self.to(f"cuda:{index}")

    def contiguous(self) -> "Tensor":
        """Itself: all tensors here are."""
        return self

    def __getitem__(self, key: Any) -> "Tensor":
        """Columns `[..., a:b]` or `[:, a:b]`, rows `[a:b]`, or one row `[i]`."""
        if isinstance(key, tuple):
            if len(key) != 2 or key[0] not in (Ellipsis, slice(None)) or not isinstance(key[1], slice):
                raise IndexError(f"the stand-in knows [..., a:b] and [a:b], not {key}")
            return self._columns(key[1])
        rows = self.tolist()[key]
        if len(self.shape) == 1 and not isinstance(key, slice):
            return Tensor([rows], (), self.dtype, self.device)
        if len(self.shape) == 1 or not isinstance(key, slice):
            return Tensor(list(rows), (len(rows),), self.dtype, self.device)
        return Tensor([value for row in rows for value in row], (len(rows), self.shape[1]), self.dtype, self.device)

    def _columns(self, part: slice) -> "Tensor":
        width = self.shape[-1]
        rows = [self._data[at : at + width][part] for at in range(0, len(self._data), width)]
        shape = (*self.shape[:-1], len(range(*part.indices(width))))
        return Tensor([value for row in rows for value in row], shape, self.dtype, self.device)

    # -- element by element

    def _map(self, function: Callable[[float], float], kind: dtype | None = None) -> "Tensor":
        kind = kind or self.dtype
        return Tensor(rounded(map(function, self._data), kind), self.shape, kind, self.device)

    def _with(self, other: Operand, function: Callable[[Any, Any], Any], kind: dtype | None = None) -> "Tensor":
        if not isinstance(other, Tensor):
            number = float(other)
            return self._map(lambda value: function(value, number), kind)
        if self.device != other.device:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{self.device} and {other.device}!"
            )
        shape = _joined(self.shape, other.shape)
        kind = kind or max(self.dtype, other.dtype, key=_RANK.__getitem__)
        pairs = map(function, _spread(self, shape), _spread(other, shape))
        return Tensor(rounded(pairs, kind), shape, kind, self.device)

    def __add__(self, other: Operand) -> "Tensor":
        return self._with(other, add)

    def __sub__(self, other: Operand) -> "Tensor":
        return self._with(other, sub)

    def __mul__(self, other: Operand) -> "Tensor":
        return self._with(other, mul)

    def __truediv__(self, other: Operand) -> "Tensor":
        return self._with(other, _divided)

    def __ge__(self, other: Operand) -> "Tensor":
        return self._with(other, ge, bool_)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> "Tensor":
        return self._map(lambda value: -value)

    def abs(self) -> "Tensor":
        """Without the sign."""
        return self._map(abs)

    def clamp(self, min: float = -math.inf, max: float = math.inf) -> "Tensor":  # noqa: A002  # torch's names
        """Not below `min`, not above `max`; not a number stays that."""
        return self._map(lambda v: v if math.isnan(v) else (min if v < min else (max if v > max else v)))

    def rsqrt(self) -> "Tensor":
        """One over the square root."""
        return self._map(_rsqrt)

    def sigmoid(self) -> "Tensor":
        """1 / (1 + exp(-x))."""
        return self._map(_sigmoid)

    def isfinite(self) -> "Tensor":
        """Neither infinite nor not a number."""
        return self._map(math.isfinite, bool_)

    # -- to one number

    def max(self) -> "Tensor":
        """The largest element; not a number wins, as in torch."""
        odd = next((value for value in self._data if math.isnan(value)), None)
        return Tensor([max(self._data) if odd is None else odd], (), self.dtype, self.device)

    def sum(self) -> "Tensor":
        """The sum of all; bool is counted."""
        kind = int64 if self.dtype is bool_ else self.dtype
        return Tensor(rounded([math.fsum(self._data)], kind), (), kind, self.device)

    def mean(self, dim: int | None = None, keepdim: bool = False) -> "Tensor":
        """The mean of all, or of each row (`dim=-1`)."""
        if dim is None:
            return Tensor(rounded([math.fsum(self._data) / self.numel()], self.dtype), (), self.dtype, self.device)
        if dim not in (-1, len(self.shape) - 1):
            raise NotImplementedError("the stand-in averages over the last dimension")
        width = self.shape[-1]
        means = [math.fsum(self._data[at : at + width]) / width for at in range(0, len(self._data), width)]
        shape = (*self.shape[:-1], 1) if keepdim else self.shape[:-1]
        return Tensor(rounded(means, self.dtype), shape, self.dtype, self.device)

    # -- matrices

    def __matmul__(self, other: "Tensor") -> "Tensor":
        if len(self.shape) != 2 or len(other.shape) != 2 or self.shape[1] != other.shape[0]:
            raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({self.shape} and {other.shape})")
        if self.dtype is not other.dtype or self.device != other.device:
            raise RuntimeError("expected mat1 and mat2 to have the same dtype and device")
        shape = (self.shape[0], other.shape[1])
        if self.is_cuda and _host.wrong("matmul", shape[0]):
            return Tensor([0.0] * math.prod(shape), shape, self.dtype, self.device)
        columns = [other._data[at :: shape[1]] for at in range(shape[1])]
        rows = self.tolist()
        values = [sum(map(mul, row, column)) for row in rows for column in columns]
        return Tensor(rounded(values, self.dtype), shape, self.dtype, self.device)


def _place(where: Any) -> device:
    """The device asked for; a GPU that is not there is an error, as CUDA's."""
    place = where if isinstance(where, device) else device(where)
    if place.type == "cuda":
        from . import cuda  # noqa: PLC0415  # cuda needs this module

        cuda.require(place.index or 0)
    return place


def _joined(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape two shapes broadcast to."""
    long, short = (a, b) if len(a) >= len(b) else (b, a)
    short = (1,) * (len(long) - len(short)) + short
    if any(x != y and 1 not in (x, y) for x, y in zip(long, short, strict=True)):
        raise RuntimeError(f"The size of tensor a {a} must match the size of tensor b {b}")
    return tuple(max(x, y) for x, y in zip(long, short, strict=True))


def _spread(tensor: Tensor, shape: tuple[int, ...]) -> Numbers:
    """The elements of a tensor, repeated until they fill the shape."""
    if tensor.shape == shape:
        return tensor._data
    if tensor.numel() == 1:
        return tensor._data * math.prod(shape)
    rows, width = shape
    if tensor.shape[-1] == width:
        return tensor._data * rows
    return [value for value in tensor._data for _ in range(width)]
