"""Builds small wheels with true names, versions and tags; the same inputs give the same bytes."""

import base64
import hashlib
import io
import platform
import sys
import zipfile
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import tomli
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name
from packaging.version import Version

from lab.cache import HERE, source_files


@dataclass(frozen=True)
class Change:
    """What a fault puts into a wheel instead of the truth."""

    metadata_version: str = ""
    module_version: str = ""
    cuda: str = ""
    corrupt: bool = False


@dataclass(frozen=True)
class Stack:
    """A set of packages at exact versions, and the CUDA they were built for."""

    cuda: str
    packages: dict[str, str]
    changes: dict[str, Change] = field(default_factory=dict)

    def as_text(self) -> str:
        """Everything the wheels of this stack depend on."""
        changes = {name: asdict(change) for name, change in sorted(self.changes.items())}
        return repr((self.cuda, sorted(self.packages.items()), changes))


@dataclass(frozen=True)
class Wheel:
    """A built wheel, as an index lists it."""

    name: str
    version: str
    file: str
    sha256: str
    requires_python: str
    note: str = ""


def py_tag() -> str:
    """The tag of the interpreter that runs the lab, such as cp311."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}"


@cache
def _table() -> dict[str, Any]:
    return tomli.loads((HERE / "data/wheels.toml").read_text())


@cache
def _supported() -> tuple[str, ...]:
    """All tags this interpreter accepts, best first."""
    return tuple(str(tag) for tag in sys_tags())


def tag_for(name: str, version: str) -> tuple[str, str]:
    """The tag of a wheel as published, or the newest like it that this machine accepts and a note that says so."""
    facts = _table().get(name, {})
    wanted = str(facts.get("tag", "py3-none-any"))
    if Version(version) < Version(facts.get("pure_before", "0")):
        wanted = "py3-none-any"
    wanted = wanted.format(py=py_tag(), arch=platform.machine())
    interpreter, abi, platforms = wanted.split("-")
    if any(f"{interpreter}-{abi}-{one}" in _supported() for one in platforms.split(".")):
        return wanted, ""
    tag = next((t for t in _supported() if t.startswith(f"{interpreter}-{abi}-")), "py3-none-any")
    return tag, f"{name} {version}: tag {wanted} as published is not accepted here, built as {tag}"


def file_stem(name: str, version: str) -> str:
    """Name and version as the file names of a wheel spell them."""
    return f"{canonicalize_name(name).replace('-', '_')}-{version}"


def build(folder: Path, stack: Stack) -> list[Wheel]:
    """Write all wheels of a stack to `folder`."""
    return [_build_one(folder, stack, name) for name in sorted(stack.packages)]


def _build_one(folder: Path, stack: Stack, name: str) -> Wheel:
    version = stack.packages[name]
    change = stack.changes.get(canonicalize_name(name), Change())
    tag, note = tag_for(canonicalize_name(name), version)
    data = _archive(_contents(stack, name, tag, change), file_stem(name, version))
    file = f"{file_stem(name, version)}-{tag}.whl"
    (folder / file).write_bytes(_damaged(data) if change.corrupt else data)
    requires_python = str(_table().get(canonicalize_name(name), {}).get("requires_python", ""))
    return Wheel(name, version, file, hashlib.sha256(data).hexdigest(), requires_python, note)


def _contents(stack: Stack, name: str, tag: str, change: Change) -> dict[str, bytes]:
    version = stack.packages[name]
    info = f"{file_stem(name, version)}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: {str(tag == 'py3-none-any').lower()}\n"
    wheel += "".join(f"Tag: {one}\n" for one in _expanded(tag))
    return {
        **_module(stack, name, change),
        f"{info}/METADATA": _metadata(stack, name, change.metadata_version or version).encode(),
        f"{info}/WHEEL": wheel.encode(),
    }


def _expanded(tag: str) -> list[str]:
    interpreter, abi, platforms = tag.split("-")
    return [f"{interpreter}-{abi}-{one}" for one in platforms.split(".")]


def _metadata(stack: Stack, name: str, version: str) -> str:
    facts = _table().get(canonicalize_name(name), {})
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", "Summary: SIMULATED stand-in"]
    if "requires_python" in facts:
        lines.append(f"Requires-Python: {facts['requires_python']}")
    own = {canonicalize_name(other): (other, number) for other, number in stack.packages.items()}
    needed = [own[other] for other in facts.get("requires", []) if other in own]
    lines += [f"Requires-Dist: {other}=={number}" for other, number in needed]
    return "\n".join(lines) + "\n"


def _module(stack: Stack, name: str, change: Change) -> dict[str, bytes]:
    """The import of a package: its folder in lab/standins, else a module that only knows its version."""
    facts = _table().get(canonicalize_name(name), {})
    module = str(facts.get("module", canonicalize_name(name).replace("-", "_")))
    version = change.module_version or stack.packages[name]
    folder = HERE / "standins" / module
    found = {
        f"{module}/{file.relative_to(folder)}": file.read_bytes()
        for file in (source_files(folder) if folder.is_dir() else ())
    }
    if not found:
        text = '"""SIMULATED stand-in."""\n\nfrom .version import __version__ as __version__\n'
        found[f"{module}/__init__.py"] = text.encode()
    found[f"{module}/version.py"] = _version_module(module, version, change.cuda or stack.cuda).encode()
    return found


def _version_module(module: str, version: str, cuda: str) -> str:
    if module != "torch":
        return f'"""SIMULATED stand-in."""\n\n__version__ = "{version}"\n'
    label = version if "+" in version else f"{version}+cu{cuda.replace('.', '')}"
    return f'"""SIMULATED stand-in."""\n\n__version__ = "{label}"\ndebug = False\ncuda = "{cuda}"\nhip = None\n'


def record_line(path: str, data: bytes) -> str:
    """A line of RECORD."""
    hashed = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={hashed},{len(data)}\n"


def _archive(contents: dict[str, bytes], stem: str) -> bytes:
    record = f"{stem}.dist-info/RECORD"
    text = "".join(record_line(path, data) for path, data in sorted(contents.items())) + f"{record},,\n"
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as archive:
        for path, data in [*sorted(contents.items()), (record, text.encode())]:
            entry = zipfile.ZipInfo(path, (2025, 9, 23, 0, 0, 0))
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    return raw.getvalue()


def _damaged(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


def platform_tags() -> tuple[str, ...]:
    """The tags this interpreter accepts, as far as they matter for what is built."""
    return _supported()[:3]
