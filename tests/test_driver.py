"""What hosts print about GPUs and drivers, and what is made of it: small captured outputs in data/driver.toml."""

from typing import Any

import pytest
from view_samples import cases, seen, view

from checks import driver
from fleet.view import View


def host(case: dict[str, Any]) -> View:
    """The host of a case."""
    reads = {
        f"driver.{name}": (case.get(f"{name}_rc", 0), case.get(name, "").strip())
        for name in ("gpus", "loaded", "installed", "holders")
    }
    return view(reads, gpus=case.get("want_gpus", 0))


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in cases("driver.toml")])
def test_captured_host(case: dict[str, Any]) -> None:
    """Each check, what it saw, and whether that is good, bad or not known."""
    found = driver.checks(host(case), case.get("cuda", "13.0.2"), gpus_needed=True)
    assert seen(found) == case["says"]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in cases("driver.toml")])
def test_whatever_is_not_green_says_what_to_do(case: dict[str, Any]) -> None:
    """A hint for each bad check, none for a good one."""
    found = list(driver.checks(host(case), case.get("cuda", "13.0.2"), gpus_needed=True))
    assert [check.name for check in found if bool(check.hint) == (check.ok is True)] == []


def test_stages_without_kernels_do_not_mind_who_holds_the_gpus() -> None:
    """A server may go on while a toolkit is installed beside it; who it is, is told."""
    reads: dict[str, str | tuple[int, str]] = {"driver.holders": "10291, python, 80321"}
    found = seen(driver.checks(view(reads), "13.0.2", gpus_needed=False))
    assert found["GPUs free"] == ["10291 python", True]


def test_rows_of_the_query() -> None:
    """Every field, as text; a name with a comma in it makes no row."""
    row = "3, GPU-1, NVIDIA RTX PRO 6000 Blackwell Max-Q, 595.71.05, 12.0, 97887, 00000000:41:00.0"
    assert driver.parse_gpus(f"{row}\n\n3, GPU-1, A, B, C, D, E, F\nindex, uuid, name, driver, cap, mem, bus\n") == [
        driver.Gpu(
            number="3",
            uuid="GPU-1",
            name="NVIDIA RTX PRO 6000 Blackwell Max-Q",
            driver="595.71.05",
            capability="12.0",
            memory="97887",
            bus="00000000:41:00.0",
        )
    ]


@pytest.mark.parametrize(
    ("text", "loaded"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.216.03  Thu Apr  3 01:14:19 UTC 2025",
            ("535.216.03", False),
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.142  Release Build  (x@y-3.2)",
            ("580.142", True),
        ),
        ("GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0)", ("", False)),
        ("NVRM version: none", ("", False)),
        ("", ("", False)),
    ],
)
def test_loaded_module(text: str, loaded: tuple[str, bool]) -> None:
    """Version and flavour; the compiler's version is not the driver's."""
    assert driver.parse_loaded(text) == loaded


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("580.95.05", (580, 95, 5)),
        ("13", (13,)),
        ("", ()),
        ("580.", ()),
        ("580.x", ()),
        ("-1.0", ()),
        ("1²", ()),
        ("٣.1", ()),
        ("1" * 5000, ()),
        ("580.95\n", ()),
    ],
)
def test_versions_are_compared_as_numbers(text: str, numbers: tuple[int, ...]) -> None:
    """What is no dotted number is none, however it may look."""
    assert driver.numbers(text) == numbers


def test_shipped_facts_are_whole() -> None:
    """Each row has a source, each capability stands once, each floor and release is a number."""
    facts = driver.cuda_facts()
    capabilities = [capability for row in facts.architecture for capability in row.capabilities]
    assert len(capabilities) == len(set(capabilities))
    assert all(row.source and driver.numbers(row.first) for row in facts.architecture)
    assert all(row.source and driver.numbers(row.driver) for row in facts.floor)
    assert [row.cuda_major for row in facts.floor] == [11, 12, 13]


def test_title() -> None:
    """The GPUs and the driver in a line."""
    case = cases("driver.toml")[0]
    assert driver.title(host(case)) == "2 × NVIDIA RTX PRO 6000 Blackwell Workstation Edition, driver 580.95.05"
    assert driver.title(view({})) == "driver none"
