"""Asks for the GPUs, the loaded and the installed driver, and who holds the GPUs."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import tomli

from fleet import job
from fleet.model import Check
from fleet.view import View

# 610 and later print other words in the banner: only the query is a machine format.
GPU_FIELDS = "index,uuid,name,driver_version,compute_cap,memory.total,pci.bus_id"
READS: Mapping[str, str] = {
    # A GPU that has fallen off the bus can hang nvidia-smi for minutes.
    "driver.gpus": f"timeout 20 nvidia-smi --query-gpu={GPU_FIELDS} --format=csv,noheader,nounits",
    "driver.holders": "timeout 20 nvidia-smi --query-compute-apps=pid,process_name,used_memory"
    " --format=csv,noheader,nounits",
    "driver.loaded": 'cat "$ROOT/proc/driver/nvidia/version"',
    "driver.installed": "modinfo -F version nvidia 2>/dev/null || /sbin/modinfo -F version nvidia",
}
# One of several GPUs that is gone has a line of words among the rows of the others.
_LOST = re.compile(r"unable to determine the device handle|is lost|unknown error", re.IGNORECASE)
DATA = Path(__file__).parent / "data" / "cuda.toml"


class Gpu(NamedTuple):
    """One visible GPU as nvidia-smi lists it; `capability` like 12.0."""

    number: str
    uuid: str
    name: str
    driver: str
    capability: str
    memory: str
    bus: str


class Architecture(msgspec.Struct, frozen=True):
    """Which CUDA releases compile for some compute capabilities."""

    capabilities: list[str]
    name: str
    first: str
    source: str
    last: str = ""
    open_modules: bool = False


class Floor(msgspec.Struct, frozen=True):
    """The oldest driver that runs a CUDA major."""

    cuda_major: int
    driver: str
    source: str


class CudaFacts(msgspec.Struct, frozen=True):
    """The rows of data/cuda.toml."""

    floor: list[Floor]
    architecture: list[Architecture]


@cache
def cuda_facts() -> CudaFacts:
    """The shipped facts about CUDA, drivers and architectures."""
    return msgspec.convert(tomli.loads(DATA.read_text("utf-8")), CudaFacts)


def parse_gpus(text: str) -> list[Gpu]:
    """The rows of the GPU query; a line that is no such row (an error text) is none."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [Gpu(*row) for row in rows if len(row) == len(Gpu._fields) and row[0].isdigit()]


def parse_loaded(text: str) -> tuple[str, bool]:
    """The version of the loaded kernel module, and whether it is the open flavour; empty when none is loaded."""
    for line in text.splitlines():
        if line.startswith("NVRM version:"):
            words = line.split()
            version = next((word for word in words if word[0].isdigit() and word.count(".") >= 1), "")
            return version, "Open" in words
    return "", False


def numbers(version: str) -> tuple[int, ...]:
    """A dotted version for comparing: 580.95.05 -> (580, 95, 5); anything else -> ()."""
    dotted = re.fullmatch(r"\d{1,9}(\.\d{1,9})*", version, re.ASCII)
    return tuple(map(int, version.split("."))) if dotted else ()


def gpus(host: View) -> list[Gpu]:
    """The visible GPUs."""
    return parse_gpus(host.read("driver.gpus").out)


def title(host: View) -> str:
    """The GPUs and the loaded driver in a line: `8 × NVIDIA …, driver 580.95.05`."""
    counts = Counter(gpu.name for gpu in gpus(host))
    loaded, _ = parse_loaded(host.read("driver.loaded").out)
    return ", ".join([*(f"{count} × {name}" for name, count in counts.items()), f"driver {loaded or 'none'}"])


def checks(host: View, cuda: str, gpus_needed: bool) -> Iterator[Check]:
    """Whether the driver carries that CUDA on these GPUs; `gpus_needed`: a later stage wants them free."""
    found = gpus(host)
    yield _visible(host, found)
    loaded, is_open = parse_loaded(host.read("driver.loaded").out)
    yield _floor(cuda, loaded or (found[0].driver if found else ""))
    yield from _architectures(host, cuda, found, is_open)
    yield from _installed(host, loaded)
    yield _free(host, gpus_needed)


def _visible(host: View, found: list[Gpu]) -> Check:
    answer = host.read("driver.gpus")
    want = host.spec.gpus
    lost = [line for line in answer.out.splitlines() if _LOST.search(line)]
    said = f" ({_first_line(answer.out if not found else lost[0])})" if lost or not found else ""
    ok = (len(found) == want if want else bool(found)) and not lost
    hint = "" if ok else "nvidia-smi must work first: `sudo dmesg | grep -i nvrm` tells why it does not"
    if found and not ok:
        hint = "a GPU may be off the bus (`sudo dmesg | grep -i xid`); or correct `gpus` in hosts.toml"
    wanted = f"{want} visible" if want else "at least 1 visible"
    return Check(name="GPUs", want=wanted, got=f"{len(found)} visible{said}", ok=ok, hint=hint, read=answer.command)


