"""The pytest side of the engine: options, one item per host and stage, statuses, workers, replay.

Named in `stages/conftest.py` only, so that a bare `pytest` runs the tests of the tool and never touches a host.
"""

import contextlib
import fcntl
import runpy
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fleet.clock import now
from fleet.ending import replay, show
from fleet.grid import cell_of, settled
from fleet.host import SshHost
from fleet.model import GOOD, StageResult
from fleet.options import Request, add_options
from fleet.problem import Problem
from fleet.progress import Progress
from fleet.report import HtmlReport, junit_properties, junit_suite_properties
from fleet.run import Run
from fleet.stage import Explain, HostRun, Plan, Read, Site, Verify

THREADS = 32
ROLLBACK = "rollback"
StageCall = Callable[..., None]


class Session:
    """The state of one pytest process: the run, its hosts, and the results so far."""

    def __init__(self, request: Request, worker_run: str) -> None:
        self.request = request
        self.worker = bool(worker_run)
        self.run: Run | None = Run(request.reports / worker_run) if worker_run else request.earlier
        self.stages: list[str] = []
        self.site: Site | None = None
        self.hosts: dict[str, HostRun] = {}
        self.chains: dict[str, Future[dict[str, StageResult]]] = {}
        self.settled: dict[tuple[str, str], StageResult] = {}
        self.progress: Progress | None = None
        self.lock: Any = None

    def host_run(self, name: str) -> HostRun:
        """The one HostRun of a host: one connection per host and run."""
        assert self.site is not None
        if name not in self.hosts:
            spec = next(spec for spec in self.request.specs if spec.name == name)
            self.hosts[name] = HostRun(self.site, SshHost(spec, self.request.accept_new_host_keys))
        return self.hosts[name]

    def result(self, host: str, stage: str, plan: Plan, verify: Verify, explain: Explain | None) -> StageResult:
        """What the stage comes to on the host: replayed, worked out ahead in a thread, or worked out now."""
        if self.request.mode == "replay":
            return self.settled[host, stage]
        if host in self.chains:
            return self.chains[host].result()[stage]
        return self.host_run(host).stage(stage, plan, verify, explain)


KEY = pytest.StashKey[Session]()
RESULT = pytest.StashKey[StageResult]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the stages."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """One xdist worker per host when hosts are changed; everything else runs in threads of this process."""
    if hasattr(config, "workerinput"):
        # A worker that started workers of its own would never end.
        return
    with _told():
        request = Request(config.option)
    if request.mode == "replay" and request.earlier is not None:
        _write_report(config, request.earlier)
    hosts = len(request.host_names)
    if config.pluginmanager.hasplugin("xdist"):
        # Whatever -n says, on the command line or in PYTEST_ADDOPTS.
        many = request.mode == "apply" and hosts > 1
        config.option.numprocesses = min(hosts, config.option.workers) if many else None
        config.option.dist, config.option.tx = "no", []
        # By default a stage that kills its worker is started over and over.
        config.option.maxworkerrestart = "0"


def _write_report(config: pytest.Config, run: Run) -> None:
    """Lets a replay write report.html and junit.xml into its run directory."""
    config.option.htmlpath = f"{run.path}/report.html"
    config.option.self_contained_html = True
    config.option.xmlpath = f"{run.path}/junit.xml"


def pytest_configure(config: pytest.Config) -> None:
    """Reads the inputs; a fault in them ends the run here, in a line, before any host is asked."""
    worker = getattr(config, "workerinput", None)
    with _told():
        request = Request(config.option)
    # The grid tells what failed and why; pytest's own failure sections would say it again.
    config.option.tbstyle = "no"
    config.option.reportchars = ""
    session = Session(request, worker["fleet_run"] if worker else "")
    config.stash[KEY] = session
    with _told():
        session.stages = worker["fleet_stages"] if worker else request.stages_of(_known_stages(config, request))
    if request.mode == "replay":
        _prepare_replay(config, session)
    elif not worker and not config.option.collectonly and not config.option.help:
        assert request.pins is not None
        if config.getoption("numprocesses", None):
            _require_readable(config, session.stages)
        record = request.record(session.stages)
        # First the lock: who comes second must not write into the run of the first.
        with _told():
            session.lock = _only_controller(request.reports / record.id)
            session.run = Run.create(request.reports, record, request.pins.path)
    if not worker and config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(_Workers(), "fleet-workers")


def _known_stages(config: pytest.Config, request: Request) -> list[str]:
    """The stages by their files, in the order of their numbers; the way back is a story of its own."""
    files = sorted((config.rootpath / "stages").glob("test_[0-9][0-9]_*.py"))
    names = [file.stem[len("test_NN_") :] for file in files]
    return [name for name in names if (name == ROLLBACK) == (request.mode == "rollback")]


def _require_readable(config: pytest.Config, stages: list[str]) -> None:
    """Raises UsageError for a stage file that cannot be imported: xdist's workers would go on without it."""
    for name in stages:
        for file in (config.rootpath / "stages").glob(f"test_[0-9][0-9]_{name}.py"):
            try:
                runpy.run_path(str(file), run_name=file.stem)
            except Exception as error:
                raise pytest.UsageError(f"{file}: cannot be imported: {type(error).__name__}: {error}") from None


