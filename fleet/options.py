"""The command line of the stages, and what it means: which hosts, which stages, which run."""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from fleet import __version__
from fleet.clock import now
from fleet.hosts import HostSpec, chosen_hosts, read_hosts
from fleet.model import Mode, RunRecord
from fleet.pins import Pins, read_pins
from fleet.problem import Problem, did_you_mean
from fleet.run import Run, find_run, new_run_id

LOCAL_INVENTORY = "hosts.toml"


def add_options(parser: pytest.Parser) -> None:
    """Adds the options; each help text is the reference."""
    group = parser.getgroup("fleet", "GPU stack upgrade")
    group.addoption("--mode", default="plan", choices=get_args(Mode), help="plan (default) changes nothing")
    group.addoption("--hosts", default=LOCAL_INVENTORY, metavar="FILE", help="inventory (default: hosts.toml)")
    group.addoption("--pins", default="pins.toml", metavar="FILE", help="versions and gates (default: pins.toml)")
    group.addoption("--on", default="", metavar="NAMES", help="hosts or groups, comma-separated (default: all)")
    group.addoption(
        "--only", default="", metavar="STAGES", help="just these stages, comma-separated; with --from: these too"
    )
    group.addoption("--from", dest="from_stage", default="", metavar="STAGE", help="this stage and the later ones")
    group.addoption("--run", default="", metavar="ID", help="go on with a run: its id, or latest")
    group.addoption("--reports", default="reports", metavar="DIR", help="where run directories live")
    group.addoption("--workers", type=int, default=24, metavar="N", help="hosts changed at the same time")
    group.addoption(
        "--accept-new-host-keys",
        action="store_true",
        help="record the key of a host that was never met, instead of refusing it; a changed key is always refused",
    )


class Request:
    """What a command line asks for, checked; no host has been contacted yet."""

    def __init__(self, options: Any) -> None:
        self.mode: Mode = options.mode
        if options.workers < 1:
            raise Problem(f"--workers: want at least one, got {options.workers}")
        self.reports = Path(options.reports)
        self.earlier: Run | None = None
        if options.run:
            wanted: Mode | None = None if self.mode == "replay" else self.mode
            self.earlier = find_run(self.reports, options.run, wanted)
        elif self.mode == "replay":
            self.earlier = find_run(self.reports, "latest")
        self.options = options
        self.accept_new_host_keys: bool = options.accept_new_host_keys
        self.pins: Pins | None = None
        self.specs: list[HostSpec] = []
        if self.mode != "replay":
            self._read_inputs()

    def _read_inputs(self) -> None:
        self.pins = read_pins(Path(self.options.pins))
        path = Path(self.options.hosts)
        known = read_hosts(path)
        if self.earlier is None:
            self.specs = chosen_hosts(known, self.options.on, path)
            return
        record = self.earlier.record
        if record.mode != self.mode:
            raise Problem(f"--run: {record.id} is a {record.mode} run, not one of mode {self.mode}")
        if record.pins_digest != self.pins.digest:
            hint = "start a new run, or give back the pins: they are kept beside the run"
            raise Problem(f"--run: {record.id} was made with other pins", hint)
        self.specs = chosen_hosts(known, self.options.on or ",".join(record.hosts), path)

    @property
    def host_names(self) -> list[str]:
        """The hosts of the run, in order."""
        if self.mode == "replay":
            assert self.earlier is not None
            return self.earlier.record.hosts
        return [spec.name for spec in self.specs]

    def stages_of(self, known: list[str]) -> list[str]:
        """The stages that are asked for, out of the known ones in their order; --only and --from add up.

        Raises Problem for an unknown name.
        """
        if self.mode == "replay":
            assert self.earlier is not None
            return self.earlier.record.stages
        only = [word.strip() for word in self.options.only.split(",") if word.strip()]
        start = self.options.from_stage.strip()
        if self.options.only and not only:
            raise Problem(f"--only: want names of stages, got {self.options.only!r}")
        for option, words in (("--only", only), ("--from", [start] if start else [])):
            for word in words:
                if word not in known:
                    raise Problem(f"{option}: unknown stage `{word}`" + did_you_mean(word, known))
        if not only and not start:
            return known if self.earlier is None else self.earlier.record.stages
        later = known[known.index(start) :] if start else []
        return [stage for stage in known if stage in only or stage in later]

    def record(self, stages: list[str]) -> RunRecord:
        """run.json for this request; a resumed run keeps its id, its start and its extent."""
        assert self.pins is not None
        record = RunRecord(
            id=new_run_id(self.mode),
            mode=self.mode,
            started=now(),
            hosts=self.host_names,
            addresses={spec.name: spec.address for spec in self.specs},
            stages=stages,
            pins_file=str(self.pins.path),
            pins_digest=self.pins.digest,
            stack=self.pins.stack,
            argv=sys.argv[1:],
            versions={name: version(name) for name in ("pytest", "fabric", "paramiko")} | {"fleet": __version__},
        )
        if self.earlier is None:
            return record
        before = self.earlier.record
        return msgspec.structs.replace(
            record,
            id=before.id,
            started=before.started,
            hosts=list(dict.fromkeys([*before.hosts, *record.hosts])),
            addresses={**before.addresses, **record.addresses},
            stages=list(dict.fromkeys([*before.stages, *stages])),
        )
