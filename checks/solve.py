"""One solve: the newest set of versions that fits all hosts and wishes, or the pair that does not fit. Asks nobody."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from checks.catalogue import Catalogue, Row, shipped
from checks.facts import Kernel, Sglang, Torch, read_on
from checks.hostfacts import HostFacts
from checks.pairs import Conflict, Toolkit, label
from checks.refusal import Refusal, refusal
from checks.search import Parts, Search
from checks.wishes import PART_OF, PARTS, Request
from checks.wishes import Candidate as Choice
from fleet.decision import Candidate, Decision, Evidence, Rejected


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """One consistent choice of every part."""

    sglang: Sglang
    torch: Torch
    kernel: Kernel
    flashinfer: str
    python: str
    cuda: Toolkit

    @property
    def lane(self) -> int:
        """The CUDA major that all of it is built for."""
        return self.cuda.line[0]

    @property
    def packages(self) -> dict[str, str]:
        """Package -> version of the chosen parts; everything else follows from them."""
        return {
            "sglang": self.sglang.version,
            "torch": self.torch.version,
            self.kernel.name: self.kernel.version,
            "flashinfer-python": self.flashinfer,
        }


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen stack, and for each part why it and no newer one."""

    stack: Stack
    decisions: list[Decision]


def solve(hosts: Sequence[HostFacts], request: Request, catalogue: Catalogue | None = None) -> Solution | Refusal:
    """The newest consistent set for all the hosts together.

    Raises Problem for a wish that cannot be read or names a release that is not on record, and for no hosts at all.
    """
    search = Search(hosts, request, catalogue)
    parts, _ = search.first()
    if parts is None:
        return refusal(search)
    return Solution(stack=Stack(**parts), decisions=[_decision(search, part, parts) for part in PARTS])


def _decision(search: Search, part: str, parts: Parts) -> Decision:
    """What was chosen and why, and what stands against each newer candidate."""
    choices = search.domains[part]
    newer = choices[: [one.value for one in choices].index(parts[part])]
    chosen = Candidate(name=label(part, parts[part]), evidence=_evidence(part, parts, search))
    return Decision(
        subject=part,
        wish=_asked(search.request, part),
        candidates=[
            chosen,
            *(Candidate(name=label(part, one.value), evidence=_about(one.value, search)) for one in newer),
        ],
        chosen=chosen.name,
        reason=_reason(search, part, parts),
        rejected=[_rejected(search, part, one, parts) for one in newer],
    )


def _asked(request: Request, part: str) -> str:
    wished = {**request.wishes, **{name: one.version for name, one in request.overrides.items()}}
    return ", ".join(wished[name] for name, its in PART_OF.items() if its == part and wished.get(name)) or "newest"


def _rejected(search: Search, part: str, one: Choice, parts: Parts) -> Rejected:
    name = label(part, one.value)
    whys = [why for _, why in one.against] + [_told(conflict, name) for conflict in _met(search, part, one, parts)]
    return Rejected(name=name, reason="; ".join(whys) or "no set with it fits")


def _met(search: Search, part: str, one: Choice, parts: Parts) -> list[Conflict]:
    """What the rules have against a candidate beside the chosen parts."""
    if part == PARTS[0]:
        # With another sglang all the others may change.
        return [] if one.against else search.first(fixed={part: one.value})[1]
    return search.conflicts({**parts, part: one.value}, part)


def _told(conflict: Conflict, name: str) -> str:
    other = conflict.left if conflict.right == name else conflict.right
    return conflict.why if other in (name, "") or conflict.why.startswith(other) else f"{other}: {conflict.why}"


def _by_pin(parts: Parts) -> str:
    return f"sglang {parts['sglang'].version} pins it"


def _facts_of_torch(parts: Parts) -> str:
    torch: Torch = parts["torch"]
    return f"built for CUDA {torch.cuda or 'unknown'}, exports the C10 form `{torch.c10 or 'not read'}`"


def _facts_of_kernel(parts: Parts) -> str:
    kernel: Kernel = parts["kernel"]
    return f"links CUDA {kernel.cuda_major or 'unknown'}, wants the C10 form `{kernel.c10 or 'not read'}`"


def _facts_of_cuda(parts: Parts) -> str:
    torch: Torch = parts["torch"]
    return f"torch {torch.version} was built with CUDA {torch.cuda_toolkit or torch.cuda or 'unknown'}"


_REASONS: dict[str, Callable[[Parts], str]] = {
    "sglang": lambda _: "the newest release whose pins fit together and fit the hosts",
    "torch": _by_pin,
    "kernel": _by_pin,
    "flashinfer": _by_pin,
    "python": lambda _: "the newest that every host has and every wheel is built for",
    "cuda": lambda _: "the newest release that driver, GPUs, torch, FlashInfer's compiler and the policy allow",
}
_FACTS: dict[str, Callable[[Parts], str]] = {
    "sglang": lambda parts: f"CUDA {parts['sglang'].cuda} by its torch",
    "torch": _facts_of_torch,
    "kernel": _facts_of_kernel,
    "cuda": _facts_of_cuda,
}


def _reason(search: Search, part: str, parts: Parts) -> str:
    overrides = [one.reason for name, one in search.request.overrides.items() if PART_OF.get(name) == part]
    why = f"set by an override: {overrides[0]}" if overrides else _REASONS[part](parts)
    return "; ".join([why, _FACTS[part](parts)] if part in _FACTS else [why])


def _evidence(part: str, parts: Parts, search: Search) -> list[Evidence]:
    if part == "flashinfer":
        row: Sglang = parts["sglang"]
        return [Evidence(source=row.source, says=f"sglang {row.version} pins {row.flashinfer}", date=read_on())]
    if part == "python":
        have = [f"{host.name}: {', '.join(host.pythons)}" for host in search.hosts]
        return [Evidence(source="probe records", says="; ".join(have[:5]))]
    return _about(parts[part], search)


def _about(value: Any, search: Search) -> list[Evidence]:
    """What is on record about one candidate."""
    if isinstance(value, Toolkit):
        platforms = {host.platform for host in search.hosts}
        return [_runfile(row, value) for platform, row in value.files.items() if platform in platforms]
    if not hasattr(value, "source"):
        return []
    says = f"released {value.date}" if value.date else "day of release not on record"
    return [Evidence(source=value.source, says=says, date=read_on())]


def _runfile(row: Row, toolkit: Toolkit) -> Evidence:
    out = f"; out since {toolkit.date} at the latest" if toolkit.date else ""
    return Evidence(
        source="catalogue",
        says=f"{row.file}, from {'; '.join(row.sources)}{out}",
        size_bytes=row.size_bytes or -1,
        checksum=f"sha256:{row.sha256}" if row.sha256 else f"md5:{row.md5}" if row.md5 else "",
        date=shipped().read,
    )
