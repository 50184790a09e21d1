"""Which runfile a wish comes to: every row of the catalogue from every kind of source, wishes, the command."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from release_samples import Table, as_json, at, index, made_up, manifest, md5sums, rows_of, table
from web_server import Answer, Server, body, runfile, serving, status

from checks import release
from checks.catalogue import Row, file_name, parse_name, shipped
from checks.mirror import Folder
from checks.release import resolve
from checks.wish import parse_wish
from fleet.problem import Problem

ROWS = shipped().rows
X86 = "linux-x86_64"
SBSA = "linux-sbsa"
LIST = "/13.0.2/docs/sidebar/md5sum.txt"
MANIFEST = "/redist/redistrib_13.0.2.json"
RIGHT = "cuda_13.0.2_580.95.05_linux.run"


@pytest.fixture(scope="module")
def whole() -> Iterator[Server]:
    """A mirror with everything."""
    with serving(table()) as server:
        yield server


@pytest.fixture(scope="module")
def without_lists() -> Iterator[Server]:
    """A mirror with manifests only."""
    with serving(table(lists=False)) as server:
        yield server


def ids(row: Row) -> str:
    """A row's name in the list of tests."""
    return f"{row.cuda}-{row.platform}"


# -- the catalogue


def test_the_catalogue_is_whole() -> None:
    """123 rows, each with a source, a sane name, sums in form, no release and platform twice."""
    assert len(ROWS) == 123
    assert len({(row.cuda, row.platform) for row in ROWS}) == 123
    for row in ROWS:
        assert row.sources
        assert parse_name(row.file) == (row.cuda, row.driver, row.platform)
        assert file_name(row.cuda, row.driver, row.platform) == row.file
        assert len(row.md5) in (0, 32)
        assert len(row.sha256) in (0, 64)
        assert row.size_bytes == 0 or row.size_bytes > 2_000_000_000


def test_names_carry_a_driver_until_13_4() -> None:
    """From 13.4 on they carry none."""
    assert {row.cuda for row in ROWS if not row.driver} == {"13.4.1", "13.4.2"}


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_every_row_resolves_from_a_mirror(row: Row, whole: Server) -> None:
    """The list is trusted first; the manifest and the catalogue agree with it."""
    got = resolve(row.cuda, row.platform, at(whole.url))
    assert (got.finding.verdict, got.file, got.release) == ("published", row.file, row.cuda)
    assert got.url == f"{whole.url}/{row.cuda}/local_installers/{row.file}"
    assert got.md5 == (row.md5 or made_up(row.file))
    assert (got.sha256, got.size_bytes, got.conflicts) == (row.sha256, row.size_bytes, [])
    assert [source.split(" of ")[0] for source in got.sources] == ["md5sum.txt", "redistrib JSON", "the catalogue"]


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_every_row_resolves_from_a_manifest(row: Row, without_lists: Server) -> None:
    """Without a list the driver in the manifest makes the name, and from 13.4 on its absence does."""
    got = resolve(row.cuda, row.platform, at(without_lists.url))
    assert (got.finding.verdict, got.file) == ("published", row.file)
    assert got.sources[0] == f"redistrib JSON of {without_lists.url}"
    assert len(got.conflicts) == 1, "that the list is not there is told"


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_every_row_resolves_from_the_catalogue(row: Row) -> None:
    """Without any mirror, with the catalogue's date."""
    got = resolve(row.cuda, row.platform)
    assert (got.finding.verdict, got.file, got.held) == ("published", row.file, False)
    assert (got.md5, got.sha256, got.size_bytes) == (row.md5, row.sha256, row.size_bytes)
    assert got.sources == ["the catalogue of 2026-11-30"]


@pytest.mark.parametrize("row", ROWS[::20], ids=ids)
def test_rows_resolve_from_a_folder(row: Row, tmp_path: Path) -> None:
    """A copy of the server's tree serves as well."""
    file = tmp_path / row.cuda / "docs" / "sidebar" / "md5sum.txt"
    file.parent.mkdir(parents=True)
    file.write_text(md5sums(rows_of(row.cuda), row.cuda))
    got = resolve(row.cuda, row.platform, [Folder(tmp_path)])
    assert (got.file, got.held) == (row.file, True)
    assert got.url == f"{tmp_path}/{row.cuda}/local_installers/{row.file}"


# -- wishes


