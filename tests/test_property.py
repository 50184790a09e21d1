"""Parsers on damaged input: text of a host is turned over at random, and no parser ever ends in a crash."""

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from view_samples import DATA, cases, dice, some_pins, view

from checks import driver, from_host, lists, runfile, stack, switch, toolkit, wheels
from fleet import job
from fleet.hosts import chosen_hosts, read_hosts
from fleet.model import Refused
from fleet.pins import locked_versions, read_pins
from fleet.problem import Problem, did_you_mean
from fleet.work import q

ROUNDS = 400
# Letters that have a meaning somewhere, and such that only look like digits or blanks.
PIECES = [*"\0\n\r\t \"'`$;|&<>{}[]()*?!#%,.:=-/\\", "²", "٣", "\u2028", "\ufeff", "\ud7ff", "\x1b[2J", "\ufffd"]
PIECES += ["9" * 400, "-1", "null", "[N/A]", "../", "[" * 2000, "NaN", "1e999", "HTTP/1.1 200 OK\n\n", "cuda ", "%s"]


def damaged(chance: random.Random, text: str) -> str:
    """The text with a few cuts, repeats and foreign pieces."""
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(len(text) + 1)
        end = min(len(text), at + chance.randint(0, 12))
        piece = chance.choice([*PIECES, text[at:end] * 3, ""])
        text = text[:at] + piece + text[chance.choice([at, end]) :]
    return text[: chance.randint(0, len(text))] if chance.random() < 0.1 else text


STACK_JSON = json.dumps(
    {
        "schema": 1,
        "name": "adopted-1",
        "kind": "adopted",
        "cuda_dir": "/usr/local/cuda-12.8",
        "cuda_version": "12.8.1",
        "python": "/opt/v/bin/python",
        "packages": {"torch": "2.9.1"},
    }
)
DESCRIBED = 'cuda /c\npython /p/bin/python\n{"cuda": {"version": "12.8.1"}}\n/a/torch-2.9.1.dist-info\n'
HEADERS = "HTTP/1.1 301 x\nLocation: http://b/\n\nHTTP/2 206\nContent-Range: bytes 0-511/4328066903\n\n#!/bin/sh\n"
PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "gpus": (driver.parse_gpus, "0, GPU-a, NVIDIA H200, 580.95.05, 9.0, 143771, 00000000:01:00.0\n"),
    "loaded": (
        driver.parse_loaded,
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.142  Release Build\n",
    ),
    "numbers": (driver.numbers, "580.95.05"),
    "recorded": (stack.parse_recorded, STACK_JSON),
    "described": (stack.parse_described, DESCRIBED),
    "version": (stack.parse_version_json, '{"cuda": {"name": "CUDA SDK", "version": "13.0.2"}}'),
    "distributions": (stack.parse_distributions, "/a/torch-2.9.1+cu128.dist-info\n/a/sgl_kernel-0.4.10.dist-info\n"),
    "space": (runfile.parse_space, "/dev/a 1000 400 600 40% /\n/dev/a 500 100 400 20% /\n" * 2),
    "md5sums": (lists.parse_md5sums, "3f092554675f004250d4dfc1d6c3acc9 cuda_13.0.2_580.95.05_linux.run\n" * 2),
    "from host": (lambda text: from_host.parse(text, "http://a/b"), HEADERS),
    "jobs": (job.parse_listing, "toolkit-0123abcd 20261130T020000Z-apply-0000 running\n" * 2),
    "lock": (locked_versions, "torch[cuda]==2.14.1 ; x \\\n  --hash=sha256:00\nsglang==0.5.23\n"),
    "installer": (lambda text: toolkit.explain(1, text), '{"verdict": "truncated"}\nNo space left on device\n'),
    "uv": (lambda text: wheels.explain(1, text), "error: Hash mismatch\nNo solution found\n"),
    "nearest": (lambda text: did_you_mean(text, ["toolkit", text]), "toolkits"),
    "quote": (q, "it's"),
}


@pytest.mark.parametrize("name", PARSERS)
def test_parser_never_crashes(name: str) -> None:
    """Whatever a host says, something is made of it, if only nothing."""
    parse, text = PARSERS[name]
    chance = dice(name)
    parse("")
    for _ in range(ROUNDS):
        parse(damaged(chance, text))


