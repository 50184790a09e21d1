"""Jobs through a real shell on this machine: started once whoever asks, followed, survived, told how they ended."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet import job
from fleet.hosts import HostSpec
from fleet.model import Command

RUN = "20261130T020000Z-apply-0000"


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[HostSpec]:
    """A host whose folders are here; what still runs in them at the end is ended."""
    place = tmp_path / "it's a host"
    (place / "t m p").mkdir(parents=True)
    yield HostSpec(name="gpu-01", base=f"{place}/opt/fleet", tmp=f"{place}/t m p")
    end(place)


def end(place: Path) -> None:
    """Kills every process that works below a folder: nothing that writes an exit code is left."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(place):
                os.kill(int(process.name), signal.SIGKILL)


def sh(line: str, timeout_s: float = 20) -> bytes:
    """What one command line prints; it must end well."""
    return subprocess.run(["sh", "-c", line], capture_output=True, check=True, timeout=timeout_s).stdout


def start(spec: HostSpec, command: Command, run: str = RUN) -> str:
    """What a starter is told."""
    return sh(job.start_script(spec, run, "toolkit", command)).decode().strip()


def poll(spec: HostSpec, command: Command, offset: int = 0) -> job.JobState:
    """What a poll sees."""
    return job.parse_poll(sh(job.poll_script(spec, job.key_of("toolkit", command), bool(command.measures), offset)))


def ended(spec: HostSpec, command: Command) -> job.JobState:
    """The last poll of a job that ends by itself."""
    deadline = time.monotonic() + 15
    while (state := poll(spec, command)).state == "running":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return state


def let_go(gate: Path) -> None:
    """Ends the wait of a job that reads a FIFO; fails when nobody waits."""
    deadline = time.monotonic() + 10
    while True:
        try:
            descriptor = os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            os.write(descriptor, b"go\n")
            os.close(descriptor)
            return


def folder(spec: HostSpec, command: Command) -> Path:
    """Where the job lives."""
    return Path(job.root_of(spec, bool(command.measures))) / job.key_of("toolkit", command)


def change(shell: str, **others: object) -> Command:
    """A command that changes the host."""
    return Command(why="test", shell=shell, undo="", **others)  # type: ignore[arg-type]


def test_job_runs_to_its_end(spec: HostSpec) -> None:
    """Started, followed from any offset, exit code and both streams in the log; a second start does it anew."""
    command = change("echo out; echo err >&2; exit 5")
    assert poll(spec, command) == ("lost", 0, b"")
    assert start(spec, command) == "started"
    assert ended(spec, command) == ("exit", 5, b"out\nerr\n")
    assert poll(spec, command, 4) == ("exit", 5, b"err\n")
    assert poll(spec, command, 400) == ("exit", 5, b"")
    assert start(spec, command) == "started"
    assert ended(spec, command).rc == 5
    assert len(list(folder(spec, command).parent.glob("old-*"))) == 1


def test_job_that_is_at_work_is_attached_to(spec: HostSpec) -> None:
    """Not started twice, also by another run, which learns whose it is."""
    os.mkfifo(Path(spec.tmp) / "gate")
    command = change(f'echo begun; read x < "{spec.tmp}/gate"; echo "$x"')
    assert start(spec, command) == "started"
    assert start(spec, command) == f"attached {RUN}"
    assert start(spec, command, "20261130T030000Z-apply-1111") == f"attached {RUN}"
    assert poll(spec, command).state == "running"
    let_go(Path(spec.tmp) / "gate")
    assert ended(spec, command) == ("exit", 0, b"begun\ngo\n")


def race(spec: HostSpec, command: Command, starters: int = 12) -> list[str]:
    """What many starters are told that begin at the same moment."""
    go = Path(spec.tmp, "go")
    line = f"until [ -e {shlex.quote(str(go))} ]; do :; done; {job.start_script(spec, RUN, 'toolkit', command)}"
    with ThreadPoolExecutor(starters) as pool:
        told = [pool.submit(sh, line) for _ in range(starters)]
        time.sleep(0.1)
        go.touch()
        answers = [one.result().decode().strip() for one in told]
    return sorted(answers)


@pytest.mark.parametrize("before", ["nothing", "finished", "lost"])
def test_many_starters_start_one_job(before: str, spec: HostSpec) -> None:
    """Exactly one runs, also where an older job of the same work has ended or died."""
    ran = f"{spec.tmp}/ran"
    os.mkfifo(f"{spec.tmp}/hold")
    command = change(f'echo x >> "{ran}"; if [ -e "{spec.tmp}/wait" ]; then read x < "{spec.tmp}/hold"; fi')
    if before != "nothing":
        assert start(spec, command) == "started"
        assert ended(spec, command).rc == 0
        Path(ran).unlink()
    if before == "lost":
        (folder(spec, command) / "exit").unlink()
        (folder(spec, command) / "pid").write_text("999999999\n")
    Path(spec.tmp, "wait").touch()
    assert race(spec, command) == [f"attached {RUN}"] * 11 + ["started"]
    let_go(Path(spec.tmp) / "hold")
    assert ended(spec, command).rc == 0
    assert Path(ran).read_text() == "x\n"


