"""Sessions: what can be done, one after the other. Each is an argument list; the work is in stages/ and fleet/.

Options go after `--`: nox -s upgrade -- --on gpu-01,canary --only toolkit --from wheels --run latest
"""

import logging
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
# One environment for all sessions (ENV), instead of one each: it takes half a minute to make.
nox.options.default_venv_backend = "none"
nox.options.sessions = ["plan"]
# By default nox goes on to the next session after a failure.
nox.options.stop_on_first_error = True
# nox looks for a uv that no session of ours asks it for, and its absence reads like a fault.
logging.getLogger("nox").addFilter(lambda record: "uv binary not found" not in record.getMessage())

ENV = Path(".nox/fleet")
PYTHON = str(ENV / "bin" / "python")
LOCK = Path("requirements.lock")
STAGES = [PYTHON, "-m", "pytest", "stages", "-q", "-s", "--no-header", "-p", "no:cacheprovider", "-o", "addopts="]


def prepare(session: nox.Session) -> None:
    """Makes the environment of all sessions from the lock, when it is missing or the lock has changed."""
    stamp = ENV / "installed.lock"
    if stamp.is_file() and stamp.read_bytes() == LOCK.read_bytes():
        return
    session.log(f"making {ENV} from {LOCK} (once)")
    if shutil.which("uv"):
        session.run("uv", "venv", "--clear", "--quiet", "--python", sys.executable, str(ENV))
        session.run("uv", "pip", "sync", "--quiet", "--require-hashes", "--python", PYTHON, str(LOCK))
    else:
        session.run(sys.executable, "-m", "venv", "--clear", str(ENV))
        session.run(PYTHON, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(LOCK))
    shutil.copyfile(LOCK, stamp)


def targets(session: nox.Session) -> list[str]:
    """The inventory: hosts.toml, or what the caller names, or else the built-in lab host."""
    if Path("hosts.toml").is_file() or any(word.startswith("--hosts") for word in session.posargs):
        return []
    session.log(
        "no hosts.toml: using the built-in lab host (SIMULATED); hosts.example.toml shows how to name real ones"
    )
    # A proxy for the internet knows nothing of hosts on loopback.
    beside = ",".join(filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY", ""), "127.0.0.1"]))
    session.env.update({"NO_PROXY": beside, "no_proxy": beside})
    session.run(PYTHON, "-m", "lab", "up", "--keep", silent=True)
    return ["--hosts=.lab/hosts.toml", "--pins=.lab/pins.toml"]


def stages(session: nox.Session, mode: str, *extra: str, success_codes: Sequence[int] = (0,)) -> None:
    """Runs the stages in one mode. After a Ctrl-C there is time to write the report."""
    prepare(session)
    command = [*STAGES, f"--mode={mode}", *targets(session), *extra, *session.posargs]
    # What a developer sets for pytest is not meant for hosts.
    env = {"PYTEST_ADDOPTS": None, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": None, "PYTEST_PLUGINS": None}
    session.run(*command, interrupt_timeout=60, success_codes=success_codes, env=env)


@nox.session
def plan(session: nox.Session) -> None:
    """Show what an upgrade would do, per host and stage; changes nothing."""
    stages(session, "plan")


@nox.session
def upgrade(session: nox.Session) -> None:
    """Bring the hosts to pins.toml: driver check, runfile, toolkit, wheels, kernels, EAGLE-3, switch."""
    stages(session, "apply")


@nox.session
def validate(session: nox.Session) -> None:
    """Check and measure the stack in use on the hosts; changes nothing."""
    stages(session, "validate")


@nox.session
def rollback(session: nox.Session) -> None:
    """Put the former stack in use again, then validate it."""
    stages(session, "rollback")
    # The way back is taken; what validation finds is shown, and is `make validate`'s to fail on.
    stages(session, "validate", success_codes=[0, 1])


@nox.session
def report(session: nox.Session) -> None:
    """Show a run again and write its report.html: the newest, or `-- --run ID`."""
    prepare(session)
    session.run(*STAGES, "--mode=replay", *session.posargs)


@nox.session
def driver(session: nox.Session) -> None:
    """Does the loaded driver carry the pinned CUDA? Only this stage of an upgrade."""
    stages(session, "apply", "--only=driver")


@nox.session
def runfile(session: nox.Session) -> None:
    """Is the pinned runfile really published, and is there room for it? Only this stage of an upgrade."""
    stages(session, "apply", "--only=runfile")


@nox.session
def toolkit(session: nox.Session) -> None:
    """Install the pinned CUDA toolkit beside what is there. Only this stage of an upgrade."""
    stages(session, "apply", "--only=toolkit")


@nox.session
def wheels(session: nox.Session) -> None:
    """Install the locked wheels into the stack's own venv. Only this stage of an upgrade."""
    stages(session, "apply", "--only=wheels")


@nox.session
def kernels(session: nox.Session) -> None:
    """Compare the kernels of the new stack with float64. Only this stage of an upgrade."""
    stages(session, "apply", "--only=kernels")


@nox.session
def eagle3(session: nox.Session) -> None:
    """Measure EAGLE-3 of the new stack against without, and against the stack before. Only this stage."""
    stages(session, "apply", "--only=eagle3")


@nox.session
def switch(session: nox.Session) -> None:
    """Put the new stack in use by one rename. Only this stage of an upgrade."""
    stages(session, "apply", "--only=switch")


@nox.session
def pins(session: nox.Session) -> None:
    """Today's pins against the newest consistent set; `-- --write` writes them, `-- --run latest` for real hosts."""
    prepare(session)
    session.run(PYTHON, "-m", "checks.propose", *session.posargs)


@nox.session
def lab(session: nox.Session) -> None:
    """Run simulated hosts until Ctrl-C: `-- --hosts 2`, `-- --fault NAME`, `-- --reset` starts over."""
    prepare(session)
    session.run(PYTHON, "-m", "lab", "serve", *session.posargs, interrupt_timeout=10)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types of the tool itself."""
    prepare(session)
    session.run(PYTHON, "-m", "ruff", "check", ".")
    session.run(PYTHON, "-m", "ruff", "format", "--check", ".")
    session.run(PYTHON, "-m", "mypy", "fleet", "checks", "stages", "lab", "bench", "tests")


@nox.session
def tests(session: nox.Session) -> None:
    """Test the tool itself: `-- -k NAME` for some."""
    prepare(session)
    # Most tests wait for processes of their own: three at a time keep two cores busy. A file stays on one worker, where
    # what its tests share is made once.
    session.run(PYTHON, "-m", "pytest", "-n", "3", "--dist", "loadscope", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the speed of the tool itself, as ratios in one run."""
    prepare(session)
    session.run(PYTHON, "-m", "bench", *session.posargs)
