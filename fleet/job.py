"""Long commands as jobs on the host: own session, log, pid and exit code in one directory.

A job survives Ctrl-C, a dropped connection and a killed controller. Its directory is named by what it does, and made
with mkdir, which only one can win: so the same install never runs twice at once, whoever asks.
"""

import hashlib
import math
import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from fleet.hosts import HostSpec
from fleet.model import Command

CHUNK_BYTES = 256 * 1024
GRACE_S = 10


class JobState(NamedTuple):
    """What a poll saw: `state` is running, exit or lost; `rc` only for exit; then new bytes of the log."""

    state: str
    rc: int
    log: bytes


class Listed(msgspec.Struct, frozen=True):
    """A job found on the host."""

    key: str
    run: str
    state: str


def root_of(spec: HostSpec, measures: bool) -> str:
    """Where jobs live: changes beside the stacks; measurements, which change nothing, in the tmp folder."""
    return f"{spec.tmp}/fleet-jobs-{spec.name}" if measures else f"{spec.base}/jobs"


def key_of(stage: str, command: Command) -> str:
    """A job's name: stage and a digest of what it runs."""
    text = command.shell + "".join(f"{name}\0{text}\0" for name, text in sorted(command.files.items()))
    return f"{stage}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def elevated(spec: HostSpec, script: str, root: bool) -> str:
    """The script as one command line, under `sudo -n` where the host asks for it and the job changes things."""
    line = shlex.join(["sh", "-c", script])
    return f"sudo -n {line}" if root and spec.sudo else line


# Start-up files of the login shell may print before any answer: what counts begins with this.
_MARK = "fleet-job"
_STATE = re.compile(rb"(?:^|\n)" + _MARK.encode() + rb" (running|exit|lost|gone) (\d{1,9})\n")

# A pid alone proves nothing after a reboot; a young directory without one is a job that is just being started.
_ALIVE = """\
alive() {{
  p=$(cat "$1/pid" 2>/dev/null)
  [ -z "$p" ] && {{ [ -n "$(find "$1" -maxdepth 0 -mmin -1 2>/dev/null)" ]; return; }}
  [ -d "/proc/$p" ] && [ "$(cat "$1/boot")" = "$(cat /proc/sys/kernel/random/boot_id)" ]
}}
"""

_START = (
    _ALIVE
    + """\
umask 022
mkdir -p {root} && cd {root} || exit 73
[ -O . ] || {{ echo "$(pwd) belongs to another user" >&2; exit 73; }}
# One starter at a time: two that both saw a finished job would move each other's new one away.
exec 9<.
flock -w 30 9 || echo 'going on without a lock' >&2
# One run at a time, whatever its pins: two installers, or a measurement beside one, would spoil each other.
for d in {jobs}/*/ {measures}/*/; do
  [ -s "$d/run" ] && [ ! -e "$d/exit" ] && alive "$d" || continue
  o=$(cat "$d/run")
  [ "$o" = {run} ] || {{ echo attached "$o"; exit 0; }}
done
if [ -d {key} ] && {{ [ -f {key}/exit ] || [ ! -s {key}/pid ] || ! alive {key}; }}; then
  {aside}
fi
if mkdir {key} 2>/dev/null; then
  cd {key} || exit 73
  cat /proc/sys/kernel/random/boot_id > boot && printf %s {run} > run || exit 73
  {files}
  printf %s {shell} > run.sh && printf %s {wrapper} > job.sh || exit 73
  setsid sh ./job.sh </dev/null >/dev/null 2>&1 9<&- &
  # Begun is what is in a session of its own, where the end of this one cannot reach it.
  n=0; until [ -s pid ] || [ $n -ge 200 ]; do sleep 0.01; n=$((n + 1)); done
  [ -s pid ] || {{ echo 'the job did not begin' >&2; exit 74; }}
  echo started
else
  echo attached $(cat {key}/run 2>/dev/null)
fi
"""
)

_WRAPPER = """\
umask 022
# Room for the exit code is taken now: the job may fill the disk.
echo --- > exit.new && echo $$ > pid.new && mv pid.new pid || exit 73
timeout -k {grace} {timeout} sh ./run.sh {redirect}
printf '%03d\\n' $? 1<>exit.new
mv exit.new exit
"""

_POLL = (
    _ALIVE
    + """\
cd {job} 2>/dev/null || {{ printf '\\n{mark} gone 0\\n'; exit 0; }}
if [ -s exit ]; then s="exit $(cat exit)"
elif alive .; then s="running 0"
elif sleep 0.2; [ -s exit ]; then s="exit $(cat exit)"
else s="lost 0"; fi
printf '\\n{mark} %s\\n' "$s"
tail -c +{start} log 2>/dev/null | head -c {chunk}
"""
)


