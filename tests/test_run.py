"""The run directory: whole files whoever writes at the same time, a log that never mixes, and what is read back."""

import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleet.model import Check, Measured, Mode, Ran, RunRecord, StageResult
from fleet.problem import Problem
from fleet.run import Event, Run, earlier_measurement, find_run, follow, new_run_id, runs

STAGES = ["driver", "toolkit", "switch"]


def record(name: str, mode: Mode = "apply", **changes: Any) -> RunRecord:
    """A run of two hosts."""
    return RunRecord(
        **{
            "id": name,
            "mode": mode,
            "started": "2026-11-30T02:00:00Z",
            "hosts": ["gpu-01", "gpu-02"],
            "stages": STAGES,
            "pins_file": "pins.toml",
            "pins_digest": "0" * 12,
            "stack": "1" * 12,
            **changes,
        }
    )


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Run]:
    """Makes runs in one folder of reports."""
    pins = tmp_path / "pins.toml"
    pins.write_text("schema = 1\n")

    def made(name: str, mode: Mode = "apply", **changes: Any) -> Run:
        return Run.create(tmp_path / "reports", record(name, mode, **changes), pins)

    return made


@pytest.fixture
def run(make: Callable[..., Run]) -> Run:
    """One run."""
    return make("20261130T020000Z-apply-0000")


def result(stage: str, status: Any = "ok", host: str = "gpu-01", **changes: Any) -> StageResult:
    """What a stage came to."""
    return StageResult(host=host, stage=stage, status=status, **changes)


def test_what_is_written_is_read_back(run: Run) -> None:
    """Record, copy of the pins, probe, results with all they hold."""
    assert run.record == record(run.path.name)
    assert (run.path / "pins.toml").read_text() == "schema = 1\n"
    run.write_probe("gpu-01", {"schema": 1, "reads": {"a": {"rc": 0, "out": "×\x00\x1b"}}})
    assert msgspec.json.decode((run.path / "gpu-01" / "probe.json").read_bytes())["reads"]["a"]["out"] == "×\x00\x1b"
    whole = result(
        "toolkit",
        "changed",
        reason="×",
        commands=[Ran(why="w", shell="s", undo="u", rc=0)],
        checks=[Check(name="n", want="w", got="g", ok=None)],
        facts={"a": [1, {"b": None}]},
        measured={"m": Measured(inputs="i", at="t", result={"x": 1.5})},
        simulated=True,
    )
    run.write_result(whole)
    assert run.result("gpu-01", "toolkit") == whole
    assert run.result("gpu-01", "switch") is None
    assert sorted(path.name for path in run.path.iterdir()) == ["gpu-01", "pins.toml", "run.json"]


def test_cells_of_a_run_that_ended_early(run: Run) -> None:
    """At work reads as interrupted, never begun as not run; both say how to go on."""
    run.write_result(result("driver"))
    run.write_result(result("toolkit", "running"))
    found = run.results()
    assert {cell: one.status for cell, one in found.items()} == {
        ("gpu-01", "driver"): "ok",
        ("gpu-01", "toolkit"): "interrupted",
        ("gpu-01", "switch"): "not run",
        ("gpu-02", "driver"): "not run",
        ("gpu-02", "toolkit"): "not run",
        ("gpu-02", "switch"): "not run",
    }
    assert found["gpu-01", "toolkit"].hint == f"`nox -s upgrade -- --run {run.path.name}` takes it up again"
    assert list(found) == [(host, stage) for host in ("gpu-01", "gpu-02") for stage in STAGES]


def test_readers_never_see_half_a_file(run: Run) -> None:
    """While writers replace a file over and over, each read is one of the whole texts; nothing is left behind."""
    texts = {mark: result("toolkit", reason=mark * size) for mark, size in (("a", 10), ("b", 200_000))}
    run.write_result(texts["a"])
    stop = threading.Event()

    def write(mark: str) -> None:
        while not stop.is_set():
            run.write_result(texts[mark])

    writers = [threading.Thread(target=write, args=(mark,)) for mark in "abab"]
    for writer in writers:
        writer.start()
    reads = 0
    seen: set[tuple[str, int]] = set()
    try:
        while len(seen) < 2 or reads < 300:
            found = run.result("gpu-01", "toolkit")
            assert found is not None
            seen.add((found.reason[0], len(found.reason)))
            reads += 1
            assert reads < 100_000
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert seen == {("a", 10), ("b", 200_000)}
    assert [path.name for path in (run.path / "gpu-01").iterdir()] == ["toolkit.json"]


