"""What mirrors get wrong, contradict or refuse, and the verdict on each, through a real server."""

import time

import pytest
from release_samples import QUICK, Table, as_json, at, made_up, manifest, md5sums, rows_of, table
from web_server import Answer, body, drip, endless, redirect, reset, serving, status

from checks.lists import parse_md5sums
from checks.release import resolve
from checks.resolved import Resolved
from checks.web import Limits

X86 = "linux-x86_64"
SBSA = "linux-sbsa"
LIST = "/13.0.2/docs/sidebar/md5sum.txt"
MANIFEST = "/redist/redistrib_13.0.2.json"
RIGHT = "cuda_13.0.2_580.95.05_linux.run"
CATALOGUE = "the catalogue of 2026-11-30"
IMPATIENT = Limits(attempt_s=0.1, total_s=0.2, attempts=2, backoff_s=0.001)


def resolved(found: Table, wish: str = "13.0.2", platform: str = X86, limits: Limits = QUICK) -> Resolved:
    """What a wish comes to at a mirror."""
    with serving(found) as server:
        return resolve(wish, platform, at(server.url, limits=limits))


# -- lists as they are


def test_lists_may_be_untidy() -> None:
    """Blank and malformed lines, CR LF, two blanks, a binary mark, a path: only good lines count."""
    good, other = "a" * 32, "b" * 32
    text = f"\n{good}  {RIGHT}\r\n{other} *x.deb\nzzz y.run\n{good}\n{good} a b\n{good} ../up.run\n{good[:31]} z.run\n"
    assert parse_md5sums(text) == {RIGHT: good, "x.deb": other}


@pytest.mark.parametrize(
    "name",
    [
        "cuda_13.4.21_linux.run",
        "cuda_113.4.2_linux.run",
        "cuda_13.4.2.1_linux.run",
        "cuda_13x4.2_linux.run",
        "cuda_13.4.2_linux.run.asc",
        "xcuda_13.4.2_linux.run",
        "cuda_13.4.2_linux_ppc64le.run",
        "cuda_13.4.2_linux_sbsa.run",
        "cuda_13.4.2_580_linux.run",
    ],
)
def test_similar_names_are_other_files(name: str) -> None:
    """A list with only such a name has no x86_64 runfile of 13.4.2."""
    got = resolved({"/13.4.2/docs/sidebar/md5sum.txt": body(f"{'a' * 32} {name}\n".encode())}, "13.4.2")
    assert (got.finding.verdict, got.file) == ("no runfile for this platform", "")


def test_sbsa_before_x86_64() -> None:
    """The first line with the release in it is not the one."""
    lines = f"{'a' * 32} cuda_13.4.2_linux_sbsa.run\n{'b' * 32} cuda_13.4.2_linux.run\n".encode()
    found: Table = {"/13.4.2/docs/sidebar/md5sum.txt": body(lines)}
    assert resolved(found, "13.4.2").md5 == "b" * 32
    assert resolved(found, "13.4.2", SBSA).md5 == "a" * 32


# -- contradictions


def test_a_release_with_a_name_under_another_rule() -> None:
    """What the list says holds, whatever rule of names was known before."""
    lines = f"{'a' * 32} cuda_13.4.2_615.71.09_linux.run\n".encode()
    got = resolved({"/13.4.2/docs/sidebar/md5sum.txt": body(lines)}, "13.4.2")
    assert got.file == "cuda_13.4.2_615.71.09_linux.run"
    assert (got.sha256, got.size_bytes) == ("", 0), "the catalogue's sums are of another file"
    assert "cuda_13.4.2_linux.run" in got.conflicts[0]
    assert got.decision.rejected[0].name == "cuda_13.4.2_linux.run"


def test_another_md5_than_the_catalogue_is_told() -> None:
    """The list is believed, and the catalogue's other sums are not attached to it."""
    got = resolved({LIST: body(f"{'a' * 32} {RIGHT}\n".encode())})
    assert (got.md5, got.sha256) == ("a" * 32, "")
    assert any("3f092554675f004250d4dfc1d6c3acc9" in text and "a" * 32 in text for text in got.conflicts)
    assert got.decision.conflicts == got.conflicts


def test_a_list_outweighs_the_manifest() -> None:
    """Both names are told, with who says what."""
    got = resolved({**table(["13.0.2"]), MANIFEST: as_json(manifest("13.0.2", "580.82.07"))})
    assert got.file == RIGHT
    assert len(got.conflicts) == 1
    assert "redistrib JSON" in got.conflicts[0]
    assert "cuda_13.0.2_580.82.07_linux.run, md5sum.txt" in got.conflicts[0]


def test_two_names_in_one_list() -> None:
    """The one that another source knows is taken, and the other is told."""
    lines = f"{'a' * 32} cuda_13.0.2_580.82.07_linux.run\n{'b' * 32} {RIGHT}\n"
    got = resolved({LIST: body(lines.encode())})
    assert (got.file, got.md5) == (RIGHT, "b" * 32)
    assert any("580.82.07" in text for text in got.conflicts)


# -- verdicts


def test_unpublished() -> None:
    """404 for all lists, and in no catalogue: with the nearest that there are."""
    got = resolved(table(["13.0.0", "13.0.1"]), "12.7.0")
    assert (got.finding.verdict, got.file) == ("unpublished release", "")
    assert "nearest: 12.6.2, 12.6.3, 12.8.0" in got.finding.sentence
    assert "404 for http" in got.finding.sentence


