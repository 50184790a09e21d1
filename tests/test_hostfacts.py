"""What the solver reads from a probe record."""

from pathlib import Path

import msgspec
import pytest

from checks.hostfacts import HostFacts, of_probe, read_probes
from fleet.problem import Problem

GPU = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition, 580.95.05, 12.0, 97887, 00000000:01:00.0"
LOADED = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version:  gcc 13"


def record(**reads: str) -> dict[str, object]:
    """A probe record with these answers."""
    answers = {name.replace("__", "."): {"rc": 0, "out": out, "read": ""} for name, out in reads.items()}
    return {"schema": 1, "host": "gpu-01", "reads": answers}


def test_a_probe_record_gives_the_facts() -> None:
    """Driver, GPUs, modules, glibc, interpreters, platform."""
    probe = record(
        driver__gpus=f"0, GPU-1, {GPU}\n1, GPU-2, {GPU}",
        driver__loaded=LOADED,
        host__platform="x86_64\nglibc 2.36\n1001",
        wheels__pythons="/usr/bin/python3.12 3.12.3\n/usr/bin/python3.11 3.11.9\n/usr/bin/python3 3.12.3",
    )
    assert of_probe(probe) == HostFacts(
        name="gpu-01",
        platform="linux-x86_64",
        driver="580.95.05",
        capabilities=("12.0",),
        open_modules=True,
        glibc="2.36",
        pythons=("3.11", "3.12"),
    )


def test_what_was_not_read_stays_empty() -> None:
    """Nothing is made up: a host that answers nothing fits nothing."""
    facts = of_probe(record(host__platform="sparc64\nmusl libc", driver__gpus="No devices were found"))
    assert (facts.platform, facts.driver, facts.capabilities, facts.glibc, facts.pythons) == ("", "", (), "", ())


def test_records_are_found_in_the_folder_of_a_run(tmp_path: Path) -> None:
    """One per host, in order."""
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "probe.json").write_bytes(msgspec.json.encode({**record(), "host": name}))
    assert [host.name for host in read_probes([tmp_path])] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "unreadable"), ("{", "not JSON"), ("[]", "not a probe record"), ('{"reads": 1}', "not a probe record")],
)
def test_what_is_no_probe_record_is_told(tmp_path: Path, content: str | None, said: str) -> None:
    """Named with its path."""
    path = tmp_path / "probe.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(Problem, match=said):
        read_probes([path])


def test_a_folder_without_records_is_told(tmp_path: Path) -> None:
    """An empty selection is a mistake, not a success."""
    with pytest.raises(Problem, match=r"no probe\.json in it"):
        read_probes([tmp_path])
