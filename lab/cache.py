"""Things built once: digests of their inputs, and folders that appear complete or not at all."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

HERE = Path(__file__).parent


def digest(*parts: str | bytes) -> str:
    """Sixteen hex digits that change with any of `parts`."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(b"%d:" % len(data) + data)
    return total.hexdigest()[:16]


def tree_digest(*paths: Path) -> str:
    """Digest of the names and bytes of all source files under `paths`."""
    parts: list[str | bytes] = []
    for file in _files(paths):
        parts += [str(file.relative_to(HERE)), file.read_bytes()]
    return digest(*parts)


def source_files(path: Path) -> Iterable[Path]:
    """Files of a folder in order, without what Python leaves behind."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts and not file.name.startswith("."):
            yield file


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        yield from source_files(path)


def once(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder`, made by `build` if it is not there; several processes may ask at once."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        build(beside)
        beside.rename(folder)
    except OSError:
        # somebody else was faster: a rename onto a filled folder fails
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def put(path: Path, data: str | bytes, mode: int = 0o644) -> bool:
    """Write a file by rename, unless it already says just that; true when it was written."""
    raw = data.encode() if isinstance(data, str) else data
    if path.is_file() and path.read_bytes() == raw and (path.stat().st_mode & 0o777) == mode:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    beside.write_bytes(raw)
    beside.chmod(mode)
    beside.replace(path)
    return True