def start_script(
    spec: HostSpec, run: str, stage: str, command: Command, uploaded: Mapping[str, tuple[str, str]] | None = None
) -> str:
    """The command line that starts the job, or finds it at work; answers `started` or `attached <run>`.

    `uploaded` names the files that are on the host already: name -> path there, SHA-256. They lay in a folder that
    others can write to, so what is used is a copy that is checked where only its owner can write.
    """
    measures = bool(command.measures)
    redirect = ">result.json 2>log" if measures else ">log 2>&1"
    seconds = max(1, math.ceil(command.timeout_s))
    there = uploaded or {}
    small = {name: text for name, text in command.files.items() if name not in there}
    files = [f"printf %s {shlex.quote(text)} > {shlex.quote(name)} || exit 73" for name, text in small.items()]
    files += [_taken(name, *there[name]) for name in there]
    key = shlex.quote(key_of(stage, command))
    script = _START.format(
        root=shlex.quote(root_of(spec, measures)),
        jobs=shlex.quote(root_of(spec, False)),
        measures=shlex.quote(root_of(spec, True)),
        key=key,
        run=shlex.quote(run),
        aside=_forget_unless_ours(key, run) if measures else _kept_once(key),
        files="\n  ".join(files) or ":",
        shell=shlex.quote(command.shell),
        wrapper=shlex.quote(_WRAPPER.format(grace=GRACE_S, timeout=seconds, redirect=redirect)),
    )
    line = elevated(spec, script, root=not measures)
    if not there:
        return line
    # Whatever comes of it, sudo that refuses and a job that was there already included: no upload stays.
    return f"{line}; r=$?; rm -f {shlex.join(path for path, _ in there.values())}; exit $r"


def _kept_once(key: str) -> str:
    # The last attempt may be looked at; those before it would only pile up.
    return f"rm -rf old-*-{key}; mv {key} old-$(date +%s)-$$-{key}"


def _forget_unless_ours(key: str, run: str) -> str:
    # A measurement leaves nothing on the host, but one that this run made and could not fetch is not made twice.
    ours = shlex.quote(f"000 {run}")
    return f'[ "$(cat {key}/exit 2>/dev/null) $(cat {key}/run)" = {ours} ] || rm -rf {key}'


def _taken(name: str, path: str, sha256: str) -> str:
    copy = f"cp {shlex.quote(path)} {shlex.quote(name)}"
    check = f"printf '%s  %s\\n' {sha256} {shlex.quote(name)} | sha256sum -c - >/dev/null"
    return f"{{ {copy} && {check}; }} || exit 75"


def poll_script(spec: HostSpec, key: str, measures: bool, offset: int) -> str:
    """The command line that tells a job's state and the next part of its log."""
    job = shlex.quote(f"{root_of(spec, measures)}/{key}")
    return shlex.join(["sh", "-c", _POLL.format(job=job, mark=_MARK, start=offset + 1, chunk=CHUNK_BYTES)])


def parse_poll(raw: bytes) -> JobState:
    """What a poll answered, after whatever the start-up files of the login shell print.

    Raises ValueError when there is no job state.
    """
    found = _STATE.search(raw)
    if found is None:
        raise ValueError(f"not a job state: {raw[:80]!r}")
    state = found[1].decode()
    return JobState("lost" if state == "gone" else state, int(found[2]), raw[found.end() :])


def result_script(spec: HostSpec, key: str, limit_bytes: int = 4 * 1024 * 1024) -> str:
    """The command line that prints a measurement's result, bounded."""
    path = shlex.quote(f"{root_of(spec, measures=True)}/{key}/result.json")
    return f"printf '\\n{_MARK} result\\n'; head -c {limit_bytes} {path}"


def parse_result(raw: bytes) -> bytes:
    """The document that `result_script` printed; empty when there is none."""
    return raw.partition(f"\n{_MARK} result\n".encode())[2]


def forget_script(spec: HostSpec, key: str) -> str:
    """The command line that removes a finished measurement's directory: it leaves nothing on the host."""
    root = shlex.quote(root_of(spec, measures=True))
    return f"rm -rf {root}/{shlex.quote(key)} && rmdir {root} 2>/dev/null || true"


LISTING = (
    _ALIVE.format()
    + """\
for d in "$BASE"/jobs/*/ "$TMP"/fleet-jobs-"$NAME"/*/; do
  k=$(basename "$d")
  case $k in old-*) continue;; esac
  [ -f "$d/run" ] || continue
  if [ -f "$d/exit" ]; then s=exit; elif alive "$d"; then s=running; else s=lost; fi
  printf '%s %s %s\\n' "$k" "$(cat "$d/run")" "$s"
done"""
)
"""A probe read: one line a job, `<key> <run> <state>`."""


def parse_listing(text: str) -> list[Listed]:
    """The jobs of a LISTING answer; malformed lines are skipped."""
    rows = [line.split() for line in text.splitlines()]
    return [Listed(*row) for row in rows if len(row) == 3]
