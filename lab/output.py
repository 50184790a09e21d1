"""What the lab's commands print."""

import os
import sys


def say(text: str) -> None:
    """One or more lines on stdout; a reader who goes away, as `head` does, is no error."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # what is still in the buffer would fail once more when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
