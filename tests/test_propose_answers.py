"""`nox -s pins` when mirrors answer badly, and where the record says what it saw: a real server, asked for real."""

import hashlib
from pathlib import Path

import pytest
from index_pages import JSON_TYPE, LOGIN, entry, simple_json, wheel
from test_propose import change, run, written
from test_propose import pins as pins  # noqa: PLC0414 - a fixture
from test_propose import server as server  # noqa: PLC0414 - a fixture
from web_server import Answer, Server, body, drip, endless, reset, status

from checks import propose
from checks.record import recorded
from fleet.pins import read_pins

LIST = "/cuda/13.0.2/docs/sidebar/md5sum.txt"


def flat(text: str) -> str:
    """Without the line breaks of the table."""
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (body(b"", "text/plain"), "200, an empty answer instead of a list"),
        (body(LOGIN.encode(), "text/html"), "200, an HTML page"),
        (body(b"\x00\x01garbage", "text/plain"), "instead of a list"),
        (endless(), "larger than the limit of 262144 bytes"),
        (body(b"0" * 32 + b" other.run\n" + b"#" * 300_000), "as far as it was read"),
        (status(500), "500, an HTML page"),
        (status(403), "403: refused, which is not absence"),
        (drip(), "too slow:"),
        (reset(), "unreachable:"),
    ],
    ids=["empty", "page", "garbage", "3 GB", "long list", "500", "403", "slow", "reset"],
)
def test_each_bad_answer_of_a_mirror_has_its_own_words(
    pins: Path,
    server: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: Answer,
    said: str,
) -> None:
    """It was asked, and what it said is told; exit 1; no runfile is pinned on that ground."""
    monkeypatch.setattr(propose, "ASK_S", 2.0)
    server.table[LIST] = answer
    before = written(pins)
    assert run(pins, "--write") == 1
    told = capsys.readouterr()
    assert f"{server.url}{LIST}: " in flat(told.out)
    assert said in flat(told.out)
    assert "no mirror gave a list of its files; the name is from the catalogue" in flat(told.out)
    assert "not written: not everything could be asked" in told.err
    assert written(pins) == before
    assert run(pins, "--offline") == 0


def test_one_mirror_that_answers_is_enough(pins: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The bad answer of the other is told all the same."""
    server.table["/other/13.0.2/docs/sidebar/md5sum.txt"] = body(LOGIN.encode(), "text/html")
    change(pins, "mirrors = []", f'mirrors = ["{server.url}/cuda"]')
    change(pins, f'mirror = "{server.url}/cuda"', f'mirror = "{server.url}/other"')
    assert run(pins) == 0
    out = flat(capsys.readouterr().out)
    assert "/other/13.0.2/docs/sidebar/md5sum.txt: 200, an HTML page" in out
    assert "no mirror gave a list" not in out


def test_a_runfile_that_stays_does_not_hold_up_the_lock(
    pins: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lock and record are written, exit 1: the mirror was asked in vain."""
    assert run(pins, "--write") == 0
    (pins.parent / "pins.decision.json").unlink()
    server.table[LIST] = status(503)
    toml = pins.read_bytes()
    assert run(pins, "--write") == 1
    assert capsys.readouterr().out.endswith(f"written: {pins.parent}/pins.decision.json\n")
    assert pins.read_bytes() == toml


def test_the_default_index_is_told_without_its_host(
    pins: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader finds the page, whatever mirror of the index there is; no host gets into the record."""
    change(pins, f'index = "{server.url}/simple"', 'index = ""')
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.url}/simple")
    assert run(pins, "--write") == 0
    rows = [
        row
        for one in recorded(read_pins(pins))
        for named in one.candidates
        for row in named.evidence
        if row.source == "wheel index"
    ]
    assert {row.url for row in rows} == {
        f"simple/{name}/" for name in ("sglang", "torch", "sglang-kernel", "flashinfer-python")
    }
    assert {row.status for row in rows} == {200}


def test_what_torch_brings_along_has_its_day(pins: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """By the upload time of the index; without one there is none."""
    file, data = wheel("triton", "3.8.0")
    row = {
        **entry(file, hashlib.sha256(data).hexdigest()),
        "upload-time": "2026-08-28T10:00:00Z",
        "core-metadata": True,
    }
    page = simple_json("triton", [{**row, "url": f"/files/{file}"}])
    server.table["/simple/triton/"] = body(page, JSON_TYPE)
    assert run(pins) == 0
    out = flat(capsys.readouterr().out)
    assert "torch 2.14.1 asks for it (since 2026-08-28)" in out
    assert out.count("torch 2.14.1 asks for it (since") == 1
