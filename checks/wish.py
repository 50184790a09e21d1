"""Which CUDA release someone wishes for."""

import re
from typing import NamedTuple

from checks.catalogue import numbers
from fleet.problem import Problem


class Wish(NamedTuple):
    """A wish as numbers: of an exact release three, of a series fewer."""

    text: str
    prefix: tuple[int, ...]

    @property
    def exact(self) -> str:
        """The release, when exactly one is meant."""
        return ".".join(map(str, self.prefix)) if len(self.prefix) == 3 else ""

    def fits(self, release: str) -> bool:
        """The release is one of those that are meant."""
        return numbers(release)[: len(self.prefix)] == self.prefix


def parse_wish(text: str) -> Wish:
    """The wish in numbers. Raises Problem for what is none."""
    match = re.fullmatch(r"(?:newest(?: in (\d+(?:\.\d+)?))?|(\d{1,4}(?:\.\d{1,4}){0,2}))", text.strip(), re.ASCII)
    if match is None:
        hint = "wanted: a release (13.0.2), a series (13.0, 13), `newest`, or `newest in 13.0`"
        raise Problem(f"no CUDA release: {text!r}", hint)
    digits = match[1] or match[2] or ""
    return Wish(text.strip(), numbers(digits) if digits else ())
