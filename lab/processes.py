"""What really runs on lab hosts: processes are told apart by LAB_ROOT in their environment."""

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from lab.cache import put

SERVER = b"sglang.launch_server"


def _environments() -> Iterable[tuple[int, list[bytes]]]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - twice as fast, and done several times a second
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                yield int(name), Path(f"/proc/{name}/environ").read_bytes().split(b"\0")


def of(root: Path) -> list[int]:
    """Processes of the host with that root."""
    mark = f"LAB_ROOT={root}".encode()
    return [pid for pid, environment in _environments() if mark in environment]


def servers(roots: Iterable[Path]) -> dict[Path, dict[int, bytes]]:
    """By root: SGLang servers that run there, with their command lines."""
    marks = {f"LAB_ROOT={root}".encode(): root for root in roots}
    found: dict[Path, dict[int, bytes]] = {root: {} for root in marks.values()}
    for pid, environment in _environments():
        for word in environment:
            if word in marks:
                with contextlib.suppress(OSError):
                    line = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if SERVER in line.split(b"\0"):
                        found[marks[word]][pid] = line
    return found


def show(root: Path, running: dict[int, bytes]) -> None:
    """Let the host's /proc show these servers and no others; entries with text from a fault stay."""
    for folder in (root / "proc").iterdir():
        if folder.name.isdigit() and int(folder.name) not in running and (folder / "real").exists():
            shutil.rmtree(folder, ignore_errors=True)
    for pid, line in running.items():
        put(root / f"proc/{pid}/cmdline", line)
        put(root / f"proc/{pid}/real", "")
