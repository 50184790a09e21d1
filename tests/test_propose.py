"""`nox -s pins` from end to end: a real index, a real mirror, the real uv; what is written, and what never is."""

import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomlkit
from index_pages import LOGIN, link, metadata, wheel
from web_server import Answer, Server, body, serving, status

from checks import propose
from checks.catalogue import shipped
from checks.lock import Wanted, make_lock, write_together
from checks.record import recorded
from fleet.pins import read_pins
from fleet.problem import Problem

ROOT = Path(__file__).parents[1]
WHEELS = [
    ("sglang", "0.5.23", ["torch==2.14.1", "sglang-kernel==0.4.10", "flashinfer-python==0.7.2"]),
    ("sglang", "0.5.10.post1", ["torch==2.9.1"]),
    ("torch", "2.14.1", ["triton~=3.8.0", "nvidia-nccl-cu13==2.30.7", "nvidia-cudnn-cu13==9.24.0.43"]),
    ("sglang-kernel", "0.4.10", ["torch==2.14.1"]),
    ("flashinfer-python", "0.7.2", []),
    ("triton", "3.8.0", []),
    ("nvidia-nccl-cu13", "2.30.7", []),
    ("nvidia-nccl-cu12", "2.27.5", []),
    ("nvidia-cudnn-cu13", "9.24.0.43", []),
]
Table = dict[str, Answer | list[Answer]]


def index(wheels: list[tuple[str, str, list[str]]], hashes: bool = True) -> Table:
    """The pages and files of an index of such wheels."""
    table: Table = {}
    pages: dict[str, str] = {}
    for name, version, requires in wheels:
        file, data = wheel(name, version, requires)
        table[f"/files/{file}"] = body(data, "application/octet-stream", ranges=True)
        digest = hashlib.sha256(data).hexdigest() if hashes else ""
        # PEP 658: the metadata beside the file, so that nobody fetches gigabytes to read it.
        table[f"/files/{file}.metadata"] = body(metadata(name, version, requires).encode())
        pages[name] = pages.get(name, "") + link(f"/files/{file}", file, digest, 'data-core-metadata="true"')
    return table | {f"/simple/{name}/": body(page.encode(), "text/html") for name, page in pages.items()}


def mirror() -> Table:
    """The list of files of CUDA 13.0.2."""
    rows = [f"{row.md5} {row.file}\n" for row in shipped().rows if row.cuda == "13.0.2"]
    return {"/cuda/13.0.2/docs/sidebar/md5sum.txt": body("".join(rows).encode())}


@pytest.fixture
def server() -> Iterator[Server]:
    """An index and a mirror where everything is as it should be."""
    with serving(index(WHEELS) | mirror()) as found:
        yield found


