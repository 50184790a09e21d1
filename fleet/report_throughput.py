"""The throughput section of the report: a drawing per host and its numbers as a table."""

from fleet.grid import Results
from fleet.report_arms import Arm, Throughput, throughput
from fleet.report_table import table
from fleet.report_text import escaped

DRAWN_HOSTS = 8
CAPTION = (
    "Bars: median of the runs. Dots: every run, in the order measured. Error bars: the middle half of the runs "
    "(from three runs on). Acceptance length: tokens per verification step, bonus token included."
)


def throughput_section(results: Results) -> str:
    """Drawings and table of all hosts that were measured; empty when no stage of the run measures."""
    measured = [found for result in results.values() if (found := throughput(result)) is not None]
    if not measured:
        return _missing(results)
    faults = "".join(f"<li>{escaped(found.host)}: {escaped(f)}</li>" for found in measured for f in found.faults)
    return (
        f'<section><h2>Throughput</h2><p class="soft">{CAPTION}</p>{_figures(measured)}{_numbers(measured)}'
        f"{f'<ul>{faults}</ul>' if faults else ''}</section>"
    )


def _figures(measured: list[Throughput]) -> str:
    if len(measured) > DRAWN_HOSTS:
        return f"<p>Drawings are left out: more than {DRAWN_HOSTS} hosts were measured.</p>"
    return f'<div class="plots">{"".join(_figure(found, at) for at, found in enumerate(measured))}</div>'


def _missing(results: Results) -> str:
    if not any(result.stage == "eagle3" for result in results.values()):
        return ""
    return "<section><h2>Throughput</h2><p>Not measured in this run.</p></section>"


def _figure(measured: Throughput, number: int) -> str:
    drawing = _drawing(measured, number) if measured.arms else "<p>No readable measurement.</p>"
    return f"<figure>{drawing}<figcaption>{_ratios(measured)}</figcaption></figure>"


def _ratios(measured: Throughput) -> str:
    """What the medians say of the new stack with EAGLE-3, against each of the others."""
    new = measured.find("new", "with")
    others = [arm for arm in measured.arms if arm is not new and arm.median > 0]
    if new is None or not others:
        return f"<b>{escaped(measured.name)}</b>"
    rows = "".join(
        f"<li><b>{new.median / arm.median:.2f}×</b> the median of {escaped(arm.group)}, {arm.speculation} EAGLE-3</li>"
        for arm in others
    )
    head = f"<b>{escaped(measured.name)}</b>: {escaped(new.group)}, with EAGLE-3: <b>{new.median:.1f}</b> tokens/s"
    return f"{head}<ul>{rows}</ul>"


def _drawing(measured: Throughput, number: int) -> str:
    from fleet import plot  # noqa: PLC0415

    try:
        return plot.svg(measured, number)
    except Exception as error:
        # The numbers stand in the table: no fault of the drawing library may cost the report.
        return f"<p>No drawing: {escaped(f'{type(error).__name__}: {error}', 300)}</p>"


def _numbers(measured: list[Throughput]) -> str:
    rows = [_row(found, arm) for found in measured for arm in found.arms]
    rows += [_floor_row(found) for found in measured if found.floor_tokens_per_s is not None]
    heads = ("Host", "Stack", "EAGLE-3", "Median", "Middle half", "All runs", "Acceptance length", "Speed-up")
    return table((*heads, "Measured"), rows, "Output tokens/s, one request at a time", "numbers")


def _row(found: Throughput, arm: Arm) -> str:
    speedup = found.speedup(arm)
    cells = (
        arm.group,
        arm.speculation,
        f"{arm.median:.1f}",
        f"{arm.quartiles[0]:.1f} to {arm.quartiles[1]:.1f}" if arm.quartiles else "too few runs",
        " ".join(f"{value:.1f}" for value in arm.tokens_per_s[:50]),
        f"{arm.acceptance_length:.2f}" if arm.acceptance_length is not None else _no_length(arm),
        f"{speedup:.2f}×" if speedup is not None else "",
        arm.measured_at,
    )
    return _line(found.name, cells)


def _no_length(arm: Arm) -> str:
    return "unknown" if arm.speculation == "with" else ""


def _floor_row(found: Throughput) -> str:
    speedup = f"{found.floor_speedup:.2f}×" if found.floor_speedup is not None else ""
    return _line(found.name, ("floor in the pins", "with", f"{found.floor_tokens_per_s:.1f}", "", "", "", speedup, ""))


def _line(host: str, cells: tuple[str, ...]) -> str:
    return f'<tr><th scope="row">{escaped(host)}</th>{"".join(f"<td>{escaped(c)}</td>" for c in cells)}</tr>'
