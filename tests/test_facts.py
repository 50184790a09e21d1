"""The shipped facts: every row has its source, and they agree with each other."""

import json
from pathlib import Path

import pytest
import tomli
from packaging.version import Version

from checks import facts
from checks.catalogue import shipped
from checks.together import clashes

FILES = sorted(path for path in facts.DATA.iterdir() if path.name not in ("cuda.toml", "prompts.json", "runfiles.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_file_has_a_day_and_each_row_a_source(path: Path) -> None:
    """Facts without source or date are rumours."""
    text = path.read_text()
    tables = json.loads(text) if path.suffix == ".json" else tomli.loads(text)
    assert tables["read"] == "2026-11-30"
    rows = [row for value in tables.values() if isinstance(value, list) for row in value]
    assert rows
    assert [row for row in rows if not row.get("source")] == []


def test_the_cuda_of_a_release_is_that_of_its_torch() -> None:
    """sglang.json and torch.toml tell the same."""
    for row in facts.sglang_rows():
        assert row.cuda == facts.torch_of(row.torch).cuda, row.version


def test_each_pinned_kernel_has_the_major_of_its_torch() -> None:
    """What sglang pins together links the same CUDA major."""
    for row in facts.sglang_rows():
        kernel = facts.kernel_of(row.kernel, row.kernel_version)
        assert kernel.cuda_major == Version(row.cuda).major, row.version


def test_each_pinned_kernel_wants_the_form_its_torch_exports() -> None:
    """As far as both were read."""
    for row in facts.sglang_rows():
        kernel, torch = facts.kernel_of(row.kernel, row.kernel_version), facts.torch_of(row.torch)
        assert not kernel.c10 or not torch.c10 or kernel.c10 == torch.c10, row.version


@pytest.mark.parametrize(
    ("version", "cuda", "form"),
    [
        ("2.11.0.dev20260126+cu130", "13.0", "unsigned"),
        ("2.11.0+cu128", "12.8", "unsigned"),
        ("2.9.0", "", "int"),
        ("2.14.0.dev20260620+cu132", "13.2", "unsigned+capture"),
        ("2.14.1", "13.0", "unsigned+capture"),
    ],
)
def test_torch_that_is_not_on_record_itself(version: str, cuda: str, form: str) -> None:
    """A nightly counts as its release, a label tells the CUDA."""
    row = facts.torch_of(version)
    assert (version, cuda, form) == (row.version, row.cuda, row.c10)


def test_a_label_on_the_kernel_tells_its_major() -> None:
    """sgl-kernel 0.3.21+cu130 is another file than the one on PyPI."""
    assert tuple(facts.kernel_of("sgl-kernel", one).cuda_major for one in ("0.3.21", "0.3.21+cu130")) == (12, 13)


def test_driver_lines_are_those_of_the_catalogue() -> None:
    """The first two numbers of each release and the branch in its name."""
    lines = facts.driver_facts().lines
    for row in shipped().rows:
        if row.driver and row.cuda not in ("11.0.1", "11.3.0", "11.3.1"):
            assert lines[row.driver.partition(".")[0]] == ".".join(row.cuda.split(".")[:2]), row.file


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ({"nvidia-nccl-cu12": "2.27", "nvidia-nccl-cu13": "2.30"}, "nvidia-nccl-cu12 2.27 and nvidia-nccl-cu13 2.30"),
        ({"nvidia_cudnn_cu12": "9", "nvidia-cudnn-cu13": "9"}, "they hold the same files"),
        ({"nvidia-nvshmem-cu12": "3", "nvidia-nvshmem-cu13": "3"}, "they hold the same files"),
        ({"nvidia-cusparselt-cu12": "0", "nvidia-cusparselt-cu13": "0"}, "they hold the same files"),
        ({"sgl-kernel": "0.3.21", "sglang-kernel": "0.4.10"}, "they hold the same files"),
        ({"flashinfer-python": "0.6.1", "flashinfer-jit-cache": "0.6.10+cu130"}, "must be the same release"),
        ({"flashinfer-python": "0.6.4", "flashinfer-jit-cache": "0.6.4+cu128"}, "one of CUDA 13"),
        ({"flashinfer-python": "0.6.13", "flashinfer-cubin": "0.6.12"}, "must be the same release"),
    ],
)
def test_what_excludes_each_other(packages: dict[str, str], said: str) -> None:
    """Twins of two CUDA majors, two owners of one import, FlashInfer's three packages."""
    assert said in "; ".join(map(str, clashes(packages, 13)))


def test_what_belongs_together_is_let_be() -> None:
    """One of each twin, FlashInfer's three at one release with the right label."""
    good = {"flashinfer-python": "0.7.2", "flashinfer-jit-cache": "0.7.2+cu130", "flashinfer-cubin": "0.7.2"}
    assert list(clashes({**good, "nvidia-nccl-cu13": "2.30.7"}, 13)) == []
