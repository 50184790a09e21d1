"""Simulated GPU hosts: real SSH, a real HTTP mirror and package index, stand-in tools. Nothing here needs a GPU."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.rack import Lab as Lab

__all__ = ["Lab"]


def __getattr__(name: str) -> Any:
    """`lab.Lab`, imported when asked for: the command line starts faster without asyncssh."""
    if name == "Lab":
        from lab.rack import Lab  # noqa: PLC0415 - that is the point

        return Lab
    raise AttributeError(name)
