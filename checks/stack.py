"""Asks which stack is in use on a host, and says where the pinned one belongs.

A stack is a folder `<base>/stacks/<name>/` with a toolkit, a venv, env.sh and stack.json; `<base>/current` is a link
to the one in use. A stack that was there before is adopted: its folder only points at what is there.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from fleet.hosts import HostSpec
from fleet.model import Check, Refused
from fleet.pins import Pins, digest_of
from fleet.view import View

Kind = Literal["pinned", "adopted", "found"]

# Prints the toolkit's version.json and the names of the installed distributions: two directory reads, no interpreter.
_DESCRIBE = """\
echo "cuda $cuda"; echo "python $python"
cat "$cuda/version.json" 2>/dev/null; echo
ls -d "${python%/bin/*}"/lib/python3*/site-packages/*.dist-info 2>/dev/null
:"""


def _told(spec: HostSpec, pins: Pins) -> str:
    del pins
    if not spec.in_use.python and not spec.in_use.cuda:
        return "false"
    return f"python={shlex.quote(spec.in_use.python)}; cuda={shlex.quote(spec.in_use.cuda)}\n{_DESCRIBE}"


READS: Mapping[str, Any] = {
    "stack.current": 'readlink "$BASE/current" || { [ ! -e "$BASE/current" ] || echo "no link"; exit 1; }',
    "stack.current_json": 'cat "$BASE/current/stack.json"',
    "stack.former": 'readlink "$BASE/former"',
    "stack.former_json": 'cat "$BASE/former/stack.json"',
    "stack.pinned_json": 'cat "$STACK/stack.json"',
    # A part without its mark of completeness is what a killed job left; one that is still at work is left alone.
    "stack.halves": 'for d in "$STACK"/cuda-* "$STACK"/venv; do\n'
    '  if [ -d "$d" ] && [ ! -f "$d/.complete" ]; then echo "$d"; fi; done',
    "stack.told": _told,
    # The interpreter of a running server is the first word of its command line.
    "stack.server": "python=\n"
    'for c in $(grep -lsE "sglang.launch_server|sglang serve|vllm.entrypoints" "$ROOT"/proc/[0-9]*/cmdline); do\n'
    # Whoever may start processes could name an interpreter of their own: only root's and the login user's count.
    '  o=$(stat -c %u "${c%/cmdline}"); [ "$o" = 0 ] || [ "$o" = "$(id -u)" ] || continue\n'
    '  w=$(tr "\\0" "\\n" < "$c" | head -n 1); case $w in /*python*) python=$w; break;; esac\n'
    "done\n"
    '[ -n "$python" ] || exit 1\n'
    f'cuda=$(readlink -f "$ROOT/usr/local/cuda")\n{_DESCRIBE}',
    "stack.system": f'cuda=$(readlink -f "$ROOT/usr/local/cuda"); python=; [ -d "$cuda" ] || exit 1\n{_DESCRIBE}',
}


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """A stack: its name, where its toolkit and its interpreter are, and which versions it claims to hold.

    `packages` maps normalised distribution names to versions; empty when nobody could list them.
    """

    schema: int = 1
    name: str
    kind: Kind
    cuda_dir: str
    cuda_version: str
    python: str
    packages: dict[str, str] = {}

    @property
    def title(self) -> str:
        """The stack in a few words for people."""
        torch = self.packages.get("torch")
        return f"CUDA {self.cuda_version or 'unknown'}" + (f", torch {torch}" if torch else "") + f" ({self.name})"


def pinned(host: View, pins: Pins) -> Stack:
    """The stack that the pins describe, at its final place on the host."""
    home = f"{host.spec.base}/stacks/{pins.stack}"
    return Stack(
        name=pins.stack,
        kind="pinned",
        cuda_dir=f"{home}/cuda-{pins.cuda.version}",
        cuda_version=pins.cuda.version,
        python=f"{home}/venv/bin/python",
        packages=pins.wheels.packages,
    )


def in_use(host: View) -> Stack | None:
    """The stack in use: what `current` points at, else what hosts.toml tells, a running server, /usr/local/cuda."""
    if host.read("stack.current").ok:
        recorded = parse_recorded(host.read("stack.current_json").out)
        if recorded is not None:
            return recorded
    for read in ("stack.told", "stack.server", "stack.system"):
        answer = host.read(read)
        found = parse_described(answer.out) if answer.ok else None
        if found is not None:
            return found
    return None