def _speak(path: str, host: str, count: int) -> None:
    for number in range(count):
        Run(Path(path)).event(host, "toolkit", "running", f"{number} " + host * 400)


def test_events_of_several_processes_never_mix(run: Run) -> None:
    """Every line is whole, and the lines of one process keep their order."""
    context = multiprocessing.get_context("fork")
    speakers = [context.Process(target=_speak, args=(str(run.path), host, 200)) for host in ("gpu-01", "gpu-02", "x")]
    for speaker in speakers:
        speaker.start()
    for speaker in speakers:
        speaker.join()
    lines = (run.path / "events.log").read_bytes().splitlines()
    events = [msgspec.json.decode(line, type=Event) for line in lines]
    assert len(events) == 600
    for host in ("gpu-01", "gpu-02", "x"):
        assert [one.text for one in events if one.host == host] == [f"{n} " + host * 400 for n in range(200)]


def test_event_with_any_text_is_one_line(run: Run) -> None:
    """Line feeds, controls, halves of pairs of surrogates: what a file name on a host may hold."""
    for text in ("a\nb\r\x1b[31m\x00", "×" * 10_000, "\udc80 a name that is not UTF-8"):
        run.event("gpu-01", "toolkit", "warning", text)
    lines = (run.path / "events.log").read_bytes().splitlines()
    events = [msgspec.json.decode(line, type=Event) for line in lines]
    assert [one.text[:2] for one in events] == ["a\n", "××", "? "]


def test_following_a_log(run: Run) -> None:
    """What is there, what comes, nothing twice; a line that is cut is waited for, one that is none is skipped."""
    log = run.path / "events.log"
    stop, seen = threading.Event(), list[str]()
    thread = threading.Thread(target=lambda: seen.extend(event.text for event in follow(log, stop)))
    thread.start()
    run.event("gpu-01", "toolkit", "started", "one")
    with log.open("ab") as file:
        file.write(b'not an event\n{"half": \n\xff\xfe\n{"at":"t","host":"h","stage":"s","kind":"k",')
        file.flush()
        time.sleep(0.1)
        file.write(b'"text":"two"}\n')
    run.event("gpu-01", "toolkit", "finished", "three")
    stop.set()
    thread.join(10)
    assert seen == ["one", "two", "three"]


def test_following_from_the_middle(run: Run) -> None:
    """A resumed run shows what is new; a log that is not there yet is empty."""
    stop = threading.Event()
    stop.set()
    log = run.path / "events.log"
    assert list(follow(log, stop)) == []
    run.event("gpu-01", "toolkit", "started", "one")
    size = log.stat().st_size
    run.event("gpu-01", "toolkit", "started", "two")
    assert [event.text for event in follow(log, stop, size)] == ["two"]


@pytest.mark.parametrize("raw", [b"", b"{", b"null", b"[]", b'{"host": 3}', b"\xff", b"{}", b'{"x": ' + b"[" * 100_000])
def test_unreadable_result(raw: bytes, run: Run) -> None:
    """Told with the file's name, never guessed at and never taken for missing."""
    run.write_result(result("toolkit"))
    (run.path / "gpu-01" / "toolkit.json").write_bytes(raw)
    with pytest.raises(Problem, match=r"gpu-01/toolkit\.json: unreadable: "):
        run.result("gpu-01", "toolkit")
    with pytest.raises(Problem, match="unreadable"):
        run.results()


def test_folder_that_is_no_run(tmp_path: Path) -> None:
    """Said in a line."""
    with pytest.raises(Problem, match="not a run directory"):
        _ = Run(tmp_path).record


def test_log_tail(run: Run) -> None:
    """The end, bounded, whatever the bytes; nothing for no log."""
    run.log_path("gpu-01", "toolkit.1.log").write_bytes(b"x" * 100 + b"\xff\xc3end")
    assert run.log_tail("gpu-01", "toolkit.1.log", 5) == "\ufffd\ufffdend"
    assert len(run.log_tail("gpu-01", "toolkit.1.log")) == 105
    assert run.log_tail("gpu-01", "") == run.log_tail("gpu-02", "none.log") == ""