@pytest.mark.parametrize(
    ("wish", "want"),
    [
        ("13.0.2", "cuda_13.0.2_580.95.05_linux.run"),
        ("13.0", "cuda_13.0.3_580.126.20_linux.run"),
        ("newest in 13.0", "cuda_13.0.3_580.126.20_linux.run"),
        ("newest in 12", "cuda_12.9.2_575.57.08_linux.run"),
        ("11", "cuda_11.8.0_520.61.05_linux.run"),
        ("13", "cuda_13.4.2_linux.run"),
        ("newest", "cuda_13.4.2_linux.run"),
        (" newest ", "cuda_13.4.2_linux.run"),
    ],
)
def test_wishes(wish: str, want: str, whole: Server) -> None:
    """Exact, series, newest; with a mirror and without."""
    assert resolve(wish, X86, at(whole.url)).file == want
    assert resolve(wish, X86).file == want


@pytest.mark.parametrize(
    "wish", ["", "13.x", "newest of 13", "13.0.2.1", "cuda 13", "13.0.2; rm", "newest in", "-1", "\u0661\u0663"]
)
def test_what_is_no_wish(wish: str) -> None:
    """A mistake of the user, told with what is wanted."""
    with pytest.raises(Problem, match=r"newest in 13\.0"):
        parse_wish(wish)


def test_a_series_ends_at_what_the_mirror_has() -> None:
    """The catalogue knows 13.4.2; a mirror that stops at 13.0.3 cannot serve it, and newest says so."""
    with serving(table(["12.8.1", "13.0.2", "13.0.3"])) as server:
        got = resolve("newest", X86, at(server.url))
        assert got.file == "cuda_13.0.3_580.126.20_linux.run"
        reasons = {one.name: one.reason for one in got.decision.rejected}
        assert reasons["13.4.2"] == f"not in {server.url}/redist/"
        assert reasons["13.0.2"] == "older than 13.0.3"


def test_a_series_without_an_index_asks_release_by_release() -> None:
    """No index: what the mirror has no list of is passed over."""
    with serving(table(["13.2.0"], manifests=False)) as server:
        got = resolve("13", X86, at(server.url))
        assert got.file == "cuda_13.2.0_595.45.04_linux.run"
        reasons = {one.name: one.reason for one in got.decision.rejected}
        assert reasons["13.4.2"] == "no mirror that answers has it"


def test_a_release_newer_than_the_catalogue_is_found() -> None:
    """The mirror's index tells of 13.5.0; its name follows the new rule."""
    found = table(["13.4.2"])
    found["/redist/"] = index(["13.4.2", "13.5.0"])
    found["/redist/redistrib_13.5.0.json"] = as_json(manifest("13.5.0", ""))
    found["/13.5.0/docs/sidebar/md5sum.txt"] = body(f"{'a' * 32} cuda_13.5.0_linux.run\n".encode())
    with serving(found) as server:
        got = resolve("newest", X86, at(server.url))
        assert (got.file, got.md5, got.sha256) == ("cuda_13.5.0_linux.run", "a" * 32, "")
        assert got.sources == [f"md5sum.txt of {server.url}", f"redistrib JSON of {server.url}"]


def test_an_index_names_releases_that_are_not_there_yet() -> None:
    """13.5.0 is in the index, its lists are 404: newest takes the one before, and says why."""
    found = table(["13.4.2"])
    found["/redist/"] = index(["13.4.2", "13.5.0"])
    with serving(found) as server:
        got = resolve("newest", X86, at(server.url))
        assert got.file == "cuda_13.4.2_linux.run"
        assert got.decision.rejected[0].name == "13.5.0"
        assert "listed but 404" in got.decision.rejected[0].reason
        assert resolve("13.5.0", X86, at(server.url)).finding.verdict == "listed but 404"


# -- mirrors in order


def test_mirrors_are_asked_in_order() -> None:
    """The first whose list names the file ends it."""
    with serving(table(["13.0.1"])) as first, serving(table(["13.0.2"])) as second, serving(table()) as third:
        got = resolve("13.0.2", X86, at(first.url, second.url, third.url))
        assert got.url.startswith(second.url)
        assert third.asked == []
        assert any(first.url in text for text in got.conflicts), "that the first lacks it is told"


def test_a_dead_mirror_is_passed_over() -> None:
    """The next one answers."""
    with serving({}) as dead:
        pass
    with serving(table(["13.0.2"])) as server:
        got = resolve("13.0.2", X86, at(dead.url, server.url))
        assert (got.file, got.conflicts) == (RIGHT, [])
        assert "refused" in got.decision.candidates[0].evidence[0].says


