"""What a venv holds, and whether it is whole: the script that runs on hosts, on small venvs made by hand."""

import base64
import hashlib
import json
import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from view_samples import Here, seen, some_pins, view

from checks import stack, wheels
from checks.stack import Stack
from fleet.hosts import HostSpec
from fleet.model import Refused

BARE = some_pins()
PINS = replace(
    BARE,
    stack="0123456789ab",
    lock="torch==2.14.1 --hash=sha256:00\n",
    wheels=replace(BARE.wheels, python=">=3.12,<3.13"),
)


class Venv:
    """A virtual environment made by hand."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.python = home / "bin" / "python"
        self.site = home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        self.site.mkdir(parents=True)
        self.python.parent.mkdir()
        base = Path(sysconfig.get_config_var("BINDIR")) / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.python.symlink_to(base)
        (home / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")

    def add(self, name: str, version: str, **files: str) -> Path:
        """Installs a distribution; gives its .dist-info folder."""
        info = self.site / f"{name}-{version}.dist-info"
        info.mkdir()
        contents = {f"{info.name}/METADATA": f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"}
        contents |= {f"{name}/{file}.py": text for file, text in files.items()}
        rows = [f"{info.name}/RECORD,,"]
        for path, text in contents.items():
            target = self.site / path
            target.parent.mkdir(exist_ok=True)
            target.write_text(text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
            rows.append(f"{path},sha256={digest},{len(text)}")
        (info / "RECORD").write_text("\n".join(rows) + "\n")
        return info


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    """Two packages, each whole."""
    made = Venv(tmp_path / "it's a venv")
    made.add("torch", "2.14.1", one="x = 1\n", two="y = 2\n")
    made.add("sgl_kernel", "0.4.10", ops="z = 3\n")
    return made


def asked(venv: Venv, mode: str = "apply", noise: str = "") -> dict[str, Any]:
    """What the script prints, as a check gets it."""
    one = Stack(name="x", kind="found", cuda_dir="", cuda_version="", python=str(venv.python))
    return wheels.listed(view({}, connection=Here(noise), mode=mode), one)


def judged(venv: Venv, **packages: str) -> dict[str, Any]:
    """What the checks say of a venv that should hold these packages."""
    named = {name.replace("_", "-"): version for name, version in packages.items()}
    one = Stack(name="x", kind="pinned", cuda_dir="", cuda_version="", python=str(venv.python), packages=named)
    return seen(wheels.installed(view({}, connection=Here()), one))


def test_whole_venv(venv: Venv) -> None:
    """Every package and every file; what is asked for under another spelling is found."""
    assert asked(venv) == {
        "packages": {"torch": "2.14.1", "sgl-kernel": "0.4.10"},
        "files": 5,
        "wrong": [],
        "wrong_count": 0,
        "leftovers": [],
    }
    assert judged(venv, torch="2.14.1", SGL_Kernel="0.4.10") == {
        "torch": ["2.14.1", True],
        "SGL-Kernel": ["0.4.10", True],
        "files as in RECORD": ["5 files compared, 0 differ", True],
    }


def test_asking_leaves_nothing(venv: Venv) -> None:
    """No compiled file, no cache: the venv is as it was."""
    before = sorted(venv.home.rglob("*"))
    asked(venv)
    assert sorted(venv.home.rglob("*")) == before


def test_noise_of_the_login_shell_is_no_answer(venv: Venv) -> None:
    """What start-up files print before the document is none of it."""
    assert asked(venv, noise="welcome\n{}") == asked(venv)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, "torch/one.py: missing (No such file or directory)"),
        ("", "torch/one.py: 0 bytes, want 6"),
        ("x = 1\n# more", "torch/one.py: 12 bytes, want 6"),
        ("x = 2\n", "torch/one.py: content differs"),
    ],
)
def test_file_that_is_not_as_recorded(text: str | None, found: str, venv: Venv) -> None:
    """Missing, cut, grown, or of the same size and another content."""
    path = venv.site / "torch" / "one.py"
    path.unlink() if text is None else path.write_text(text)
    assert asked(venv)["wrong"] == [found]
    assert judged(venv, torch="2.14.1")["files as in RECORD"] == [f"5 files compared, 1 differ: {found}", False]


def test_planning_compares_sizes_only(venv: Venv) -> None:
    """Ten gigabytes are not hashed for a plan; another size is seen all the same."""
    (venv.site / "torch" / "one.py").write_text("x = 2\n")
    assert asked(venv, mode="plan")["wrong"] == []
    (venv.site / "torch" / "one.py").write_text("x = 22\n")
    assert asked(venv, mode="plan")["wrong_count"] == 1


def test_half_copied_package(venv: Venv) -> None:
    """The folder is gone, the .dist-info is there: what pip check calls fine is not."""
    shutil.rmtree(venv.site / "torch")
    found = judged(venv, torch="2.14.1")
    assert found["torch"] == ["2.14.1", True]
    assert found["files as in RECORD"][1] is False
    assert "2 differ" in found["files as in RECORD"][0]


def test_package_without_its_metadata(venv: Venv) -> None:
    """The other half: files without a .dist-info are not installed."""
    shutil.rmtree(venv.site / "torch-2.14.1.dist-info")
    assert judged(venv, torch="2.14.1")["torch"] == ["not installed", False]


def test_no_record(venv: Venv) -> None:
    """What cannot be compared is not whole."""
    (venv.site / "torch-2.14.1.dist-info" / "RECORD").unlink()
    assert asked(venv)["wrong"] == ["torch-2.14.1.dist-info: no RECORD"]


@pytest.mark.parametrize(
    "record",
    [b"", b"\n\n", b"torch/one.py,sha256=abc", b"torch/o", b"\xff\xfe\0,,\n", b"a,md99=x,3\n", b"a,sha256=x,y\n"],
)
def test_damaged_record_is_never_whole(record: bytes, venv: Venv) -> None:
    """Cut, not text, of unknown digests: never green, whatever is said."""
    (venv.site / "torch-2.14.1.dist-info" / "RECORD").write_bytes(record)
    (venv.site / "a").write_text("abc")
    found = judged(venv, torch="2.14.1")
    assert [said[1] for said in found.values()].count(False) >= 1


def test_leftovers_of_an_interrupted_pip(venv: Venv) -> None:
    """`~orch` is what pip leaves of torch."""
    (venv.site / "~orch-2.9.1.dist-info").mkdir()
    (venv.site / "~orch").mkdir()
    assert sorted(asked(venv)["leftovers"]) == ["~orch", "~orch-2.9.1.dist-info"]
    assert judged(venv, torch="2.14.1")["files as in RECORD"][1] is False


def test_empty_venv(tmp_path: Path) -> None:
    """Nothing to compare is not nothing wrong."""
    assert judged(Venv(tmp_path / "v"), torch="2.14.1") == {
        "torch": ["not installed", False],
        "files as in RECORD": ["0 files compared, 0 differ", False],
    }


def test_many_faults_are_counted_and_a_few_named(venv: Venv) -> None:
    """The answer stays small."""
    venv.add("big", "1.0", **{f"f{number}": "x" for number in range(80)})
    shutil.rmtree(venv.site / "big")
    found = asked(venv)
    assert (found["wrong_count"], len(found["wrong"])) == (80, 50)


@pytest.mark.parametrize(
    ("want", "got", "good"),
    [
        ("2.14.1", "2.14.1", True),
        ("2.14.1", "2.14.1+cu130", True),
        ("2.14.1+cu130", "2.14.1+cu130", True),
        ("2.14.1+cu130", "2.14.1+cu128", False),
        ("2.14.1", "2.14.10", False),
        ("2.14.1", "2.14.1.post1", False),
        ("2.14.1", "", False),
    ],
)
def test_version(want: str, got: str, good: bool, tmp_path: Path) -> None:
    """Exactly the asked one; the label of an index may be there or not, another one may not."""
    venv = Venv(tmp_path / "v")
    venv.add("torch", got)
    assert judged(venv, torch=want)["torch"] == [got or "not installed", good]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"packages": []}',
        '{"packages": {"torch": 2}, "files": 1, "wrong": [], "wrong_count": 0, "leftovers": []}',
        '{"packages": {}, "files": "9", "wrong": [], "wrong_count": 0, "leftovers": []}',
        "[" * 100_000,
        "Traceback (most recent call last):",
    ],
)
def test_interpreter_that_answers_otherwise(text: str, tmp_path: Path) -> None:
    """What is not the document is not believed; its last words are the reason."""
    python = tmp_path / "python"
    (tmp_path / "text").write_text(text)
    python.write_text(f"#!/bin/sh\ncat {shlex.quote(str(tmp_path / 'text'))}\necho 'last words' >&2\nexit 1\n")
    python.chmod(0o755)
    one = Stack(name="x", kind="pinned", cuda_dir="", cuda_version="", python=str(python), packages={"torch": "1"})
    assert seen(wheels.installed(view({}, connection=Here()), one)) == {"venv": ["last words", False]}


def test_no_interpreter(tmp_path: Path) -> None:
    """None in use is not known; one that is gone is wrong."""
    one = Stack(name="x", kind="found", cuda_dir="/usr/local/cuda", cuda_version="", python="")
    assert seen(wheels.installed(view({}), one)) == {"interpreter": ["none found", "unknown"]}
    gone = replace(one, python=str(tmp_path / "gone"))
    said, good = seen(wheels.installed(view({}, connection=Here()), gone))["venv"]
    assert "not found" in said
    assert good is False


@pytest.mark.parametrize(
    ("lines", "chosen"),
    [
        ("/usr/bin/python3.13 3.13.1\n/usr/bin/python3.12 3.12.3\n", "/usr/bin/python3.12"),
        ("/opt/my python/bin/python3 3.12.3\n", "/opt/my python/bin/python3"),
        ("/usr/bin/python3 3.12\n", ""),
        ("python3 3.12.3\n", ""),
        ("/usr/bin/python3 3.10.12\n", ""),
        ("bash: warning: setlocale: LC_ALL\n/usr/bin/python3 3.12.3", "/usr/bin/python3"),
        ("", ""),
    ],
)
def test_interpreter_for_the_venv(lines: str, chosen: str) -> None:
    """The first that fits the pins; when none does, those that were seen are named."""
    host = view({"wheels.pythons": lines})
    assert wheels.interpreter(host, PINS)[0] == chosen
    if not chosen:
        with pytest.raises(Refused, match=r"no Python >=3.12,<3.13 on the host; found: "):
            wheels.require_interpreter(host, PINS)


def test_read_finds_interpreters(tmp_path: Path) -> None:
    """The one that hosts.toml names, quoted; without one, each python3 of the PATH."""
    place = tmp_path / "it's python"
    place.mkdir()
    (place / "python3").symlink_to(sys.executable)
    read = wheels.READS["wheels.pythons"]
    version = ".".join(map(str, sys.version_info[:3]))
    told = Here().run(read(HostSpec(python=f"{place}/python3"), PINS))
    assert told.out == f"{place}/python3 {version}\n"
    path = f"PATH={shlex.quote(str(place))}:{shlex.quote(os.environ['PATH'])}; "
    assert f"{place}/python3 {version}" in Here().run(path + read(HostSpec(), PINS)).out.splitlines()
    assert Here().run(read(HostSpec(python="/no/such"), PINS)).out == ""


@pytest.mark.parametrize(
    ("lines", "tool"),
    [
        ("/usr/local/bin/uv\nuv 0.13.9\n", "/usr/local/bin/uv"),
        ("/usr/local/bin/uv\nuv 0.13.9\n/opt/fleet/tools/uv-0.13.8/uv\n", "/usr/local/bin/uv"),
        ("/opt/fleet/tools/uv-0.13.9/uv\n", "/opt/fleet/tools/uv-0.13.9/uv"),
        ("ls: cannot access '/opt/fleet/tools/*/uv': No such file or directory\n", ""),
        ("alias uv='x'\n", ""),
        ("", ""),
    ],
)
def test_uv_of_the_host(lines: str, tool: str) -> None:
    """The host's own first, else one that was brought."""
    assert wheels.uv_on_host(view({"wheels.uv": lines})) == tool