def test_latest_is_of_the_mode(make: Callable[..., Run], tmp_path: Path) -> None:
    """Whoever goes on with an upgrade does not mean the plan that was made after it."""
    reports = tmp_path / "reports"
    with pytest.raises(Problem, match="no apply run yet"):
        find_run(reports, "latest", "apply")
    old, new = make("20261130T020000Z-apply-0000"), make("20261130T030000Z-apply-0000")
    plan = make("20261130T040000Z-plan-0000", "plan")
    assert find_run(reports, "latest", "apply").path == new.path
    assert find_run(reports, "latest").path == plan.path
    assert find_run(reports, old.path.name, "apply").path == old.path
    assert [one.path for one in runs(reports)] == [plan.path, new.path, old.path]
    (reports / "notes").mkdir()
    assert len(runs(reports)) == 3


def test_names_sort_by_time() -> None:
    """Mode and a random part at the end; a hundred in one second differ."""
    names = {new_run_id("apply") for _ in range(100)}
    assert len(names) > 95
    assert all(name[8] == "T" and name[15:23] == "Z-apply-" for name in names)


def test_resumed_run_keeps_what_it_has(run: Run, make: Callable[..., Run]) -> None:
    """The same folder: results and events stay."""
    run.write_result(result("driver"))
    run.event("gpu-01", "driver", "finished", "ok")
    again = make(run.path.name)
    assert again.path == run.path
    assert again.result("gpu-01", "driver") == result("driver")
    assert (run.path / "events.log").read_bytes().count(b"\n") == 1


def test_earlier_measurement(make: Callable[..., Run], tmp_path: Path) -> None:
    """The newest with equal inputs, of that host, stage and name; unreadable runs are passed over."""
    reports = tmp_path / "reports"

    def measured(name: str, inputs: str, at: str) -> StageResult:
        return result("eagle3", measured={name: Measured(inputs=inputs, at=at, result={})})

    make("20261130T010000Z-apply-0000").write_result(measured("with", "i", "oldest"))
    make("20261130T020000Z-apply-0000").write_result(measured("with", "i", "right"))
    make("20261130T030000Z-apply-0000").write_result(measured("with", "other inputs", "x"))
    make("20261130T040000Z-apply-0000").write_result(measured("without", "i", "x"))
    broken = make("20261130T050000Z-apply-0000")
    broken.write_result(measured("with", "i", "x"))
    (broken.path / "gpu-01" / "eagle3.json").write_text("{")

    def found(host: str = "gpu-01", stage: str = "eagle3", name: str = "with", inputs: str = "i") -> str:
        one = earlier_measurement(reports, host, stage, name, inputs)
        return one.at if one else ""

    assert found() == "right"
    others = [found(host="gpu-02"), found(stage="kernels"), found(name="before"), found(inputs="none")]
    assert others == ["", "", "", ""]


def test_one_bad_record_does_not_hide_the_other_runs(make: Callable[..., Run]) -> None:
    """`latest` of a mode passes over a run that cannot be read."""
    good = make("20261130T020000Z-apply-0001")
    bad = good.path.parent / "20261130T030000Z-apply-0002"
    bad.mkdir()
    (bad / "run.json").write_text("{")
    assert find_run(good.path.parent, "latest", "apply").path == good.path


@pytest.mark.parametrize(("status", "kept"), [("ok", True), ("changed", True), ("running", True), ("failed", False)])
def test_measurement_of_a_failed_stage_is_not_reused(
    status: Any, kept: bool, make: Callable[..., Run], tmp_path: Path
) -> None:
    """Whoever mends a host and tries again must get new numbers; an interrupted stage keeps what it has."""
    found = {"with": Measured(inputs="i", at="then", result={})}
    make("20261130T010000Z-apply-0000").write_result(result("eagle3", status, measured=found))
    one = earlier_measurement(tmp_path / "reports", "gpu-01", "eagle3", "with", "i")
    assert (one is not None) == kept
