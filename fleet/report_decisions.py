"""The report's view of decisions: what was chosen, on which evidence, and what was not, and why."""

from typing import Any

import msgspec

from fleet.clock import sized
from fleet.decision import Candidate, Decision, Evidence
from fleet.report_table import table
from fleet.report_text import escaped, with_code

EVIDENCE = ("Candidate", "Source", "Says", "Address", "Status", "Size", "Checksum", "Date")


def decisions_of(facts: Any) -> list[Decision]:
    """The decisions among a stage's facts; one that cannot be read is left out, its data is in the record."""
    rows = facts.get("decisions", []) if isinstance(facts, dict) else []
    found = []
    for row in rows if isinstance(rows, list) else []:
        try:
            found.append(msgspec.convert(row, Decision))
        except msgspec.ValidationError:
            continue
    return found


def decisions_html(decisions: list[Decision]) -> str:
    """Every decision as a folded block; empty when there is none."""
    return "".join(_decision(one) for one in decisions)


def _decision(one: Decision) -> str:
    chosen = escaped(one.chosen, 300) or "nothing"
    head = f"<b>decision</b> {escaped(one.subject, 300)}: {escaped(one.wish, 200)} → <code>{chosen}</code>"
    rows = [_row(candidate, evidence) for candidate in one.candidates for evidence in candidate.evidence]
    rejected = "".join(f"<li><code>{escaped(no.name, 300)}</code>: {with_code(no.reason)}</li>" for no in one.rejected)
    conflicts = "".join(f"<li>{with_code(text)}</li>" for text in one.conflicts)
    parts = [
        f"<p>{with_code(one.reason)}</p>",
        table(("Candidate", "Source", "Says", "Address", "Status", "Size", "Checksum", "Date"), rows, "Evidence")
        if rows
        else "",
        f"<p>Rejected:</p><ul>{rejected}</ul>" if rejected else "",
        f"<p>Sources that contradict each other:</p><ul>{conflicts}</ul>" if conflicts else "",
    ]
    return f'<details class="decision"><summary>{head}</summary>{"".join(parts)}</details>'


def _row(candidate: Candidate, evidence: Evidence) -> str:
    cells = (
        f"<code>{escaped(candidate.name, 300)}</code>",
        escaped(evidence.source, 100),
        escaped(evidence.says, 600),
        f"<code>{escaped(evidence.url, 400)}</code>" if evidence.url else "",
        str(evidence.status or ""),
        sized(evidence.size_bytes) if evidence.size_bytes >= 0 else "",
        f"<code>{escaped(evidence.checksum, 100)}</code>" if evidence.checksum else "",
        escaped(evidence.date, 40),
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
