"""Runs the commands of a stage as jobs on one host, and keeps their logs, events and results in the run."""

import hashlib
import json
import re
import secrets
import shlex
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from fleet import job
from fleet.clock import now, spoken
from fleet.host import Host, Unreachable
from fleet.model import Command, Irreversible, Ran
from fleet.run import Run

INLINE_BYTES = 4096
HEARTBEAT_S = 30.0
RECONNECT_S = 300.0
POLL_S = (0.05, 1.0)
LOG_LIMIT_BYTES = 16 * 1024 * 1024
_PROGRESS = re.compile(rb"^progress (\d+) (\d+)$", re.MULTILINE)


class CommandFailed(Exception):
    """A command of a stage did not end well; `ran` is its record, `text` the cause in a line."""

    def __init__(self, ran: Ran, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.ran = ran
        self.text = text
        self.hint = hint


def as_planned(command: Command) -> Ran:
    """The record of a command that has not been run."""
    reversible = not isinstance(command.undo, Irreversible)
    return Ran(
        why=command.why,
        shell=command.shell,
        undo=command.undo.reason if isinstance(command.undo, Irreversible) else command.undo,
        reversible=reversible,
        size_bytes=command.size_bytes,
        measures=bool(command.measures),
        keep=command.keep,
    )


class Worker:
    """Does the work of one stage on one host."""

    def __init__(self, host: Host, run: Run, stage: str) -> None:
        self.host = host
        self.run = run
        self.stage = stage
        self.spec = host.spec

    def do(self, command: Command, number: int) -> tuple[Ran, dict[str, Any]]:
        """Runs one command to its end; gives its record and, for a measurement, its result.

        Raises CommandFailed when it exits non-zero, is lost, or prints no JSON; Unreachable when the host stays away.
        """
        started, clock = now(), time.monotonic()
        log = f"{self.stage}.{number}.log"
        self.say("started", command.why)
        attached = self._start(command)
        rc = self.wait(job.key_of(self.stage, command), command, log)
        seconds = round(time.monotonic() - clock, 3)
        ran = replace(as_planned(command), rc=rc, started=started, seconds=seconds, log=log, attached=attached)
        if rc != 0:
            raise CommandFailed(ran, f"{command.why}: {_ended(rc, command)}: {self._last_line(log)}")
        return ran, self._result(command, ran) if command.measures else {}

    def undo(self, ran: Ran) -> Ran:
        """Takes back what a command did; gives its record, marked undone when the undo exited 0."""
        answer = self.host.run(job.elevated(self.spec, ran.undo, root=True), timeout_s=300)
        self.say("warning", f"undone: {ran.why}" if answer.ok else f"undo failed: {ran.undo}: {answer.err.strip()}")
        return replace(ran, undone=answer.ok)

    def wait(self, key: str, command: Command, log: str) -> int:
        """Follows a job to its end; gives its exit code. A dropped connection is opened again.

        Raises CommandFailed for a job that is gone without an exit code, Unreachable when the host stays away.
        """
        path = self.run.log_path(self.spec.name, log)
        path.write_bytes(b"")
        deadline = time.monotonic() + command.timeout_s + 3 * job.GRACE_S
        offset, pause, heard = 0, POLL_S[0], time.monotonic()
        while True:
            state = self._poll(key, bool(command.measures), offset)
            if state.log:
                offset, heard, pause = offset + len(state.log), time.monotonic(), POLL_S[0]
                self._keep(path, state.log)
            if len(state.log) == job.CHUNK_BYTES:
                continue
            if state.state == "exit":
                return state.rc
            if state.state == "lost" or time.monotonic() > deadline:
                raise self._lost(command, log)
            if time.monotonic() - heard > HEARTBEAT_S:
                heard = time.monotonic()
                self.say("running", f"{command.why}: still at work, silent for {spoken(HEARTBEAT_S)}")
            time.sleep(pause)
            pause = min(pause * 1.5, POLL_S[1])

    def say(self, kind: str, text: str, done: int = 0, total: int = 0) -> None:
        """Writes an event of this stage on this host."""
        self.run.event(self.spec.name, self.stage, kind, text, done, total)

    def _start(self, command: Command) -> bool:
        for there, here in command.uploads.items():
            self.host.put(Path(here), there)
        uploaded = self._upload(command)
        script = job.start_script(self.spec, self.run.path.name, self.stage, command, uploaded)
        answer = self.host.run(script, timeout_s=60)
        words = answer.out.split()
        if command.uploads and "started" not in words:
            # No job will take them.
            self.host.run(f"rm -f {shlex.join(command.uploads)}")
        if not answer.ok or not words:
            text = (answer.err or answer.out).strip().splitlines()
            raise CommandFailed(
                replace(as_planned(command), rc=answer.rc),
                f"{command.why}: cannot start a job on the host: {text[-1] if text else f'exit {answer.rc}'}",
                self._start_hint(answer.err),
            )
        if words[-2:-1] == ["attached"] or words[0] == "attached":
            self._require_ours(words[-1], command)
            self.say("running", f"{command.why}: already at work on the host, attached")
            return True
        return False

    def _upload(self, command: Command) -> dict[str, tuple[str, str]]:
        """Copies the larger files of a command to the host: a command line holds 128 KiB, quotes and all."""
        found = {}
        for name, text in command.files.items():
            data = text.encode()
            if len(data) > INLINE_BYTES:
                there = f"{self.spec.tmp}/fleet-upload-{secrets.token_hex(8)}"
                with tempfile.NamedTemporaryFile() as file:
                    file.write(data)
                    file.flush()
                    self.host.put(Path(file.name), there)
                found[name] = (there, hashlib.sha256(data).hexdigest())
        return found

    def _start_hint(self, err: str) -> str:
        if "sudo" in err:
            return "`sudo -n` must work for the login user; or set `sudo = false` and a `base` that user can write"
        if "No space left" in err:
            return "free space on the host first"
        return f"the login user must be able to write {job.root_of(self.spec, False)} (or set `sudo = true`)"

    def _require_ours(self, run: str, command: Command) -> None:
        if run != self.run.path.name:
            raise CommandFailed(
                as_planned(command),
                f"another run is at work on this host: {run}: {command.why}",
                f"wait for it, or follow it with `nox -s upgrade -- --run {run}`",
            )

    def _poll(self, key: str, measures: bool, offset: int) -> job.JobState:
        script = job.poll_script(self.spec, key, measures, offset)
        deadline, pause = time.monotonic() + RECONNECT_S, 0.2
        while True:
            try:
                return job.parse_poll(self.host.run_bytes(script)[1])
            except (Unreachable, ValueError) as error:
                if time.monotonic() > deadline:
                    raise Unreachable(f"lost for {spoken(RECONNECT_S)} while a job was at work: {error}") from None
                self.say("warning", f"connection lost ({error}); the job goes on, connecting again")
                time.sleep(pause)
                pause = min(pause * 2, 10.0)

    def _keep(self, path: Path, data: bytes) -> None:
        if path.stat().st_size < LOG_LIMIT_BYTES:
            with path.open("ab") as file:
                file.write(data)
        marks = _PROGRESS.findall(data)
        if marks:
            self.say("progress", "", int(marks[-1][0]), int(marks[-1][1]))

    def _lost(self, command: Command, log: str) -> CommandFailed:
        ran = replace(as_planned(command), log=log)
        text = f"{command.why}: the job is gone without an exit code (killed, or the host was restarted)"
        return CommandFailed(ran, text, f"`nox -s upgrade -- --run {self.run.path.name}` does it again")

    def _last_line(self, log: str) -> str:
        text = self.run.log_tail(self.spec.name, log, 8192)
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("progress ")]
        return _spoken_line(lines[-1])[:300] if lines else "no output"

    def _result(self, command: Command, ran: Ran) -> dict[str, Any]:
        key = job.key_of(self.stage, command)
        raw = job.parse_result(self.host.run_bytes(job.result_script(self.spec, key), 60)[1])
        try:
            result = json.loads(raw)
            # Half of a surrogate pair is JSON, and can be kept nowhere.
            msgspec.json.encode(result)
        except (ValueError, RecursionError):
            result = None
        if not isinstance(result, dict):
            head = raw[:120].decode("utf-8", "replace")
            raise CommandFailed(ran, f"{command.why}: printed no JSON document: {head!r}")
        self.host.run(job.forget_script(self.spec, key))
        return result


def _spoken_line(line: str) -> str:
    """The `verdict` and `error` of a line that is one of our scripts' JSON; any other line as it is."""
    if not line.startswith("{"):
        return line
    try:
        told = json.loads(line)
    except ValueError:
        return line
    words = [str(told[key]) for key in ("verdict", "error") if isinstance(told, dict) and told.get(key)]
    return ": ".join(words) or line


def _ended(rc: int, command: Command) -> str:
    if rc == 124:
        return f"took over {spoken(command.timeout_s)}"
    return f"killed by signal {rc - 128}" if rc > 128 else f"exit {rc}"


def sh(*lines: str) -> str:
    """Shell lines as one script that stops at the first failure."""
    return "\n".join(["set -eu", *lines])


q = shlex.quote
"""Quotes one value for the shell; every value in a command goes through it."""
