"""Element types, and rounding to them: to nearest, ties to even, from the exact double."""

import math
import struct
from array import array
from collections.abc import Iterable

Numbers = list[float]


class dtype:  # noqa: N801  # torch's name
    """An element type, compared by identity as in torch."""

    def __init__(self, name: str, itemsize: int) -> None:
        self.name = name
        self.itemsize = itemsize

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    @property
    def is_floating_point(self) -> bool:
        """Everything here but bool and int64."""
        return self.name not in {"bool", "int64"}


float64 = double = dtype("float64", 8)
float32 = dtype("float32", 4)
float16 = half = dtype("float16", 2)
bfloat16 = dtype("bfloat16", 2)
int64 = dtype("int64", 8)
bool_ = dtype("bool", 1)

# A double keeps 52 bits of fraction, bfloat16 keeps 7: 45 go.
_DROP = 45
_HALF = (1 << (_DROP - 1)) - 1
_KEEP = ~((1 << _DROP) - 1) & 0xFFFF_FFFF_FFFF_FFFF
_BF16_MAX = (2.0 - 2.0**-7) * 2.0**127
_BF16_NORMAL = 2.0**-126
_BF16_STEP = 2.0**-133


def _bfloat16_odd(value: float) -> float:
    """The nearest bfloat16 of a value that is not normal there: subnormal, zero, infinite, not a number."""
    if not math.isfinite(value) or value == 0.0:
        return value
    return math.copysign(round(abs(value) / _BF16_STEP) * _BF16_STEP, value)


def _to_bfloat16(values: Numbers) -> Numbers:
    bits = array("Q", array("d", values).tobytes())
    kept = array("Q", [(u + _HALF + (u >> _DROP & 1)) & _KEEP for u in bits])
    near = array("d", kept.tobytes()).tolist()
    for index, value in enumerate(values):
        size = abs(value)
        if not _BF16_NORMAL <= size <= _BF16_MAX:
            odd = size < _BF16_NORMAL or not math.isfinite(value)
            near[index] = _bfloat16_odd(value) if odd else _overflowed(near[index])
    return near


def _overflowed(near: float) -> float:
    """A rounded value above the largest bfloat16 is infinite."""
    return near if abs(near) <= _BF16_MAX else math.copysign(math.inf, near)


def _to_float16(values: Numbers) -> Numbers:
    try:
        return list(struct.unpack(f"{len(values)}e", struct.pack(f"{len(values)}e", *values)))
    except OverflowError:
        return [_one_float16(value) for value in values]


def _one_float16(value: float) -> float:
    try:
        (near,) = struct.unpack("e", struct.pack("e", value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return float(near)


def rounded(values: Iterable[float], kind: dtype) -> Numbers:
    """The values as the type stores them."""
    exact = values if isinstance(values, list) else list(values)
    if kind is float64:
        return exact
    if kind is float32:
        return array("f", exact).tolist()
    if kind is float16:
        return _to_float16(exact)
    if kind is bfloat16:
        return _to_bfloat16(exact)
    return [float(int(value)) for value in exact]
