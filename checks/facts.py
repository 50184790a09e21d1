"""The shipped facts about releases: data files with a date and a source per row, read into types."""

from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli
from packaging.specifiers import SpecifierSet
from packaging.version import Version

DATA = Path(__file__).parent / "data"
T = TypeVar("T", bound=msgspec.Struct)


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all rows of facts share: where it was read, and the day the release came out (ISO) where known."""

    source: str
    date: str = ""


class Sglang(Row, frozen=True, kw_only=True):
    """A release of sglang and what its own metadata pins; `pythons` and `glibc` empty: any."""

    version: str
    requires_python: str
    pythons: list[str]
    glibc: str
    torch: str
    kernel: str
    kernel_version: str
    flashinfer: str
    cubin: str
    cuda_python: str
    cuda: str
    """The CUDA that the pinned torch is built for, as PyPI serves it."""
    extra: str = ""


class Torch(Row, frozen=True, kw_only=True):
    """A release of torch as PyPI serves it; `arch`, `c10`, `cuda` empty: not known."""

    version: str
    cuda: str = ""
    requires_python: str = ""
    c10: str = ""
    arch: list[str] = []
    cuda_toolkit: str = ""
    triton: str = ""
    twins: dict[str, str] = {}


class Kernel(Row, frozen=True, kw_only=True):
    """A release of sglang's kernel wheel; `cuda_major` 0, `c10` and `cubins` empty: not known."""

    name: str
    version: str
    cuda_major: int = 0
    c10: str = ""
    cubins: list[str] = []
    torch: str = ""


class Span(Row, frozen=True, kw_only=True):
    """A fact that holds for a range of releases, for those that were not read one by one."""

    torch: str = ""
    kernel: str = ""
    form: str = ""
    major: int = 0


class Nvcc(Row, frozen=True, kw_only=True):
    """The oldest nvcc with which FlashInfer compiles for some compute capabilities."""

    flashinfer: str
    capabilities: list[str]
    floor: str


class Together(Row, frozen=True, kw_only=True):
    """A package that must be at flashinfer-python's version; `labelled`: with a CUDA label such as +cu130."""

    package: str
    where: str
    labelled: bool


class Twins(Row, frozen=True, kw_only=True):
    """Packages that cannot live in one environment."""

    packages: list[str]


class Ptx(Row, frozen=True, kw_only=True):
    """Compute capabilities for which PTX is translated at run time."""

    capabilities: list[str]


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    read: str
    about: str = ""


class _SglangFile(_Document, frozen=True, kw_only=True):
    rows: list[Sglang]


class _TorchFile(_Document, frozen=True, kw_only=True):
    torch: list[Torch]
    c10: list[Span]


class _KernelFile(_Document, frozen=True, kw_only=True):
    kernel: list[Kernel]
    cuda: list[Span]
    c10: list[Span]


class FlashinferFacts(_Document, frozen=True, kw_only=True):
    """The rows of data/flashinfer.toml."""

    nvcc: list[Nvcc]
    together: list[Together]


class _ConflictFile(_Document, frozen=True, kw_only=True):
    twins: list[Twins]


class DriverFacts(_Document, frozen=True, kw_only=True):
    """The rows of data/drivers.toml."""

    lines: dict[str, str]
    ptx: list[Ptx]
    dates: dict[str, str]
    sha256: list[dict[str, str]]
    source: list[dict[str, str]]


def _read(name: str, kind: type[T]) -> T:
    text = (DATA / name).read_text("utf-8")
    tables: Any = msgspec.json.decode(text) if name.endswith(".json") else tomli.loads(text)
    return msgspec.convert(tables, kind, strict=True)


@cache
def _torch_file() -> _TorchFile:
    return _read("torch.toml", _TorchFile)


@cache
def _kernel_file() -> _KernelFile:
    return _read("kernels.toml", _KernelFile)


@cache
def _sglang_file() -> _SglangFile:
    return _read("sglang.json", _SglangFile)


def read_on() -> str:
    """The day on which the facts about releases were read."""
    return _sglang_file().read


@cache
def sglang_rows() -> list[Sglang]:
    """The releases of sglang whose pins are on record, newest first."""
    return sorted(_sglang_file().rows, key=lambda row: Version(row.version), reverse=True)


@cache
def torch_rows() -> list[Torch]:
    """The releases of torch on record, newest first."""
    rows = _torch_file().torch
    return sorted(rows, key=lambda row: Version(row.version), reverse=True)


@cache
def kernel_rows() -> list[Kernel]:
    """The releases of the kernel wheel on record and those that sglang pins, newest first."""
    known = {(row.name, row.version): row for row in _kernel_file().kernel}
    for row in sglang_rows():
        known.setdefault((row.kernel, row.kernel_version), kernel_of(row.kernel, row.kernel_version))
    return sorted(map(_filled, known.values()), key=lambda row: Version(row.version), reverse=True)


def torch_of(version: str) -> Torch:
    """The facts about one torch, also of a nightly (as its release) or one with a label such as +cu130."""
    asked = Version(version)
    row = next((row for row in torch_rows() if Version(row.version) == Version(asked.public)), None)
    label = asked.local or ""
    cuda = f"{label[2:-1]}.{label[-1]}" if label.startswith("cu") and label[2:].isdigit() else row.cuda if row else ""
    if row is not None:
        return msgspec.structs.replace(row, version=version, cuda=cuda)
    span = next((one for one in _torch_file().c10 if _covers(one.torch, version)), None)
    form, source = (span.form, span.source) if span else ("", "not on record")
    return Torch(version=version, cuda=cuda, c10=form, source=source)


def kernel_of(name: str, version: str) -> Kernel:
    """The facts about one kernel wheel; of one that was not read, what holds for its range."""
    file = _kernel_file()
    row = next((row for row in file.kernel if row.name == name and Version(row.version) == Version(version)), None)
    return _filled(row or Kernel(name=name, version=version, source="not read itself"))


def _filled(row: Kernel) -> Kernel:
    file = _kernel_file()
    label = Version(row.version).local or ""
    major = int(label[2:4]) if label.startswith("cu") and label[2:].isdigit() else row.cuda_major
    cuda = next((one for one in file.cuda if _covers(one.kernel, row.version)), None)
    c10 = next((one for one in file.c10 if _covers(one.kernel, row.version)), None)
    change = {"cuda_major": major or (cuda.major if cuda else 0), "c10": row.c10 or (c10.form if c10 else "")}
    used = [row.source] + [one.source for one, had in ((cuda, major), (c10, row.c10)) if one and not had]
    return msgspec.structs.replace(row, **change, source="; ".join(used))


@cache
def flashinfer_facts() -> FlashinferFacts:
    """What FlashInfer asks of nvcc and of its sister packages."""
    return _read("flashinfer.toml", FlashinferFacts)


@cache
def driver_facts() -> DriverFacts:
    """What a driver branch and a CUDA release are to each other, beyond the floors."""
    return _read("drivers.toml", DriverFacts)


@cache
def twins() -> list[Twins]:
    """Packages that cannot live in one environment."""
    return _read("conflicts.toml", _ConflictFile).twins


def _covers(range_: str, version: str) -> bool:
    return SpecifierSet(range_).contains(Version(version).public, prereleases=True)