def test_uv_is_brought_to_the_same_kind_of_machine() -> None:
    """Another kind is refused before anything is copied; what is copied is checked and put in place by rename."""
    machine = os.uname().machine
    with pytest.raises(Refused, match="no uv here that runs on riscv64"):
        wheels.bring_uv(view({"host.platform": "riscv64\n"}))
    with pytest.raises(Refused, match="no uv here that runs on this host"):
        wheels.bring_uv(view({}))
    command = wheels.bring_uv(view({"host.platform": f"{machine}\nglibc 2.39"}, tmp="/t m p"))
    ((there, here),) = command.uploads.items()
    assert there.startswith("/t m p/fleet-uv-")
    assert command.size_bytes == Path(here).stat().st_size
    assert command.keep
    assert f"/opt/fleet/tools/uv-{wheels.uv_version()}/uv" in command.shell


def test_uv_that_was_tampered_with_is_not_used(tmp_path: Path) -> None:
    """The upload lies in a folder of everyone: its sum is compared where only the owner can write."""
    host = view({"host.platform": os.uname().machine}, base=f"{tmp_path}/it's base", tmp=str(tmp_path))
    command = wheels.bring_uv(host)
    ((there, here),) = command.uploads.items()
    shutil.copyfile(here, there)
    assert Here().run(command.shell).ok
    brought = Path(wheels.brought_uv(host))
    assert os.access(brought, os.X_OK)
    assert not Path(there).exists()
    brought.unlink()
    Path(there).write_text("#!/bin/sh\ntouch owned\n")
    assert not Here().run(command.shell).ok
    assert not brought.exists()


