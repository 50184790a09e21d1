"""Converge: takes one host through the stages of a run, and writes down what each of them came to.

A stage is `plan(host, pins)`, the commands that are missing, and `verify(host, pins)`, the checks that must hold.
Dry run, idempotence, undo, resume and evidence are worked out here, from those two.
"""

import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fleet import job
from fleet.clock import now
from fleet.host import Host, Unreachable
from fleet.hosts import HostSpec
from fleet.model import GOOD, Check, Command, Measured, Mode, Ran, Refused, StageResult, Status
from fleet.pins import Pins
from fleet.probe import new_nonce, parse, record, script
from fleet.run import KEPT, Run, earlier_measurement
from fleet.view import HOST_READS, View
from fleet.work import CommandFailed, Worker, as_planned

Plan = Callable[[View, Pins], Iterable[Command]]
Verify = Callable[[View, Pins], Iterable[Check]]
Explain = Callable[[int, str], tuple[str, str]]
Read = str | Callable[[HostSpec, Pins], str]
PROBE_TIMEOUT_S = 60.0
STALE_S = 5.0
"""Older facts are read again before anything is changed by them."""


class Site:
    """What all hosts of a run have in common."""

    def __init__(self, run: Run, pins: Pins, mode: Mode, stages: tuple[str, ...], reads: Mapping[str, Read]) -> None:
        self.run = run
        self.pins = pins
        self.mode: Mode = mode
        self.stages = stages
        self.reads: Mapping[str, Read] = {**HOST_READS, "host.jobs": job.LISTING, **reads}

    @property
    def reports(self) -> Path:
        """The folder that holds this run and the earlier ones."""
        return self.run.path.parent