@pytest.fixture
def pins(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped pins, with older versions in them and the server of the test as their source."""
    document = tomlkit.parse((ROOT / "pins.toml").read_text())
    document["cuda"]["mirror"] = f"{server.url}/cuda"
    document["cuda"]["version"] = "13.0.1"
    document["wheels"]["index"] = f"{server.url}/simple"
    document["wheels"]["packages"]["sglang"] = "0.5.21"
    document["wheels"]["packages"]["nvidia-nccl-cu13"] = "2.29.7"
    (tmp_path / "pins.toml").write_text(tomlkit.dumps(document))
    (tmp_path / "pins.lock").write_text("# the lock of before\nsglang==0.5.21 --hash=sha256:00\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "pins.toml"


def run(pins: Path, *words: str) -> int:
    """`python -m checks.propose` for these pins."""
    return propose.main(["--pins", str(pins), *words])


def written(pins: Path) -> dict[str, bytes]:
    """Every file beside the pins, but for the kept copies of lists."""
    return {file.name: file.read_bytes() for file in pins.parent.iterdir() if file.is_file()}


def change(pins: Path, old: str, new: str) -> None:
    """Replaces a text in the pins."""
    text = pins.read_text()
    assert old in text
    pins.write_text(text.replace(old, new))


def test_the_table_writes_nothing(pins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Per pin what it is, what it would be, why, by which source, since when."""
    before = written(pins)
    assert run(pins) == 0
    assert written(pins) == before
    out = capsys.readouterr().out
    assert "* cuda.version" in out
    assert "13.0.1" in out
    assert "-> 13.0.2" in out
    assert "wheels.packages.sglang" in out
    assert "since 2026-10-30" in out
    assert "CUDA 13.0.3: its SHA-256 is known from 1 public source" in out
    assert "hint: `nox -s pins -- --write` writes them" in out


def test_write_keeps_comments_and_makes_lock_and_record(pins: Path, server: Server) -> None:
    """The whole closure with hashes, no address of a file; pins.toml loads with it; the record says why."""
    comments = [line for line in pins.read_text().splitlines() if line.startswith("#")]
    assert run(pins, "--write") == 0
    got = read_pins(pins)
    assert (got.cuda.version, got.wheels.packages["sglang"]) == ("13.0.2", "0.5.23")
    assert got.cuda.runfile["linux-x86_64"].file == "cuda_13.0.2_580.95.05_linux.run"
    assert got.wheels.packages["nvidia-nccl-cu13"] == "2.30.7"
    assert [line for line in pins.read_text().splitlines() if line.startswith("#")] == comments
    assert server.url not in got.lock
    assert got.lock.count("==") == got.lock.count("--hash=sha256:") == 7
    cuda = {one.subject: one for one in recorded(got)}
    assert cuda["cuda"].chosen == "CUDA 13.0.2"
    assert "md5sum.txt" in [one.source for one in cuda["CUDA runfile for linux-x86_64"].candidates[0].evidence]
    wheel_index = cuda["torch"].candidates[0].evidence[-1]
    assert (wheel_index.status, wheel_index.url) == (200, f"{server.url}/simple/torch/")
    assert wheel_index.checksum.startswith("sha256:")


def test_the_shipped_pins_have_their_record() -> None:
    """The record beside them is of these very versions, and says why no newer toolkit."""
    decisions = {one.subject: one for one in recorded(read_pins(ROOT / "pins.toml"))}
    why = {one.name: one.reason for one in decisions["cuda"].rejected}
    assert "the driver translates PTX up to CUDA 13.0" in why["CUDA 13.4.2"]
    assert "known from 1 public source" in why["CUDA 13.0.3"]


def test_a_record_of_other_pins_is_none(pins: Path) -> None:
    """Edited by hand, the pins are no longer what was decided."""
    run(pins, "--write")
    change(pins, 'version = "13.0.2"', 'version = "13.0.1"')
    assert recorded(read_pins(pins)) == []


def test_written_once_there_is_nothing_to_write(pins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same solve again changes no byte, so that no host is asked to install anew."""
    run(pins, "--write")
    before = written(pins)
    assert run(pins, "--write") == 0
    assert written(pins) == before
    out = capsys.readouterr().out
    assert "pins are the newest consistent set" in out
    assert out.endswith("nothing to write\n")


def test_offline_asks_nobody(pins: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """From the shipped facts alone; and it cannot write."""
    before = written(pins)
    assert run(pins, "--offline") == 0
    assert "-> 0.5.23" in capsys.readouterr().out
    assert run(pins, "--offline", "--write") == 1
    assert (server.asked, written(pins)) == ([], before)


def test_contradictory_wishes_are_refused(pins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The pair and the way out, on stderr; nothing is written."""
    change(pins, 'sglang = "newest"', 'sglang = "0.5.23"\ntorch = "2.11.0"')
    before = written(pins)
    assert run(pins, "--write") == 1
    assert "sglang 0.5.23 and torch 2.11.0: sglang 0.5.23 pins torch 2.14.1" in capsys.readouterr().err
    assert written(pins) == before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('cuda = "13"', 'cuda = "13.0.9"', "`wishes.cuda`: release 13.0.9 is not on record"),
        ('sglang = "newest"', 'sglung = "newest"', "did you mean `sglang`?"),
        ("hold_days = 14", "hold_days = -1", "`policy.hold_days`: want 0 or more, got -1"),
        ("hold_days = 14", "hold_day = 14", "unknown key `policy.hold_day`; did you mean `hold_days`?"),
        ("checksum_sources = 2", "checksum_sources = 0", "`policy.checksum_sources`: want 1 or more"),
        ('prefer = "newest"', 'prefer = "oldest"', "`policy.prefer`"),
        ("exclude = []", 'exclude = ["sglang 5"]', "want a requirement such as sglang==0.5.22, got 'sglang 5'"),
        ("[assume]", '[overrides.torch]\nversion = "2.15.0"\nreason = " "\n[assume]', "want the reason, got none"),
    ],
)
def test_a_mistake_in_the_file_is_told(
    pins: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    """Where, what, and the nearest known word."""
    change(pins, old, new)
    assert run(pins) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        ("/simple/sglang/", status(404), "no such project"),
        ("/simple/sglang/", status(500), "unreachable"),
        ("/simple/torch/", body(b"", "text/html"), "empty page"),
        ("/simple/torch/", body(LOGIN.encode(), "text/html"), "not an index page"),
        ("/simple/torch/", body(b'{"meta":', "application/vnd.pypi.simple.v1+json"), "garbage"),
    ],
)
def test_an_index_that_fails_leaves_all_as_it_was(
    pins: Path, server: Server, capsys: pytest.CaptureFixture[str], path: str, answer: Answer, said: str
) -> None:
    """A verdict for a person, exit 1, and the old lock untouched."""
    server.table[path] = answer
    before = written(pins)
    assert run(pins, "--write") == 1
    told = capsys.readouterr()
    assert said in told.out + told.err
    assert written(pins) == before


