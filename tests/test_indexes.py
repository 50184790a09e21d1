"""Wheel indexes as they really are, read through a real server."""

import time
from typing import Any

import pytest
from index_pages import GITHUB, JSON_TYPE, LOGIN, NIGHTLY, PYTORCH, RELATIVE, SGL_KERNEL, SHA, entry, simple_json
from web_server import Answer, body, drip, endless, redirect, serving, status

from checks.indexes import Page, best, fits, host_tags, read_page, read_pages, why_none
from checks.web import Limits, Web

QUICK = Limits(attempt_s=2.0, total_s=3.0, attempts=2, backoff_s=0.001, longest_pause_s=0.01)
HOST = ("3.12", "2.35", "linux-x86_64")


def page(answer: Answer, project: str = "torch", **limits: Any) -> Page:
    """The page of a project, served at the usual place of an index."""
    with serving({f"/whl/cu130/{project}/": answer}) as server:
        return read_page(Web(limits=QUICK._replace(**limits)), f"{server.url}/whl/cu130", project)


def html(text: str) -> Answer:
    """A page in PEP 503 form."""
    return body(text.encode(), "text/html")


def test_pytorch_pages() -> None:
    """`%2B` in the address and `+` in the name, absolute and relative links, another server, old rows without label."""
    got = page(html(PYTORCH))
    assert (got.verdict, got.told) == ("read", "4 files")
    assert [row.version for row in got.rows] == ["2.9.1+cu130", "2.10.0+cu130", "2.10.0+cu130", "2.0.1"]
    assert got.labels == ["", "cu130"]
    assert "other.example.org" in got.other_hosts
    assert got.rows[1].url.endswith("/whl/cu130/torch-2.10.0%2Bcu130-cp312-cp312-manylinux_2_28_x86_64.whl")
    assert got.rows[1].url.startswith("http://127.0.0.1")
    assert got.rows[0].sha256 == SHA["a"]


def test_nightly_pages_have_no_hashes() -> None:
    """Said, since such a pin rests on our own hash alone."""
    got = page(html(NIGHTLY))
    assert (got.unhashed, got.rows[0].label) == (1, "cu130")
    assert best(got.rows, *HOST) is None
    assert best(got.rows, *HOST, "==2.14.0.dev20260620") == got.rows[0]


def test_disputed_hashes_are_all_kept() -> None:
    """A re-uploaded file has two rows with different hashes: both are there, and the dispute is told."""
    got = page(html(SGL_KERNEL), "sgl-kernel")
    file = "sgl_kernel-0.3.21+cu130-cp310-abi3-manylinux2014_x86_64.whl"
    assert got.disputed == {file: [SHA["a"], SHA["b"]]}
    assert len(got.rows) == 5
    assert got.labels == ["", "cu128", "cu130"]
    assert got.rows[0].url == GITHUB + file


@pytest.mark.parametrize(("python", "interpreter"), [("3.11", "cp310"), ("3.12", "cp312"), ("3.13", "cp312")])
def test_abi3_goes_by_the_hosts_python(python: str, interpreter: str) -> None:
    """Two hosts with different Python get different files of one pin."""
    row = best(page(html(SGL_KERNEL), "sgl-kernel").rows, python, "2.35", "linux-x86_64", "==0.3.21")
    assert row is not None
    assert f"-{interpreter}-abi3-" in row.file


def test_relative_links_yanked_and_requires_python() -> None:
    """Withdrawn files and those for other Pythons are passed over; a source archive is better than nothing."""
    got = page(html(RELATIVE), "demo")
    assert [(row.version, row.yanked) for row in got.rows][:2] == [("1.0", ""), ("1.1", "broken")]
    assert got.rows[0].url.endswith("/whl/files/demo-1.0-py3-none-any.whl")
    assert got.odd == ["up"]
    assert [one.version for one in (best(got.rows, "3.12", *HOST[1:]), best(got.rows, "3.10", *HOST[1:])) if one] == [
        "1.0",
        "0.9",
    ]
    assert "1.1 was withdrawn: broken" in why_none(got.rows, "1.1", *HOST)


def test_json_pages() -> None:
    """PEP 691 tells size and day too."""
    file = "demo-1.0-py3-none-any.whl"
    files = [entry(file, size=5, **{"upload-time": "2026-10-30T01:02:03.456Z", "requires-python": ">=3.11"})]
    row = page(body(simple_json("demo", files), JSON_TYPE), "demo").rows[0]
    assert (row.size_bytes, row.uploaded, row.requires_python) == (5, "2026-10-30", ">=3.11")


