"""Whether a toolkit works: by its version.json and by compiling, on a folder that stands for an installation."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from view_samples import Here, seen, some_pins, view

from checks import stack, toolkit
from checks.stack import Stack
from fleet.host import Unreachable
from fleet.pins import Runfile

RUNFILE = Runfile(file="cuda_13.0.2_580.95.05_linux.run", size_bytes=4_328_066_903, sha256="ab" * 32)
BARE = some_pins()
PINS = replace(BARE, stack="0123456789ab", cuda=replace(BARE.cuda, runfile={"linux-x86_64": RUNFILE}))
GPUS = "0, GPU-a, NVIDIA RTX PRO 6000, 580.95.05, 12.0, 97887, 0:1\n1, GPU-b, NVIDIA H200, 580.95.05, 9.0, 1, 0:2"
NVCC = """\
#!/bin/sh
while [ $# -gt 0 ]; do case $1 in -o) out=$2; shift;; -arch=*) arch=${1#-arch=};; *.cu) in=$1;; esac; shift; done
grep -q __global__ "$in" || exit 9
case " sm_90 sm_120 " in *" $arch "*) echo cubin > "$out"; exit 0;; esac
echo "nvcc fatal: Unsupported gpu architecture '$arch'" >&2; exit 1
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A toolkit with a compiler, in a folder with a quote and a blank."""
    home = tmp_path / "it's here"
    (home / "bin").mkdir(parents=True)
    (home / "version.json").write_text('{"cuda": {"name": "CUDA SDK", "version": "13.0.2"}}')
    nvcc(home, NVCC)
    return home


def nvcc(home: Path, text: str) -> None:
    """Another compiler in its place."""
    (home / "bin" / "nvcc").write_text(text)
    (home / "bin" / "nvcc").chmod(0o755)


def works(home: Path, gpus: str = GPUS, noise: str = "", version: str = "13.0.2") -> dict[str, Any]:
    """What the checks say, asked on this machine."""
    one = Stack(name="x", kind="pinned", cuda_dir=str(home), cuda_version=version, python="")
    return seen(toolkit.works(view({"driver.gpus": gpus}, connection=Here(noise)), one))


def test_toolkit_that_works(place: Path) -> None:
    """Its release, and a kernel for each kind of GPU of the host."""
    assert works(place) == {
        "toolkit": ["13.0.2", True],
        "nvcc compiles for sm_120": ["6 bytes", True],
        "nvcc compiles for sm_90": ["6 bytes", True],
    }


def test_compiling_leaves_nothing(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when it succeeds nor when it fails."""
    (tmp_path / "t").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    works(place)
    nvcc(place, "#!/bin/sh\nexit 3\n")
    works(place)
    assert list((tmp_path / "t").iterdir()) == []


def test_noise_of_the_login_shell_is_no_answer(place: Path) -> None:
    """What start-up files print stands before each answer and is none."""
    assert works(place, noise="welcome to gpu-01\n") == works(place)


def test_another_release(place: Path) -> None:
    """What the folder says counts, not its name."""
    assert works(place, version="13.0.3")["toolkit"] == ["13.0.2", False]
    (place / "version.json").unlink()
    assert works(place)["toolkit"] == ["no version.json", False]


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("#!/bin/sh\nexit 0\n", "cannot open"),
        ('#!/bin/sh\nfor w; do case $w in */probe.cubin) : > "$w";; esac; done\n', "0"),
        ("#!/bin/sh\necho one; echo 'ptxas fatal' >&2; exit 255\n", "ptxas fatal"),
        ("#!/bin/sh\nexit 7\n", "exit 7"),
        ("#!/bin/sh\nkill -9 $$\n", "Killed"),
    ],
)
def test_compiler_that_makes_nothing(place: Path, text: str, got: str) -> None:
    """An exit code of 0 is no proof, and an empty file is none."""
    nvcc(place, text)
    said, good = works(place, GPUS.splitlines()[0])["nvcc compiles for sm_120"]
    assert good is False
    assert got in said


def test_gpu_that_the_compiler_does_not_know(place: Path) -> None:
    """Its own words are the reason."""
    found = works(place, "0, GPU-a, NVIDIA GB10, 580.142, 12.1, [N/A], 0:1")
    assert found["nvcc compiles for sm_121"] == ["nvcc fatal: Unsupported gpu architecture 'sm_121'", False]


