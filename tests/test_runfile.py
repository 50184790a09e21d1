"""Stage 20's checks: the pinned runfile, judged from here and from a host that really asks a real server."""

import json
import os
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from release_samples import Table, manifest, md5sums, rows_of, table
from web_server import Answer, body, redirect, reset, runfile, serving, status

from checks import from_host, verdict
from checks import runfile as subject
from checks.catalogue import PLATFORMS, shipped
from checks.web import Limits
from fleet.hosts import HostSpec
from fleet.model import Check
from fleet.pins import Cuda, Eagle3, Kernels, Pins, Runfile, Wheels
from fleet.view import View

MACHINE = platform.machine()
PLATFORM = PLATFORMS[MACHINE]
(ROW,) = (row for row in rows_of("13.0.2") if row.platform == PLATFORM)
RIGHT = ROW.file
WRONG = RIGHT.replace("580.95.05", "580.82.07")
FILE = f"/13.0.2/local_installers/{RIGHT}"
LIST = "/13.0.2/docs/sidebar/md5sum.txt"
MANIFEST = "/redist/redistrib_13.0.2.json"
SIZE = ROW.size_bytes
SPEC = HostSpec(name="gpu-01", address="127.0.0.1")
ROWS = ["listed by its release", "runfile from here", "runfile from gpu-01"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short pauses, and no memory of the test before."""
    limits = Limits(attempt_s=1.0, total_s=2.0, attempts=3, backoff_s=0.001, longest_pause_s=0.01)
    monkeypatch.setattr(subject, "PATIENCE", limits)
    subject.forget()
    yield
    subject.forget()


def pins(
    mirror: str, file: str = RIGHT, *, version: str = "13.0.2", mirrors: Sequence[str] = (), **changes: Any
) -> Pins:
    """Pins with one runfile, for the platform of this machine."""
    pinned = {"file": file, "size_bytes": SIZE, "md5": ROW.md5, "sha256": ROW.sha256, **changes}
    entries = {PLATFORM: Runfile(**pinned)} if file else {}
    return Pins(
        path=Path("pins.toml"),
        cuda=Cuda(version=version, mirror=mirror, mirrors=list(mirrors), runfile=entries),
        wheels=Wheels(python=">=3.11", lock="pins.lock", packages={}),
        kernels=Kernels(rows=[1], hidden=8, dtypes=["bfloat16"], tolerance={}),
        eagle3=Eagle3(model="m", draft="d", num_steps=3, topk=1, num_draft_tokens=4, min_tokens_per_s=1.0),
        lock="",
        digest="",
        stack="",
    )


def asked(shell: str, path: str = "") -> str:
    """What a host prints, both streams together, as the probe records it; curl asks once, since it waits in seconds."""
    done = subprocess.run(
        ["/bin/sh", "-c", shell.replace("--retry 2", "--retry 0")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": path or os.environ["PATH"]},
        check=False,
    )
    return done.stdout.decode("utf-8", "replace")


def host(chosen: Pins, said: str | None = None) -> View:
    """A host's probe record; what it says of the runfile is really asked."""
    out = said if said is not None else asked(subject.READS["runfile.from_host"](SPEC, chosen))
    return View(SPEC, {"reads": {"runfile.from_host": answer(out), "host.platform": answer(MACHINE)}})


def answer(out: str) -> dict[str, Any]:
    """One answer of a probe record."""
    return {"rc": 0, "out": out, "read": "as the host was asked"}


def checks(found: Table, file: str = RIGHT, **changes: Any) -> dict[str, Check]:
    """The checks at a mirror with these pages, by name."""
    with serving(found) as server:
        chosen = pins(server.url, file, **changes)
        return {check.name: check for check in subject.published(host(chosen), chosen)}


def oks(got: dict[str, Check]) -> list[bool | None]:
    """The three verdicts: list, from here, from the host."""
    return [got[name].ok for name in ROWS]


def test_a_published_runfile_is_green() -> None:
    """Listed with the pinned sum, and served as itself to both sides."""
    got = checks(table(["13.0.2"]))
    assert oks(got) == [True, True, True]
    assert got["listed by its release"].got.endswith(f", md5 {ROW.md5}")
    assert "206" in got["runfile from gpu-01"].got
    assert got["runfile from here"].got == got["runfile from gpu-01"].got, "one judge for both sides"


def test_the_story() -> None:
    """The name of 13.0.1 with 13.0.2 in it: told which name is right, and whose driver that was."""
    got = checks(table(["13.0.1", "13.0.2"]), WRONG)
    assert oks(got) == [False, False, False]
    want = f"13.0.2 is published as {RIGHT}; the name with 580.82.07 belongs to 13.0.1"
    for name in ROWS:
        assert got[name].got == f"wrong name: {want}"
    assert got["listed by its release"].hint == f'set `file = "{RIGHT}"` in pins.toml, with its sums'


def test_the_story_without_a_mirror() -> None:
    """The catalogue alone knows it too."""
    with serving({}) as server:
        pass
    chosen = pins(server.url, WRONG)
    got = {check.name: check for check in subject.published(host(chosen), chosen)}
    assert "the name with 580.82.07 belongs to 13.0.1" in got["listed by its release"].got
    assert oks(got) == [False, None, None]


def test_golden_sentence() -> None:
    """Word for word."""
    finding = verdict.wrong_name(
        "13.0.2", "cuda_13.0.2_580.95.05_linux.run", "cuda_13.0.2_580.82.07_linux.run", shipped()
    )
    assert finding.sentence == (
        "13.0.2 is published as cuda_13.0.2_580.95.05_linux.run; the name with 580.82.07 belongs to 13.0.1"
    )


@pytest.mark.parametrize(
    ("pinned", "told"),
    [
        ("cuda_12.8.0_570.26_linux.run", "the name with 570.26 comes from the release notes of 12.8.0"),
        ("cuda_12.8.0_575.57.08_linux.run", "the name with 575.57.08 belongs to 12.9.1 and 12.9.2"),
        ("cuda_12.8.0_570.86.99_linux.run", "the name with 570.86.99 belongs to no release known here"),
        ("cuda_12.8.0_linux.run", "cuda_12.8.0_linux.run lacks the driver in the name"),
        ("cuda_12.8.0_570.86.10_linux_sbsa.run", "cuda_12.8.0_570.86.10_linux_sbsa.run is for linux-sbsa"),
        ("cuda_12.8.1_570.86.10_linux.run", "cuda_12.8.1_570.86.10_linux.run belongs to 12.8.1"),
        ("cuda-12.8.run", "cuda-12.8.run is not the name of a runfile"),
    ],
)
def test_whose_name_it_is(pinned: str, told: str) -> None:
    """Each kind of wrong name is told apart."""
    finding = verdict.wrong_name("12.8.0", "cuda_12.8.0_570.86.10_linux.run", pinned, shipped())
    assert told in finding.sentence


def test_unpublished() -> None:
    """No list, no manifest, no file."""
    found = table(["13.0.1"])
    got = checks(found, RIGHT.replace("13.0.2", "13.0.9"), version="13.0.9")
    assert oks(got) == [False, False, False]
    assert got["listed by its release"].got.startswith("unpublished release: 13.0.9")
    assert "nearest: 13.0.2, 13.0.3, 13.1.0" in got["listed by its release"].got


def test_no_runfile_for_this_platform() -> None:
    """The release's whole list names none."""
    lines = md5sums([row for row in rows_of("13.0.2") if row.platform != PLATFORM], "13.0.2")
    got = checks({LIST: body(lines.encode())})
    assert oks(got) == [False, False, False]
    assert got["runfile from here"].got.startswith(
        f"no runfile for this platform: 13.0.2 has no runfile for {PLATFORM}"
    )


def test_none_pinned() -> None:
    """The hint has the file to pin."""
    with serving(table(["13.0.2"])) as server:
        chosen = pins(server.url, "")
        view = host(chosen, said="")
        (check,) = subject.published(view, chosen)
    assert (check.ok, check.got) == (False, "none pinned")
    assert check.hint == f'add [cuda.runfile.{PLATFORM}] to pins.toml with file = "{RIGHT}"'
    assert view.facts["decisions"][0]["chosen"] == RIGHT


def test_another_platform() -> None:
    """A machine that CUDA has no runfiles for."""
    chosen = pins("http://127.0.0.1:1")
    (check,) = subject.published(View(SPEC, {"reads": {"host.platform": answer("riscv64")}}), chosen)
    assert (check.ok, check.hint) == (False, "CUDA has runfiles for linux-x86_64 and linux-sbsa")


FAULTS: list[tuple[str, Answer, bool | None]] = [
    ("listed but 404", status(404), False),
    ("listed but 404", redirect("/gone"), False),
    ("forbidden", redirect("/cn"), False),
    ("not a runfile", body(b"<!DOCTYPE html><html>sign in</html>", "text/html"), False),
    ("not a runfile", body(b"<!DOCTYPE html><html>sign in</html>", "application/octet-stream"), False),
    ("not a runfile", body(b"\x7fELF" + bytes(SIZE // 1_000_000), "application/octet-stream"), False),
    ("not a runfile", body(b"#!/bin/sh\n", "application/octet-stream"), False),
    ("not a runfile", body(b""), False),
    ("not a runfile", status(416), False),
    ("truncated", runfile(SIZE // 2), False),
    ("truncated", runfile(SIZE // 2, ranges=False), False),
    ("size differs", runfile(SIZE + 1), False),
    ("unreachable", status(503), None),
    ("unreachable", status(500), None),
    ("unreachable", status(407), None),
    ("unreachable", reset(), None),
]


@pytest.mark.parametrize(("word", "page", "ok"), FAULTS, ids=[f"{n}-{fault[0]}" for n, fault in enumerate(FAULTS)])
def test_each_fault_of_the_file_has_its_verdict(word: str, page: Answer, ok: bool | None) -> None:
    """The same from here and from the host; the list stays green."""
    got = checks({**table(["13.0.2"]), FILE: page, "/cn": status(403)})
    assert oks(got) == [True, ok, ok]
    for name in ROWS[1:]:
        assert got[name].got.startswith(f"{word}: "), got[name].got
        assert got[name].hint


def test_forbidden_names_the_redirect() -> None:
    """403 after a redirect is a rule of the CDN."""
    got = checks({**table(["13.0.2"]), FILE: redirect("/cn"), "/cn": status(403)})
    for name in ROWS[1:]:
        assert "403, after a redirect to " in got[name].got
        assert got[name].got.endswith("/cn: refused, which is not absence")


def test_a_busy_server_is_asked_again() -> None:
    """Two refusals, then the file."""
    found = {**table(["13.0.2"]), FILE: [status(503), status(503), runfile(SIZE)]}
    with serving(found) as server:
        chosen = pins(server.url)
        got = {check.name: check for check in subject.published(host(chosen, said=""), chosen)}
    assert got["runfile from here"].ok
    assert "--retry 2" in subject.READS["runfile.from_host"](SPEC, chosen)


def test_servers_that_ignore_range_will_do() -> None:
    """200 and the whole size; what follows the first bytes is not read."""
    got = checks({**table(["13.0.2"]), FILE: runfile(SIZE, ranges=False)})
    assert oks(got) == [True, True, True]
    assert "200" in got["runfile from gpu-01"].got


def test_a_redirect_to_the_file_will_do() -> None:
    """301 to another host of the same tree."""
    got = checks({**table(["13.0.2"]), FILE: redirect("/cn"), "/cn": runfile(SIZE)})
    assert oks(got) == [True, True, True]


def test_another_checksum_in_the_list() -> None:
    """The pins and the list name different files."""
    got = checks(table(["13.0.2"]), md5="a" * 32)
    assert oks(got) == [False, True, True]
    assert got["listed by its release"].got.startswith("checksum differs: md5sum.txt of http")
    assert got["listed by its release"].got.endswith(f"says md5 {ROW.md5}, pinned {'a' * 32}")


def test_a_mirror_without_lists_will_do() -> None:
    """It holds the file; the catalogue names it, and is named."""
    got = checks({FILE: runfile(SIZE)})
    assert oks(got) == [True, True, True]
    assert "the catalogue of 2026-11-30" in got["listed by its release"].got


@pytest.mark.parametrize("answer", [body(b"<html>sign in</html>", "text/html"), status(403), status(503), body(b"")])
def test_lists_that_say_nothing_are_unknown(answer: Answer) -> None:
    """Never green by the catalogue alone when the mirror could not be asked."""
    found = {path: answer if "installers" not in path else there for path, there in table(["13.0.2"]).items()}
    got = checks(found)
    assert oks(got) == [None, True, True]
    assert got["listed by its release"].got.startswith("no list could be read")


def test_unreachable_from_both_sides() -> None:
    """Unknown, never absent."""
    with serving({}) as server:
        pass
    chosen = pins(server.url)
    got = {check.name: check for check in subject.published(host(chosen), chosen)}
    assert oks(got) == [None, None, None]
    for name in ROWS[1:]:
        assert got[name].got.startswith("unreachable: ")
        assert "refused" in got[name].got or "connect" in got[name].got


def test_further_mirrors_tell_what_is_published() -> None:
    """The first has the file and no list; a folder beside the pins has the list."""
    with serving({FILE: runfile(SIZE)}) as first, serving(table(["13.0.2"])) as second:
        chosen = pins(first.url, mirrors=[second.url])
        got = {check.name: check for check in subject.published(host(chosen), chosen)}
    assert oks(got) == [True, True, True]
    assert f"md5sum.txt of {second.url}" in got["listed by its release"].got


# -- the host's side


def tools(folder: Path, *names: str) -> str:
    """A PATH with these tools and python3 only."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    (folder / "python3").symlink_to(sys.executable)
    return str(folder)


@pytest.mark.parametrize(
    ("answer", "status_code"),
    [(runfile(SIZE), 206), (runfile(SIZE, ranges=False), 200), (status(404), 404), (redirect("/cn"), 403)],
    ids=["206", "200", "404", "403"],
)
def test_without_curl_python_asks(answer: Answer, status_code: int, tmp_path: Path) -> None:
    """The same headers from a host that has only python3."""
    with serving({FILE: answer, "/cn": status(403)}) as server:
        chosen = pins(server.url)
        path = tools(tmp_path / "bin", "timeout", "uname")
        seen = from_host.parse(asked(subject.READS["runfile.from_host"](SPEC, chosen), path), "u")
        redirects = [f"{server.url}/cn"] if status_code == 403 else []
        assert (seen.status, seen.redirects) == (status_code, redirects)
        assert seen.size_bytes == (SIZE if seen.found else seen.size_bytes)
        assert seen.body.startswith(b"#!/bin/sh") == seen.found


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", "no answer"),
        ("sh: 1: curl: not found\n", "sh: 1: curl: not found"),
        ("curl: (7) Failed to connect\n", "curl: (7) Failed to connect"),
    ],
)
def test_a_host_that_says_nothing_is_unreachable(text: str, want: str) -> None:
    """Its last words are the reason."""
    assert from_host.parse(text, "u").error == want


def test_the_headers_of_a_proxy_come_first() -> None:
    """CONNECT, a refusal, curl's own words, then the answer that counts."""
    text = (
        "HTTP/1.1 200 Connection established\r\n\r\n"
        "HTTP/2 301 \r\nlocation: https://me:pw@example.cn/f.run\r\n\r\n"
        "curl: (22) The requested URL returned error: 503\n"
        "HTTP/2 206 \r\ncontent-type: application/octet-stream\r\ncontent-range: bytes 0-511/4328066903\r\n\r\n"
        "#!/bin/sh\n# text\n\nmore"
    )
    seen = from_host.parse(text, "u")
    assert (seen.status, seen.size_bytes) == (206, 4328066903)
    assert seen.redirects == ["https://example.cn/f.run"]
    assert seen.body == b"#!/bin/sh\n# text\n\nmore"


# -- the record, and many hosts


def test_the_decision_is_laid_down() -> None:
    """Plain data: candidates, evidence of both sides, what was chosen, and why the pinned name was not."""
    with serving(table(["13.0.1", "13.0.2"])) as server:
        chosen = pins(server.url, WRONG)
        view = host(chosen)
        list(subject.published(view, chosen))
    (decision,) = json.loads(json.dumps(view.facts["decisions"]))
    assert (decision["chosen"], decision["wish"]) == (RIGHT, "13.0.2")
    assert decision["subject"] == f"CUDA runfile for {PLATFORM}"
    assert [candidate["name"] for candidate in decision["candidates"]] == [RIGHT, WRONG]
    sources = [one["source"] for one in decision["candidates"][1]["evidence"]]
    assert sources == ["first bytes, from here", "first bytes, from gpu-01"]
    assert decision["candidates"][1]["evidence"][0]["status"] == 404
    assert decision["rejected"][0]["name"] == WRONG
    assert "belongs to 13.0.1" in decision["rejected"][0]["reason"]


def test_a_hundred_hosts_ask_once() -> None:
    """Discovery is shared by all hosts of a process: one list, one manifest, one proof."""
    with serving(table(["13.0.2"])) as server:
        chosen = pins(server.url)
        views = [host(chosen, said="HTTP/1.1 404 Not Found\r\n\r\n") for _ in range(100)]
        results: list[list[Check]] = []
        threads = [
            threading.Thread(target=lambda view=view: results.append(list(subject.published(view, chosen))))
            for view in views
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(server.asked) == sorted([LIST, MANIFEST, FILE])
    assert len(results) == 100
    assert all(view.facts["decisions"] for view in views)


def test_the_manifest_is_enough() -> None:
    """No list, a manifest with the driver: the name follows, and its source is told."""
    found: Table = {
        MANIFEST: body(json.dumps(manifest("13.0.2", "580.95.05")).encode()),
        FILE: runfile(SIZE),
    }
    got = checks(found)
    assert oks(got) == [True, True, True]
    assert got["listed by its release"].got.startswith("listed in redistrib JSON of http")
