# ruff: noqa: N999  # torch's name
"""The corner of torch's native module that tells what driver and build this is."""

from . import _host
from . import cuda as _cuda


def _cuda_getDriverVersion() -> int:  # noqa: N802  # torch's name
    major, minor = _host.driver_cuda()
    return major * 1000 + minor * 10


def _cuda_getArchFlags() -> str | None:  # noqa: N802
    return _cuda.arch_flags()
