"""Which packages of one environment belong together or exclude each other. Asks nobody."""

from collections.abc import Iterator, Mapping

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from checks.facts import flashinfer_facts, twins
from checks.pairs import Conflict


def clashes(packages: Mapping[str, str], cuda_major: int) -> Iterator[Conflict]:
    """What does not go together among these packages (name -> version), for a stack of one CUDA major."""
    have = {str(canonicalize_name(name)): version for name, version in packages.items()}
    yield from _twins(have)
    yield from _flashinfer(have, cuda_major)


def _twins(have: Mapping[str, str]) -> Iterator[Conflict]:
    for row in twins():
        both = [name for name in row.packages if name in have]
        if len(both) > 1:
            left, right = (f"{name} {have[name]}" for name in both[:2])
            why = "they hold the same files: the last one installed wins, and removing one breaks the other"
            yield Conflict(left=left, right=right, why=why, source=row.source)


def _flashinfer(have: Mapping[str, str], cuda_major: int) -> Iterator[Conflict]:
    main = have.get("flashinfer-python", "")
    for row in flashinfer_facts().together:
        if not main or row.package not in have:
            continue
        version = have[row.package]
        left, right = f"flashinfer-python {main}", f"{row.package} {version}"
        if _public(version) != _public(main):
            why = "they must be the same release; FlashInfer's own check compares only how the text begins"
            yield Conflict(left=left, right=right, why=why, source=row.source)
        elif row.labelled and _label_major(version) != cuda_major:
            why = f"the label must be one of CUDA {cuda_major}; FlashInfer's own check never looks at it"
            yield Conflict(left=f"CUDA {cuda_major}", right=right, why=why, source=row.source)


def _public(version: str) -> str:
    try:
        return Version(version).public
    except InvalidVersion:
        return version


def _label_major(version: str) -> int:
    label = version.partition("+")[2]
    return int(label[2:-1]) if label.startswith("cu") and label[2:].isdigit() else 0
