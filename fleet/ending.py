"""The end of a run: its replay in a process of its own, and the grid with the path of the report, printed last."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from fleet.grid import grid
from fleet.run import Run

NOT_FOR_A_REPLAY = ("PYTEST_ADDOPTS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD")
"""What a user sets for pytest is for the run; the replay has its own plugins."""


def replay(run: Run, reports: Path, checkout: Path) -> int:
    """Writes report.html and junit.xml of a run and prints its grid; gives the exit status, the verdict of the run."""
    command = [sys.executable, "-m", "pytest", str(checkout / "stages"), "--mode=replay", f"--run={run.path.name}"]
    command += [f"--reports={reports}", "-s", "-o", "addopts="]
    command += [word for name in ("cacheprovider", "terminal", "xdist") for word in ("-p", f"no:{name}")]
    env = {name: text for name, text in os.environ.items() if name not in NOT_FOR_A_REPLAY}
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    # Its own session: the Ctrl-C that stopped the run must not stop its report.
    return subprocess.run(command, check=False, start_new_session=True, env=env).returncode


def show(run: Run) -> None:
    """Prints the grid of a run and where its report lies."""
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    sys.stdout.write(f"\n{grid(run, colour=colour)}\n\nreport: {run.path / 'report.html'}\n")
    if not run.record.finished:
        sys.stdout.write("the run did not end by itself: killed, or still at work\n")
    sys.stdout.flush()
