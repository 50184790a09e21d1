"""A lab host: its tools, its state, its runfile, and the count of what was written on it."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab_client import PINS, ask, ssh

from lab import Lab, writes


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels and runfiles, built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def lab(tmp_path: Path, cache: Path) -> Iterator[Lab]:
    """A lab of one host."""
    with Lab(tmp_path / "lab", pins=PINS, cache=cache) as lab:
        yield lab


QUERY = "--query-gpu=index,uuid,name,driver_version,compute_cap,memory.total,pci.bus_id --format=csv,noheader,nounits"
APPS = "--query-compute-apps=pid,process_name,used_memory,gpu_uuid --format=csv,noheader,nounits"


def test_gpus_are_listed_in_the_machine_format(lab: Lab) -> None:
    """Eight GPUs, seven fields each, every GPU with an identity of its own."""
    rows = [line.split(", ") for line in ask(lab, f"nvidia-smi {QUERY}").splitlines()]
    assert len(rows) == len({row[1] for row in rows}) == len({row[6] for row in rows}) == 8
    assert rows[7][0] == "7"
    assert rows[7][2:6] == ["NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "580.95.05", "12.0", "97887"]


def test_table_keeps_the_width_of_the_real_one(lab: Lab) -> None:
    """Every line of the plain table is 91 wide, as in driver 580."""
    lab.host("lab-01").set(holders=[{"pid": 4242, "name": "/usr/bin/python3", "mib": 81234}])
    lines = ask(lab, "nvidia-smi").splitlines()[1:]
    assert {len(line) for line in lines if line} == {91}


def test_unknown_field_is_refused(lab: Lab) -> None:
    """As the real tool does: exit 2 and a sentence."""
    answer = ssh(lab, "nvidia-smi --query-gpu=name,nonsense --format=csv")[0]
    assert (answer.rc, answer.out) == (2, 'Field "nonsense" is not a valid field to query.\n\n')


def test_state_changes_take_effect_at_once(lab: Lab) -> None:
    """A changed driver shows in nvidia-smi, modinfo and /proc; clear() gives the old one back."""
    host = lab.host("lab-01")
    host.set(driver="570.124.06")
    everywhere = "nvidia-smi -i 0 --query-gpu=driver_version --format=csv,noheader; modinfo -F version nvidia"
    assert ask(lab, everywhere) == "570.124.06\n570.124.06\n"
    assert " 570.124.06 " in (host.root / "proc/driver/nvidia/version").read_text()
    host.clear()
    assert host.state["driver"] == "580.95.05"


def test_driver_that_waits_for_a_reboot(lab: Lab) -> None:
    """Installed and loaded differ: modinfo tells the new one, nvidia-smi refuses."""
    lab.host("lab-01").fault("driver-mismatch")
    smi, module = ssh(lab, "nvidia-smi", "modinfo -F version nvidia")
    assert (smi.rc, module.out) == (18, "580.126.20\n")
    assert "Driver/library version mismatch" in smi.out


def test_real_server_is_seen_on_the_gpus_and_in_proc(lab: Lab) -> None:
    """A process that serves is listed by nvidia-smi and in the host's /proc, until it ends."""
    server = "python3 -c 'import time; time.sleep(20)' sglang.launch_server"
    ask(lab, f"setsid {server} </dev/null >/dev/null 2>&1 &")
    proc = lab.host("lab-01").root / "proc"
    assert _until(lambda: list(proc.glob("[0-9]*/cmdline")))
    assert "sglang::scheduler_TP7" in ask(lab, f"nvidia-smi {APPS}")
    lab.host("lab-01").kill()
    assert _until(lambda: not list(proc.glob("[0-9]*/cmdline")))


def _until(true: Callable[[], object], within_s: float = 3.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.02)
    return False


def test_space_and_mounts_come_from_the_state(lab: Lab) -> None:
    """Tools like df in POSIX columns, blocks and inodes; findmnt tells noexec; a missing folder is an error."""
    lab.host("lab-01").set(tmp_free_kib=1024, tmp_free_inodes=7, tmp_options="rw,noexec")
    blocks, inodes, mount, missing = ssh(
        lab,
        "df -Pk $TMPDIR $HOME | awk '{print $4}'",
        "df -Pi $TMPDIR | awk 'NR==2{print $4}'",
        "findmnt -no OPTIONS -T $TMPDIR",
        "df -Pk /nowhere",
    )
    assert blocks.out.split() == ["Available", "1024", "1288490188"]
    assert (inodes.out, mount.out) == ("7\n", "rw,noexec\n")
    assert (missing.rc, missing.err) == (1, "df: /nowhere: No such file or directory\n")


def test_sudo_wants_n_and_clears_the_environment(lab: Lab) -> None:
    """Without a terminal only `sudo -n` works; TMPDIR is lost, as with env_reset; every use is logged."""
    plain, ok = ssh(lab, "sudo true", "X=1 sudo -n sh -c 'id -u; echo ${X-none} ${TMPDIR-none}'")
    assert (plain.rc, ok.out) == (1, "0\nnone none\n")
    assert lab.host("lab-01").sudo_log() == ["sh -c id -u; echo ${X-none} ${TMPDIR-none}"]
    lab.host("lab-01").fault("sudo-password")
    assert ssh(lab, "sudo -n true")[0].err == "sudo: a password is required\n"


def test_stack_in_use_is_a_cu128_venv(lab: Lab) -> None:
    """The toolkit and the packages that an upgrade starts from, as the host's own Python sees them."""
    code = "import importlib.metadata as m, torch.version as t; print(t.__version__, t.cuda, m.version('sgl-kernel'))"
    python, nvcc = ssh(
        lab,
        f'$LAB_ROOT/opt/sglang-cu128/venv/bin/python -c "{code}"',
        "$LAB_ROOT/usr/local/cuda/bin/nvcc --version | tail -2",
    )
    assert python.out == "2.9.1+cu128 12.8 0.3.21\n"
    assert "release 12.8, V12.8.93" in nvcc.out


