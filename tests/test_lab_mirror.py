"""The mirror, the package index and the derived pins of the lab."""

import hashlib
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import tomli
from lab_client import PINS
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from lab import Lab, catalogue, faults, furnish, pins, shipped, toolkit, wheels
from lab.errors import LabError
from lab.faults import Rule

FILE = "cuda_13.0.2_580.95.05_linux.run"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels and runfiles, built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Lab]:
    """A lab whose rules each test sets."""
    with Lab(tmp_path_factory.mktemp("lab"), pins=PINS, cache=cache, minimal=True) as lab:
        yield lab


@pytest.fixture
def url(lab: Lab) -> Iterator[str]:
    """Address of the pinned runfile; rules are taken back afterwards."""
    pins = tomli.loads(lab.pins_file.read_text())
    assert pins["cuda"]["mirror"] == f"{lab.mirror.url}/cuda"
    yield f"{lab.mirror.url}/cuda/13.0.2/local_installers/{FILE}"
    lab.mirror.rules = []


def test_list_of_a_release_has_the_form_of_the_real_one(lab: Lab) -> None:
    """Checksum, one blank, name; the sbsa file stands before the x86_64 one; neighbours have lists of their own."""
    text = requests.get(f"{lab.mirror.url}/cuda/13.0.2/docs/sidebar/md5sum.txt", timeout=5).text
    rows = {name: md5 for md5, name in (line.split(" ") for line in text.splitlines())}
    names = list(rows)
    assert all(re.fullmatch("[0-9a-f]{32}", md5) for md5 in rows.values())
    assert names.index("cuda_13.0.2_580.95.05_linux_sbsa.run") < names.index(FILE)
    assert rows[FILE] == tomli.loads(lab.pins_file.read_text())["cuda"]["runfile"]["linux-x86_64"]["md5"]
    neighbour = requests.get(f"{lab.mirror.url}/cuda/13.0.1/docs/sidebar/md5sum.txt", timeout=5).text
    assert " cuda_13.0.1_580.82.07_linux.run\n" in neighbour


def test_every_release_of_the_catalogue_is_listed_and_begins_like_a_runfile(lab: Lab) -> None:
    """Both platforms of all releases; those without a stand-in are as large as the real ones, and end early."""
    rows = json.loads((PINS.parent / "checks/data/runfiles.json").read_text())["rows"]
    index = requests.get(f"{lab.mirror.url}/cuda/redist/", timeout=5).text
    with requests.Session() as session:
        for row in rows:
            base = f"{lab.mirror.url}/cuda/{row['cuda']}"
            assert f" {row['file']}\n" in session.get(f"{base}/docs/sidebar/md5sum.txt", timeout=5).text
            assert f'"redistrib_{row["cuda"]}.json"' in index
            where = f"{base}/local_installers/{row['file']}"
            first = session.get(where, headers={"Range": "bytes=0-511"}, timeout=5)
            assert (first.status_code, len(first.content)) == (206, 512)
            assert first.content.startswith(b"#!/bin/sh\n# SIMULATED"), row["file"]


def test_runfile_without_stand_in_ends_after_its_first_bytes(lab: Lab) -> None:
    """Its size, its list and its manifest are those of the catalogue, none for a platform it lacks; no body follows."""
    where = f"{lab.mirror.url}/cuda/13.3.0/local_installers/cuda_13.3.0_610.43.02_linux.run"
    first = requests.get(where, headers={"Range": "bytes=0-511"}, timeout=5)
    assert first.headers["Content-Range"] == "bytes 0-511/4294951215"
    with requests.get(where, stream=True, timeout=5) as whole:
        assert whole.headers["Content-Length"] == "4294951215"
        assert len(whole.raw.read(1_000_000)) == 4096
    listed = requests.get(f"{lab.mirror.url}/cuda/13.3.0/docs/sidebar/md5sum.txt", timeout=5).text
    assert "16d68669cf659157777d2e7adaff179d cuda_13.3.0_610.43.02_linux.run\n" in listed
    assert "nvidia_driver" not in requests.get(f"{lab.mirror.url}/cuda/redist/redistrib_13.4.1.json", timeout=5).json()
    oldest = requests.get(f"{lab.mirror.url}/cuda/redist/redistrib_11.0.1.json", timeout=5).json()
    assert oldest["nvidia_driver"]["version"] == "450.36.06"
    assert "linux-sbsa" not in oldest["cuda_nvcc"]