def test_a_redirected_page_is_the_base_of_its_links() -> None:
    """Relative links are those of the page where it lies in the end."""
    table: dict[str, Answer | list[Answer]] = {"/simple/demo/": redirect("/a/b/demo/"), "/a/b/demo/": html(RELATIVE)}
    with serving(table) as server:
        got = read_page(Web(limits=QUICK), f"{server.url}/simple/", "Demo")
        assert got.rows[0].url == f"{server.url}/a/files/demo-1.0-py3-none-any.whl"


def test_build_tags_and_glibc() -> None:
    """Of equal versions the higher build is taken; a tag newer than the host's glibc is not."""
    names = [
        "torch-2.10.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "torch-2.10.0-3-cp312-cp312-manylinux_2_28_x86_64.whl",
    ]
    names += ["torch-2.11.0-cp312-cp312-manylinux_2_39_x86_64.whl", "torch-2.8.0-cp312-cp312-win_amd64.whl"]
    got = page(body(simple_json("torch", [entry(name) for name in names]), JSON_TYPE))
    row = best(got.rows, *HOST)
    assert row is not None
    assert row.file == names[1]
    assert [fits(one, "3.12", "2.39", "linux-x86_64") for one in got.rows] == [True, True, True, False]
    said = why_none(got.rows, "2.11.0", *HOST)
    assert "no file of 2.11.0 fits Python 3.12 with glibc 2.35 on linux-x86_64" in said
    assert "cp312-cp312-manylinux_2_39_x86_64" in said
    assert why_none(got.rows, "9.9", *HOST) == "the index has no file of 9.9"


def test_the_silent_downgrade_is_seen_beforehand() -> None:
    """The rows of sglang: an old glibc or a new Python would get 0.5.10.post1 without a word."""
    names = ["sglang-0.5.10.post1-py3-none-any.whl", "sglang-0.5.23-cp312-cp312-manylinux_2_34_x86_64.whl"]
    got = page(body(simple_json("sglang", [entry(name) for name in names]), JSON_TYPE), "sglang")
    chosen = [best(got.rows, *where) for where in (HOST, ("3.12", "2.31", HOST[2]), ("3.14", "2.35", HOST[2]))]
    assert [row.version for row in chosen if row] == ["0.5.23", "0.5.10.post1", "0.5.10.post1"]


def test_tags_of_an_arm_host() -> None:
    """Sbsa is aarch64; the old names of manylinux are known."""
    tags = [str(tag) for tag in host_tags("3.12", "2.34", "linux-sbsa")]
    assert tags[0] == "cp312-cp312-manylinux_2_34_aarch64"
    assert "cp310-abi3-manylinux2014_aarch64" in tags


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (status(404), "no such project"),
        (status(403), "forbidden"),
        (status(500), "unreachable"),
        (html("<!DOCTYPE html><html><body><h1>Links for torch</h1></body></html>"), "empty page"),
        (body(simple_json("torch", []), JSON_TYPE), "empty page"),
        (html(LOGIN), "not an index page"),
        (html("nothing but words"), "not an index page"),
        (html(""), "empty page"),
        (body(b'{"meta": {"api-version": "1.0"', JSON_TYPE), "garbage"),
        (body(b'{"detail": "not found"}', "application/json"), "garbage"),
        (body(b"[" * 100_000, JSON_TYPE), "garbage"),
        (body(b"\xff\xfe\x00", JSON_TYPE), "garbage"),
        (body(simple_json("torch", [], "2.0"), JSON_TYPE), "garbage"),
        (html(RELATIVE), "not an index page"),
    ],
)
def test_what_is_no_page_of_an_index(answer: Answer, verdict: str) -> None:
    """Each has a verdict of its own, and no rows."""
    got = page(answer)
    assert (got.verdict, got.rows) == (verdict, [])
    assert got.told


def test_a_page_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 GB where a page was expected: hung up on after the limit."""
    monkeypatch.setattr("checks.indexes.LIMIT_BYTES", 100_000)
    started = time.monotonic()
    assert page(endless("text/html")).verdict == "too long"
    assert time.monotonic() - started < 2


def test_a_slow_page_is_given_up() -> None:
    """A byte now and then is no answer."""
    started = time.monotonic()
    assert page(drip(), attempt_s=0.2, total_s=0.4, attempts=1).verdict == "unreachable"
    assert time.monotonic() - started < 1.5


def test_an_index_that_is_not_there() -> None:
    """Unknown, never absent."""
    with serving({}) as server:
        url = server.url
    got = read_pages(Web(limits=QUICK), url, ["torch", "sglang"])
    assert {one.verdict for one in got.values()} == {"unreachable"}