def _floor(cuda: str, loaded: str) -> Check:
    major = numbers(cuda)[:1]
    floor = next((row.driver for row in cuda_facts().floor if (row.cuda_major,) == major), "")
    known = bool(floor) and bool(numbers(loaded))
    hint = "" if known else "the driver's version could not be read"
    if not floor:
        hint = "this CUDA release is not in checks/data/cuda.toml"
    ok = numbers(loaded) >= numbers(floor) if known else None
    if ok is False:
        hint = f"install a driver of branch {floor.split('.')[0]} or newer and restart, then `nox -s driver`"
    want = f">= {floor or 'unknown'} (CUDA {cuda})"
    return Check(name="loaded driver", want=want, got=loaded or "none", ok=ok, hint=hint, read=READS["driver.loaded"])


def _architectures(host: View, cuda: str, found: list[Gpu], is_open: bool) -> Iterator[Check]:
    loaded, _ = parse_loaded(host.read("driver.loaded").out)
    for capability in sorted({gpu.capability for gpu in found}):
        row = next((row for row in cuda_facts().architecture if capability in row.capabilities), None)
        yield _architecture(cuda, capability, row)
        yield from _expected(host, capability)
        if row is not None and row.open_modules and loaded:
            yield Check(
                name="kernel modules",
                want="open (the only ones that drive this GPU)",
                got="open" if is_open else "proprietary",
                ok=is_open,
                hint="" if is_open else "install the -open flavour of the same driver version",
            )


def _expected(host: View, capability: str) -> Iterator[Check]:
    want = host.spec.compute_capability
    if want:
        hint = "" if capability == want else "another GPU than hosts.toml says: correct `compute_capability` there"
        yield Check(name="compute capability", want=want, got=capability, ok=capability == want, hint=hint)


def _architecture(cuda: str, capability: str, row: Architecture | None) -> Check:
    want = f"compiled for by CUDA {cuda}"
    if row is None or not numbers(cuda):
        hint = f"this {'compute capability' if row is None else 'CUDA release'} is not in checks/data/cuda.toml"
        return Check(name=f"compute capability {capability}", want=want, got="not known", ok=None, hint=hint)
    new_enough = numbers(cuda)[:2] >= numbers(row.first)[:2]
    not_dropped = not row.last or numbers(cuda)[0] <= int(row.last)
    got = f"{row.name}: CUDA {row.first} to {row.last or 'now'}"
    hint = "" if new_enough and not_dropped else f"choose a CUDA release for {row.name}"
    return Check(name=f"compute capability {capability}", want=want, got=got, ok=new_enough and not_dropped, hint=hint)


def _installed(host: View, loaded: str) -> Iterator[Check]:
    answer = host.read("driver.installed")
    installed = answer.out.strip()
    if not answer.ok or not numbers(installed):
        # In a container the module's file is often not visible; then there is nothing to compare.
        return
    same = installed == loaded
    hint = "" if same else "the driver was replaced while the old one stays loaded: restart the host first"
    yield Check(
        name="driver loaded = installed", want=installed, got=loaded or "none", ok=same, hint=hint, read=answer.command
    )


def holders(host: View) -> list[str]:
    """`pid name` of each process on the GPUs; one that is on several is listed by nvidia-smi for each of them."""
    rows = [line.strip() for line in host.read("driver.holders").out.splitlines()]
    held = [row for row in rows if row.partition(",")[0].strip().isdigit()]
    return list(dict.fromkeys(" ".join(row.replace(",", " ").split()[:2]) for row in held))


def _free(host: View, gpus_needed: bool) -> Check:
    answer, held = host.read("driver.holders"), holders(host)
    got = "; ".join(held[:8]) or ("none" if answer.ok else f"unknown ({_first_line(answer.out)})")
    if not gpus_needed:
        return Check(name="GPUs free", want="not needed by these stages", got=got, ok=True, read=answer.command)
    ok = not held if answer.ok else None
    hint = "stop what holds them (nothing is stopped unasked), or leave out kernels and eagle3 with --only"
    if ok is None:
        hint = "nvidia-smi must answer first"
    for one in job.parse_listing(host.read("host.jobs").out):
        if held and one.state == "running":
            hint = f"a job of run {one.run} is at work: wait, or follow it with `nox -s upgrade -- --run {one.run}`"
    return Check(
        name="GPUs free", want="no process on them", got=got, ok=ok, hint="" if ok else hint, read=answer.command
    )


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:200] if lines else "no answer"