def test_without_a_catalogue_the_stand_ins_are_listed(tmp_path: Path) -> None:
    """A checkout without it: the lab lists what it has."""
    assert shipped.releases(tmp_path / "none.json") == {}


def test_manifest_tells_sizes_as_text_and_the_driver(lab: Lab) -> None:
    """Reached through the 301 of the public address, too."""
    manifest = requests.get(f"{lab.mirror.url}/compute/cuda/redist/redistrib_13.0.2.json", timeout=5).json()
    assert manifest["nvidia_driver"]["version"] == "580.95.05"
    assert manifest["cuda_nvcc"]["linux-x86_64"]["size"] == "492741996"
    assert isinstance(manifest["release_label"], str)


def test_runfile_is_what_the_derived_pins_say(lab: Lab, url: str) -> None:
    """Size and checksum, by HEAD and by GET."""
    pinned = tomli.loads(lab.pins_file.read_text())["cuda"]["runfile"]["linux-x86_64"]
    head, whole = requests.head(url, timeout=5), requests.get(url, timeout=5)
    assert int(head.headers["Content-Length"]) == len(whole.content) == pinned["size_bytes"]
    assert head.headers["Content-Type"] == "application/octet-stream"
    assert hashlib.sha256(whole.content).hexdigest() == pinned["sha256"]
    assert whole.content.startswith(b"#!/bin/sh\n")


@pytest.mark.parametrize(
    ("asked", "status", "told", "size"),
    [
        ("bytes=0-511", 206, "bytes 0-511/4", 512),
        ("bytes=4000000-", 206, "bytes 4000000-4", None),
        ("bytes=-10", 206, "bytes 4", 10),
        ("bytes=99999999-", 416, "bytes */4", 0),
        ("lines=1-2", 200, "", None),
    ],
)
def test_ranges(url: str, asked: str, status: int, told: str, size: int | None) -> None:
    """Partial, suffix, unsatisfiable, not understood."""
    answer = requests.get(url, headers={"Range": asked}, timeout=5)
    assert answer.status_code == status
    assert answer.headers.get("Content-Range", "").startswith(told)
    assert size is None or len(answer.content) == size


def test_range_of_another_version_of_the_file_is_ignored(url: str) -> None:
    """If-Range: an old tag gets the whole file."""
    answer = requests.get(url, headers={"Range": "bytes=0-9", "If-Range": '"old"'}, timeout=5)
    assert answer.status_code == 200


