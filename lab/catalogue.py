"""What the mirror and the index hold: runfiles, lists of them, manifests, wheels, and pages about them."""

import hashlib
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote

import tomli
from packaging.utils import canonicalize_name

from lab import runfile, shipped, toolkit, wheels
from lab.cache import HERE, digest, once, tree_digest
from lab.runfile import Runfile
from lab.shipped import Row, made_up
from lab.wheels import Stack, Wheel

PADDING_BYTES = 4 * 1024 * 1024
NEIGHBOUR_PADDING_BYTES = 16 * 1024
PLATFORMS = {"linux-sbsa": "_linux_sbsa.run", "linux-x86_64": "_linux.run"}


@dataclass(frozen=True)
class Page:
    """What a URL answers with: bytes, a file on disk, or the first bytes of a file that is said to be larger."""

    content: bytes | Path
    kind: str = "text/html; charset=utf-8"
    size_bytes: int = 0
    """The size that is told of a file of which only the first bytes are there; 0: all of them are."""


def sources() -> str:
    """Digest of everything that stand-ins are made from."""
    parts = ("tools", "data", "standins", "runfile.py", "toolkit.py", "wheels.py")
    return tree_digest(*(HERE / part for part in parts))


def releases() -> list[str]:
    """All CUDA releases the lab knows."""
    return sorted(tomli.loads((HERE / "data/toolkits.toml").read_text())["toolkit"])


def runfiles(cache: Path, pins: Mapping[str, Any]) -> tuple[Path, dict[str, list[Runfile]]]:
    """Folder of the runfiles, and what there is of each release; the pinned one is large, its neighbours small."""
    pinned = {name: entry["file"] for name, entry in pins["cuda"]["runfile"].items()}
    version = str(pins["cuda"]["version"])
    key = digest(sources(), version, shipped.driver(version), repr(sorted(pinned.items())), toolkit.platform_name())
    folder = once(cache / f"runfiles-{key}", lambda to: _build_runfiles(to, version, pinned))
    listed = json.loads((folder / "runfiles.json").read_text())
    return folder, {release: [Runfile(**entry) for entry in entries] for release, entries in listed.items()}


def _build_runfiles(folder: Path, pinned_version: str, pinned: Mapping[str, str]) -> None:
    listed: dict[str, list[dict[str, Any]]] = {}
    for version in sorted({*releases(), pinned_version}):
        release = toolkit.release(version)
        for platform, ending in PLATFORMS.items():
            driver = _driver(version)
            file = f"cuda_{version}{driver and '_'}{driver}{ending}"
            large = version == pinned_version and platform == toolkit.platform_name()
            if version == pinned_version:
                file = pinned.get(platform, file)
            padding = PADDING_BYTES if large else NEIGHBOUR_PADDING_BYTES
            entry = runfile.write(folder, file, release, platform, padding)
            listed.setdefault(version, []).append(asdict(entry))
    (folder / "runfiles.json").write_text(json.dumps(listed))


def wheelhouse(cache: Path, stack: Stack) -> tuple[Path, list[Wheel]]:
    """Folder of the wheels of a stack, and what they are."""
    key = digest(sources(), stack.as_text(), wheels.py_tag(), *wheels.platform_tags())
    folder = once(cache / f"wheels-{key}", lambda to: _build_wheels(to, stack))
    return folder, [Wheel(**entry) for entry in json.loads((folder / "wheels.json").read_text())]


def _build_wheels(folder: Path, stack: Stack) -> None:
    built = wheels.build(folder, stack)
    (folder / "wheels.json").write_text(json.dumps([asdict(wheel) for wheel in built]))


def mirror(folder: Path, listed: Mapping[str, list[Runfile]], unlisted: list[str]) -> dict[str, Page]:
    """URL path -> page of the CUDA mirror; runfiles that match a glob of `unlisted` do not exist."""
    pages: dict[str, Page] = {}
    versions = sorted({*listed, *shipped.releases()})
    for version in versions:
        entries: Sequence[Runfile | Row] = listed.get(version) or shipped.releases()[version]
        there = [entry for entry in entries if not any(fnmatchcase(entry.file, glob) for glob in unlisted)]
        pages[f"/cuda/{version}/docs/sidebar/md5sum.txt"] = _text(md5sum_text(version, there))
        for entry in there:
            pages[f"/cuda/{version}/local_installers/{entry.file}"] = _installer(folder, entry)
        platforms = [entry.platform for entry in entries if isinstance(entry, Row)] or list(PLATFORMS)
        manifest = json.dumps(redistrib(version, platforms), indent=4)
        pages[f"/cuda/redist/redistrib_{version}.json"] = Page(manifest.encode(), "application/json")
    names = [f"redistrib_{version}.json" for version in versions]
    pages["/cuda/redist/"] = Page(_listing("Index of /cuda/redist", [(name, name) for name in names]))
    return pages


