"""CUDA mirrors made of the shipped catalogue, for tests of discovery."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from web_server import Answer, body, runfile

from checks.catalogue import Row, numbers, shipped
from checks.mirror import Mirror, mirror
from checks.web import Limits, Web

Table = dict[str, Answer | list[Answer]]
QUICK = Limits(attempt_s=2.0, total_s=4.0, attempts=2, backoff_s=0.001, longest_pause_s=0.01)


def at(*bases: str, limits: Limits = QUICK) -> list[Mirror]:
    """The mirrors at some addresses, asked with little patience."""
    web = Web(None, limits)
    return [mirror(base, web) for base in bases]


def made_up(name: str) -> str:
    """An MD5 for what the catalogue has none of."""
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()


def md5sums(rows: Iterable[Row], release: str) -> str:
    """A release's md5sum.txt in the form of the real one: sbsa first, other installers around, no order."""
    series = "-".join(release.split(".")[:2])
    others = [
        f"cuda-repo-cross-sbsa-ubuntu2404-{series}-local_{release}-1_all.deb",
        f"cuda-repo-ubuntu2404-{series}-local_{release}-1_amd64.deb",
        f"cuda_{release}_windows.exe",
        f"cuda_{release}_windows_network.exe",
    ]
    files = [(row.file, row.md5 or made_up(row.file)) for row in sorted(rows, key=lambda row: row.platform)]
    lines = [(others[0], made_up(others[0])), *files, *((name, made_up(name)) for name in others[1:])]
    return "".join(f"{md5} {name}\n" for name, md5 in lines)


def manifest(release: str, driver: str, platforms: Iterable[str] = ("linux-x86_64", "linux-sbsa")) -> dict[str, Any]:
    """A release's redistrib JSON: texts beside components, sizes as texts."""
    archive = {"relative_path": "p", "sha256": "0" * 64, "md5": "0" * 32, "size": "492741996"}
    component = {"name": "n", "license": "l", "version": "1.2.3", **dict.fromkeys(platforms, archive)}
    heads = {"release_date": "2025-10-02", "release_label": release, "release_product": "cuda"}
    drivers = {"nvidia_driver": {**component, "version": driver}} if driver else {}
    return {**heads, "cuda_nvcc": component, **drivers}


def rows_of(release: str) -> list[Row]:
    """The catalogue's rows of a release."""
    return [row for row in shipped().rows if row.cuda == release]


def table(releases: Iterable[str] | None = None, *, lists: bool = True, manifests: bool = True) -> Table:
    """A whole mirror: lists, manifests, their index, and files of the right size."""
    chosen = list(releases) if releases is not None else shipped().releases()
    found: Table = {}
    for release in chosen:
        rows = rows_of(release)
        if lists:
            found[f"/{release}/docs/sidebar/md5sum.txt"] = body(md5sums(rows, release).encode())
        if manifests:
            found[f"/redist/redistrib_{release}.json"] = as_json(manifest(release, rows[0].driver if rows else ""))
        for row in rows:
            found[f"/{release}/local_installers/{row.file}"] = runfile(row.size_bytes or 5_000_000_000)
    if manifests:
        found["/redist/"] = index(chosen)
    return found


def index(releases: Iterable[str]) -> Answer:
    """The page at redist/: names of manifests, as links."""
    names = [f"redistrib_{release}.json" for release in sorted(releases, key=numbers)]
    links = "".join(f"<a href='{name}'>{name}</a>\n" for name in names)
    return body(f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html")


def as_json(value: Any) -> Answer:
    """JSON as it is served."""
    return body(json.dumps(value, indent=4).encode(), "application/json")
