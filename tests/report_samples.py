"""Run directories as a run leaves them, for the tests of its renderings."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

# Imported before any test: an inner pytest run forgets what it imported, and numpy refuses a second time.
import matplotlib.backends.backend_svg  # noqa: F401

from fleet.model import Check, Measured, Ran, RunRecord, StageResult, Status
from fleet.report_page import page
from fleet.run import Run

STAGES = ["driver", "runfile", "toolkit", "wheels", "kernels", "eagle3", "switch"]
TEST_FILES = {stage: f"test_{10 * number}_{stage}.py" for number, stage in enumerate(STAGES, 1)}
GREEN: list[Status] = ["ok", "ok", "changed", "changed", "ok", "ok", "changed"]
REASONS = {
    "driver": "driver 580.95.05 on 8 GPUs",
    "runfile": "4.33 GB, published",
    "eagle3": "122.0 tokens/s with EAGLE-3, 1.32× of without",
}
HOSTILE = (
    "<img src=x onerror=alert(1)></td></details></script><script>alert(1)</script>\"'"
    "\x1b[31mred\x1b[0m\x00\x1b]0;t\x07{{ 7*7 }}{% x %}__class__\u202e&amp;"
)
SECONDS = [0.4, 1.2, 64.0, 41.5, 12.0, 134.2, 0.3]


def new_run(folder: Path, hosts: list[str], **changes: Any) -> Run:
    """A run directory with its record and no results."""
    folder.mkdir(exist_ok=True)
    pins = folder / "source-pins.toml"
    pins.write_text("schema = 1\n")
    known: dict[str, Any] = {
        "id": "20261130T020501Z-apply-9f3a",
        "mode": "apply",
        "started": "2026-11-30T02:05:01Z",
        "finished": "2026-11-30T02:09:34Z",
        "hosts": hosts,
        "addresses": dict.fromkeys(hosts, "127.0.0.1"),
        "stages": STAGES,
        "pins_file": "pins.toml",
        "pins_digest": "5b1f0c9ad2e4",
        "stack": "c13-5b1f0c9ad2e4",
        "argv": ["nox", "-s", "upgrade", "--", "--on", "canary"],
        "versions": {"python": "3.11.7", "pytest": "9.2.0"},
    }
    return Run.create(folder / "reports", RunRecord(**(known | changes)), pins)


def result(host: str, stage: str, status: Status = "ok", **changes: Any) -> StageResult:
    """A cell as the engine writes it."""
    known: dict[str, Any] = {
        "reason": REASONS.get(stage, "") if status in ("ok", "changed") else "",
        "started": "2026-11-30T02:05:04Z",
        "seconds": SECONDS[STAGES.index(stage)],
        "checks": [Check(name=f"{stage} version", want="13.0.2", got="13.0.2", ok=True, read="cat version.json")],
    }
    return StageResult(host=host, stage=stage, status=status, **(known | changes))


def arm(stack: str, speculation: str, samples: list[float], length: float | None = None) -> dict[str, Any]:
    """A measured arm as the EAGLE-3 stage writes it into its facts."""
    return {
        "stack": stack,
        "cuda": "12.8" if stack == "in use" else "13.0",
        "speculation": speculation,
        "tokens_per_s": samples,
        "acceptance_length": length,
        "measured_at": "2026-11-30T02:08:11Z",
    }


ARMS = [
    arm("in use", "without", [90.2, 90.0, 90.4, 90.3, 89.9]),
    arm("in use", "with", [54.1, 52.0, 57.2, 54.0, 55.1], 2.3),
    arm("new", "without", [92.4, 92.1, 92.5, 92.6, 92.3]),
    arm("new", "with", [122.0, 118.2, 125.3, 121.9, 127.0], 2.6),
]
FLOOR = {"tokens_per_s": 90.2, "speedup": 1.0}


def write_green(run: Run, host: str, simulated: bool = True) -> None:
    """A host that went through all stages."""
    for stage, status in zip(STAGES, GREEN, strict=True):
        run.write_result(result(host, stage, status, simulated=simulated, **_evidence(run, host, stage)))


def write_failed(run: Run, host: str, simulated: bool = True) -> None:
    """A host whose toolkit stage failed and blocked what follows."""
    for stage in STAGES[:2]:
        run.write_result(result(host, stage, simulated=simulated))
    run.log_path(host, "toolkit.1.log").write_text("Extracting\nInstaller finished\n")
    failed = Check(
        name="toolkit 13.0.2",
        want="13.0.2 in version.json",
        got="12.8.1",
        ok=False,
        hint="another toolkit owns the symlink; `nox -s plan -- --on lab-02 --only toolkit` shows the change",
        read="cat /opt/fleet/stacks/5b1f/cuda-13.0.2/version.json",
    )
    reason = "toolkit 13.0.2: want 13.0.2 in version.json, got 12.8.1"
    toolkit = result(host, "toolkit", "failed", reason=reason, checks=[failed], commands=_installed(host))
    run.write_result(toolkit)
    for stage in STAGES[3:]:
        blocked = result(host, stage, "blocked", reason=f"toolkit failed: {reason}", seconds=0.0, checks=[])
        run.write_result(blocked)


def two_hosts(folder: Path) -> Run:
    """lab-01 all green, lab-02 failed at toolkit."""
    run = new_run(folder, ["lab-01", "lab-02"], simulated=["lab-01", "lab-02"], outcome="failed")
    write_green(run, "lab-01")
    write_failed(run, "lab-02")
    return run


def _evidence(run: Run, host: str, stage: str) -> dict[str, Any]:
    if stage == "toolkit":
        run.log_path(host, "toolkit.1.log").write_text("progress 1 of 2\rprogress 2 of 2\ninstalled\n")
        return {"commands": _installed(host)}
    if stage == "eagle3":
        found = Measured(inputs="ab12cd", at="2026-11-30T02:08:11Z", result={"runs": 5})
        return {"facts": {"arms": ARMS, "floor": FLOOR, "gpus": 8}, "measured": {"new, with": found}}
    return {}


def _installed(host: str) -> list[Ran]:
    shell = "sudo -n sh cuda_13.0.2_580.95.05_linux.run --silent --toolkit --toolkitpath=/opt/fleet/stacks/5b1f"
    return [
        Ran(
            why="install the CUDA 13.0.2 toolkit into the stack's own directory",
            shell=shell,
            undo="sudo -n rm -rf /opt/fleet/stacks/5b1f/cuda-13.0.2",
            rc=0,
            started="2026-11-30T02:05:20Z",
            seconds=61.0,
            log="toolkit.1.log",
            size_bytes=4328066903,
            undone=host == "lab-02",
        )
    ]


def rendered(run: Run) -> str:
    """The plain part of the page."""
    return page(run, run.record, run.results())


class Page(HTMLParser):
    """What a browser without JavaScript would see of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.hidden = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keeps each element."""
        self.tags.append((tag, dict(attrs)))
        self.hidden = tag in ("style", "script")

    def handle_endtag(self, tag: str) -> None:
        """Goes on reading after a style or script."""
        assert tag
        self.hidden = False

    def handle_data(self, data: str) -> None:
        """Keeps each text."""
        self.words += [] if self.hidden else [data]

    @property
    def text(self) -> str:
        """All text."""
        return " ".join(" ".join(self.words).split())

    def values(self, name: str) -> list[str]:
        """All values of an attribute."""
        return [value for _, attrs in self.tags if (value := attrs.get(name)) is not None]