class HostRun:
    """One host in one run: its connection, its newest probe record, and what blocks it."""

    def __init__(self, site: Site, host: Host) -> None:
        self.site = site
        self.host = host
        self.spec = host.spec
        self.view: View | None = None
        self._blocker: StageResult | None = None
        self._new: dict[str, Measured] = {}
        self._used: dict[str, Measured] = {}
        self._stage = ""
        self._read_at = 0.0
        self._begun: StageResult | None = None

    def stage(self, name: str, plan: Plan, verify: Verify, explain: Explain | None = None) -> StageResult:
        """Takes the host through one stage; the result is in the run directory when this returns."""
        self._stage, self._new, self._used = name, {}, {}
        started, clock = now(), time.monotonic()
        result = StageResult(host=self.spec.name, stage=name, status="running", started=started)
        if self._blocker is not None:
            return self._ended(self._blocked(result, self._blocker), clock)
        # Until the end is written down: a full disk here must not let the next stage begin.
        self._blocker = replace(result, status="failed", reason="its result could not be written down")
        self._begun = result
        self._begin()
        result = self._ended(self._guarded(result, plan, verify, explain), clock)
        self._blocker = None
        self._note(result)
        return result

    def _begin(self) -> None:
        """Writes down that the stage is at work, with what it, or an earlier attempt of this run, has measured."""
        assert self._begun is not None
        earlier = self.site.run.result(self.spec.name, self._stage)
        before = earlier.measured if earlier is not None and earlier.status in KEPT else {}
        self.site.run.write_result(replace(self._begun, measured={**before, **self._new}))

    def _ended(self, result: StageResult, clock: float) -> StageResult:
        """The result with its time, written down."""
        result = replace(result, seconds=round(time.monotonic() - clock, 3), simulated=self._simulated())
        self.site.run.write_result(result)
        if result.status == "blocked":
            self.site.run.event(self.spec.name, self._stage, "finished", result.status)
        return result

    def refresh(self) -> View:
        """Reads the host again: one command, one probe record. Raises Unreachable."""
        variables = self._variables()
        reads = {
            name: read if isinstance(read, str) else read(self.spec, self.site.pins)
            for name, read in self.site.reads.items()
        }
        nonce = new_nonce()
        clock = time.monotonic()
        rc, out, err = self.host.run_bytes(script(reads, variables, nonce), PROBE_TIMEOUT_S)
        try:
            answers, noise = parse(out, nonce, reads)
        except ValueError as error:
            tail = err.decode("utf-8", "replace").strip()[-200:]
            raise Unreachable(f"{error} (exit {rc}) {tail}".strip(), "the login shell must run POSIX sh") from None
        self._read_at = clock
        probe = record(self.spec.name, variables, answers, noise, round(time.monotonic() - clock, 3))
        self.site.run.write_probe(self.spec.name, probe)
        self.view = View(
            self.spec,
            probe,
            mode=self.site.mode,
            stages=self.site.stages,
            connection=self.host,
            measured=self._measured,
        )
        return self.view

    def _variables(self) -> dict[str, str]:
        return {
            "ROOT": self.spec.root.rstrip("/"),
            "BASE": self.spec.base,
            "TMP": self.spec.tmp,
            "NAME": self.spec.name,
            "STACK": f"{self.spec.base}/stacks/{self.site.pins.stack}",
        }

    def _guarded(self, result: StageResult, plan: Plan, verify: Verify, explain: Explain | None) -> StageResult:
        try:
            found = self._converge(result, plan, verify, explain)
            # Facts that cannot be written down are a fault of the stage: told as one, here.
            msgspec.json.encode(found)
            return found
        except Unreachable as error:
            return replace(result, status="unreachable", reason=error.reason, hint=error.hint)
        except Refused as error:
            return replace(result, status="failed", reason=error.reason, hint=error.hint)
        except Exception as error:
            log = f"{self._stage}.crash.log"
            self.site.run.log_path(self.spec.name, log).write_text(traceback.format_exc(), "utf-8")
            crash = Ran(why="the stage itself", shell="", undo="", rc=None, log=log)
            reason = f"the stage crashed: {type(error).__name__}: {error}"
            return replace(result, status="failed", reason=reason, commands=[*result.commands, crash])

    def _converge(self, result: StageResult, plan: Plan, verify: Verify, explain: Explain | None) -> StageResult:
        view = self.view or self.refresh()
        view.facts = {}
        found = self._attach() if self.site.mode in ("apply", "rollback") else []
        if found:
            view = self.refresh()
        commands = self._planned(view, plan)
        if self.site.mode in ("apply", "rollback") and time.monotonic() - self._read_at > STALE_S:
            # Minutes lie between the stages of a run: another one may have been here.
            view = self.refresh()
            view.facts = {}
            commands = self._planned(view, plan)
        if self.site.mode == "plan" and commands:
            return self._would(result, view, commands)
        done = found
        try:
            for number, command in enumerate(commands, len(found) + 1):
                done.append(self._do(command, number))
            if any(not command.measures for command in commands):
                view = self.refresh()
            self._require_converged(view, plan, commands)
        except CommandFailed as error:
            return self._failed(result, view, done, error, explain)
        return self._verified(replace(result, commands=done), view, list(verify(view, self.site.pins)))

    def _planned(self, view: View, plan: Plan) -> list[Command]:
        if self.site.mode != "validate":
            return list(plan(view, self.site.pins))
        try:
            return [command for command in plan(view, self.site.pins) if command.measures]
        except Refused:
            # What an upgrade lacks is no matter of the stack in use.
            return []

    def _would(self, result: StageResult, view: View, commands: list[Command]) -> StageResult:
        measuring = all(command.measures for command in commands)
        status: Status = "would run" if measuring else "would change"
        reason = "; ".join(command.why for command in commands)
        planned = [as_planned(command) for command in commands]
        return replace(result, status=status, reason=reason, commands=planned, facts=view.facts)

    def _do(self, command: Command, number: int) -> Ran:
        ran, measured = Worker(self.host, self.site.run, self._stage).do(command, number)
        if command.measures:
            self._new[command.measures] = Measured(inputs=command.inputs, at=now(), result=measured)
            # Kept at once: a run that is taken up again need not measure it a second time.
            self._begin()
        return ran

    def _attach(self) -> list[Ran]:
        """Waits for what an interrupted controller left at work on the host: this stage's jobs, any measurement."""
        view = self.view
        assert view is not None
        listed = job.parse_listing(view.read("host.jobs").out)
        ours = [one.key for one in listed if one.state == "running" and one.run == self.site.run.path.name]
        # A measurement of a later stage holds the GPUs that the driver stage wants to see free.
        measuring = {key: self._is_measurement(key) for key in ours}
        return [
            self._wait_for(key, measures)
            for key, measures in measuring.items()
            if measures or key.rpartition("-")[0] == self._stage
        ]

    def _is_measurement(self, key: str) -> bool:
        # A measurement has its folder elsewhere, and changes nothing.
        return job.parse_poll(self.host.run_bytes(job.poll_script(self.spec, key, True, 0))[1]).state != "lost"

    def _wait_for(self, key: str, measures: bool) -> Ran:
        worker = Worker(self.host, self.site.run, self._stage)
        worker.say("running", "a job of this run is still at work on the host: attached")
        why = "the measurement found at work" if measures else "the job found at work"
        waiting = Command(why=why, shell=key, undo="", timeout_s=24 * 3600, measures=why if measures else "")
        log, clock = f"{self._stage}.attached.log", time.monotonic()
        try:
            rc: int | None = worker.wait(key, waiting, log)
        except CommandFailed as error:
            # What it left is judged by the plan that follows, not by how it ended.
            worker.say("warning", error.text)
            rc = None
        seconds = round(time.monotonic() - clock, 3)
        return replace(as_planned(waiting), rc=rc, log=log, attached=True, seconds=seconds)

    def _require_converged(self, view: View, plan: Plan, commands: list[Command]) -> None:
        if not commands or self.site.mode == "validate":
            return
        left = list(plan(view, self.site.pins))
        if left:
            whys = "; ".join(command.why for command in left)
            ran = replace(as_planned(left[0]), rc=None)
            raise CommandFailed(ran, f"still missing after it was done: {whys}", "the log says what the command did")

    def _failed(
        self, result: StageResult, view: View, done: list[Ran], error: CommandFailed, explain: Explain | None
    ) -> StageResult:
        ran = [*done, error.ran] if error.ran.rc is not None or error.ran.log else done
        reason, hint = error.text, error.hint
        if explain is not None and error.ran.rc:
            log = self.site.run.log_tail(self.spec.name, error.ran.log)
            cause, advice = explain(error.ran.rc, log)
            reason, hint = (f"{reason} ({cause})" if cause else reason), advice or hint
        return replace(result, status="failed", reason=reason, hint=hint, commands=self._undo(ran), facts=view.facts)

    def _undo(self, ran: list[Ran]) -> list[Ran]:
        """Takes back what this stage built, the newest first; what was only being measured left nothing."""
        worker = Worker(self.host, self.site.run, self._stage)
        kept = []
        for one in reversed(ran):
            undoable = one.reversible and one.undo and not one.measures and not one.keep and one.rc is not None
            kept.append(worker.undo(one) if undoable else one)
        return kept[::-1]

    def _verified(self, result: StageResult, view: View, checks: list[Check]) -> StageResult:
        checks = [replace(check, hint=check.hint.replace("--on HOST", f"--on {self.spec.name}")) for check in checks]
        measured = {**self._used, **self._new}
        reused = min((one.at for name, one in self._used.items() if name not in self._new), default="")
        result = replace(result, checks=checks, facts=view.facts, measured=measured, reused=reused)
        wrong = result.failed_checks
        if wrong:
            return self._refuted(result, wrong)
        if not checks:
            return replace(result, status="failed", reason="nothing was checked", hint="a stage must verify something")
        changed = any(not ran.measures for ran in result.commands)
        return replace(result, status="changed" if changed else "ok", reason=view.facts.get("told", ""))

    def _refuted(self, result: StageResult, wrong: list[Check]) -> StageResult:
        first = wrong[0]
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        reason = f"{first.name}: want {first.want}, got {first.got}{more}"
        hint = next((check.hint for check in wrong if check.hint), "")
        commands = self._undo(result.commands) if self.site.mode == "apply" else result.commands
        return replace(result, status="failed", reason=reason, hint=hint, commands=commands)

    def _blocked(self, result: StageResult, by: StageResult) -> StageResult:
        return replace(result, status="blocked", reason=f"{by.stage} {by.status}: {by.reason}"[:300])

    def _note(self, result: StageResult) -> None:
        bad = result.status not in GOOD
        if bad and (self.site.mode != "validate" or result.status == "unreachable"):
            self._blocker = result
        text = result.status + (f": {result.reason}" if result.reason else "")
        self.site.run.event(self.spec.name, self._stage, "finished", text)

    def _measured(self, name: str, inputs: str, stage: str) -> Measured | None:
        made = self._new.get(name)
        if made is not None and made.inputs == inputs:
            return made
        found = earlier_measurement(self.site.reports, self.spec.name, stage, name, inputs)
        if found is not None and stage == self._stage:
            self._used[name] = found
        return found

    def _simulated(self) -> bool:
        return self.spec.simulated or (self.view is not None and self.view.simulated)
