"""A table of the report, in a box of its own that scrolls where the page is narrow."""

from collections.abc import Iterable

from fleet.report_text import escaped


def table(heads: Iterable[str], rows: list[str], caption: str, kind: str = "") -> str:
    """A table inside its own scrolling box; empty without rows. `rows` is HTML."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in heads)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(caption)}"><table class="{kind}">'
        f"<caption>{escaped(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
