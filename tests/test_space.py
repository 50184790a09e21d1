"""Whether there is room for a runfile and what it unpacks: df as hosts print it, and what is made of it."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from view_samples import cases, seen, some_pins, view

from checks import runfile
from fleet.pins import Runfile

SIZE = 4_328_066_903
RUNFILE = Runfile(file="cuda_13.0.2_580.95.05_linux.run", size_bytes=SIZE, sha256="0" * 64)
BARE = some_pins()
PINS = replace(
    BARE,
    cuda=replace(BARE.cuda, runfile={"linux-x86_64": RUNFILE}),
    wheels=replace(BARE.wheels, disk_bytes=20_000_000_000),
)


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in cases("space.toml")])
def test_free_space(case: dict[str, Any]) -> None:
    """Bytes and inodes of both file systems, or not known."""
    found = runfile.parse_space(case["text"].strip())
    assert [list(space) for space in found] == case["free"]


def room(tmp_kib: int, base_kib: int, inodes: str = "500 100 400 20%", options: Any = "rw,relatime") -> dict[str, Any]:
    """The checks of a host with that much room."""
    lines = [f"/dev/a {kib + 1} 1 {kib} 50% /\n/dev/a {inodes} /" for kib in (tmp_kib, base_kib)]
    reads: dict[str, Any] = {
        "host.platform": "x86_64\nglibc 2.39\n1000",
        "runfile.space": "\n".join(lines),
        "runfile.tmp_options": options,
    }
    return seen(runfile.room(view(reads, tmp="/scratch"), PINS))


def test_room_for_archive_copy_and_installation() -> None:
    """Twice the archive in tmp; three times, and the wheels, where stacks live; to the byte."""
    enough_tmp, enough_base = -(-2 * SIZE // 1024), -(-(3 * SIZE + 20_000_000_000) // 1024)
    assert {name: said[1] for name, said in room(enough_tmp, enough_base).items()} == {
        "space in /scratch": True,
        "space in /opt/fleet": True,
        "/scratch may execute": True,
    }
    short = room(enough_tmp - 1, enough_base - 1)
    assert short["space in /scratch"] == ["8.66 GB free", False]
    assert short["space in /opt/fleet"] == ["32.98 GB free", False]


def test_inodes_count_too() -> None:
    """None left is as bad as no space; a file system that has none is not full."""
    assert room(10**9, 10**9, "500 500 0 100%")["space in /scratch"] == ["1024.00 GB free, no inodes", False]
    assert room(10**9, 10**9, "0 0 0 -")["space in /scratch"] == ["1024.00 GB free", True]


def test_folder_that_may_not_execute() -> None:
    """The installer starts from there; a host without findmnt says nothing about it."""
    assert room(10**9, 10**9, options="rw,nosuid,nodev,noexec")["/scratch may execute"] == ["noexec", False]
    assert "/scratch may execute" not in room(10**9, 10**9, options=(127, "sh: findmnt: not found"))


def test_unknown_room_is_not_green() -> None:
    """A host that could not be asked has not enough and not too little: nobody knows."""
    found = seen(runfile.room(view({"host.platform": "x86_64"}, tmp="/scratch"), PINS))
    assert found == {"space in /scratch": ["unknown", "unknown"], "space in /opt/fleet": ["unknown", "unknown"]}


def test_no_room_is_needed_once_installed() -> None:
    """A second run asks for no space that is already used."""
    reads: dict[str, Any] = {"runfile.installed": "/opt/fleet/stacks/x/cuda-13.0.2/.complete"}
    assert list(runfile.room(view(reads, tmp="/scratch"), PINS)) == []


def test_the_read_asks_the_nearest_folder(tmp_path: Path) -> None:
    """A place that is not there yet lies on the file system of what is above it."""
    read = runfile.READS["runfile.space"]
    places = {"TMP": f"{tmp_path}/not/there yet", "BASE": f"{tmp_path}", "PATH": os.environ["PATH"]}
    answer = subprocess.run(["sh", "-c", read], env=places, capture_output=True, text=True, check=True)
    tmp, base = runfile.parse_space(answer.stdout)
    assert tmp.free_bytes > 0
    assert abs(tmp.free_bytes - base.free_bytes) < 10**9
