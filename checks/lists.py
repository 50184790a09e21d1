"""The two lists that NVIDIA publishes with a CUDA release, read from what a mirror answered.

`<release>/docs/sidebar/md5sum.txt` names every installer with its MD5. `redist/redistrib_<release>.json` names the
components; its `nvidia_driver` is the driver in the runfile's name (NVIDIA/build-system-archive-import-examples).
"""

import re
from typing import Any, Literal, NamedTuple

import msgspec

from checks.catalogue import NAMES_WITHOUT_DRIVER_FROM, file_name, is_driver, numbers, parse_name
from checks.reply import Reply

LIST_LIMIT_BYTES = 256 * 1024
MANIFEST_LIMIT_BYTES = 4 * 1024 * 1024
INDEX_LIMIT_BYTES = 1024 * 1024

_MD5 = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"[\w.+~-]+", re.ASCII)

State = Literal["read", "absent", "forbidden", "unknown"]
"""absent: the mirror answered that there is no such list. unknown: nothing can be said."""


class Listing(NamedTuple):
    """A release's md5sum.txt: file name -> MD5, or why it could not be read."""

    reply: Reply
    state: State
    why: str
    files: dict[str, str]

    def names(self, release: str, platform: str) -> list[str]:
        """The runfiles of that release and platform in the list: one, if the list is sane."""
        parsed = {file: parse_name(file) for file in self.files}
        return sorted(f for f, n in parsed.items() if n and (n.cuda, n.platform) == (release, platform))

    @property
    def shows_absence(self) -> bool:
        """The list was read to its end, so what it does not name is not there."""
        return self.state == "read" and self.reply.complete


class Manifest(NamedTuple):
    """A release's redistrib JSON: which driver the runfile's name carries, or why that is not known."""

    reply: Reply
    state: State
    why: str
    driver: str | None
    """Empty: the name carries none. None: not told."""
    platforms: frozenset[str]

    def file(self, release: str, platform: str) -> str:
        """The runfile's name as it follows from the manifest; empty when it does not follow."""
        return (
            "" if self.driver is None or platform not in self.platforms else file_name(release, self.driver, platform)
        )


def list_path(release: str) -> str:
    """Where a mirror keeps the md5sum.txt of a release."""
    return f"{release}/docs/sidebar/md5sum.txt"


def manifest_path(release: str) -> str:
    """Where a mirror keeps the redistrib JSON of a release."""
    return f"redist/redistrib_{release}.json"


def file_path(release: str, file: str) -> str:
    """Where a mirror keeps an installer."""
    return f"{release}/local_installers/{file}"


def parse_md5sums(text: str) -> dict[str, str]:
    """File name -> MD5 of each well-formed line; blank and malformed lines are skipped."""
    rows = [line.split() for line in text.splitlines()]
    pairs = [(row[1].removeprefix("*"), row[0].lower()) for row in rows if len(row) == 2]
    return {file: md5 for file, md5 in pairs if _MD5.fullmatch(md5) and _FILE.fullmatch(file)}


def listing(reply: Reply) -> Listing:
    """What an answer for md5sum.txt says. A page, or a body without one good line, is no list."""
    state, why = _state(reply)
    files = parse_md5sums(reply.body.decode("utf-8", "replace")) if state == "read" else {}
    if state == "read" and not files:
        return Listing(reply, "unknown", f"{_got(reply)} instead of a list", {})
    return Listing(reply, state, why, files)


def manifest(reply: Reply, release: str) -> Manifest:
    """What an answer for the redistrib JSON says."""
    state, why = _state(reply)
    if state != "read":
        return Manifest(reply, state, why, None, frozenset())
    try:
        found = msgspec.json.decode(reply.body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Manifest(reply, "unknown", f"{_got(reply)} instead of JSON", None, frozenset())
    # Top-level texts (release_date, release_label) stand beside the components.
    parts = {name: part for name, part in found.items() if isinstance(part, dict)} if isinstance(found, dict) else {}
    if not parts:
        return Manifest(reply, "unknown", "JSON without components", None, frozenset())
    label = found.get("release_label")
    if isinstance(label, str) and re.fullmatch(r"\d+\.\d+\.\d+", label, re.ASCII) and label != release:
        return Manifest(reply, "unknown", f"the manifest says of itself that it is of {label}", None, frozenset())
    platforms = frozenset(key for part in parts.values() for key, value in part.items() if isinstance(value, dict))
    return Manifest(reply, "read", "", _driver(parts, release), platforms)


def _driver(parts: dict[str, dict[str, Any]], release: str) -> str | None:
    if "nvidia_driver" not in parts:
        return "" if numbers(release)[:2] >= NAMES_WITHOUT_DRIVER_FROM else None
    version = parts["nvidia_driver"].get("version")
    return version if isinstance(version, str) and is_driver(version) else None


def releases_in_index(reply: Reply) -> list[str] | None:
    """The releases that a mirror's `redist/` names, oldest first; None when it is no such index."""
    found = set(re.findall(rb"redistrib_(\d{1,3}\.\d{1,3}\.\d{1,3})\.json", reply.body)) if reply.found else set()
    return sorted((one.decode() for one in found), key=numbers) or None


def _state(reply: Reply) -> tuple[State, str]:
    if reply.found and not reply.is_page:
        return "read", ""
    if reply.absent:
        return "absent", f"{reply.status}{reply.by_way_of}"
    if reply.forbidden:
        return "forbidden", f"{reply.status}{reply.by_way_of}"
    return "unknown", reply.told


def _got(reply: Reply) -> str:
    if not reply.body.strip():
        return "an empty answer"
    cut = "" if reply.complete else f", larger than the limit of {len(reply.body)} bytes"
    return f"{reply.content_type or 'something'} that begins {reply.body[:24]!r}{cut}"