def test_unknown_name_is_a_404_page(lab: Lab) -> None:
    """HTML, as on the real mirror."""
    answer = requests.get(f"{lab.mirror.url}/cuda/13.0.2/local_installers/cuda_13.0.2_580.82.07_linux.run", timeout=5)
    assert (answer.status_code, answer.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "404 Not Found" in answer.text


def test_rules_truncate_reset_and_lie(lab: Lab, url: str) -> None:
    """Each kind of bad download, and that a rule with `times` ends."""
    lab.mirror.rules = [Rule("*.run", truncate=1000)]
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - loopback
        assert int(answer.headers["Content-Length"]) > 4_000_000
        assert len(answer.read1(5000)) == 1000
    lab.mirror.rules = [Rule("*.run", reset_after=70000)]
    with pytest.raises(requests.exceptions.RequestException):
        requests.get(url, timeout=5)
    lab.mirror.rules = [Rule("*.run", html200=True)]
    assert requests.get(url, timeout=5).headers["Content-Type"].startswith("text/html")
    lab.mirror.rules = [Rule("*.run", short=5000)]
    assert len(requests.get(url, timeout=5).content) == 5000
    lab.mirror.rules = [Rule("*.run", ignore_range=True)]
    assert requests.get(url, headers={"Range": "bytes=5-"}, timeout=5).status_code == 200
    lab.mirror.rules = [Rule("*.run", status=503, retry_after="1", times=1)]
    first, second = requests.get(url, timeout=5), requests.get(url, timeout=5)
    assert (first.status_code, first.headers["Retry-After"], second.status_code) == (503, "1", 200)
    lab.mirror.rules = [Rule("/cuda/*.run", status=301, location="/cn{path}")]
    moved = requests.get(url, timeout=5)
    assert (moved.status_code, len(moved.history)) == (200, 1)


def test_requests_are_remembered(lab: Lab, url: str) -> None:
    """Tests can see what was asked, with ranges."""
    requests.get(url, headers={"Range": "bytes=0-9"}, timeout=5)
    last = lab.mirror.requests[-1]
    assert (last.method, last.range, last.status) == ("GET", "bytes=0-9", 206)


def test_index_lists_wheels_with_true_names_that_fit_this_machine(lab: Lab) -> None:
    """Every pinned package has a page; the file has the pinned version, an accepted tag and the hash of the lock."""
    supported = set(sys_tags())
    lock = (lab.path / "pins.lock").read_text()
    for name, version in tomli.loads(PINS.read_text())["wheels"]["packages"].items():
        page = requests.get(f"{lab.mirror.url}/simple/{name}/", timeout=5).text
        found = re.search(r'href="([^"#]+)#sha256=([0-9a-f]{64})"', page)
        assert found is not None
        data = requests.get(f"{lab.mirror.url}{found[1]}", timeout=5).content
        project, number, _, tags = parse_wheel_filename(found[1].rpartition("/")[2])
        assert (project, str(number)) == (name, version)
        assert tags & supported
        assert hashlib.sha256(data).hexdigest() == found[2]
        assert f"{name}=={version} \\\n    --hash=sha256:{found[2]}\n" in lock


def test_wheels_are_reproducible_and_their_records_are_right(tmp_path: Path) -> None:
    """The same bytes twice; each file as RECORD says; torch knows its CUDA."""
    stack = wheels.Stack("13.0", {"torch": "2.14.1", "nvidia-nccl-cu13": "2.30.7", "unheard-of": "1.0+cu130"})
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        built = wheels.build(tmp_path / folder, stack)
    assert [wheel.sha256 for wheel in built] == [
        hashlib.sha256((tmp_path / "a" / wheel.file).read_bytes()).hexdigest() for wheel in built
    ]
    assert built[-1].file == "unheard_of-1.0+cu130-py3-none-any.whl"
    for wheel in built:
        with zipfile.ZipFile(tmp_path / "b" / wheel.file) as archive:
            record = next(name for name in archive.namelist() if name.endswith("RECORD"))
            lines = {line for line in archive.read(record).decode().splitlines(keepends=True) if record not in line}
            assert lines == {wheels.record_line(n, archive.read(n)) for n in archive.namelist() if n != record}
    furnish.install(tmp_path / "a" / built[1].file, tmp_path / "site")
    code = "import torch.version as v; print(v.__version__, v.cuda)"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "site", capture_output=True, text=True, check=True
    )
    assert told.stdout == "2.14.1+cu130 13.0\n"


def test_too_new_tag_falls_back_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an older C library the newest tag it accepts is used, and the notes tell."""
    old = f"{wheels.py_tag()}-{wheels.py_tag()}-manylinux_2_17_x86_64"
    monkeypatch.setattr(wheels, "_supported", lambda: (old, "py3-none-any"))
    tag, note = wheels.tag_for("sglang", "0.5.23")
    assert tag == old
    assert note.startswith("sglang 0.5.23: tag ")


def test_derived_pins_differ_only_where_they_say(lab: Lab) -> None:
    """The first line says SIMULATED; every other key is that of the shipped pins."""
    text = lab.pins_file.read_text()
    said = set(re.findall(r"^#   ([\w.-]+)$", text, re.MULTILINE))
    ours, theirs = _flat(tomli.loads(text)), _flat(tomli.loads(PINS.read_text()))
    assert text.startswith("# SIMULATED")
    assert ours.keys() == theirs.keys()
    differing = {key for key in ours if ours[key] != theirs[key]}
    assert differing <= said
    assert {"cuda.mirror", "cuda.runfile.linux-x86_64.sha256", "wheels.index", "kernels.hidden"} <= said


def test_derived_pins_assume_what_the_wheels_were_built_for(lab: Lab) -> None:
    """The interpreter and the platform of this machine; the rest of the assumed host stays."""
    ours, theirs = (tomli.loads(file.read_text())["assume"] for file in (lab.pins_file, PINS))
    assert ours["pythons"] == [f"{sys.version_info.major}.{sys.version_info.minor}"]
    assert ours["platform"] == toolkit.platform_name()
    assert ours["driver"] == theirs["driver"]


def test_decision_on_python_stays_behind(lab: Lab) -> None:
    """The lab's hosts have another interpreter; all other decisions are the real ones."""
    real, ours = (
        json.loads(file.read_text())["decisions"]
        for file in (PINS.with_suffix(".decision.json"), lab.path / "pins.decision.json")
    )
    assert ours == [one for one in real if one["subject"] != "python"]
    assert pins.decisions("no record") == "no record"