def test_a_mirror_without_the_runfile_does_not_hide_one_that_has_it() -> None:
    """Its whole list names none; the second mirror's does."""
    lines = f"{'a' * 32} cuda_13.0.2_windows.exe\n".encode()
    with serving({LIST: body(lines)}) as first, serving(table(["13.0.2"])) as second:
        got = resolve("13.0.2", X86, at(first.url, second.url))
        assert (got.file, got.finding.verdict) == (RIGHT, "published")
        assert f"{first.url}{LIST} does not name" in got.conflicts[0]


# -- the record and the command


def test_the_decision_says_why(whole: Server) -> None:
    """Candidates with evidence: address, status, size, checksum, date, source; the rest with reasons."""
    decision = resolve("newest in 13.0", X86, at(whole.url)).decision
    assert (decision.chosen, decision.wish) == ("cuda_13.0.3_580.126.20_linux.run", "newest in 13.0")
    listed, derived, row = decision.candidates[0].evidence
    assert (listed.source, listed.status) == ("md5sum.txt", 200)
    assert listed.checksum == "md5:13acdcabcb9e939f716c29eff8c12181"
    assert listed.url == f"{whole.url}/13.0.3/docs/sidebar/md5sum.txt"
    assert derived.says == "nvidia_driver 580.126.20, hence cuda_13.0.3_580.126.20_linux.run"
    assert (row.date, row.size_bytes) == ("2026-11-30", 4329438671)
    assert all(one.date for one in decision.candidates[0].evidence)
    assert [one.name for one in decision.rejected] == ["13.0.2", "13.0.1", "13.0.0"]


def test_discovery_is_quick(whole: Server) -> None:
    """Both lists of a release are read at the same time; newest takes a handful of requests."""
    before, started = len(whole.asked), time.monotonic()
    resolve("newest", X86, at(whole.url))
    assert time.monotonic() - started < 1.0
    assert len(whole.asked) - before == 3


def test_the_command_prints_answer_and_evidence(whole: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0 and the file, with the proof of its first bytes."""
    assert release.main(["newest", "in", "13.0", "--mirror", whole.url]) == 0
    out = capsys.readouterr().out
    assert out.startswith("13.0.3 is published as cuda_13.0.3_580.126.20_linux.run (md5sum.txt of http")
    assert "first bytes, from here: cuda_13.0.3_580.126.20_linux.run: 206, 4.33 GB" in out


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["13.0.2", "--platform", SBSA, "--mirror", "none"], 0, "cuda_13.0.2_580.95.05_linux_sbsa.run"),
        (["12.7", "--mirror", "none"], 1, "nearest: 12.6.2, 12.6.3, 12.8.0"),
        (["13.x", "--mirror", "none"], 2, ""),
    ],
)
def test_the_command_tells_by_its_exit(
    argv: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 published, 1 not, 2 no wish."""
    assert release.main(argv) == code
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (status(404), "listed but 404"),
        (status(403), "forbidden"),
        (body(b"<html>", "text/html"), "not a runfile"),
        (runfile(1_000_000), "truncated"),
        (runfile(5_000_000_000), "size differs"),
    ],
    ids=["404", "403", "page", "small", "large"],
)
def test_the_command_proves_the_file(answer: Answer, verdict: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A list is a promise; the file's own address keeps it or not."""
    found = {**table(["13.0.2"]), f"/13.0.2/local_installers/{RIGHT}": answer}
    with serving(found) as server:
        assert release.main(["13.0.2", "--mirror", server.url]) == 1
    assert capsys.readouterr().out.startswith(f"{verdict}: ")


def test_the_cache_saves_lists(tmp_path: Path) -> None:
    """A second round is confirmed by 304."""
    driver = json.dumps(manifest("13.0.2", "580.95.05")).encode()
    found: Table = {
        LIST: body(md5sums(rows_of("13.0.2"), "13.0.2").encode(), ETag='"1"'),
        MANIFEST: body(driver, ETag='"2"'),
    }
    with serving(found) as server:
        for _ in range(2):
            assert release.main(["13.0.2", "--mirror", server.url, "--cache", str(tmp_path)]) == 1
        marks = [seen.get("If-None-Match") for seen in server.headers_seen]
    assert sorted(mark for mark in marks if mark) == ['"1"', '"2"']
    assert len(list(tmp_path.iterdir())) == 2