def _installer(folder: Path, entry: Runfile | Row) -> Page:
    kind = "application/octet-stream"
    return Page(entry.head, kind, entry.size_bytes) if isinstance(entry, Row) else Page(folder / entry.file, kind)


def _driver(version: str) -> str:
    return toolkit.release(version).driver or shipped.driver(version)


def md5sum_text(version: str, entries: Sequence[Runfile | Row]) -> str:
    """The list of a release, in the form of the real one: unsorted, one blank, distribution packages too."""
    driver, dashed = _driver(version), "-".join(version.split(".")[:2])
    names = [
        f"cuda-repo-rhel9-{dashed}-local-{version}_{driver}-1.x86_64.rpm",
        f"cuda-repo-ubuntu2404-{dashed}-local_{version}-{driver}-1_amd64.deb",
        f"cuda-repo-debian12-{dashed}-local_{version}-{driver}-1_amd64.deb",
        f"cuda_{version}_windows_network.exe",
        f"cuda_{version}_windows.exe",
    ]
    lines = [f"{made_up(name)} {name}\n" for name in names[:2]]
    lines += [f"{entry.md5} {entry.file}\n" for entry in entries]
    return "".join([*lines, *(f"{made_up(name)} {name}\n" for name in names[2:])])


def redistrib(version: str, platforms: Iterable[str]) -> dict[str, Any]:
    """The manifest of a release: components with sizes as text, and the driver that comes with it."""
    release = toolkit.release(version)
    components = {"cuda_nvcc": ("CUDA NVCC", release.nvcc), "cuda_cudart": ("CUDA Runtime (cudart)", release.nvcc)}
    if driver := _driver(version):
        components["nvidia_driver"] = ("NVIDIA Linux Driver", driver)
    heads = {"release_date": "2025-10-02", "release_label": version, "release_product": "cuda"}
    return heads | {key: _component(key, *facts, platforms) for key, facts in components.items()}


def _component(key: str, name: str, version: str, platforms: Iterable[str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "license": "CUDA Toolkit", "version": version}
    for platform in platforms:
        path = f"{key}/{platform}/{key}-{platform}-{version}-archive.tar.xz"
        sha256 = hashlib.sha256(path.encode()).hexdigest()
        entry[platform] = {"relative_path": path, "sha256": sha256, "md5": made_up(path), "size": "492741996"}
    return entry


def index(folder: Path, built: list[Wheel]) -> dict[str, Page]:
    """URL path -> page of the package index."""
    pages: dict[str, Page] = {}
    for wheel in built:
        project = canonicalize_name(wheel.name)
        pages[f"/simple/{project}/"] = Page(_project_page(project, wheel))
        pages[f"/wheels/{wheel.file}"] = Page(folder / wheel.file, "application/octet-stream")
    projects = sorted({canonicalize_name(wheel.name) for wheel in built})
    pages["/simple/"] = Page(_listing("Simple index", [(name, f"/simple/{name}/") for name in projects]))
    return pages


def _project_page(project: str, wheel: Wheel) -> bytes:
    needs = f' data-requires-python="{html.escape(wheel.requires_python)}"' if wheel.requires_python else ""
    address = f"/wheels/{quote(wheel.file)}#sha256={wheel.sha256}"
    link = f'<a href="{address}"{needs}>{html.escape(wheel.file)}</a><br>'
    return _html(f"Links for {project}", link)


def _listing(title: str, entries: list[tuple[str, str]]) -> bytes:
    rows = "\n".join(f'<a href="{address}">{html.escape(name)}</a><br>' for name, address in entries)
    return _html(title, rows)


def _html(title: str, body: str) -> bytes:
    head = f"<!DOCTYPE html>\n<html><head><title>{title}</title></head><body><h1>{title}</h1>\n"
    return f"{head}{body}\n</body></html>\n".encode()


def _text(text: str) -> Page:
    return Page(text.encode(), "text/plain")


def pinned_runfile(listed: Mapping[str, list[Runfile]], pins: Mapping[str, Any]) -> Runfile:
    """The runfile this machine's pins name."""
    wanted = pins["cuda"]["runfile"][toolkit.platform_name()]["file"]
    return next(entry for entry in listed[str(pins["cuda"]["version"])] if entry.file == wanted)
