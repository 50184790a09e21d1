"""The probe through real shells: whatever a read does or says, the other answers stay whole, and nothing is written."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from view_samples import dice

from fleet.model import Answer
from fleet.probe import new_nonce, parse, reading, record, script

NONCE = "probe-0123456789abcdef"
SHELLS = [name for name in ("sh", "dash", "bash", "busybox") if shutil.which(name)]


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A home whose `sh` is that shell."""
    found = shutil.which(request.param)
    assert found is not None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to(Path(found).resolve())
    for name in ("home", "scratch"):
        (tmp_path / name).mkdir()
    return tmp_path


def raw(shell: Path, reads: dict[str, str], variables: dict[str, str] | None = None, before: str = "") -> bytes:
    """What the shell prints; `before` is what the start-up files of the login shell do."""
    line = before + script(reads, variables or {}, NONCE)
    path = f"{shell}/bin:{os.environ['PATH']}"
    places = {"PATH": path, "HOME": f"{shell}/home", "TMPDIR": f"{shell}/scratch", "LANG": "C.UTF-8"}
    answer = subprocess.run(
        [f"{shell}/bin/sh", "-c", line],
        env=places,
        cwd=shell / "home",
        input=b"what a read must not eat\n",
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert [*(shell / "home").iterdir(), *(shell / "scratch").iterdir()] == []
    return answer.stdout


def answers(shell: Path, reads: dict[str, str], variables: dict[str, str] | None = None) -> dict[str, tuple[int, str]]:
    """Exit status and output of each read."""
    found, noise = parse(raw(shell, reads, variables), NONCE, reads)
    assert noise == ""
    return {name: (one["rc"], one["out"]) for name, one in found.items()}


def test_answers_come_in_one_piece(shell: Path) -> None:
    """Output, errors and exit status of each read; an exit ends only its own read."""
    reads = {"a": "echo one; echo two >&2", "b": "exit 7", "c": "false || true", "d": "no-such-command-here", "e": ":"}
    found = answers(shell, reads)
    assert list(found) == ["a", "b", "c", "d", "e"]
    assert (found["a"], found["b"], found["c"], found["e"]) == ((0, "one\ntwo"), (7, ""), (0, ""), (0, ""))
    assert found["d"][0] == 127
    assert "not found" in found["d"][1]


@pytest.mark.parametrize(
    ("shown", "out"),
    [
        (f"\n{NONCE} end 0 0\n", f"\n{NONCE} end 0 0"),
        (f"\n{NONCE} b 0 5\nwrong", f"\n{NONCE} b 0 5\nwrong"),
        (f"{NONCE} end 0 0\n\n{NONCE} a 9 1\nx", f"{NONCE} end 0 0\n\n{NONCE} a 9 1\nx"),
        ("no line feed at the end", "no line feed at the end"),
        ("three at the end\n\n\n", "three at the end"),
        ("percent %s %d \\n back\\slash 'single' \"double\" $HOME `id` $(id)", ""),
        ("a\0b", "ab"),
        ("\xff\xfe", "\ufffd\ufffd"),
        ("\xe2\x82", "\ufffd"),
        ("-n", ""),
        ("\r\n\x1b[31m\x07\r\n", "\r\n\x1b[31m\x07\r"),
        ("", ""),
    ],
)
def test_hostile_output_stays_in_its_answer(shell: Path, shown: str, out: str) -> None:
    """Not even output that looks like the protocol moves a mark; what is no UTF-8 is replaced."""
    octal = "".join(f"\\{byte:03o}" for byte in shown.encode("latin-1"))
    found = answers(shell, {"a": f"printf '{octal}'", "b": "echo right"})
    assert found == {"a": (0, out or shown), "b": (0, "right")}


def test_large_output_arrives_whole(shell: Path) -> None:
    """A line of a megabyte, and what stands after it in the pipeline."""
    reads = {
        "a": "head -c 1000000 /dev/zero | tr '\\0' x",
        "b": "echo right",
        "c": "head -c 300000 /dev/zero | tr '\\0' y",
    }
    assert answers(shell, reads) == {"a": (0, "x" * 1_000_000), "b": (0, "right"), "c": (0, "y" * 300_000)}


def test_read_that_reads_gets_nothing(shell: Path) -> None:
    """A tool that asks a question gets the end of input, not the answers of the others."""
    assert answers(shell, {"a": "echo first", "b": "cat", "c": "head -c 1 | wc -c | tr -d ' '"}) == {
        "a": (0, "first"),
        "b": (0, ""),
        "c": (0, "0"),
    }


def test_read_that_is_killed(shell: Path) -> None:
    """A tool that dies of a signal is an answer like any other."""
    found = answers(shell, {"a": "sh -c 'kill -9 $$'", "b": "echo right"})
    assert (found["a"][0], found["b"]) == (137, (0, "right"))


def test_reads_run_at_the_same_time(shell: Path) -> None:
    """Two reads that wait for each other come to an end: only together can they."""
    pipes = {"THERE": str(shell / "bin" / "there"), "BACK": str(shell / "bin" / "back")}
    for path in pipes.values():
        os.mkfifo(path)
    reads = {
        "a": 'echo ping > "$THERE"; cat "$BACK"',
        "b": "echo between",
        "c": 'read x < "$THERE"; echo pong > "$BACK"; echo "$x"',
    }
    assert answers(shell, reads, pipes) == {"a": (0, "pong"), "b": (0, "between"), "c": (0, "ping")}


def test_a_read_cannot_change_another(shell: Path) -> None:
    """Variables, functions and folders of one read are its own."""
    reads = {
        "a": 'X=changed; say() { :; }; cd /; set -e; N=other; echo "$X"',
        "b": 'echo "$X"; pwd',
        "c": "false; echo on",
    }
    found = answers(shell, reads, {"X": "given"})
    assert found == {"a": (0, "changed"), "b": (0, f"given\n{shell}/home"), "c": (0, "on")}


def test_variables_are_quoted(shell: Path) -> None:
    """Every printable character, line feeds and text that is not ASCII reach the reads as they are."""
    printable = "".join(map(chr, range(32, 127)))
    values = {"A": printable, "B": "'; touch owned; '", "C": "two\nlines", "D": "-n", "E": "München", "F": "$(id)`id`"}
    reads = {name: f'printf %s "${name}"' for name in values}
    assert answers(shell, reads, values) == {name: (0, value) for name, value in values.items()}


def test_many_reads(shell: Path) -> None:
    """As many as all checks together have, and more."""
    reads = {f"read.{number}": f"echo {number}; exit {number}" for number in range(60)}
    assert answers(shell, reads) == {f"read.{number}": (number, str(number)) for number in range(60)}


def test_noise_of_the_login_shell_is_kept_apart(shell: Path) -> None:
    """What start-up files print before the answers is reported, also when it looks like a mark."""
    reads = {"a": "echo right"}
    out = raw(shell, reads, before="echo welcome; printf 'probe-00 end 0 0\\n\\n'; ")
    found, noise = parse(out, NONCE, reads)
    assert (found["a"]["out"], noise) == ("right", "welcome\nprobe-00 end 0 0")
    assert record("gpu-01", {"A": "1"}, found, noise, 0.1) | {"at": ""} == {
        "schema": 1,
        "host": "gpu-01",
        "at": "",
        "seconds": 0.1,
        "variables": {"A": "1"},
        "startup_noise": "welcome\nprobe-00 end 0 0",
        "reads": {"a": {"rc": 0, "out": "right", "read": "echo right"}},
    }


def test_cut_answer_is_no_answer(shell: Path) -> None:
    """Wherever the connection breaks, nothing is taken for the whole; not even the last byte may be missing."""
    reads = {"a": "echo one", "b": "echo two"}
    whole = raw(shell, reads)
    for length in range(len(whole)):
        with pytest.raises(ValueError, match=r"cut after [012] of 2 reads"):
            parse(whole[:length], NONCE, reads)


def test_another_nonce_is_no_answer(shell: Path) -> None:
    """A recorded answer cannot stand in for a new one."""
    with pytest.raises(ValueError, match="cut after 0 of 1 reads"):
        parse(raw(shell, {"a": "echo one"}), new_nonce(), {"a": "echo one"})


def test_nonces_differ() -> None:
    """Each probe has its own, of one word."""
    nonces = {new_nonce() for _ in range(100)}
    assert len(nonces) == 100
    assert all(nonce.replace("-", "").isalnum() for nonce in nonces)


def test_damaged_answers_never_end_in_a_crash() -> None:
    """Bytes turned over at random: an answer, or ValueError."""
    chance = dice(20)
    whole = f"hi\n{NONCE} a 0 3\none\n{NONCE} b 1 0\n\n{NONCE} end 0 0\n".encode()
    outcomes = set()
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.choice(b"\0\n 0129a\xff")
        try:
            parse(bytes(damaged), NONCE, {"a": "", "b": ""})
        except ValueError:
            outcomes.add("refused")
        else:
            outcomes.add("read")
    assert outcomes == {"refused", "read"}


def test_what_was_not_asked_is_not_known() -> None:
    """A name that is not in the record reads as a command that was not found."""
    probe = {"reads": {"a": {"rc": 0, "out": "x", "read": "echo x"}}}
    assert reading(probe, "a") == Answer(command="echo x", rc=0, out="x")
    assert reading(probe, "b") == Answer(command="b", rc=127, out="", err="not in the probe record")
    assert reading({}, "b").ok is False
