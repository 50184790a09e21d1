"""Which stack is in use: links, files and listings of a host, also those that no sane host has."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from view_samples import some_pins, view

from checks import stack
from checks.stack import Stack
from fleet.hosts import HostSpec, InUse
from fleet.model import Check

PINS = some_pins()
OLD = Stack(
    name="adopted-1",
    kind="adopted",
    cuda_dir="/usr/local/cuda-12.8",
    cuda_version="12.8.1",
    python="/opt/old/bin/python",
    packages={"torch": "2.9.1+cu128"},
)
FOUND = """\
cuda /usr/local/cuda-12.8
python /opt/venv/bin/python
{
   "cuda" : { "name" : "CUDA SDK", "version" : "12.8.1" },
   "cuda_nvcc" : { "name" : "CUDA NVCC", "version" : "12.8.93" }
}
/opt/venv/lib/python3.12/site-packages/torch-2.9.1+cu128.dist-info
/opt/venv/lib/python3.12/site-packages/sgl_kernel-0.3.21.dist-info
/opt/venv/lib/python3.12/site-packages/Jinja2-3.1.6.dist-info
/opt/venv/lib/python3.12/site-packages/typing_extensions-4.15.0.dist-info
"""


def recorded(one: Stack = OLD, **changes: Any) -> str:
    """A stack.json, whole or with other fields."""
    fields = {name: getattr(one, name) for name in one.__struct_fields__}
    return json.dumps({**fields, **changes})


def test_recorded_stack_is_read_back() -> None:
    """What the switch wrote."""
    assert stack.parse_recorded(recorded()) == OLD
    assert OLD.title == "CUDA 12.8.1, torch 2.9.1+cu128 (adopted-1)"
    assert stack.parse_recorded(recorded(later="a key of a later version")) == OLD


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "cat: stack.json: No such file or directory",
        recorded()[:-3],
        recorded(kind="else"),
        recorded(cuda_version=13),
        recorded(packages=["torch"]),
        recorded(packages={"torch": None}),
        recorded(name=""),
        recorded(name=".."),
        recorded(name="../../../etc"),
        recorded(name="a/b"),
        recorded(name="a\nb"),
        recorded(name="-rf"),
        '{"x": ' + "[" * 100_000,
        "\ufffd" + recorded(),
        recorded().replace("adopted-1", "\ud800"),
    ],
)
def test_hostile_record_is_no_stack(text: str) -> None:
    """Neither cut, mistyped and nested without end, nor with a name that leads out of the folder of stacks."""
    assert stack.parse_recorded(text) is None


def test_described_stack() -> None:
    """Toolkit, interpreter, release and distributions of a stack that nobody recorded."""
    found = stack.parse_described(FOUND)
    assert found == Stack(
        name=found.name if found else "",
        kind="found",
        cuda_dir="/usr/local/cuda-12.8",
        cuda_version="12.8.1",
        python="/opt/venv/bin/python",
        packages={"torch": "2.9.1+cu128", "sgl-kernel": "0.3.21", "jinja2": "3.1.6", "typing-extensions": "4.15.0"},
    )
    assert found.name.startswith("found-")
    assert stack.parse_recorded(recorded(found)) == found


@pytest.mark.parametrize("text", ["", "cuda \npython \n\n", "bash: readlink: command not found\n"])
def test_nothing_described(text: str) -> None:
    """Without a toolkit and without an interpreter there is no stack."""
    assert stack.parse_described(text) is None


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ('{"cuda": {"name": "CUDA SDK", "version": "13.0.2"}}', "13.0.2"),
        ('{"cuda_nvcc": {"version": "13.0.88"}, "cuda": {"version": "13.0.2"}}', "13.0.2"),
        ('{"cuda_nvcc": {"version": "13.0.88"}}', ""),
        ('{"cuda": {"name": "CUDA SDK"}, "x": {"version": "1"}}', ""),
        ('{"cuda": {"version": "12.8\n$(touch owned)"}}', ""),
        ('{"cuda": {"version": "next"}}', ""),
        ('{"cuda": {"version": "13.0.2"', "13.0.2"),
        ("", ""),
    ],
)
def test_release_of_a_toolkit(text: str, release: str) -> None:
    """Only of the toolkit itself, and only a dotted number: it is written into env.sh."""
    assert stack.parse_version_json(text) == release


def test_distributions() -> None:
    """Names as an index knows them; what is no .dist-info folder is none."""
    names = ["b-1.0.dist-info", "C.d_e-2.0+cu130.dist-info", "~b-1.0.dist-info", "x.egg-info", "n.dist-info"]
    text = "".join(f"/a/{name}\n" for name in names) + "ls: cannot access '/b'\n"
    assert stack.parse_distributions(text) == {"b": "1.0", "c-d-e": "2.0+cu130"}


def test_what_is_in_use_is_the_link_first() -> None:
    """Then what hosts.toml tells, a running server, the system's toolkit."""
    reads: dict[str, str | tuple[int, str]] = {
        "stack.current": "stacks/adopted-1",
        "stack.current_json": recorded(),
        "stack.told": FOUND.replace("/opt/venv", "/told"),
        "stack.server": FOUND.replace("/opt/venv", "/server"),
        "stack.system": FOUND.replace("/opt/venv/bin/python", ""),
    }
    pythons = []
    for name in ("stack.current", "stack.told", "stack.server", "stack.system", ""):
        found = stack.in_use(view(reads))
        pythons.append(found.python if found else None)
        if name:
            reads[name] = (1, "")
    assert pythons == ["/opt/old/bin/python", "/told/bin/python", "/server/bin/python", "", None]