def test_text_of_a_host_is_no_shell(place: Path, tmp_path: Path) -> None:
    """A capability that is a command is compiled for, and not run."""
    odd = f"0, GPU-a, X, 580.95.05, 9.0 $(touch {tmp_path}/owned); touch {tmp_path}/owned, 1, 0:1"
    (check,) = [said for name, said in works(place, odd).items() if name != "toolkit"]
    assert check[1] is False
    assert not (tmp_path / "owned").exists()


def test_without_a_gpu_nothing_is_proved(place: Path) -> None:
    """Not green, and not red either."""
    assert works(place, "No devices were found")["nvcc compiles"] == ["no GPU visible", "unknown"]


def test_no_toolkit_in_use() -> None:
    """A stack with an interpreter only."""
    one = Stack(name="x", kind="found", cuda_dir="", cuda_version="", python="/opt/venv/bin/python")
    assert seen(toolkit.works(view({}), one)) == {"toolkit": ["none found", "unknown"]}


def test_record_alone_cannot_be_asked(place: Path) -> None:
    """Proof by use needs the host: a record says so instead of guessing."""
    one = Stack(name="x", kind="pinned", cuda_dir=str(place), cuda_version="13.0.2", python="")
    with pytest.raises(Unreachable, match="only a probe record is at hand"):
        list(toolkit.works(view({"driver.gpus": GPUS}), one))


def test_complete_is_what_was_marked_at_the_end() -> None:
    """Another release, or no mark, is not complete."""
    pinned = stack.pinned(view({}), PINS)
    marks = [(0, "13.0.2"), (0, "13.0.2\n"), (0, "13.0.1"), (0, ""), (1, "cat: No such file"), (0, "13.0.213.0.2")]
    complete = [toolkit.is_complete(view({"toolkit.complete": mark}), pinned) for mark in marks]
    assert complete == [True, True, False, False, False, False]


def install(tmp_path: Path, installer: str) -> tuple[subprocess.CompletedProcess[str], Path, Path]:
    """Runs the installation with an installer of ours; gives how it ended, the toolkit's folder, the link."""
    host = view({"host.platform": "x86_64"}, base=f"{tmp_path}/fleet", root=f"{tmp_path}/root", tmp=f"{tmp_path}/t m p")
    pinned = stack.pinned(host, PINS)
    archive = Path(toolkit.downloaded(host, PINS))
    archive.parent.mkdir(parents=True)
    archive.write_text(installer)
    link = tmp_path / "root/usr/local/cuda"
    link.parent.mkdir(parents=True)
    link.symlink_to("cuda-12.8")
    command = toolkit.install(host, PINS, pinned)
    places = {"PATH": os.environ["PATH"], "LINK": str(link), "DISPLAY": ":0", "SUDO_USER": "ops"}
    done = subprocess.run(["sh", "-c", command.shell], env=places, capture_output=True, text=True, check=False)
    return done, Path(pinned.cuda_dir), link


INSTALLER = """\
for w; do case $w in --toolkitpath=*) to=${w#*=};; esac; done
printf '%s\\n' "$@" > "$to/arguments"
env > "$to/environment"
mkdir "$to/bin"; printf '#!/bin/sh\\n' > "$to/bin/nvcc"; chmod +x "$to/bin/nvcc"
ln -sfn "$to" "$LINK"
"""


def test_installation(tmp_path: Path) -> None:
    """Toolkit only, silent, into its own folder; the system's link is given back; the archive goes, the mark comes."""
    done, home, link = install(tmp_path, INSTALLER)
    assert (done.returncode, done.stdout) == (0, "gave /usr/local/cuda back to the stack in use\n")
    assert (home / "arguments").read_text().splitlines() == [
        "--silent",
        "--toolkit",
        f"--toolkitpath={home}",
        f"--tmpdir={tmp_path}/t m p",
        "--override",
        "--no-man-page",
    ]
    environment = (home / "environment").read_text()
    assert not {"DISPLAY", "SUDO_USER"} & {line.partition("=")[0] for line in environment.splitlines()}
    assert "LANG=C\n" in environment
    assert link.readlink() == Path("cuda-12.8")
    assert (home / ".complete").read_text() == "13.0.2"
    assert list((tmp_path / "fleet/downloads").iterdir()) == []