def runfile(lab: Lab) -> str:
    """A shell function `run` that runs the pinned runfile, taken from the cache of the lab."""
    file = next(lab.settings.cache_folder.glob("runfiles-*/cuda_13.0.2_580.95.05_linux.run"))
    where = "--silent --toolkit --toolkitpath=$LAB_ROOT/opt/t --tmpdir=$TMPDIR --override --no-man-page"
    return f'run() {{ sh {file} {where} "$@"; }}; file={file}; T=$LAB_ROOT/opt/t; '


def test_runfile_installs_a_toolkit_that_compiles(lab: Lab) -> None:
    """Silent until the summary; version.json, nvcc and the known architectures are those of 13.0.2."""
    host = lab.host("lab-01")
    host.set(installer={"seconds": 0})
    check, run, compiled, old, unknown = ssh(
        lab,
        runfile(lab) + "sh $file --check",
        runfile(lab) + "run",
        runfile(lab) + "echo '__global__ void k() {}' >k.cu; $T/bin/nvcc -arch=sm_120 -cubin -o k k.cu && cat k",
        runfile(lab) + "$T/bin/nvcc -arch=sm_70 -cubin -o k k.cu",
        runfile(lab) + "run --nonsense",
    )
    assert (check.rc, run.rc, compiled.rc, old.rc, unknown.rc) == (0, 0, 0, 1, 1)
    assert run.out.splitlines()[1] == "= Summary ="
    assert "***WARNING: Incomplete installation!" in run.out
    assert "sm_120 by nvcc 13.0.88" in compiled.out
    assert old.err == "nvcc fatal   : Unsupported gpu architecture 'sm_70'\n"
    assert json.loads((host.root / "opt/t/version.json").read_text())["cuda"]["version"] == "13.0.2"
    assert len(host.installs()) == 1
    assert not list((host.root / "tmp").iterdir())


def test_damaged_runfile_is_refused(lab: Lab, tmp_path: Path) -> None:
    """Cut short or with a byte changed: exit 2 and makeself's words, and nothing runs."""
    data = next(lab.settings.cache_folder.glob("runfiles-*/*13.0.2*_linux.run")).read_bytes()
    (tmp_path / "short.run").write_bytes(data[:-1000])
    (tmp_path / "bad.run").write_bytes(data[:-1000] + bytes(1000))
    short, bad, run = ssh(
        lab,
        f"sh {tmp_path}/short.run --check",
        f"sh {tmp_path}/bad.run --check",
        f"sh {tmp_path}/bad.run --silent --toolkit",
    )
    assert (short.rc, bad.rc, run.rc) == (2, 2, 2)
    assert "Unexpected archive size." in short.out
    assert "Error in MD5 checksums: " in bad.out
    assert lab.host("lab-01").installs() == []


def test_installer_faults(lab: Lab) -> None:
    """Nothing installed at exit 0; no space at exit 15; noexec at exit 126; its own failure at exit 1."""
    host = lab.host("lab-01")
    rcs = []
    for fault in ("installer-nothing", "tmp-full", "tmp-noexec", "installer-fails"):
        host.clear()
        host.fault(fault)
        host.set(installer={"seconds": 0})
        rcs.append(ssh(lab, runfile(lab) + "run")[0].rc)
    assert rcs == [0, 15, 126, 1]
    assert not (host.root / "opt/t").exists()


def test_killed_installer_leaves_half_a_toolkit(lab: Lab) -> None:
    """Its nvcc is there but cannot compile, and version.json is missing."""
    host = lab.host("lab-01")
    host.set(installer={"seconds": 30})
    ask(lab, f"setsid sh -c '{runfile(lab)} run' </dev/null >/dev/null 2>&1 &")
    assert _until((host.root / "opt/t/bin/ptxas").exists)
    host.kill()
    broken = ssh(lab, "echo __global__ >k.cu; $LAB_ROOT/opt/t/bin/nvcc -arch=sm_120 -cubin k.cu")[0]
    assert broken.rc == 127
    assert not (host.root / "opt/t/version.json").exists()


def test_writes_are_counted_per_connection(lab: Lab) -> None:
    """Reading writes nothing; a new, a changed and a removed file are three; what happens in between is told apart."""
    ssh(lab, f"nvidia-smi {QUERY}; df -Pk $TMPDIR; modinfo nvidia; sudo -n true; ls -R $LAB_ROOT", "touch a b")
    ssh(lab, "echo more >a; rm b; touch c")
    assert len(lab.visits("lab-01")) == 2
    (lab.host("lab-01").root / "etc/passwd").write_text("")
    ssh(lab, "true")
    visits = lab.visits("lab-01")
    assert [visit.count for visit in visits] == [2, 3, 1, 0]
    assert [visit.kind for visit in visits][2] == "between connections"
    assert visits[0].commands == 2
    changes = visits[1].changes
    assert (changes.added, changes.removed, changes.changed) == (("home/ops/c",), ("home/ops/b",), ("home/ops/a",))


def test_touching_a_folder_is_no_write(tmp_path: Path) -> None:
    """Times of folders do not count; a folder that was replaced does."""
    (tmp_path / "x").mkdir()
    before = writes.snapshot(tmp_path)
    (tmp_path / "x").touch()
    assert writes.changes(before, writes.snapshot(tmp_path)).count == 0
    (tmp_path / "y").mkdir()
    shutil.rmtree(tmp_path / "x")
    assert writes.changes(before, writes.snapshot(tmp_path)).count == 2
