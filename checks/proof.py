"""Whether the pinned stack may be put in use: whole, and green at every gate that pins.toml requires."""

from collections.abc import Callable, Iterator, Mapping

from checks import accuracy, stack, throughput, toolkit, wheels
from fleet.model import Check, Refused
from fleet.pins import Pins
from fleet.view import View

JUDGES: Mapping[str, Callable[[View, Pins], Iterator[Check]]] = {
    accuracy.STAGE: accuracy.judged,
    throughput.STAGE: throughput.judged,
}


def require(host: View, pins: Pins) -> None:
    """Raises Refused when something is missing; a plan does not mind what its own earlier stages would bring."""
    coming = set(host.stages) if host.mode == "plan" else set()
    pinned = stack.pinned(host, pins)
    if "toolkit" not in coming and not toolkit.is_complete(host, pinned):
        raise Refused("the pinned stack has no complete toolkit", "`nox -s toolkit`, or a whole `nox -s upgrade`")
    if "wheels" not in coming and not wheels.is_complete(host, pins):
        raise Refused("the pinned stack has no complete venv", "`nox -s wheels`, or a whole `nox -s upgrade`")
    for gate in pins.switch.require:
        if gate not in coming:
            _require_gate(host, pins, gate)


def _require_gate(host: View, pins: Pins, gate: str) -> None:
    facts, host.facts = host.facts, {}
    try:
        wrong = next((check for check in JUDGES[gate](host, pins) if check.ok is not True), None)
    finally:
        host.facts = facts
    if wrong is not None:
        reason = f"the pinned stack is not proven: {gate}: {wrong.name}: want {wrong.want}, got {wrong.got}"
        raise Refused(reason, f"`nox -s {gate}` measures it; `switch.require` in pins.toml says what is required")
