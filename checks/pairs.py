"""What two parts of a stack, or a part and a host, must be to each other. Each rule is one pure function.

A part is one choice of the solver: `sglang`, `torch`, `kernel`, `flashinfer`, `python`, `cuda`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from checks.catalogue import Row
from checks.driver import cuda_facts, numbers
from checks.facts import Kernel, Sglang, Torch, driver_facts, flashinfer_facts
from checks.hostfacts import HostFacts


class Toolkit(msgspec.Struct, frozen=True, kw_only=True):
    """A CUDA release with its runfiles by platform."""

    version: str
    date: str
    files: dict[str, Row]

    @property
    def line(self) -> tuple[int, ...]:
        """Major and minor."""
        return numbers(self.version)[:2]


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """Two things that do not go together, why, and who says so."""

    left: str
    right: str
    why: str
    source: str = ""
    known: bool = True
    """False: a fact is missing, so nobody can say that they go together; nor is it sure that they do not."""

    def __str__(self) -> str:
        return f"{self.left} and {self.right}: {self.why}"


class Rule(NamedTuple):
    """`judge` yields a conflict from the parts named in `needs`.

    `about` names what could give way: parts, or what a host has. `pinned` is the part that some metadata pins: an
    override of that part sets the rule aside.
    """

    about: tuple[str, ...]
    needs: tuple[str, ...]
    judge: Callable[[Mapping[str, Any], Sequence[HostFacts]], Iterator[Conflict]]
    pinned: str = ""


def label(part: str, value: Any) -> str:
    """A choice in words: `CUDA 13.0.2`, `torch 2.14.1`."""
    names = {"cuda": "CUDA", "flashinfer": "flashinfer-python", "python": "Python"}
    name = value.name if isinstance(value, Kernel) else names.get(part, part)
    return f"{name} {getattr(value, 'version', value)}"


def named(hosts: Sequence[HostFacts], most: int = 3) -> str:
    """Hosts by name; of many the first ones and how many more."""
    names = [host.name for host in hosts]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _hosts(
    hosts: Sequence[HostFacts], bad: Callable[[HostFacts], bool], say: Callable[[HostFacts], str]
) -> Iterator[tuple[str, HostFacts]]:
    """The hosts that fail, those that have the same as one name with what they have; one of them to quote."""
    failing: dict[str, list[HostFacts]] = {}
    for host in hosts:
        if bad(host):
            failing.setdefault(say(host), []).append(host)
    yield from ((f"{said} of {named(having)}", having[0]) for said, having in failing.items())


def _floor(parts: Mapping[str, Any], hosts: Sequence[HostFacts]) -> Iterator[Conflict]:
    major = numbers(parts["cuda"].version)[0]
    row = next((row for row in cuda_facts().floor if row.cuda_major == major), None)
    if row is None:
        why = f"the driver that CUDA {major} needs is not on record"
        yield Conflict(left="driver", right=label("cuda", parts["cuda"]), why=why, known=False)
        return
    for name, host in _hosts(hosts, lambda host: numbers(host.driver) < numbers(row.driver), _driver):
        why = f"CUDA {major} needs driver >= {row.driver}"
        known = bool(numbers(host.driver))
        yield Conflict(left=name, right=label("cuda", parts["cuda"]), why=why, source=row.source, known=known)


def _driver(host: HostFacts) -> str:
    return f"driver {host.driver or '(not known)'}"


def _modules(parts: Mapping[str, Any], hosts: Sequence[HostFacts]) -> Iterator[Conflict]:
    for row in cuda_facts().architecture:
        needing = [host for host in hosts if set(host.capabilities) & set(row.capabilities) and row.open_modules]
        for name, host in _hosts(needing, lambda host: not host.open_modules, _flavour):
            why = f"{row.name} works with the open kernel modules only"
            known = bool(host.driver)
            yield Conflict(left=name, right=label("cuda", parts["cuda"]), why=why, source=row.source, known=known)


def _flavour(host: HostFacts) -> str:
    return "kernel modules" if host.driver else "kernel modules (not known)"


def _architecture(parts: Mapping[str, Any], hosts: Sequence[HostFacts]) -> Iterator[Conflict]:
    toolkit: Toolkit = parts["cuda"]
    for capability, having in _by_capability(hosts):
        row = next((row for row in cuda_facts().architecture if capability in row.capabilities), None)
        left, right = _gpu(capability, having), label("cuda", toolkit)
        if row is None:
            why = "this compute capability is not on record" if capability else "the GPUs could not be read"
            yield Conflict(left=left, right=right, why=why, known=False)
        elif toolkit.line < numbers(row.first)[:2] or (row.last and toolkit.line[0] > int(row.last)):
            why = f"{row.name} is compiled for by CUDA {row.first} to {row.last or 'now'}"
            yield Conflict(left=left, right=right, why=why, source=row.source)


def _by_capability(hosts: Sequence[HostFacts]) -> list[tuple[str, list[HostFacts]]]:
    """Each compute capability and the hosts that have it; an empty one for hosts whose GPUs are not known."""
    having: dict[str, list[HostFacts]] = {}
    for host in hosts:
        for capability in host.capabilities or ("",):
            having.setdefault(capability, []).append(host)
    return sorted(having.items())


def _gpu(capability: str, having: Sequence[HostFacts]) -> str:
    return f"compute capability {capability or '(not known)'} of {named(having)}"


def line_of_driver(driver: str) -> str:
    """The CUDA release line that a driver was made for, such as 13.0 for 580.95.05; empty when it is older than all."""
    branch = (numbers(driver) or (0,))[0]
    known = [int(one) for one in driver_facts().lines if int(one) <= branch]
    return driver_facts().lines[str(max(known))] if known else ""


def _ptx(parts: Mapping[str, Any], hosts: Sequence[HostFacts]) -> Iterator[Conflict]:
    toolkit: Toolkit = parts["cuda"]
    for row in driver_facts().ptx:
        having = [host for host in hosts if set(host.capabilities) & set(row.capabilities)]
        for name, host in _hosts(having, lambda host: numbers(line_of_driver(host.driver)) < toolkit.line, _driver):
            line = line_of_driver(host.driver)
            upto = f"the driver translates PTX up to CUDA {line}" if line else "its CUDA line is not on record"
            why = f"{upto}; what this toolkit compiles on the host may not load"
            yield Conflict(left=name, right=label("cuda", toolkit), why=why, source=row.source, known=bool(line))


def _platform(parts: Mapping[str, Any], hosts: Sequence[HostFacts]) -> Iterator[Conflict]:
    toolkit: Toolkit = parts["cuda"]
    missing = _hosts(
        hosts, lambda host: host.platform not in toolkit.files, lambda host: host.platform or "unknown platform"
    )
    for name, _ in missing:
        why = "no runfile of it for this platform is on record"
        yield Conflict(left=name, right=label("cuda", toolkit), why=why, known=False)


def _torch_cuda(parts: Mapping[str, Any], _: Sequence[HostFacts]) -> Iterator[Conflict]:
    torch: Torch = parts["torch"]
    left, right = label("torch", torch), label("cuda", parts["cuda"])
    if not torch.cuda:
        why = "the CUDA this torch is built for is not on record"
        yield Conflict(left=left, right=right, why=why, source=torch.source, known=False)
    elif numbers(torch.cuda)[0] != parts["cuda"].line[0]:
        why = f"this torch is built for CUDA {torch.cuda}; code compiled on the host must have the same major"
        yield Conflict(left=left, right=right, why=why, source=torch.source)


def _torch_gpu(parts: Mapping[str, Any], hosts: Sequence[HostFacts]) -> Iterator[Conflict]:
    torch: Torch = parts["torch"]
    for capability, having in _by_capability(hosts):
        why, known = _torch_lacks(torch, capability)
        if why:
            left = _gpu(capability, having)
            yield Conflict(left=left, right=label("torch", torch), why=why, source=torch.source, known=known)


def _torch_lacks(torch: Torch, capability: str) -> tuple[str, bool]:
    """Why a torch does not run on a GPU, and whether that is sure; empty when it does."""
    if not capability:
        return "the GPUs could not be read", False
    if torch.arch:
        runs = any(_runs(one, capability) for one in torch.arch)
        return ("" if runs else f"it is built for {', '.join(torch.arch)}"), True
    if not torch.cuda:
        return "neither the GPUs nor the CUDA it is built for are on record", False
    first = next((row.first for row in cuda_facts().architecture if capability in row.capabilities), "")
    if not first:
        return "the GPUs it is built for are not on record, nor is this one", False
    older = numbers(torch.cuda) < numbers(first)[:2]
    return (f"it is built for CUDA {torch.cuda}, this GPU needs {first} or newer" if older else ""), True


def _runs(built: str, capability: str) -> bool:
    """Code for a compute capability runs on those of the same major and an equal or higher minor."""
    have, want = numbers(built), numbers(capability)
    return bool(want) and have[0] == want[0] and have[1] <= want[1]


def _kernel_gpu(parts: Mapping[str, Any], hosts: Sequence[HostFacts]) -> Iterator[Conflict]:
    kernel: Kernel = parts["kernel"]
    row: Sglang | None = parts.get("sglang")
    vouched = row is not None and (row.kernel, row.kernel_version) == (kernel.name, kernel.version)
    for capability, having in _by_capability(hosts):
        conflict = partial(Conflict, left=_gpu(capability, having), right=label("kernel", kernel), source=kernel.source)
        if not capability:
            yield conflict(why="the GPUs could not be read", known=False)
            continue
        if not kernel.cubins:
            if not vouched:
                why = "the GPUs it carries code for are not on record, and the release of sglang does not pin it"
                yield conflict(why=why, known=False)
            continue
        exact = capability.replace(".", "") + "a"
        plain = [f"{one[:-1]}.{one[-1]}" for one in kernel.cubins if one.isdigit()]
        if exact not in kernel.cubins and not any(_runs(one, capability) for one in plain):
            yield conflict(why=f"it carries code for sm_{', sm_'.join(kernel.cubins)} and no PTX")


def _kernel_torch(parts: Mapping[str, Any], _: Sequence[HostFacts]) -> Iterator[Conflict]:
    kernel, torch = parts["kernel"], parts["torch"]
    left, right = label("torch", torch), label("kernel", kernel)
    conflict = partial(Conflict, left=left, right=right, source=f"{torch.source}; {kernel.source}")
    if kernel.c10 and torch.c10 and kernel.c10 != torch.c10:
        form = "the kernel wheel wants the C10 form `{}`, this torch exports `{}` (undefined symbol at import)"
        yield conflict(why=form.format(kernel.c10, torch.c10))
    if kernel.cuda_major and torch.cuda and kernel.cuda_major != numbers(torch.cuda)[0]:
        why = f"the kernel wheel links CUDA {kernel.cuda_major}, this torch is built for CUDA {torch.cuda}"
        yield conflict(why=why)
    if not (kernel.c10 and torch.c10) and not _vouched(parts):
        why = "whether their C10 forms match was never read, and no sglang release pins the two"
        yield conflict(why=why, known=False)
    if not (kernel.cuda_major and torch.cuda) and not _vouched(parts):
        why = f"the CUDA that {left if kernel.cuda_major else right} is built for is not on record"
        yield conflict(why=why, known=False)


def _kernel_pin(parts: Mapping[str, Any], _: Sequence[HostFacts]) -> Iterator[Conflict]:
    kernel, torch = parts["kernel"], parts["torch"]
    if kernel.torch and not SpecifierSet(f"=={kernel.torch}").contains(torch.version, prereleases=True):
        why = f"the kernel wheel's metadata asks for torch {kernel.torch}"
        yield Conflict(left=label("torch", torch), right=label("kernel", kernel), why=why, source=kernel.source)


def _vouched(parts: Mapping[str, Any]) -> bool:
    row: Sglang | None = parts.get("sglang")
    if row is None:
        return False
    pinned = (row.torch, row.kernel, row.kernel_version)
    return pinned == (Version(parts["torch"].version).public, parts["kernel"].name, parts["kernel"].version)


def _pin(part: str, pinned: Callable[[Sglang], str], name: Callable[[Sglang], str]) -> Rule:
    def judge(parts: Mapping[str, Any], _: Sequence[HostFacts]) -> Iterator[Conflict]:
        row, value = parts["sglang"], parts[part]
        version = getattr(value, "version", value)
        same_name = getattr(value, "name", name(row)) == name(row)
        # A label (+cu130) may be added to a pinned version: PEP 440 lets `==2.11.0` take 2.11.0+cu130.
        if not same_name or not SpecifierSet(f"=={pinned(row)}").contains(version, prereleases=True):
            why = f"sglang {row.version} pins {name(row)} {pinned(row)}"
            yield Conflict(left=label("sglang", row), right=label(part, value), why=why, source=row.source)

    return Rule((part, "sglang"), ("sglang", part), judge, part)


def _nvcc(parts: Mapping[str, Any], hosts: Sequence[HostFacts]) -> Iterator[Conflict]:
    toolkit: Toolkit = parts["cuda"]
    for row in flashinfer_facts().nvcc:
        having = [host for host in hosts if set(host.capabilities) & set(row.capabilities)]
        covered = SpecifierSet(row.flashinfer).contains(parts["flashinfer"], prereleases=True)
        if having and covered and toolkit.line < numbers(row.floor):
            left = label("flashinfer", parts["flashinfer"])
            capability = min(set(having[0].capabilities) & set(row.capabilities))
            why = f"on compute capability {capability} its compiler wants nvcc >= {row.floor}"
            yield Conflict(left=left, right=label("cuda", toolkit), why=why, source=row.source)


def _python(part: str) -> Rule:
    def judge(parts: Mapping[str, Any], _: Sequence[HostFacts]) -> Iterator[Conflict]:
        row, python = parts[part], parts["python"]
        wheels = getattr(row, "pythons", [])
        if not SpecifierSet(row.requires_python or ">=3").contains(f"{python}.0") or (wheels and python not in wheels):
            offered = f"wheels for {', '.join(wheels)}" if wheels else f"requires-python {row.requires_python}"
            yield Conflict(
                left=label("python", python), right=label(part, row), why=f"it has {offered}", source=row.source
            )

    return Rule(("python", part), (part, "python"), judge)


def _host_python(parts: Mapping[str, Any], hosts: Sequence[HostFacts]) -> Iterator[Conflict]:
    python = parts["python"]
    say = lambda host: f"Python {', '.join(host.pythons) or '(none found)'}"  # noqa: E731 - a name for the lambda
    for name, _ in _hosts(hosts, lambda host: python not in host.pythons, say):
        yield Conflict(left=name, right=label("python", python), why="the host has no such interpreter")


def _glibc(parts: Mapping[str, Any], hosts: Sequence[HostFacts]) -> Iterator[Conflict]:
    row: Sglang = parts["sglang"]
    say = lambda host: f"glibc {host.glibc or '(not known)'}"  # noqa: E731 - a name for the lambda
    for name, host in _hosts(hosts, lambda host: numbers(host.glibc) < numbers(row.glibc or "2"), say):
        why = f"its wheels want glibc >= {row.glibc}; an installer would silently take an older release"
        if not row.glibc:
            why = "the glibc of the host could not be read"
        known = bool(numbers(host.glibc))
        yield Conflict(left=name, right=label("sglang", row), why=why, source=row.source, known=known)


RULES: tuple[Rule, ...] = (
    Rule(("glibc", "sglang"), ("sglang",), _glibc),
    _pin("torch", lambda row: row.torch, lambda _: "torch"),
    Rule(("gpu", "torch"), ("torch",), _torch_gpu),
    Rule(("kernel", "torch"), ("kernel", "torch"), _kernel_torch),
    Rule(("kernel", "torch"), ("kernel", "torch"), _kernel_pin, "torch"),
    Rule(("gpu", "kernel"), ("kernel",), _kernel_gpu),
    _pin("kernel", lambda row: row.kernel_version, lambda row: row.kernel),
    _pin("flashinfer", lambda row: row.flashinfer, lambda _: "flashinfer-python"),
    Rule(("pythons", "python"), ("python",), _host_python),
    _python("sglang"),
    _python("torch"),
    Rule(("platform", "cuda"), ("cuda",), _platform),
    Rule(("torch", "cuda"), ("torch", "cuda"), _torch_cuda),
    Rule(("driver", "cuda"), ("cuda",), _floor),
    Rule(("gpu", "cuda"), ("cuda",), _architecture),
    Rule(("modules", "cuda"), ("cuda",), _modules),
    Rule(("driver", "cuda"), ("cuda",), _ptx),
    Rule(("flashinfer", "cuda"), ("flashinfer", "cuda"), _nvcc),
)
"""Every rule of a stack; a rule is asked as soon as the parts it needs are chosen."""
