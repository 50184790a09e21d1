"""What stops a run before it starts: a mistake in the inputs, told in a line or two, without a traceback."""

import difflib
from collections.abc import Iterable


class Problem(Exception):
    """A fault the user can mend; `str()` is the whole message: the fault, the evidence, a `hint:` line."""

    def __init__(self, text: str, hint: str = "", evidence: Iterable[str] = ()) -> None:
        lines = [_printable(text), *(f"  {_printable(line)}" for line in evidence)]
        super().__init__("\n".join([*lines, *([f"hint: {_printable(hint)}"] if hint else [])]))


def _printable(text: str) -> str:
    """The text on one line: a key of a file may hold a line feed or worse."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean …?` for the nearest known name, else the list of known names."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean `{near[0]}`?"
    return f"; known: {', '.join(names)}" if names else ""