def test_an_unpublished_series() -> None:
    """There was no 12.7; a mirror that cannot be asked leaves that open."""
    assert resolved(table(["13.0.1"]), "12.7").finding.verdict == "unpublished release"
    assert resolve("12.7", X86).finding.verdict == "unpublished release"
    assert resolved({"/redist/": status(503)}, "12.7").finding.verdict == "unreachable"


def test_no_runfile_for_the_platform() -> None:
    """A whole list without it, although the catalogue has one: the list holds, the contradiction is told."""
    rows = [row for row in rows_of("13.0.2") if row.platform == X86]
    got = resolved({LIST: body(md5sums(rows, "13.0.2").encode())}, platform=SBSA)
    assert got.finding.verdict == "no runfile for this platform"
    assert "13.0.0, 13.0.1, 13.0.3 have one" in got.finding.sentence
    assert f"{CATALOGUE} has cuda_13.0.2_580.95.05_linux_sbsa.run" in got.conflicts[0]


def test_no_runfile_in_the_catalogue() -> None:
    """11.0.1 came for x86_64 only."""
    got = resolve("11.0.1", SBSA)
    assert got.finding.verdict == "no runfile for this platform"
    assert CATALOGUE in got.finding.sentence


@pytest.mark.parametrize(
    "answer",
    [
        body(b""),
        body(b"\n\n"),
        body(b"<!DOCTYPE html><html>sign in</html>", "text/html"),
        body(b"\xef\xbb\xbf <html>", "text/plain"),
        body(bytes(range(256))),
        endless(),
        reset(),
        drip(),
        status(500),
        status(503),
        redirect("#"),
    ],
    ids=["empty", "blank", "page", "page-as-text", "binary", "endless", "reset", "slow", "500", "503", "loop"],
)
def test_a_bad_answer_never_means_absent(answer: Answer) -> None:
    """The catalogue answers for a release it knows; for one it does not know, nobody does."""
    started = time.monotonic()
    known = resolved({LIST: answer, MANIFEST: answer}, limits=IMPATIENT)
    assert (known.file, known.held, known.sources) == (RIGHT, False, [CATALOGUE])
    found: Table = {"/13.0.9/docs/sidebar/md5sum.txt": answer, "/redist/redistrib_13.0.9.json": answer}
    unknown = resolved(found, "13.0.9", limits=IMPATIENT)
    assert (unknown.finding.verdict, unknown.finding.ok) == ("unreachable", None)
    assert time.monotonic() - started < 1.5


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"{}",
        b'{"release_date": "x"}',
        b'{"nvidia_driver": []}',
        b'{"nvidia_driver": {"version": 580}}',
        b'{"nvidia_driver": {"version": "580.82.07; rm", "linux-x86_64": {}}}',
        b'{"a": ' * 3000,
        b"[" * 100_000,
        b'{"release_label": "13.0.1", "nvidia_driver": {"version": "580.82.07", "linux-x86_64": {}}}',
        b"\xff\xfe",
        b"<html>",
    ],
    ids=range(15),
)
def test_garbage_in_the_manifest_makes_no_name(content: bytes) -> None:
    """No name follows from it; the catalogue's stands."""
    got = resolved({MANIFEST: body(content, "application/json")})
    assert (got.file, got.sources) == (RIGHT, [CATALOGUE])


def test_the_rule_of_names_without_driver_begins_at_13_4() -> None:
    """Before, a manifest without a driver is a gap, not a name; and it speaks for its own platforms only."""
    assert resolved({MANIFEST: as_json(manifest("13.0.2", ""))}).sources == [CATALOGUE]
    path = "/redist/redistrib_13.5.0.json"
    assert resolved({path: as_json(manifest("13.5.0", ""))}, "13.5.0").file == "cuda_13.5.0_linux.run"
    got = resolved({path: as_json(manifest("13.5.0", "", [X86]))}, "13.5.0", SBSA)
    assert (got.file, got.finding.verdict) == ("", "unreachable")


def test_a_list_that_is_cut_shows_no_absence() -> None:
    """What lies beyond the limit is not known to be missing."""
    lines = "".join(f"{made_up(str(n))} file{n}.deb\n" for n in range(10_000))
    got = resolved({"/13.0.9/docs/sidebar/md5sum.txt": body(lines.encode())}, "13.0.9")
    assert got.finding.verdict == "unreachable"
    assert "as far as it was read" in got.finding.sentence


@pytest.mark.parametrize("code", [401, 403, 451])
def test_forbidden(code: int) -> None:
    """Refused after a redirect: no absence; a release the catalogue knows is known all the same."""
    found: Table = {"/13.0.9/docs/sidebar/md5sum.txt": redirect("/cn"), "/cn": status(code)}
    got = resolved(found, "13.0.9")
    assert (got.finding.verdict, got.file) == ("forbidden", "")
    assert f"{code}, after a redirect to http://127.0.0.1" in got.finding.sentence
    assert resolved({LIST: status(code)}).file == RIGHT


def test_unreachable() -> None:
    """Nothing listens: unknown, not absent; what the catalogue knows is known all the same."""
    with serving({}) as server:
        pass
    got = resolve("13.0.9", X86, at(server.url))
    assert (got.finding.verdict, got.finding.ok, got.answered) == ("unreachable", None, False)
    assert resolve("newest in 13.0", X86, at(server.url)).file == "cuda_13.0.3_580.126.20_linux.run"


def test_releases_before_11_are_not_known() -> None:
    """They lie elsewhere: that is not absence either."""
    assert resolve("10.2.89", X86).finding.verdict == "unreachable"
    assert resolve("10", X86).finding.verdict == "unreachable"
