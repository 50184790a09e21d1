"""The probe record: every read-only question of every check, asked in one command, answered in one piece.

The script is POSIX sh. The reads run at the same time, as the stages of one pipeline: each works out its own
answer, then passes on what came before it, then adds its own. So nothing is written on the host, answers
never mix, and the whole takes as long as the slowest read.
"""

import re
import secrets
import shlex
from collections.abc import Mapping
from typing import Any

from fleet.clock import now
from fleet.model import Answer

SCHEMA = 1
_PREAMBLE = """\
LC_ALL=C; export LC_ALL; umask 022
say() { printf '\\n%s %s %s %s\\n%s' "$N" "$1" "$2" "${#3}" "$3"; }
pass() { cat; }
"""


def script(reads: Mapping[str, str], variables: Mapping[str, str], nonce: str) -> str:
    """One POSIX sh script that answers all reads; `variables` are what the reads may use."""
    lines = [_PREAMBLE, f"N={nonce}"]
    lines += [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    parts = [_part(name, shell, first=index == 0) for index, (name, shell) in enumerate(reads.items())]
    lines.append(" |\n".join(parts))
    lines.append("printf '\\n%s end 0 0\\n' \"$N\"")
    return "sh -c " + shlex.quote("\n".join(lines))


def _part(name: str, shell: str, first: bool) -> str:
    # The read's own stdin is closed: a tool that asks a question must not eat what came before.
    earlier = "" if first else "pass; "
    return f'{{ o=$({{ {shell}\n}} 2>&1 </dev/null); r=$?; {earlier}say {shlex.quote(name)} $r "$o"; }}'


def new_nonce() -> str:
    """A mark that no output of a host can contain by chance or on purpose."""
    return "probe-" + secrets.token_hex(16)


def parse(raw: bytes, nonce: str, reads: Mapping[str, str]) -> tuple[dict[str, dict[str, Any]], str]:
    """The answers by name, and what the shell's start-up files printed before the first of them.

    Raises ValueError when the end mark is missing: the answer is cut.
    """
    mark = re.escape(nonce.encode())
    head = re.compile(rb"\n" + mark + rb" (\S+) (\d+) (\d+)\n")
    found: dict[str, dict[str, Any]] = {}
    first = head.search(raw)
    noise = raw[: first.start()] if first else raw
    position, ended = (first.start() if first else len(raw)), False
    while match := head.match(raw, position):
        name, rc, size = match[1].decode(), int(match[2]), int(match[3])
        body = raw[match.end() : match.end() + size]
        position = match.end() + size
        ended = name == "end"
        if not ended:
            found[name] = {"rc": rc, "out": body.decode("utf-8", "replace"), "read": reads.get(name, "")}
    if not ended:
        raise ValueError(f"the probe's answer is cut after {len(found)} of {len(reads)} reads")
    return found, noise.decode("utf-8", "replace").strip()


def record(
    host: str, variables: Mapping[str, str], answers: dict[str, Any], noise: str, seconds: float
) -> dict[str, Any]:
    """The probe record as it is kept: plain JSON, diagnosable without the host."""
    return {
        "schema": SCHEMA,
        "host": host,
        "at": now(),
        "seconds": seconds,
        "variables": dict(variables),
        "startup_noise": noise[:2000],
        "reads": answers,
    }


def reading(probe: Mapping[str, Any], name: str) -> Answer:
    """One answer of a probe record; rc 127 when it was not asked."""
    found = probe.get("reads", {}).get(name)
    if found is None:
        return Answer(command=name, rc=127, out="", err="not in the probe record")
    return Answer(command=found["read"], rc=found["rc"], out=found["out"])