def test_starter_that_died_before_the_job_is_no_job(spec: HostSpec) -> None:
    """A folder without a process is begun anew instead of being waited for without end."""
    command = change("echo done")
    folder(spec, command).mkdir(parents=True)
    assert start(spec, command) == "started"
    assert ended(spec, command) == ("exit", 0, b"done\n")


def test_job_survives_its_starter(spec: HostSpec) -> None:
    """The whole group of the starter is killed; the job, in a session of its own, goes on."""
    gate = Path(spec.tmp) / "gate"
    os.mkfifo(gate)
    command = change(f'trap "" HUP; read x < "{gate}"; echo "$x"')
    script = job.start_script(spec, RUN, "toolkit", command) + "; sleep 60"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"started\n"
        os.killpg(starter.pid, signal.SIGKILL)
    assert poll(spec, command).state == "running"
    let_go(gate)
    assert ended(spec, command) == ("exit", 0, b"go\n")


def test_other_run_is_refused_whatever_it_wants_to_do(spec: HostSpec) -> None:
    """One run at a time on a host: another one with other pins has other work, and waits all the same."""
    gate = Path(spec.tmp) / "gate"
    os.mkfifo(gate)
    assert start(spec, change(f'read x < "{gate}"')) == "started"
    assert start(spec, change("echo something else"), run="20261130T030000Z-apply-1111") == f"attached {RUN}"
    assert start(spec, change("echo something else")) == "started"


def test_starter_does_not_wait_for_the_job(spec: HostSpec) -> None:
    """The job holds none of the starter's streams, so that SSH can close the channel."""
    gate = Path(spec.tmp) / "gate"
    os.mkfifo(gate)
    assert start(spec, change(f'read x < "{gate}"')) == "started"


def test_killed_job_is_told(spec: HostSpec) -> None:
    """By its exit code when only its shell died; as lost when nobody was left to write one."""
    shot = change("kill -9 $$")
    assert start(spec, shot) == "started"
    assert ended(spec, shot)[:2] == ("exit", 137)
    gate = Path(spec.tmp) / "gate"
    os.mkfifo(gate)
    command = change(f'read x < "{gate}"')
    assert start(spec, command) == "started"
    end(folder(spec, command))
    assert ended(spec, command) == ("lost", 0, b"")


def test_job_of_an_earlier_boot_is_lost(spec: HostSpec) -> None:
    """A process of the same number proves nothing after a restart."""
    command = change("true")
    assert start(spec, command) == "started"
    ended(spec, command)
    (folder(spec, command) / "exit").unlink()
    (folder(spec, command) / "pid").write_text(f"{os.getpid()}\n")
    assert poll(spec, command).state == "running"
    (folder(spec, command) / "boot").write_text("00000000-0000-0000-0000-000000000000\n")
    assert poll(spec, command).state == "lost"


def test_time_is_limited_by_the_host(spec: HostSpec) -> None:
    """Nobody needs to be there to end a job that takes too long; less than a second is a second, not for ever."""
    command = change("echo begun; sleep 60", timeout_s=0.5)
    assert start(spec, command) == "started"
    assert ended(spec, command) == ("exit", 124, b"begun\n")


def test_log_comes_in_bounded_parts(spec: HostSpec) -> None:
    """Any bytes, whole, one chunk a poll."""
    command = change("head -c 600000 /dev/zero; printf '\\377end'")
    assert start(spec, command) == "started"
    ended(spec, command)
    log = b""
    while part := poll(spec, command, len(log)).log:
        assert len(part) <= job.CHUNK_BYTES
        log += part
    assert log == b"\0" * 600_000 + b"\xffend"


def test_files_arrive_as_they_are(spec: HostSpec) -> None:
    """Quotes, line feeds, percent signs, backslashes, text that is not ASCII, no line feed at the end."""
    text = "'single' \"double\"\n%s %d\\n $HOME `id` $(id)\r\n\tMünchen ×\n" + "x" * 20000
    command = change("cat ./a.txt 'b c.txt'", files={"a.txt": text, "b c.txt": "no line feed"})
    assert start(spec, command) == "started"
    assert ended(spec, command).log.decode() == text + "no line feed"


def test_shell_text_arrives_as_it_is(spec: HostSpec) -> None:
    """The command is a file of its own: nothing of it is expanded on the way."""
    command = change("printf '%s\\n' 'a'\"'\"'b' \"$0\" '%d' '{}' '\\\\'")
    assert start(spec, command) == "started"
    assert ended(spec, command).log == b"a'b\n./run.sh\n%d\n{}\n\\\\\n"