def test_installer_that_installs_nothing(tmp_path: Path) -> None:
    """Exit 0 is no proof: no compiler, no mark, and the archive stays for the next attempt."""
    done, home, link = install(tmp_path, "exit 0\n")
    assert (done.returncode, done.stderr) == (90, "the installer exited 0 and left no bin/nvcc\n")
    assert not (home / ".complete").exists()
    assert link.readlink() == Path("cuda-12.8")
    assert len(list((tmp_path / "fleet/downloads").iterdir())) == 1
    assert toolkit.explain(90, done.stderr)[0] == "the installer reports success and installed nothing"


def test_installer_that_fails(tmp_path: Path) -> None:
    """Its exit code is the job's; no mark."""
    done, home, _ = install(tmp_path, "echo 'No space left on device' >&2; exit 15\n")
    assert done.returncode == 15
    assert not (home / ".complete").exists()


def test_former_attempt_leaves_no_trace(tmp_path: Path) -> None:
    """A half-made toolkit is made from the beginning."""
    home = tmp_path / "fleet/stacks" / PINS.stack / "cuda-13.0.2"
    (home / "bin").mkdir(parents=True)
    done, _, _ = install(tmp_path, "exit 3\n")
    assert done.returncode == 3
    assert list(home.iterdir()) == []


def test_whole_toolkit_is_never_made_again(tmp_path: Path) -> None:
    """Another run finished it since this one planned, and may have put it in use: it is left alone."""
    home = tmp_path / "fleet/stacks" / PINS.stack / "cuda-13.0.2"
    home.mkdir(parents=True)
    (home / ".complete").write_text("13.0.2")
    (home / "in use").write_text("")
    done, _, _ = install(tmp_path, "exit 3\n")
    assert (done.returncode, sorted(path.name for path in home.iterdir())) == (0, [".complete", "in use"])


def test_download_is_pinned() -> None:
    """Address, size and sum of the pinned file; kept when the stage fails, since the next attempt goes on with it."""
    host = view({"host.platform": "x86_64"})
    command = toolkit.download(host, PINS)
    words = shlex.split(command.shell.splitlines()[-1])
    url = "https://mirror.example/cuda/13.0.2/local_installers/cuda_13.0.2_580.95.05_linux.run"
    target = "/opt/fleet/downloads/cuda_13.0.2_580.95.05_linux.run"
    assert words == ["python3", "./fetch.py", url, target, "--size", "4328066903", "--sha256", "ab" * 32]
    assert (command.keep, command.size_bytes, list(command.files)) == (True, 4_328_066_903, ["fetch.py"])


def test_download_goes_on_to_the_mirrors_that_a_host_can_reach() -> None:
    """The next address is tried when one does not serve the file; a folder of the controller is none for a host."""
    pins = replace(PINS, cuda=replace(PINS.cuda, mirrors=["/srv/mirror", "https://second.example/cuda"]))
    line = toolkit.download(view({"host.platform": "x86_64"}), pins).shell.splitlines()[-1]
    assert [part.split()[2].split("/")[2] for part in line.split(" || ")] == ["mirror.example", "second.example"]
    assert "/srv/mirror" not in line


@pytest.mark.parametrize(
    ("rc", "log", "cause"),
    [
        (2, "Error in archive size: unexpected", "the downloaded archive is cut"),
        (127, "libxml2.so.2: cannot open shared object file", "the installer needs libxml2.so.2"),
        (1, "write: No space left on device", "a disk is full"),
        (1, '{"ok": false, "verdict": "truncated"}', "the download ends too early"),
        (1, '{"ok": false, "verdict": "checksum differs"}', "the download is not the pinned file"),
        (1, '{"ok": false, "verdict": "http 404"}', "the download failed"),
        (1, "something else", ""),
        (0, "", ""),
    ],
)
def test_cause_of_a_failure(rc: int, log: str, cause: str) -> None:
    """From exit code and log; nothing is made up where nothing is known."""
    found, advice = toolkit.explain(rc, log)
    assert (found, bool(advice)) == (cause, bool(cause))