UV = """\
#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
case $1 in
  venv) for w; do :; done; mkdir -p "$w/bin"; : > "$w/half";;
  pip) [ ! -e "$(dirname "$0")/fails" ] || { echo 'error: Hash mismatch for torch' >&2; exit 1; };;
esac
"""


def test_venv_is_made_anew_and_marked_at_the_end(tmp_path: Path) -> None:
    """At its final path, from the lock with hashes; a failure leaves no mark, and the next attempt begins afresh."""
    base = tmp_path / "it's base"
    tool = base / "uv"
    base.mkdir()
    tool.write_text(UV)
    tool.chmod(0o755)
    host = view({"wheels.pythons": "/usr/bin/python3.12 3.12.3"}, base=str(base))
    pinned = stack.pinned(host, PINS)
    command = wheels.make_venv(
        host, replace(PINS, wheels=replace(PINS.wheels, index="https://i.example/simple")), pinned, str(tool)
    )
    mark = base / "stacks" / PINS.stack / "venv" / ".complete"
    (base / "fails").touch()
    failed = Here().run(command.shell)
    assert not failed.ok
    assert not mark.exists()
    assert wheels.explain(failed.rc, failed.err)[0] == "the index serves another file than the lock names"
    (base / "fails").unlink()
    (mark.parent / "old").touch()
    assert Here().run(command.shell).ok
    assert wheels.is_complete(view({"wheels.complete": mark.read_text()}), PINS)
    assert not (mark.parent / "old").exists()
    *_, made, synced = (base / "calls").read_text().splitlines()
    assert made.endswith(f"--python /usr/bin/python3.12 {mark.parent}")
    assert "--require-hashes --default-index https://i.example/simple" in synced
    assert synced.endswith("lock.txt")
    assert command.files == {"lock.txt": PINS.lock}