def test_keys_name_the_work() -> None:
    """Same work, same key; another stage, shell or file, another one."""
    one = change("true", files={"a": "1"})
    assert job.key_of("toolkit", one) == job.key_of("toolkit", change("true", files={"a": "1"}, timeout_s=7))
    others = [change("false", files={"a": "1"}), change("true", files={"a": "2"}), change("true", files={"b": "1"})]
    keys = {job.key_of("toolkit", other) for other in [*others, change("true"), one]}
    assert len(keys) == 5
    assert job.key_of("wheels", one).startswith("wheels-")


def test_measurement_keeps_its_document_apart(spec: HostSpec) -> None:
    """Result on stdout, messages in the log, in the tmp folder; bounded when read, gone when forgotten."""
    command = change("echo message >&2; printf '{\"a\": 1}'", measures="a")
    assert start(spec, command) == "started"
    assert ended(spec, command) == ("exit", 0, b"message\n")
    key = job.key_of("toolkit", command)
    assert job.parse_result(sh(job.result_script(spec, key))) == b'{"a": 1}'
    assert job.parse_result(sh(job.result_script(spec, key, limit_bytes=4))) == b'{"a"'
    assert not Path(spec.base).exists()
    sh(job.forget_script(spec, key))
    assert list(Path(spec.tmp).iterdir()) == []


def test_noise_of_the_login_shell_is_no_answer(spec: HostSpec) -> None:
    """What start-up files print stands before a state, a log and a result, and is none of them."""
    command = change("printf '\\nrunning 0\\nlog'; exit 3", measures="a")
    noise = "echo welcome; echo 'exit 0'; printf 'no line feed'; "
    assert sh(noise + job.start_script(spec, RUN, "toolkit", command)).endswith(b"started\n")
    ended(spec, command)
    key = job.key_of("toolkit", command)
    assert job.parse_poll(sh(noise + job.poll_script(spec, key, True, 0))) == ("exit", 3, b"")
    assert job.parse_result(sh(noise + job.result_script(spec, key))) == b"\nrunning 0\nlog"


@pytest.mark.parametrize("raw", [b"", b"welcome\n", b"exit\n", b"exit x\n", b"running", b"\xff\n", b"exit \n"])
def test_answer_that_is_no_state(raw: bytes) -> None:
    """A cut or foreign answer is refused, never taken for an end."""
    with pytest.raises(ValueError, match="not a job state"):
        job.parse_poll(raw)


def test_no_place_for_jobs(spec: HostSpec) -> None:
    """A starter that cannot make the folder says so with an exit code of its own."""
    Path(spec.base).parent.mkdir(parents=True)
    Path(spec.base).write_text("a file")
    answer = subprocess.run(
        ["sh", "-c", job.start_script(spec, RUN, "toolkit", change("true"))], capture_output=True, check=False
    )
    assert (answer.returncode, answer.stdout) == (73, b"")
    assert b"mkdir" in answer.stderr


def test_changes_are_made_by_root_where_asked(spec: HostSpec) -> None:
    """`sudo -n` for changes only, in front of one quoted shell."""
    root = HostSpec(name="gpu-01", base=spec.base, tmp=spec.tmp, sudo=True)
    assert job.start_script(root, RUN, "toolkit", change("true")).startswith("sudo -n sh -c ")
    assert job.start_script(root, RUN, "toolkit", change("true", measures="a")).startswith("sh -c ")
    assert job.start_script(spec, RUN, "toolkit", change("true")).startswith("sh -c ")


def test_listing_names_the_jobs_of_a_host(spec: HostSpec) -> None:
    """Key, run and state of each, of changes and measurements; old and foreign folders are left out."""
    gate = Path(spec.tmp) / "gate"
    os.mkfifo(gate)
    done, busy = change("true"), change(f'read x < "{gate}"', measures="a")
    assert start(spec, done) == "started"
    ended(spec, done)
    assert start(spec, done) == "started"
    ended(spec, done)
    assert start(spec, busy) == "started"
    (Path(spec.base) / "jobs" / "foreign").mkdir()
    places = {"BASE": spec.base, "TMP": spec.tmp, "NAME": spec.name, "PATH": os.environ["PATH"]}
    listed = subprocess.run(["sh", "-c", job.LISTING], env=places, capture_output=True, text=True, check=True)
    assert job.parse_listing(listed.stdout + "noise\na b c d\n") == [
        job.Listed(job.key_of("toolkit", done), RUN, "exit"),
        job.Listed(job.key_of("toolkit", busy), RUN, "running"),
    ]
    let_go(gate)


def test_python_needs_no_terminal(spec: HostSpec) -> None:
    """A job has no input and no terminal; an interpreter started in it comes to its end."""
    command = change(f"{sys.executable} -c 'import sys; print(repr(sys.stdin.read()), sys.stdin.isatty())'")
    assert start(spec, command) == "started"
    assert ended(spec, command).log == b"'' False\n"
