"""The throughput of one host as a drawing: tokens/s before and after, without and with EAGLE-3."""

import io
import re
import warnings
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fleet.report_arms import Arm, Throughput
from fleet.report_text import escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Stand-ins for the page's colours, which differ in light and dark: matplotlib knows no CSS variables.
INK, SOFT, WITHOUT, WITH, FLOOR = "#010203", "#010204", "#010205", "#010206", "#010207"
VARIABLES = {
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    WITHOUT: "var(--plot-without)",
    WITH: "var(--plot-with)",
    FLOOR: "var(--plot-floor)",
}
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "throughput",
    "font.family": ["sans-serif"],
    "font.size": 9,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
BAR = 0.8


def svg(measured: Throughput, number: int = 0) -> str:
    """An inline SVG element; `number` keeps its ids apart from those of other drawings on the page."""
    # Imported here: it costs over a second, and most runs have nothing to draw.
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    written = io.StringIO()
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that the measuring font lacks; the browser has its own fonts
        figure = Figure(figsize=(5.2, 3.7), layout="constrained")
        figure.patch.set_visible(False)
        _draw(figure.add_subplot(), measured)
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(written.getvalue(), described(measured), f"plot-{number}-")


def described(measured: Throughput) -> str:
    """The drawing in one sentence for those who cannot see it."""
    arms = [f"{arm.group}, {arm.speculation} EAGLE-3: {arm.median:.1f}" for arm in measured.arms]
    floor = measured.floor_tokens_per_s
    limit = f"; floor: {floor:.1f}" if floor is not None else ""
    return f"Median output tokens/s on {measured.name}: {'; '.join(arms)}{limit}."


def _draw(axes: "Axes", measured: Throughput) -> None:
    places = _places(measured.arms)
    for place, arm in zip(places, measured.arms, strict=True):
        _bar(axes, place, arm)
    _groups(axes, places, measured.arms)
    _floor(axes, measured.floor_tokens_per_s)
    axes.set_xticks(places, [_label(arm) for arm in measured.arms])
    axes.set_xlim(-BAR, places[-1] + BAR)
    axes.set_ylim(0, 1.22 * _top(measured))
    axes.set_title(measured.name, loc="left", fontsize=10, fontweight="bold", pad=8)
    axes.set_ylabel("output tokens/s, one request at a time")
    axes.tick_params(axis="x", length=0)
    axes.patch.set_visible(False)
    axes.spines[["top", "right"]].set_visible(False)


def _places(arms: list[Arm]) -> list[float]:
    """Bars side by side, with a gap where another stack begins."""
    places = [0.0]
    for former, arm in pairwise(arms):
        places.append(places[-1] + (1.0 if former.group == arm.group else 1.5))
    return places


def _bar(axes: "Axes", place: float, arm: Arm) -> None:
    colour = WITH if arm.speculation == "with" else WITHOUT
    axes.bar(place, arm.median, width=BAR, color=colour, alpha=0.45, edgecolor=colour, linewidth=1)
    if arm.quartiles:
        low, high = arm.quartiles
        spread = [[max(0.0, arm.median - low)], [max(0.0, high - arm.median)]]
        axes.errorbar(place + 0.3 * BAR, arm.median, yerr=spread, color=INK, capsize=4, linewidth=1.3)
    axes.scatter(_dots(place, len(arm.tokens_per_s)), arm.tokens_per_s, s=11, color=INK, zorder=3)
    highest = max(*arm.tokens_per_s, arm.median)
    axes.annotate(
        f"{arm.median:.1f}",
        (place, highest),
        xytext=(0, 7),
        textcoords="offset points",
        ha="center",
        fontweight="bold",
    )


def _dots(place: float, count: int) -> list[float]:
    """Where the samples' dots go: in the order measured, left of the error bar."""
    step = 0.5 * BAR / max(1, count - 1)
    return [place - 0.38 * BAR + step * index for index in range(count)]


def _groups(axes: "Axes", places: list[float], arms: list[Arm]) -> None:
    for group in dict.fromkeys(arm.group for arm in arms):
        mine = [place for place, arm in zip(places, arms, strict=True) if arm.group == group]
        axes.annotate(
            group,
            (sum(mine) / len(mine), 1),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="top",
            color=INK,
        )


def _floor(axes: "Axes", floor: float | None) -> None:
    if floor is None:
        return
    axes.axhline(floor, color=FLOOR, linestyle=(0, (5, 3)), linewidth=1.5)
    axes.annotate(
        f"floor\n{floor:.1f}",
        (1, floor),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        color=FLOOR,
    )


def _label(arm: Arm) -> str:
    if arm.speculation == "without":
        return "without\nEAGLE-3"
    length = f"{arm.acceptance_length:.2f}" if arm.acceptance_length is not None else "unknown"
    return f"with EAGLE-3\nacceptance\nlength {length}"


def _top(measured: Throughput) -> float:
    highest = [max(arm.tokens_per_s) for arm in measured.arms]
    return max([*highest, measured.floor_tokens_per_s or 0.0]) or 1.0


def _inline(document: str, text: str, prefix: str) -> str:
    """The <svg> element alone, its colours and ids made fit for a page that holds several."""
    found = document[document.index("<svg") :]
    found = re.sub(r"<metadata>.*?</metadata>", "", found, flags=re.DOTALL)
    found = found.replace("*{stroke", ".plot *{stroke")  # a style element acts on the whole page
    found = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", found)
    for colour, variable in VARIABLES.items():
        found = found.replace(colour, variable)
    size = re.compile(r' (?:width|height)="[^"]*"')
    head, rest = found.split(">", 1)
    head = f'{size.sub("", head)} class="plot" role="img" aria-label="{escaped(text)}"'
    return f"{head}><title>{escaped(text)}</title>{rest}"
