"""Furnishes a lab host: its files, stand-in tools, the toolkit and the stack in use."""

import os
import platform
import shutil
import sys
import uuid
import venv
import zipfile
from pathlib import Path

import tomli

from lab import catalogue, toolkit, wheels
from lab.cache import HERE, once, put, tree_digest
from lab.wheels import Stack

TOOLS = ("nvidia-smi", "modinfo", "df", "findmnt", "sudo", "id")
FOLDERS = ("usr/local/sbin", "usr/local/bin", "usr/bin", "etc", "proc", "opt", "home/ops", "root", "var/log", "tmp")
STACK = "opt/sglang-cu128"


def python() -> Path:
    """The interpreter that carries venvs: the one this one's venv was made from."""
    return Path(getattr(sys, "_base_executable", "") or sys.executable).resolve()


def stack_in_use() -> tuple[str, Stack]:
    """CUDA release and packages of the stack that a fresh host runs."""
    table = tomli.loads((HERE / "data/in_use.toml").read_text())
    return table["cuda"], Stack(".".join(table["cuda"].split(".")[:2]), table["packages"])


def tools(cache: Path) -> Path:
    """Folder of the stand-in tools, ready to be linked or copied."""
    return once(cache / f"tools-{tree_digest(HERE / 'tools')}", _build_tools)


def _build_tools(folder: Path) -> None:
    extra = () if shutil.which("getconf", path="/usr/bin:/bin") else ("getconf",)
    for name in (*TOOLS, *extra):
        text = (HERE / "tools" / f"{name}.sh").read_text()
        put(folder / name, text.replace("@GLIBC@", platform.libc_ver()[1] or "2.17"), 0o755)


def furnish(root: Path, name: str, cache: Path, *, minimal: bool) -> None:
    """Whatever is missing under `root`; what is there stays, unless the lab itself changed."""
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    _lay_tools(root, tools(cache), minimal=minimal)
    if not (root / "etc/machine-id").exists():
        put(root / "etc/machine-id", f"{uuid.uuid4().hex}\n")
        put(root / "etc/lab-host", f"{name}\n")
        put(root / "etc/os-release", (HERE / "data/os-release").read_text())
        put(root / "proc/sys/kernel/random/boot_id", f"{uuid.uuid4()}\n")
    made_of, mark = catalogue.sources(), root.parent / "made_of"
    if not (mark.exists() and mark.read_text() == made_of):
        shutil.rmtree(root / STACK, ignore_errors=True)
        _lay_toolkit(root)
    if not minimal:
        _lay_stack(root, cache)
    put(mark, made_of)


def _lay_tools(root: Path, source: Path, *, minimal: bool) -> None:
    for tool in source.iterdir():
        place = root / "usr/bin" / tool.name
        if minimal:
            if not (place.exists() and place.samefile(tool)):
                place.unlink(missing_ok=True)
                os.link(tool, place)
        else:
            put(place, tool.read_bytes(), 0o755)
    link = root / "usr/bin/python3"
    if not link.is_symlink():
        link.symlink_to(python())


def _lay_toolkit(root: Path) -> None:
    release = toolkit.release(stack_in_use()[0])
    folder = root / f"usr/local/cuda-{release.branch}"
    shutil.rmtree(folder, ignore_errors=True)
    toolkit.lay_out(folder, release, toolkit.target_name(toolkit.platform_name()))
    if not (link := root / "usr/local/cuda").is_symlink():
        link.symlink_to(folder.name)


def _lay_stack(root: Path, cache: Path) -> None:
    """The venv in use. Its last file says that it is whole: an interrupted start begins it again."""
    folder, done = root / STACK / "venv", root / STACK / "venv/pyvenv.cfg"
    if done.exists():
        return
    house, built = catalogue.wheelhouse(cache, stack_in_use()[1])
    shutil.rmtree(folder, ignore_errors=True)
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    config = done.read_text()
    done.unlink()
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for wheel in built:
        install(house / wheel.file, site)
    done.write_text(config)


def install(wheel: Path, site: Path) -> None:
    """Unpack a wheel into a site-packages folder and write its RECORD, as an installer does."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    record = next(name for name in contents if name.endswith(".dist-info/RECORD"))
    contents[record.replace("RECORD", "INSTALLER")] = b"lab\n"
    lines = [wheels.record_line(path, data) for path, data in sorted(contents.items()) if path != record]
    contents[record] = ("".join(lines) + f"{record},,\n").encode()
    for path, data in contents.items():
        file = site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
