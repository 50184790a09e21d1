"""One solve: the newest set of versions that fits all hosts and wishes, or the pair that does not fit. Asks nobody."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from checks.catalogue import Catalogue
from checks.decision import Decision, Rejected
from checks.facts import Kernel, Sglang, Torch
from checks.hostfacts import HostFacts
from checks.pairs import Conflict, Toolkit, label
from checks.refusal import Refusal, refusal
from checks.search import Parts, Search
from checks.wishes import PART_OF, PARTS, Candidate, Request


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
    candidates = search.domains[part]
    newer = candidates[: [one.value for one in candidates].index(parts[part])]
    return Decision(
        part=part,
        asked=_asked(search.request, part),
        chosen=label(part, parts[part]),
        reason=_reason(search, part, parts),
        source=_source(part, parts),
        date=getattr(parts[part], "date", ""),
        rejected=[_rejected(search, part, one, parts) for one in newer],
    )


def _asked(request: Request, part: str) -> str:
    wished = {**request.wishes, **{name: one.version for name, one in request.overrides.items()}}
    return ", ".join(wished[name] for name, its in PART_OF.items() if its == part and wished.get(name)) or "newest"


def _rejected(search: Search, part: str, one: Candidate, parts: Parts) -> Rejected:
    # What the others were chosen for: with another sglang all of them may change.
    met = (
        search.first(fixed={part: one.value})[1]
        if part == PARTS[0]
        else search.conflicts({**parts, part: one.value}, part)
    )
    whys = [why for _, why in one.against] + [_told(conflict, label(part, one.value)) for conflict in met]
    return Rejected(
        name=label(part, one.value),
        why="; ".join(whys) or "no set with it fits",
        source="; ".join(conflict.source for conflict in met if conflict.source),
    )


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
    return f"torch {torch.version} was built with CUDA {torch.cuda_toolkit or torch.cuda}"


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


def _source(part: str, parts: Parts) -> str:
    value: Any = parts[part]
    if part == "cuda":
        return "; ".join(dict.fromkeys(source for row in value.files.values() for source in row.sources))
    return str(getattr(value, "source", parts["sglang"].source if part == "flashinfer" else "probe records"))