def _flat(table: dict[str, object], at: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in table.items():
        found |= _flat(value, f"{at}{key}.") if isinstance(value, dict) and value else {f"{at}{key}": value}
    return found


@pytest.mark.parametrize("name", faults.names())
def test_every_fault_says_what_it_is(name: str) -> None:
    """One sentence, and tables that can be added up."""
    assert re.fullmatch(r"[A-Z].*\.", faults.load(name)["what"])
    faults.collect([name])


def test_unknown_fault_has_a_nearest_name() -> None:
    """One line for a slip of the keyboard."""
    with pytest.raises(LabError, match="unknown fault `driver-to-old`; did you mean `driver-too-old`"):
        faults.collect(["driver-to-old"])


def test_faults_reach_mirror_index_pins_and_single_hosts(tmp_path: Path, cache: Path) -> None:
    """Unlisted runfile, a wheel with another CUDA under a matching hash, the story's wrong name, one sick host."""
    wanted = ["runfile-404", "wheel-wrong-cuda", "runfile-listed-elsewhere", "gpu-missing@lab-02"]
    with Lab(tmp_path / "lab", pins=PINS, hosts=2, faults=wanted, cache=cache, minimal=True) as sick:
        listed = sick.mirror.page("/cuda/13.0.2/docs/sidebar/md5sum.txt")
        assert listed is not None
        assert b"_linux.run" not in bytes(listed.content if isinstance(listed.content, bytes) else b"")
        pinned = tomli.loads(sick.pins_file.read_text())["cuda"]["runfile"]["linux-x86_64"]["file"]
        assert pinned == "cuda_13.0.2_580.82.07_linux.run"
        assert [host.state["gpus"] for host in sick.hosts] == [8, 7]
        house, built = catalogue.wheelhouse(cache, wheels.Stack("13.0", {"torch": "2.14.1"}))
        honest = next(wheel for wheel in built if wheel.name == "torch")
        assert (house / honest.file).exists()
        assert honest.sha256 not in (sick.path / "pins.lock").read_text()


def test_files_of_a_fault_go_with_it(tmp_path: Path, cache: Path) -> None:
    """A server that serves shows in /proc as long as the fault is in force."""
    line = tmp_path / "lab/hosts/lab-01/root/proc/4321/cmdline"
    with Lab(tmp_path / "lab", pins=PINS, faults=["server-running"], cache=cache, minimal=True) as sick:
        python = sick.host("lab-01").root / "opt/sglang-cu128/venv/bin/python"
        assert line.read_bytes().split(b"\0")[0] == str(python).encode()
    with Lab(tmp_path / "lab", pins=PINS, cache=cache, minimal=True):
        assert not line.exists()


def test_pins_that_the_lab_cannot_serve(tmp_path: Path) -> None:
    """Missing file, broken syntax, missing key: one line each."""
    (tmp_path / "a.toml").write_text("[cuda")
    (tmp_path / "b.toml").write_text("[cuda]\nversion = '13.0.2'\n")
    for name, words in (("none.toml", "No such file"), ("a.toml", "Expected"), ("b.toml", "no key 'runfile'")):
        with pytest.raises(LabError, match=words):
            Lab(tmp_path / "lab", pins=tmp_path / name).start()