def test_recorded_names_stay_in_their_folder() -> None:
    """Of all damaged records, those that are believed have a name that is one word of a path."""
    chance = dice(20)
    found = [one for _ in range(4 * ROUNDS) if (one := stack.parse_recorded(damaged(chance, STACK_JSON)))]
    assert len(found) > 20
    assert all(Path(one.name).name == one.name and not one.name.startswith((".", "-")) for one in found)


def test_poll_is_a_state_or_refused() -> None:
    """A damaged answer to a poll is never a crash of another kind."""
    chance = dice(20)
    outcomes = set()
    for _ in range(ROUNDS):
        raw = damaged(chance, "\nfleet-job exit 0\nlog\n").encode("utf-8", "replace")
        try:
            outcomes.add(job.parse_poll(raw).state)
        except ValueError:
            outcomes.add("refused")
    assert outcomes <= {"exit", "refused", "running", "lost"}
    assert {"exit", "refused"} <= outcomes


def test_checks_of_a_damaged_host_never_crash() -> None:
    """Every answer of a host is damaged: the checks say something, and stages refuse at most with a reason."""
    chance = dice(20)
    pins = some_pins()
    good = {
        "host.platform": "x86_64\nglibc 2.39\n1000",
        "runfile.space": PARSERS["space"][1],
        "runfile.tmp_options": "rw,noexec",
        "stack.current": "stacks/adopted-1",
        "stack.current_json": STACK_JSON,
        "stack.former": "stacks/adopted-1",
        "stack.former_json": STACK_JSON,
        "stack.pinned_json": STACK_JSON,
        "stack.system": DESCRIBED,
        "wheels.pythons": "/usr/bin/python3.12 3.12.3\n",
        "wheels.uv": "/usr/bin/uv\nuv 0.13.9\n",
    }
    captured = cases("driver.toml")
    for _ in range(ROUNDS):
        case = chance.choice(captured)
        reads = good | {f"driver.{name}": case.get(name, "") for name in ("gpus", "loaded", "installed", "holders")}
        broken: dict[str, Any] = {
            name: (chance.choice([0, 0, 0, 1, 124, -1]), damaged(chance, text)) for name, text in reads.items()
        }
        host = view(broken, mode=chance.choice(["apply", "plan", "validate"]), gpus=chance.choice([0, 8]))
        target = stack.target(host, pins)
        cuda = (target.cuda_version if target else "") or "13.0.2"
        assert len(list(driver.checks(host, cuda, gpus_needed=True))) >= 3
        list(runfile.room(host, pins))
        list(switch.is_in_use(host, pins))
        list(switch.is_back(host, pins))
        wheels.uv_on_host(host)
        if target is not None:
            stack.as_pins(target, pins)
        with suppress(Refused):
            list(switch.back(host, pins))
        with suppress(Refused):
            wheels.require_interpreter(host, pins)
        with suppress(Refused):
            list(switch.forward(host, pins))


@pytest.mark.parametrize("name", ["pins.toml", "hosts.toml", "pins.lock"])
def test_damaged_input_is_told_in_two_lines(name: str, tmp_path: Path) -> None:
    """A file of the user, turned over: read, or refused in a line or two of plain text that names the file."""
    chance = dice(name)
    for sample in ("pins.toml", "hosts.toml", "pins.lock"):
        (tmp_path / sample).write_bytes((DATA / "bad_input" / sample).read_bytes())
    text = (tmp_path / name).read_text("utf-8")
    refused = 0
    for _ in range(ROUNDS):
        (tmp_path / name).write_text(damaged(chance, text), "utf-8")
        try:
            read_pins(tmp_path / "pins.toml")
            chosen_hosts(read_hosts(tmp_path / "hosts.toml"), "", tmp_path)
        except Problem as problem:
            refused += 1
            lines = str(problem).split("\n")
            assert len(lines) <= 2
            assert all(line.isprintable() for line in lines)
            assert str(tmp_path) in lines[0]
    assert refused > ROUNDS // 20
