"""How a host is moved onto a stack and back: links, written by one rename, and what the links must say."""

import re
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from checks import proof, stack
from checks.stack import Stack
from fleet import job
from fleet.model import Check, Command, Irreversible, Refused
from fleet.pins import Pins
from fleet.view import View
from fleet.work import q, sh


def _home(host: View, name: str) -> str:
    return f"{host.spec.base}/stacks/{name}"


def _rename(host: View, link: str, name: str) -> str:
    """Points a link of `<base>` at a stack by rename(2): there is no moment without it."""
    path = f"{host.spec.base}/{link}"
    return f"ln -sfn {q(f'stacks/{name}')} {q(path + '.new')} && mv -T {q(path + '.new')} {q(path)}"


def _described(host: View, one: Stack, why: str) -> Command:
    """Writes stack.json and env.sh of a stack; they are written last, so a stack that has them is whole."""
    home = _home(host, one.name)
    text = msgspec.json.format(msgspec.json.encode(one), indent=1).decode()
    lines = "\n".join([f"# {one.title}", *stack.environment(one)])
    return Command(
        why=why,
        shell=sh(
            f"mkdir -p {q(home)}",
            f"printf '%s\\n' {q(lines)} > {q(home + '/env.sh')}",
            f"printf '%s\\n' {q(text)} > {q(home + '/stack.json.new')}",
            f"mv {q(home + '/stack.json.new')} {q(home + '/stack.json')}",
        ),
        undo=f"rm -f {q(home + '/env.sh')} {q(home + '/stack.json')}",
    )


def adopted(found: Stack) -> Stack:
    """The stack that was in use before this tool came, as a stack of its own that points at what is there."""
    return replace(found, kind="adopted", name=found.name.replace("found-", "adopted-"))


def forward(host: View, pins: Pins) -> Iterator[Command]:
    """What is missing until the pinned stack is in use."""
    pinned, current = stack.pinned(host, pins), stack.in_use(host)
    _require_ours(host)
    if current is None or current.name != pins.stack:
        proof.require(host, pins)
    if stack.parse_recorded(host.read("stack.pinned_json").out) != pinned:
        yield _described(host, pinned, "describe the new stack")
    if host.read("stack.current").ok and current is not None and current.name == pins.stack:
        return
    before = None
    if current is not None:
        before = adopted(current) if current.kind == "found" else current
        if current.kind == "found":
            yield _described(host, before, f"adopt the stack in use: {current.title}")
    yield _switch(host, pinned, before)


def _require_ours(host: View) -> None:
    """Raises Refused when `current` is not a link that this tool made: it would be lost."""
    link = host.read("stack.current")
    if link.out.strip() and not (link.ok and re.fullmatch(r"stacks/[\w.-]+", link.out.strip())):
        got = f"points at {link.out.strip()[:200]}" if link.ok else "is a file or a folder"
        reason = f"{host.spec.base}/current {got}: not a link of this tool"
        raise Refused(reason, "move it away, or choose another `base`")


def _switch(host: View, to: Stack, before: Stack | None) -> Command:
    path = q(f"{host.spec.base}/current")
    # `former` first: a crash between the two leaves the old stack in use, and the next plan does both again.
    keep = [_rename(host, "former", before.name)] if before else []
    back = (
        f"rm -f {path}"
        if before is None or not host.read("stack.current").ok
        else _rename(host, "current", before.name)
    )
    return Command(why=f"switch to {to.title}", shell=sh(*keep, _rename(host, "current", to.name)), undo=back)


def is_in_use(host: View, pins: Pins) -> Iterator[Check]:
    """What `current` points at, and whether there is a way back."""
    link, current = host.read("stack.current"), stack.in_use(host)
    host.facts["told"] = f"in use: {current.title}" if current else ""
    if host.mode == "validate" and current is not None and current.name != pins.stack:
        # Validation is about the stack in use, whichever it is; the plan tells what the pins would change.
        yield Check(name="in use", want="a stack that is known", got=current.title, ok=True)
        return
    got = link.out.strip() if link.ok else f"{current.title if current else 'nothing known'}"
    ok = link.ok and current is not None and current.name == pins.stack and link.out.strip().endswith(pins.stack)
    hint = "" if ok else "`nox -s switch` moves the host onto it"
    yield Check(name="in use", want=f"stacks/{pins.stack}", got=got, ok=ok, hint=hint, read=link.command)
    former = stack.former(host)
    host.facts["former"] = former.title if former else ""
    yield Check(name="way back", want="a former stack, or none before", got=former.title if former else "none", ok=True)


def back(host: View, pins: Pins) -> Iterator[Command]:
    """What is missing until the former stack is in use again."""
    current, former = stack.in_use(host), stack.former(host)
    # By the links, not by the pins: those may have changed since the switch.
    switched = host.read("stack.current").ok and current is not None
    if switched and current is not None and former is not None and former.name != current.name:
        yield Command(
            why=f"switch back to {former.title}",
            # The way forward stays: the pinned stack is kept, `nox -s switch` moves onto it again.
            shell=sh(_rename(host, "current", former.name), f"rm -f {q(host.spec.base + '/former')}"),
            undo=sh(_rename(host, "former", former.name), _rename(host, "current", current.name)),
        )
    _require_rest(host)
    home = _home(host, pins.stack)
    for half in host.read("stack.halves").out.splitlines():
        if not half.startswith(f"{home}/"):
            # Words of the shell, or a name of two lines: what is removed lies in the stack, whoever said it.
            continue
        yield Command(
            why=f"remove what was never finished: {half.rpartition('/')[2]}",
            shell=f"rm -rf {q(half)}",
            undo=Irreversible(reason="`nox -s upgrade` builds it again"),
        )


def _require_rest(host: View) -> None:
    """Raises Refused while a job is at work: what it makes must not be taken away under it."""
    for one in job.parse_listing(host.read("host.jobs").out):
        if one.state == "running":
            hint = f"wait for it, or follow it with `nox -s upgrade -- --run {one.run}`"
            raise Refused(f"a job is still at work on the host: {one.key} of run {one.run}", hint)


def is_back(host: View, pins: Pins) -> Iterator[Check]:
    """The stack in use is not the pinned one."""
    current = stack.in_use(host)
    host.facts["told"] = f"in use: {current.title}" if current else "no stack in use"
    ok = current is None or current.name != pins.stack
    hint = "" if ok else "there is no former stack to go back to: this one was the first on the host"
    got = current.title if current else "none"
    yield Check(name="in use", want=f"not the pinned stack {pins.stack}", got=got, ok=ok, hint=hint)