def test_link_without_a_record_is_not_believed() -> None:
    """A folder that somebody made by hand: the next source is asked."""
    reads: dict[str, str | tuple[int, str]] = {
        "stack.current": "stacks/mine",
        "stack.current_json": "{}",
        "stack.system": FOUND,
    }
    found = stack.in_use(view(reads))
    assert found is not None
    assert found.kind == "found"


def test_target_of_a_stage() -> None:
    """The pinned stack, except that a validation is about the one in use."""
    reads: dict[str, str | tuple[int, str]] = {"stack.current": "stacks/adopted-1", "stack.current_json": recorded()}
    pinned = stack.target(view(reads), PINS)
    assert pinned is not None
    assert (pinned.name, pinned.python) == (PINS.stack, f"/opt/fleet/stacks/{PINS.stack}/venv/bin/python")
    assert stack.target(view(reads, mode="validate"), PINS) == OLD
    assert stack.target(view({}, mode="validate"), PINS) is None
    assert stack.none_found().ok is None


def test_stack_to_compare_with() -> None:
    """The one in use before the switch, the former one after it."""
    before: dict[str, str | tuple[int, str]] = {"stack.current": "stacks/adopted-1", "stack.current_json": recorded()}
    assert stack.before(view(before), PINS) == OLD
    pinned = recorded(stack.pinned(view({}), PINS))
    after: dict[str, str | tuple[int, str]] = {
        "stack.current": f"stacks/{PINS.stack}",
        "stack.current_json": pinned,
        "stack.former": "stacks/adopted-1",
        "stack.former_json": recorded(),
    }
    assert stack.before(view(after), PINS) == OLD
    assert stack.before(view({**after, "stack.former": (1, "")}), PINS) is None


def test_stack_is_judged_by_what_it_says_it_is() -> None:
    """The pins of an older stack have its own versions; those of the pinned one are the pins."""
    own = stack.as_pins(OLD, PINS)
    assert (own.cuda.version, own.wheels.packages) == ("12.8.1", {"torch": "2.9.1+cu128"})
    assert stack.as_pins(replace(OLD, cuda_version=""), PINS).cuda_major == 0
    assert stack.as_pins(stack.pinned(view({}), PINS), PINS) is PINS