def _prepare_replay(config: pytest.Config, session: Session) -> None:
    assert session.run is not None
    session.settled = settled(session.run)
    config.pluginmanager.register(HtmlReport(session.run), "fleet-report")


class _Workers:
    """The xdist hooks, registered only where xdist is."""

    def pytest_configure_node(self, node: Any) -> None:
        """Tells a worker which run it belongs to."""
        state = node.config.stash[KEY]
        node.workerinput["fleet_run"] = state.run.path.name
        node.workerinput["fleet_stages"] = state.stages

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Keeps the stages of one host on one worker, in order."""
        from fleet.scheduler import host_scheduling  # noqa: PLC0415 - needs xdist

        return host_scheduling(config, log)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except Problem as problem:
        raise pytest.UsageError(str(problem)) from None
    except OSError as error:
        raise pytest.UsageError(f"{error.filename}: {error.strerror}") from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item per stage and host."""
    if "host_name" in metafunc.fixturenames:
        names = metafunc.config.stash[KEY].request.host_names
        metafunc.parametrize("host_name", names, ids=names)


@pytest.fixture
def stage(request: pytest.FixtureRequest, host_name: str) -> StageCall:
    """Takes the host through the stage of this file: `stage(plan, verify)`."""

    def call(plan: Plan, verify: Verify, explain: Explain | None = None) -> None:
        session = request.config.stash[KEY]
        cell = cell_of(request.node.nodeid)
        assert cell is not None
        result = session.result(host_name, cell[1], plan, verify, explain)
        request.node.stash[RESULT] = result
        _outcome(result)

    return call


def _outcome(result: StageResult) -> None:
    if result.status in GOOD:
        return
    text = f"{result.host} {result.stage}: {result.status}: {result.reason}"
    if result.status == "blocked":
        pytest.skip(text)
    pytest.fail(text, pytrace=False)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the stages that are asked for, host by host in the order of the story."""
    session = config.stash[KEY]
    hosts = {name: number for number, name in enumerate(session.request.host_names)}
    stages = {name: number for number, name in enumerate(session.stages)}
    chosen = [item for item in items if (cell := cell_of(item.nodeid)) and cell[0] in hosts and cell[1] in stages]
    chosen.sort(key=lambda item: (hosts[_cell(item)[0]], stages[_cell(item)[1]]))
    _require_one_each(chosen)
    if not chosen:
        raise pytest.UsageError("no stage found: run `pytest stages` from the top of the checkout")
    items[:] = chosen
    if session.request.mode == "replay":
        for item in items:
            item.user_properties += junit_properties(session.settled[_cell(item)])
    elif session.run is not None:
        reads: dict[str, Read] = {}
        for item in items:
            reads.update(_module(item).READS)
        assert session.request.pins is not None
        session.site = Site(session.run, session.request.pins, session.request.mode, tuple(session.stages), reads)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Marks the whole JUnit file of a replay: run, mode, and what was SIMULATED."""
    state = session.config.stash[KEY]
    workers = session.config.pluginmanager.get_plugin("dsession")
    if workers is not None:
        # "bringing up nodes..." would stand between the events of the hosts.
        workers.terminal = None
        session.config.pluginmanager.unregister(name="terminaldistreporter")
    if state.request.mode == "replay" and state.run is not None:
        junit_suite_properties(session.config, state.run)


def _cell(item: pytest.Item) -> tuple[str, str]:
    cell = cell_of(item.nodeid)
    assert cell is not None
    return cell