def former(host: View) -> Stack | None:
    """The stack that was in use before the last switch."""
    return parse_recorded(host.read("stack.former_json").out) if host.read("stack.former").ok else None


def target(host: View, pins: Pins) -> Stack | None:
    """The stack a stage is about: the pinned one, or, when a host is validated, the one in use."""
    return in_use(host) if host.mode == "validate" else pinned(host, pins)


def before(host: View, pins: Pins) -> Stack | None:
    """The stack to compare the pinned one with: the one in use, or the former one once the switch is done."""
    current = in_use(host)
    if current is not None and current.name == pins.stack:
        return former(host)
    return current


def as_pins(stack: Stack, pins: Pins) -> Pins:
    """The pins with the versions that this stack claims: a stack is judged by what it says it is."""
    if stack.name == pins.stack:
        return pins
    cuda = replace(pins.cuda, version=stack.cuda_version or "0.0.0")
    return replace(pins, cuda=cuda, wheels=replace(pins.wheels, packages=stack.packages))


def parse_recorded(text: str) -> Stack | None:
    """A stack.json; None when it is not one. A name is that of a folder beside the others, and leads nowhere else."""
    try:
        found = msgspec.json.decode(text.encode("utf-8", "replace"), type=Stack)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return found if re.fullmatch(r"[A-Za-z0-9][\w.-]*", found.name, re.ASCII) else None


def parse_described(text: str) -> Stack | None:
    """What _DESCRIBE printed; None when neither a toolkit nor an interpreter is named."""
    cuda_dir = _after(text, "cuda ")
    python = _after(text, "python ")
    if not cuda_dir and not python:
        return None
    return Stack(
        name=f"found-{digest_of([cuda_dir, python])[:8]}",
        kind="found",
        cuda_dir=cuda_dir,
        cuda_version=parse_version_json(text),
        python=python,
        packages=parse_distributions(text),
    )


def _after(text: str, word: str) -> str:
    return next((line[len(word) :].strip() for line in text.splitlines() if line.startswith(word)), "")


def parse_version_json(text: str) -> str:
    """The release in a toolkit's version.json; empty when there is none."""
    found = re.search(r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"(\d+(?:\.\d+)*)"', text, re.ASCII)
    return found[1] if found else ""


def parse_distributions(text: str) -> dict[str, str]:
    """Name (normalised) -> version of each `<name>-<version>.dist-info` path."""
    found = re.findall(r"/([A-Za-z0-9_.]+)-([^/\s-]+)\.dist-info\s*$", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def environment(stack: Stack) -> list[str]:
    """Shell lines that put a stack first: what env.sh says, and what its measurements run under."""
    lines = []
    if stack.cuda_dir:
        lines += [f"export CUDA_HOME={shlex.quote(stack.cuda_dir)}", 'export PATH="$CUDA_HOME/bin:$PATH"']
    if stack.python:
        lines.append(f'export PATH={shlex.quote(stack.python.rpartition("/")[0])}:"$PATH"')
    if stack.kind == "pinned":
        # FlashInfer's cache is keyed by its version and the GPU, not by CUDA: kernels of the old stack would be reused.
        # In the user's cache: the stack's own folder may belong to root.
        lines.append(f'export FLASHINFER_WORKSPACE_BASE="${{XDG_CACHE_HOME:-$HOME/.cache}}/fleet/{stack.name}"')
    return lines


def anew(host: View, pins_stack: str, folder: str, stage: str) -> str:
    """How a part of the pinned stack that was damaged after it was made is made again."""
    current = in_use(host)
    first = "`nox -s rollback`, " if current is not None and current.name == pins_stack else ""
    return f"damaged since it was made: {first}`rm {shlex.quote(folder)}/.complete` on the host, then `nox -s {stage}`"


def require_not_in_use(host: View, pins: Pins) -> None:
    """Raises Refused when the pinned stack is in use: no part of it is removed, to be made anew, under a server."""
    current = in_use(host)
    if host.read("stack.current").ok and current is not None and current.name == pins.stack:
        raise Refused("the stack in use is incomplete", "`nox -s rollback` first, then `nox -s upgrade`")


def none_found() -> Check:
    """The check of a stage that has no stack to look at: unknown, which is never green."""
    hint = "name it in hosts.toml: in_use.python and in_use.cuda"
    return Check(name="stack in use", want="one to look at", got="none found", ok=None, hint=hint)
