"""Moving a host onto a stack and back: the commands are really run in a folder, and crash where they like."""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from view_samples import seen, some_pins, view

from checks import stack, switch, wheels
from checks.stack import Stack
from fleet.model import Command, Irreversible, Refused
from fleet.pins import Pins, Switch
from fleet.view import View

PINS = some_pins(switch=Switch(require=[]))
DESCRIBED = "cuda {base}/cuda-12.8\npython {base}/old/bin/python\n"


def host(base: Path, system: str = DESCRIBED, pins: Pins = PINS, more: Any = None, **options: Any) -> View:
    """A host whose `base` is a folder here, read as the probe reads it."""
    reads: dict[str, str | tuple[int, str]] = {
        "stack.system": (0 if system else 1, system.format(base=base)),
        "toolkit.complete": pins.cuda.version,
        "wheels.complete": wheels.mark(pins),
        **(more or {}),
    }
    places = {"BASE": str(base), "STACK": f"{base}/stacks/{pins.stack}", "PATH": os.environ["PATH"]}
    for name in ("current", "current_json", "former", "former_json", "pinned_json", "halves"):
        line = stack.READS[f"stack.{name}"]
        answer = subprocess.run(["sh", "-c", line], env=places, capture_output=True, text=True, check=False)
        reads[f"stack.{name}"] = (answer.returncode, answer.stdout)
    return view(reads, base=str(base), **options)


def do(commands: Iterable[Command]) -> list[str]:
    """Runs what is planned; gives what was done."""
    done = []
    for command in commands:
        subprocess.run(["sh", "-c", command.shell], check=True)
        done.append(command.why)
    return done