def test_environment_puts_the_stack_first(tmp_path: Path) -> None:
    """The lines are quoted, and a shell that reads them has the stack's tools first, and a cache of its own."""
    base = f"{tmp_path}/it's $HOME"
    one = stack.pinned(view({}, base=base), PINS)
    lines = "\n".join(stack.environment(one))
    script = f'{lines}\nprintf "%s\\n" "$CUDA_HOME" "$PATH" "$FLASHINFER_WORKSPACE_BASE"'
    places = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    answer = subprocess.run(["sh", "-c", script], env=places, capture_output=True, text=True, check=True)
    home = f"{base}/stacks/{PINS.stack}"
    assert answer.stdout.splitlines() == [
        f"{home}/cuda-13.0.2",
        f"{home}/venv/bin:{home}/cuda-13.0.2/bin:{os.environ['PATH']}",
        f"{tmp_path}/.cache/fleet/{PINS.stack}",
    ]
    assert stack.environment(Stack(name="a", kind="found", cuda_dir="", cuda_version="", python="")) == []


def read(name: str, root: Path, spec: HostSpec) -> subprocess.CompletedProcess[str]:
    """What one read of the probe answers below a root."""
    wanted = stack.READS[name]
    shell = wanted if isinstance(wanted, str) else wanted(spec, PINS)
    places = {"ROOT": str(root), "BASE": f"{root}/opt/fleet", "STACK": f"{root}/opt/fleet/stacks/x"}
    return subprocess.run(
        ["sh", "-c", shell], env={**places, "PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with a toolkit, a venv and a server that runs from it."""
    toolkit = tmp_path / "usr/local/cuda-12.8"
    toolkit.mkdir(parents=True)
    (toolkit / "version.json").write_text('{"cuda": {"name": "CUDA SDK", "version": "12.8.1"}}')
    (tmp_path / "usr/local/cuda").symlink_to("cuda-12.8")
    (tmp_path / "opt/v/lib/python3.12/site-packages/torch-2.9.1.dist-info").mkdir(parents=True)
    words = [f"{tmp_path}/opt/v/bin/python3", "-m", "sglang.launch_server", "--model-path", "m"]
    for pid, line in (("7", ["bash"]), ("42", words)):
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "cmdline").write_bytes(b"\0".join(word.encode() for word in line) + b"\0")
    return tmp_path


def test_reads_find_the_stack_of_a_running_server(root: Path) -> None:
    """Interpreter from the command line, toolkit from the link, distributions from the folder."""
    found = stack.parse_described(read("stack.server", root, HostSpec()).stdout)
    assert found is not None
    assert (found.python, found.cuda_dir) == (f"{root}/opt/v/bin/python3", f"{root}/usr/local/cuda-12.8")
    assert (found.cuda_version, found.packages) == ("12.8.1", {"torch": "2.9.1"})


def test_reads_find_the_toolkit_of_the_system(root: Path) -> None:
    """Without a server there is at least /usr/local/cuda; without that, nothing."""
    (root / "proc/42/cmdline").unlink()
    assert read("stack.server", root, HostSpec()).returncode == 1
    found = stack.parse_described(read("stack.system", root, HostSpec()).stdout)
    assert found is not None
    assert (found.python, found.cuda_version, found.packages) == ("", "12.8.1", {})
    (root / "usr/local/cuda").unlink()
    assert read("stack.system", root, HostSpec()).returncode == 1


def test_reads_believe_the_inventory(root: Path) -> None:
    """in_use of hosts.toml, with whatever letters its paths have; without it, no answer."""
    odd = root / "it's $HOME"
    (odd / "lib/python3.12/site-packages/torch-2.8.0.dist-info").mkdir(parents=True)
    spec = HostSpec(in_use=InUse(python=f"{odd}/bin/python", cuda=f"{root}/usr/local/cuda"))
    found = stack.parse_described(read("stack.told", root, spec).stdout)
    assert found is not None
    assert (found.python, found.packages) == (f"{odd}/bin/python", {"torch": "2.8.0"})
    assert read("stack.told", root, HostSpec()).returncode == 1


def test_no_stack_is_not_green() -> None:
    """A stage without a stack to look at cannot tell."""
    assert stack.none_found() == Check(
        name="stack in use",
        want="one to look at",
        got="none found",
        ok=None,
        hint="name it in hosts.toml: in_use.python and in_use.cuda",
    )
