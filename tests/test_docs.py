"""The documentation and the product say the same."""

import argparse
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from checks.verdict import Verdict
from fleet.choice import Assume, Extra, Override, Policy
from fleet.decision import Candidate, Decision, Evidence, Rejected
from fleet.hosts import HostSpec, InUse, read_hosts
from fleet.model import Check, Mode, Ran, RunRecord, StageResult, Status
from fleet.options import add_options
from fleet.pins import Cuda, Eagle3, Kernels, PinsFile, Runfile, Switch, Tolerance, Wheels

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "reports" / "README.md"])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
SESSIONS = re.findall(r"^@nox\.session\ndef (\w+)", (ROOT / "noxfile.py").read_text("utf-8"), re.MULTILINE)
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return FENCE.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub makes addresses of them."""
    heads = [html.unescape(head) for head in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links() -> Iterator[tuple[Path, str]]:
    """Every link into this repository, with the page it stands on."""
    for page in PAGES:
        for target in LINK.findall(prose(page)):
            if not re.match(r"[a-z]+:", target):
                yield page, target


@pytest.mark.parametrize(("page", "target"), list(links()), ids=lambda value: str(getattr(value, "name", value)))
def test_link_leads_somewhere(page: Path, target: str) -> None:
    """The file is there, and so is the heading."""
    name, _, heading = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    assert file.exists()
    assert not heading or heading in anchors(file)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("**/*.md")), ids=lambda page: page.stem)
def test_every_page_can_be_found(page: Path) -> None:
    """README leads to each page of docs/."""
    assert f"({page.relative_to(ROOT)})" in (ROOT / "README.md").read_text("utf-8")


def test_example_inventory_loads() -> None:
    """hosts.example.toml is right as it stands, and shows every key."""
    example = ROOT / "hosts.example.toml"
    hosts = {host.name: host for host in read_hosts(example)}
    assert list(hosts) == ["gpu-01", "gpu-02", "gpu-03", "gpu-04"]
    assert hosts["gpu-01"].groups == ["canary", "rack-a"]
    assert (hosts["gpu-03"].sudo, hosts["gpu-03"].base) == (False, "/home/alice/fleet")
    shown = set(re.findall(r"^(\w+) =", example.read_text("utf-8"), re.MULTILINE))
    # `simulated` is for the lab to write, not for people.
    assert (host_keys() | {"python", "cuda"}) - {"simulated"} == shown


def host_keys() -> set[str]:
    """The keys of a host but its name, which is that of its table."""
    return {field.encode_name for field in msgspec.structs.fields(HostSpec)} - {"name", "in_use"}


@pytest.mark.parametrize("key", sorted(host_keys() | {f"in_use.{one.name}" for one in msgspec.structs.fields(InUse)}))
def test_key_of_hosts_toml_is_explained(key: str) -> None:
    """Each has a row in the reference."""
    assert f"\n| `{key}` |" in (REFERENCE / "hosts.md").read_text("utf-8")


PINS = (ROOT / "docs" / "pins.md").read_text("utf-8")
TABLES: dict[str, type[msgspec.Struct]] = {
    "cuda": Cuda,
    "wheels": Wheels,
    "switch": Switch,
    "kernels": Kernels,
    "eagle3": Eagle3,
    "policy": Policy,
}
ROWS: dict[str, type[msgspec.Struct]] = {
    "cuda.runfile.<platform>": Runfile,
    "kernels.tolerance.<kernel>": Tolerance,
    "overrides.<package>": Override,
    "extras.<package>": Extra,
    "assume": Assume,
}
"""Keys of pins.toml whose own keys stand in their row."""


def pins_keys() -> set[str]:
    """The keys of pins.toml, with the name of their table."""
    inner = {f"{name}.{field.encode_name}" for name, kind in TABLES.items() for field in msgspec.structs.fields(kind)}
    outer = {field.encode_name for field in msgspec.structs.fields(PinsFile)} - set(TABLES)
    return (inner | outer | set(ROWS)) - {name.partition(".<")[0] for name in ROWS if ".<" in name}


@pytest.mark.parametrize("key", sorted(pins_keys()))
def test_key_of_pins_toml_is_explained(key: str) -> None:
    """Each has a row in the reference, alone or beside others."""
    row = re.search(rf"^\| (?:`[^|]*`, )?`{re.escape(key)}`[ ,].*$", PINS, re.MULTILINE)
    assert row is not None
    kind = ROWS.get(key)
    fields = msgspec.structs.fields(kind) if kind else ()
    assert [field.name for field in fields if f"`{field.name}`" not in row[0]] == []


@pytest.mark.parametrize(("module", "page"), [("propose", "docs/pins.md"), ("release", "docs/guides/mirrors.md")])
def test_options_of_a_command_are_explained(module: str, page: str) -> None:
    """Each option has a row where the command is explained."""
    named = re.findall(r'add_argument\("(--[a-z-]+)"', (ROOT / "checks" / f"{module}.py").read_text("utf-8"))
    told = (ROOT / page).read_text("utf-8")
    assert named
    assert [name for name in named if not re.search(rf"^\| `{name}[ `]", told, re.MULTILINE)] == []


def test_verdicts_are_those_of_the_discovery() -> None:
    """Every verdict on a runfile is named in the reference of its stage."""
    told = (REFERENCE / "stages.md").read_text("utf-8")
    assert [word for word in get_args(Verdict) if f"`{word}`" not in told] == []


@pytest.mark.parametrize("session", SESSIONS)
def test_session_is_explained(session: str) -> None:
    """Each has a row in the reference."""
    assert f"\n| `{session}` |" in (REFERENCE / "sessions.md").read_text("utf-8")


def test_sessions_of_make_are_those_of_nox() -> None:
    """The same names in both."""
    named = re.search(r"^SESSIONS := (.+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert named is not None
    assert sorted(SESSIONS) == sorted(named[1].split())


class Options(argparse.ArgumentParser):
    """Takes what the plugin would add to pytest."""

    def getgroup(self, *_: str) -> "Options":
        """Itself: groups are for people."""
        return self

    def addoption(self, *names: str, **settings: object) -> None:
        """Keeps the option."""
        self.add_argument(*names, **settings)  # type: ignore[arg-type]


def options() -> list[str]:
    """The options of the stages."""
    parser = Options(add_help=False)
    add_options(parser)  # type: ignore[arg-type]
    return [action.option_strings[0] for action in parser._actions]


@pytest.mark.parametrize("option", options())
def test_option_is_explained(option: str) -> None:
    """Each has a row in the reference."""
    assert re.search(rf"^\| `{option}[ `]", (REFERENCE / "sessions.md").read_text("utf-8"), re.MULTILINE)


def test_statuses_are_those_of_the_engine() -> None:
    """Every status has a row, and no row is of a status that does not exist."""
    told = (REFERENCE / "statuses.md").read_text("utf-8").partition("## Exit codes")[0]
    assert set(re.findall(r"^\| `([a-z ]+)` \|", told, re.MULTILINE)) == set(get_args(Status))


@pytest.mark.parametrize(
    "kind",
    [RunRecord, StageResult, Check, Ran, Decision, Candidate, Evidence, Rejected],
    ids=lambda kind: str(kind.__name__),
)
def test_recorded_fields_are_explained(kind: type[msgspec.Struct]) -> None:
    """Every key of the JSON files is named in the reference."""
    told = (REFERENCE / "run-directory.md").read_text("utf-8")
    assert [field.name for field in msgspec.structs.fields(kind) if f"`{field.name}`" not in told] == []


def test_modes_are_explained() -> None:
    """Every mode is named where the option is."""
    told = (REFERENCE / "sessions.md").read_text("utf-8")
    assert [mode for mode in get_args(Mode) if f"`{mode}`" not in told] == []


@pytest.mark.parametrize("file", sorted((ROOT / "stages").glob("test_*.py")), ids=lambda file: file.stem)
def test_stage_is_explained(file: Path) -> None:
    """Each has a section in the reference."""
    assert file.stem[len("test_NN_") :] in anchors(REFERENCE / "stages.md")


@pytest.mark.parametrize("file", sorted((ROOT / "lab" / "faults").glob("*.toml")), ids=lambda file: file.stem)
def test_fault_is_explained(file: Path) -> None:
    """Troubleshooting says what comes of each fault of the lab."""
    assert f"`{file.stem}`" in (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")


def test_quoted_grids_have_true_words() -> None:
    """Every row of a grid in the documentation has a status for each of its stages."""
    stages = {file.stem[len("test_NN_") :] for file in (ROOT / "stages").glob("test_*.py")} | {"notice"}
    wrong = [
        row
        for page in PAGES
        for head, row in re.findall(r"^ *(host +[a-z].*)\n *(\S.*)$", page.read_text("utf-8"), re.MULTILINE)
        if not _is_row(re.split(r" {2,}", head.strip()), re.split(r" {2,}", row.strip()), stages)
    ]
    assert wrong == []


def _is_row(head: list[str], row: list[str], stages: set[str]) -> bool:
    known = set(head[1:]) <= stages and set(row[1 : len(head)]) <= set(get_args(Status))
    return known and row[len(head) :] in ([], ["SIMULATED"])