def link(base: Path, name: str) -> str:
    """Where a link of the folder points; empty when there is none."""
    path = base / name
    return str(path.readlink()) if path.is_symlink() else ""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with a blank and a quote in its name."""
    place = tmp_path / "it's base"
    place.mkdir()
    return place


def test_there_and_back(base: Path) -> None:
    """The stack in use is adopted, left, and come back to; nothing is done twice."""
    assert seen(switch.is_in_use(host(base), PINS))["in use"][1] is False
    done = do(switch.forward(host(base), PINS))
    assert [word.split(":")[0] for word in done] == [
        "describe the new stack",
        "adopt the stack in use",
        f"switch to CUDA 13.0.2, torch 2.14.1 ({PINS.stack})",
    ]
    assert link(base, "current") == f"stacks/{PINS.stack}"
    old = link(base, "former")
    assert old.startswith("stacks/adopted-")
    assert list(switch.forward(host(base), PINS)) == []
    after = host(base)
    assert seen(switch.is_in_use(after, PINS))["in use"] == [f"stacks/{PINS.stack}", True]
    assert after.facts["former"].startswith("CUDA unknown (adopted-")
    assert seen(switch.is_back(after, PINS))["in use"][1] is False

    assert do(switch.back(host(base), PINS)) == [f"switch back to {after.facts['former']}"]
    assert (link(base, "current"), link(base, "former")) == (old, "")
    assert list(switch.back(host(base), PINS)) == []
    assert seen(switch.is_back(host(base), PINS))["in use"][1] is True

    assert len(do(switch.forward(host(base), PINS))) == 1
    assert (link(base, "current"), link(base, "former")) == (f"stacks/{PINS.stack}", old)


def test_each_undo_takes_back_its_command(base: Path) -> None:
    """In the other order, what was there before is there again."""
    commands = list(switch.forward(host(base), PINS))
    do(commands)
    for command in reversed(commands):
        assert isinstance(command.undo, str)
        subprocess.run(["sh", "-c", command.undo], check=True)
    assert link(base, "current") == ""
    assert not list(base.rglob("stack.json"))
    assert stack.in_use(host(base)) == stack.parse_described(DESCRIBED.format(base=base))


def test_first_stack_of_a_host(base: Path) -> None:
    """Nothing to adopt, no way back, and said so."""
    assert len(do(switch.forward(host(base, system=""), PINS))) == 2
    after = host(base, system="")
    assert seen(switch.is_in_use(after, PINS)) == {
        "in use": [f"stacks/{PINS.stack}", True],
        "way back": ["none", True],
    }
    assert list(switch.back(after, PINS)) == []
    back = next(iter(switch.is_back(after, PINS)))
    assert (back.ok, back.hint) == (False, "there is no former stack to go back to: this one was the first on the host")


def test_crash_between_the_links(base: Path) -> None:
    """`former` is written first: the old stack stays in use, and the next plan does both again."""
    describe, adopt, move = switch.forward(host(base), PINS)
    do([describe, adopt])
    keep = move.shell.splitlines()[1]
    subprocess.run(["sh", "-c", keep], check=True)
    assert link(base, "current") == ""
    assert stack.in_use(host(base)) == stack.parse_described(DESCRIBED.format(base=base))
    do(switch.forward(host(base), PINS))
    assert (link(base, "current"), link(base, "former")[:15]) == (f"stacks/{PINS.stack}", "stacks/adopted-")


def test_commands_may_run_twice(base: Path) -> None:
    """Each of them, also after it was cut short."""
    commands = list(switch.forward(host(base), PINS))
    (base / "current.new").symlink_to("stacks/left-behind")
    assert len(do(commands)) == len(do(commands)) == 3
    assert link(base, "current") == f"stacks/{PINS.stack}"
    assert sorted(path.name for path in base.iterdir()) == ["current", "former", "stacks"]


def test_the_link_is_never_missing(base: Path) -> None:
    """A switch from one stack to another is made by rename: the command has no step that removes."""
    do(switch.forward(host(base), PINS))
    other: Pins = replace(PINS, stack="ba9876543210")
    move = [*switch.forward(host(base, pins=other), other)][-1]
    assert "rm " not in move.shell
    do([move])
    assert link(base, "current") == "stacks/ba9876543210"
    assert link(base, "former") == f"stacks/{PINS.stack}"


def test_what_was_never_finished_is_removed(base: Path) -> None:
    """A part without its mark, and nothing else; that it cannot be undone is said."""
    home = base / "stacks" / PINS.stack
    for part in ("venv", "cuda-13.0.2", "notes"):
        (home / part).mkdir(parents=True)
    (home / "cuda-13.0.2" / ".complete").touch()
    (removal,) = switch.back(host(base), PINS)
    assert isinstance(removal.undo, Irreversible)
    assert do([removal]) == ["remove what was never finished: venv"]
    assert sorted(path.name for path in home.iterdir()) == ["cuda-13.0.2", "notes"]
    assert list(switch.back(host(base), PINS)) == []


def test_only_parts_of_the_stack_are_removed(base: Path) -> None:
    """Whatever a host prints in that place: other folders, words of its shell, a name of two lines."""
    seen_before = host(base)
    home = f"{base}/stacks/{PINS.stack}"
    said = f"/etc\n{base}\n{home}\nsh: 1: not found\n{home}/cuda-a\nb\n"
    reads = {**seen_before.probe["reads"], "stack.halves": {"rc": 0, "out": said, "read": ""}}
    commands = list(switch.back(View(seen_before.spec, {"reads": reads}), PINS))
    assert [command.why for command in commands] == ["remove what was never finished: cuda-a"]


def test_nothing_is_taken_from_under_a_job(base: Path) -> None:
    """Whose job it is, is told; one that has ended is no obstacle."""
    at_work = {"host.jobs": "wheels-0123abcd 20261130T020000Z-apply-0000 running\n"}
    with pytest.raises(Refused, match="a job is still at work on the host: wheels-0123abcd of run 20261130T"):
        list(switch.back(host(base, more=at_work), PINS))
    ended = {"host.jobs": "wheels-0123abcd 20261130T020000Z-apply-0000 exit\n"}
    assert list(switch.back(host(base, more=ended), PINS)) == []


@pytest.mark.parametrize(
    ("reads", "gates", "reason"),
    [
        ({"toolkit.complete": (1, "")}, [], "the pinned stack has no complete toolkit"),
        ({"toolkit.complete": "13.0.1"}, [], "the pinned stack has no complete toolkit"),
        ({"wheels.complete": "another lock"}, [], "the pinned stack has no complete venv"),
        ({}, ["kernels"], "the pinned stack is not proven: kernels: "),
        ({}, ["kernels", "eagle3"], "the pinned stack is not proven: kernels: "),
        ({}, ["eagle3"], "the pinned stack is not proven: eagle3: "),
    ],
)
def test_stack_that_is_not_proven_is_not_put_in_use(reads: Any, gates: list[str], reason: str, base: Path) -> None:
    """Neither half-made nor unmeasured: refused with what is missing; a plan that would bring it does not mind."""
    pins = replace(PINS, switch=Switch(require=gates))
    with pytest.raises(Refused) as caught:
        list(switch.forward(host(base, more=reads), pins))
    assert caught.value.reason.startswith(reason)
    assert caught.value.hint
    stages = ("toolkit", "wheels", "kernels", "eagle3", "switch")
    planned = host(base, more=reads, mode="plan")
    coming = View(planned.spec, planned.probe, mode="plan", stages=stages)
    assert len(list(switch.forward(coming, pins))) == 3


def test_validation_takes_any_stack_that_is_known(base: Path) -> None:
    """It is about the stack in use, whichever it is; with none there is nothing to be green about."""
    assert seen(switch.is_in_use(host(base, mode="validate"), PINS))["in use"][1] is True
    assert seen(switch.is_in_use(host(base, system="", mode="validate"), PINS))["in use"] == ["nothing known", False]


def test_link_that_points_elsewhere_is_not_green(base: Path) -> None:
    """A record of the pinned stack behind a link of another name."""
    do(switch.forward(host(base), PINS))
    (base / "stacks" / PINS.stack).rename(base / "stacks" / "moved")
    (base / "current").unlink()
    (base / "current").symlink_to("stacks/moved")
    assert seen(switch.is_in_use(host(base), PINS))["in use"] == ["stacks/moved", False]


def test_text_of_a_host_is_no_shell(base: Path) -> None:
    """env.sh of an adopted stack holds what the host said, and runs none of it."""
    odd = f"cuda /x'; touch '{base}/owned\npython {base}/$(touch {base}/owned)/bin/python\n"
    text = odd + f'{{"cuda": {{"version": "12.8\\ntouch {base}/owned"}}}}\n/a/torch-1;touch${{IFS}}x.dist-info\n'
    do(switch.forward(host(base, system=text.replace("{", "{{").replace("}", "}}")), PINS))
    adopted: Stack | None = stack.former(host(base))
    assert adopted is not None
    env = base / "stacks" / adopted.name / "env.sh"
    subprocess.run(["sh", "-eu", str(env)], env={"PATH": os.environ["PATH"]}, check=True, cwd=base)
    assert sorted(path.name for path in base.iterdir()) == ["current", "former", "stacks"]


def test_way_back_is_by_the_links_also_when_the_pins_have_changed(base: Path) -> None:
    """Who edits pins.toml after the switch still gets back to the former stack."""
    do(switch.forward(host(base), PINS))
    old = link(base, "former")
    edited = replace(PINS, stack="0123456789ab")
    done = do(switch.back(host(base), edited))
    assert [word.split(" to ")[0] for word in done] == ["switch back"]
    assert (link(base, "current"), link(base, "former")) == (old, "")