def test_complete_is_what_this_lock_made() -> None:
    """A venv of another lock, or one without a mark, is not complete."""
    assert wheels.is_complete(view({"wheels.complete": wheels.mark(PINS)}), PINS)
    assert not wheels.is_complete(view({"wheels.complete": wheels.mark(replace(PINS, lock="x"))}), PINS)
    assert not wheels.is_complete(view({"wheels.complete": (1, "cat: No such file or directory")}), PINS)


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            "error: Hash mismatch for `torch==2.14.1`",
            "the index serves another file than the lock names for torch==2.14.1",
        ),
        ("  × No solution found when resolving", "a locked package is not to be had for this host"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("error: Failed to fetch: `http://i.example/`", "the index cannot be reached from the host"),
        ("something else", ""),
    ],
)
def test_cause_of_a_failure(log: str, cause: str) -> None:
    """From uv's own words; nothing is made up where nothing is known."""
    found, advice = wheels.explain(1, log)
    assert (found, bool(advice)) == (cause, bool(cause))


def test_title_of_a_venv(venv: Venv) -> None:
    """The two packages people ask for, and how much was compared."""
    assert wheels.title(asked(venv)) == "torch 2.14.1, 5 files compared with their RECORD"
    assert json.loads(json.dumps(asked(venv))) == asked(venv)