def _require_one_each(items: list[pytest.Item]) -> None:
    seen: dict[tuple[str, str], str] = {}
    for item in items:
        other = seen.setdefault(_cell(item), item.nodeid)
        if other != item.nodeid:
            raise pytest.UsageError(f"two tests for one cell of the grid: {other} and {item.nodeid}")


def _module(item: pytest.Item) -> Any:
    return getattr(item, "module")  # noqa: B009 - pytest.Item does not declare it


def _only_controller(path: Path) -> Any:
    """A lock that dies with this process: two controllers on one run would overwrite each other's results."""
    path.mkdir(parents=True, exist_ok=True)
    file = (path / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise pytest.UsageError(f"--run: {path.name} is being worked on by another process") from None
    return file


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Starts the live progress and, where nothing is changed, the threads that work ahead, one per host."""
    state = session.config.stash[KEY]
    if session.config.option.collectonly or state.run is None or state.worker or state.request.mode == "replay":
        return
    state.progress = Progress(state.run)
    state.progress.start()
    if state.request.mode in ("plan", "validate"):
        chains: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            chains.setdefault(_cell(item)[0], []).append(item)
        pool = ThreadPoolExecutor(min(THREADS, len(chains)), thread_name_prefix="host")
        for host, items in chains.items():
            state.chains[host] = pool.submit(_chain, state.host_run(host), items)


def _chain(host: HostRun, items: list[pytest.Item]) -> dict[str, StageResult]:
    results = {}
    for item in items:
        module = _module(item)
        name = _cell(item)[1]
        results[name] = host.stage(name, module.plan, module.verify, getattr(module, "explain", None))
    host.host.close()
    return results


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Puts the status on the report, as plain strings: anything else would end an xdist session."""
    report = yield
    report.user_properties[:] = [(str(name), _bare(value)) for name, value in report.user_properties]
    result = item.stash.get(RESULT, None)
    if report.when == "call" and result is not None:
        report.user_properties.append(("status", result.status))
    return report


def _bare(value: object) -> object:
    # Exact types: a subclass of one of them is none that xdist can send.
    return value if type(value) in (str, int, float, bool, type(None)) else str(value)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Prints why a file of stages cannot be read: no cell of the grid says it."""
    if report.failed:
        sys.stderr.write(f"{report.nodeid}: {report.longreprtext}\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Prints what failed outside of a stage, which no run directory records."""
    if report.failed and "status" not in dict(report.user_properties):
        sys.stderr.write(f"{report.nodeid}: {report.longreprtext}\n")


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Shows the status of the stage instead of passed, failed or skipped."""
    status = dict(report.user_properties).get("status") if report.when == "call" else None
    if status is None:
        return None
    # The live lines already say it; a letter per item would only stand between them.
    category = "failed" if status == "failed" else str(status)
    return category, "", str(status)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Closes the run, then replays it in a process of its own: its verdict is the verdict of the session."""
    state = session.config.stash.get(KEY, None)
    if state is not None and state.progress is not None:
        state.progress.stop()
    if state is None or state.worker or session.config.option.collectonly:
        yield
        return
    # Whoever presses Ctrl-C twice still gets the report: it takes a second.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        # Also when stdout is gone: `| tee` dies of the same Ctrl-C.
        if state.request.mode == "replay":
            _show(session, state)
        elif state.run is not None:
            _close(session, state)


def _close(session: pytest.Session, state: Session) -> None:
    assert state.run is not None
    for host in state.hosts.values():
        host.host.close()
    results = state.run.results()
    stopped = int(session.exitstatus) == int(pytest.ExitCode.INTERRUPTED)
    stopped = stopped or any(result.status == "interrupted" for result in results.values())
    good = all(result.status in GOOD for result in results.values())
    record = state.run.record
    outcome: Any = "interrupted" if stopped else "passed" if good else "failed"
    simulated = sorted({host for (host, _), result in results.items() if result.simulated})
    state.run.write_record(replace(record, finished=now(), outcome=outcome, simulated=simulated))
    rc = replay(state.run, state.request.reports, session.config.rootpath)
    if not stopped:
        session.exitstatus = rc


def _show(session: pytest.Session, state: Session) -> None:
    assert state.run is not None
    show(state.run)
    bad = any(result.status not in GOOD for result in state.settled.values())
    if int(session.exitstatus) in (0, 1, 5):
        session.exitstatus = 1 if bad or not state.settled else 0