def test_a_host_for_which_the_index_has_no_file(pins: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Where pip would silently take 0.5.10.post1, this stops."""
    file, data = wheel("sglang", "0.5.23", tag="cp313-cp313-manylinux_2_34_x86_64")
    old, _ = wheel("sglang", "0.5.10.post1")
    page = link(f"/files/{file}", file, hashlib.sha256(data).hexdigest()) + link(f"/files/{old}", old)
    server.table["/simple/sglang/"] = body(page.encode(), "text/html")
    assert run(pins, "--write") == 1
    assert "no file of 0.5.23 fits Python 3.12 with glibc 2.34" in capsys.readouterr().err


def test_disputed_hashes_and_newer_releases_are_told(
    pins: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Conflicting rows of the chosen file; a release whose pins nobody has read yet."""
    file, data = wheel("sglang", "0.5.23", WHEELS[0][2])
    newer, newer_data = wheel("sglang", "0.5.24")
    rows = [(file, hashlib.sha256(data).hexdigest()), (file, "0" * 64), (newer, hashlib.sha256(newer_data).hexdigest())]
    page = "".join(link(f"/files/{name}", name, digest, 'data-core-metadata="true"') for name, digest in rows)
    server.table["/simple/sglang/"] = body(page.encode(), "text/html")
    assert run(pins) == 0
    out = capsys.readouterr().out
    assert f"index, sglang: {file} has rows with different SHA-256" in out
    assert "sglang 0.5.24: its pins are not on record here" in out


def test_a_mirror_with_another_file_stops_it(pins: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The list of the release and the catalogue must not contradict each other."""
    row = next(row for row in shipped().rows if (row.cuda, row.platform) == ("13.0.2", "linux-x86_64"))
    server.table["/cuda/13.0.2/docs/sidebar/md5sum.txt"] = body(f"{'0' * 32} {row.file}\n".encode())
    before = written(pins)
    assert run(pins, "--write") == 1
    assert f"has {row.file} with md5 {'0' * 32}, pins.toml {row.file} with md5 {row.md5}" in capsys.readouterr().err
    assert written(pins) == before


def test_an_optional_package_of_another_index(pins: Path, server: Server) -> None:
    """jit-cache is on no default index: its index is named in the lock, its file is not."""
    other = index([("flashinfer-jit-cache", "0.7.2+cu130", [])])
    server.table |= {path.replace("/simple/", "/cu130/"): answer for path, answer in other.items()}
    extra = f'[extras.flashinfer-jit-cache]\nversion = "0.7.2+cu130"\nindex = "{server.url}/cu130"\n\n[assume]'
    change(pins, "[assume]", extra)
    assert run(pins, "--write") == 0
    lock = read_pins(pins).lock
    assert f"--extra-index-url {server.url}/cu130\n" in lock
    assert "flashinfer-jit-cache==0.7.2+cu130" in lock
    assert ".whl" not in lock


@pytest.mark.parametrize(
    ("version", "said"), [("0.7.1+cu130", "must be the same release"), ("0.7.2+cu129", "must be one of CUDA 13")]
)
def test_an_optional_package_that_does_not_fit(
    pins: Path, capsys: pytest.CaptureFixture[str], version: str, said: str
) -> None:
    """FlashInfer itself would let both pass."""
    change(pins, "[assume]", f'[extras.flashinfer-jit-cache]\nversion = "{version}"\nindex = "x"\n\n[assume]')
    assert run(pins, "--offline") == 1
    assert said in capsys.readouterr().err


def wanted(server: Server, **packages: str) -> Wanted:
    """What a lock is asked for."""
    return Wanted(
        packages={name.replace("_", "-"): version for name, version in packages.items()},
        python="3.12",
        glibc="2.34",
        platforms=("linux-x86_64",),
        index=f"{server.url}/simple",
        cuda_major=13,
    )


def test_twins_in_a_lock_are_refused(server: Server) -> None:
    """Whatever asked for them."""
    with pytest.raises(Problem, match=r"nvidia-nccl-cu12 2.27.5 and nvidia-nccl-cu13 2.30.7: they hold the same files"):
        make_lock(wanted(server, nvidia_nccl_cu12="", nvidia_nccl_cu13=""))


def test_an_index_without_hashes_gets_our_own() -> None:
    """Nightly pages give none: the file itself is fetched and hashed."""
    digest = hashlib.sha256(wheel("triton", "3.8.0")[1]).hexdigest()
    with serving(index(WHEELS, hashes=False)) as server:
        assert f"--hash=sha256:{digest}" in make_lock(wanted(server, triton="3.8.0")).text


def test_no_solution_is_told_in_uvs_words(server: Server) -> None:
    """What its resolver says is the evidence."""
    with pytest.raises(Problem, match=r"you require torch==2.9.1"):
        make_lock(wanted(server, sglang="0.5.23", torch="2.9.1"))


def test_another_version_than_asked_is_refused(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that quietly takes an older release."""
    tool = tmp_path / "uv"
    tool.write_text(f"#!/bin/sh\necho 'sglang==0.5.9 --hash=sha256:{'0' * 64}'\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(tool))
    with pytest.raises(Problem, match=r"sglang: asked for 0.5.23, uv chose 0.5.9"):
        make_lock(wanted(server, sglang="0.5.23"))


def test_a_resolver_that_hangs_is_given_up(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit in time, told."""
    tool = tmp_path / "uv"
    tool.write_text("#!/bin/sh\nexec sleep 5\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(tool))
    with pytest.raises(Problem, match="no answer in"):
        make_lock(wanted(server, sglang="0.5.23"), timeout_s=0.1)


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    """When the second cannot be put in place, the first is as it was, and nothing is left lying about."""
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("old")
    second.mkdir()
    (second / "x").write_text("")
    with pytest.raises(Problem, match="nothing was changed"):
        write_together({first: "new", second: "new"})
    assert first.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
