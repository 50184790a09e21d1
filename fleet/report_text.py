"""Text that came from a host, made safe to show on a terminal or inside a page."""

import html
import re
import textwrap
from urllib.parse import quote

TERMINAL_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, erase
    r"|\x1b[\]PX^_][^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS and other strings, only when they end
    r"|\x1b[ -/]*[0-~]"
)
# Controls, text-direction marks (they can turn a shown command round), surrogates (they cannot be written).
UNSHOWABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
CODE = re.compile(r"`([^`\n]+)`")


def plain(text: str, limit: int = 64 * 1024) -> str:
    """The text without terminal sequences and controls, cut to `limit` characters; lines are kept."""
    shown = text[:limit].replace("\r\n", "\n").replace("\r", "\n")
    shown = UNSHOWABLE.sub("\ufffd", TERMINAL_SEQUENCES.sub("", shown))
    left = len(text) - limit
    if left <= 0:
        return shown
    # In a short line the count would be longer than what it stands for.
    return f"{shown}… ({left} more characters)" if limit > 400 else f"{shown.rstrip()}…"


def one_line(text: str, limit: int = 300) -> str:
    """The text on one line, controls neutralised, cut to `limit` characters."""
    return " ".join(plain(text, limit).split())


def wrapped(text: str, width: int, indent: str, first: str = "") -> list[str]:
    """The text as lines of a terminal; `indent` is for all but the first."""
    # Words stay whole even where they are too long: a path or command must survive being copied.
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def escaped(text: str, limit: int = 64 * 1024) -> str:
    """The text as HTML that shows it literally, also inside an attribute."""
    return html.escape(plain(text, limit), quote=True)


def with_code(text: str, limit: int = 2000) -> str:
    """The text as HTML, with what stands between backticks set as code."""
    return CODE.sub(r"<code>\1</code>", escaped(text, limit))


def command(text: str, limit: int = 8000) -> str:
    """A shell command as HTML that wraps between its words, not at the hyphens of its options."""
    words = re.split(r"(\s+)", escaped(text, limit))
    return "".join(f"<span>{word}</span>" if "-" in word else word for word in words)


def anchor(host: str, stage: str = "") -> str:
    """The id of a host's or cell's details in the page; the dot keeps it apart from pytest-html's own ids."""
    return re.sub(r"\s", "_", plain(f"{host}.{stage}"))


def link(target: str, text: str) -> str:
    """A link to a place in this page (`#…`) or to a file of the run directory; `text` is HTML."""
    return f'<a href="{html.escape(quote(plain(target), safe="#/"), quote=True)}">{text}</a>'


def counted(count: int, noun: str) -> str:
    """`1 host`, `2 hosts`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
