"""`nox -s bench`: prints what was measured, its peer, the ratio and the bound; `-- --hosts 20` for fewer lab hosts."""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import fabric

from bench import solve
from checks import driver, runfile, stack, toolkit, wheels
from fleet.host import SshHost
from fleet.hosts import HostSpec, read_hosts
from fleet.pins import read_pins
from fleet.probe import new_nonce, script
from fleet.view import HOST_READS

RUNS = 15
DELAY_MS = 20


class Row(NamedTuple):
    """One line of the table: what was measured, against what, and the bound it should keep."""

    what: str
    value: str
    peer: str
    ratio: float
    bound: str


def median_s(work: Callable[[], object], runs: int = RUNS) -> float:
    """The median wall time of `runs` calls, in seconds, after one that is not counted."""
    work()
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def lab(folder: Path, *words: str) -> None:
    """Runs one lab command for the lab in `folder`. Raises CalledProcessError."""
    subprocess.run(
        [sys.executable, "-m", "lab", words[0], "--dir", str(folder), *words[1:]], check=True, capture_output=True
    )


@contextmanager
def lab_of(hosts: int, *words: str) -> Iterator[Path]:
    """A lab of its own, stopped at the end; gives its folder."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        lab(folder, "up", "--hosts", str(hosts), *words)
        try:
            yield folder
        finally:
            lab(folder, "stop")


def imports() -> Row:
    """The import of the engine, against an interpreter that imports nothing, and in shares of its bound."""
    engine = "import fleet.stage, fleet.host, fleet.pins, fleet.hosts"
    ours = median_s(lambda: subprocess.run([sys.executable, "-c", engine], check=True), 5)
    bare = median_s(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), 5)
    return Row(
        "import of the engine",
        f"{ours - bare:.2f} s",
        f"an empty interpreter {bare:.2f} s",
        (ours - bare) / 0.3,
        "<= 1",
    )


def _stock(spec: HostSpec) -> fabric.Connection:
    return fabric.Connection(
        spec.address, user=spec.user, port=spec.port, connect_kwargs={"key_filename": spec.key, "allow_agent": False}
    )


def commands(spec: HostSpec) -> Row:
    """A warm command, against the same through Fabric as it comes."""
    host, stock = SshHost(spec), _stock(spec)
    ours = median_s(lambda: host.run("true"))
    theirs = median_s(lambda: stock.run("true", hide=True, in_stream=False))
    host.close()
    stock.close()
    return Row("a warm command", f"{1000 * ours:.1f} ms", f"stock Fabric {1000 * theirs:.1f} ms", ours / theirs, "< 1")


def distant_command(folder: Path, spec: HostSpec) -> Row:
    """A warm command over a delayed line, in round trips of that line."""
    with delayed(folder, spec):
        host = SshHost(spec)
        took_ms = 1000 * median_s(lambda: host.run("true"), 7)
        host.close()
    peer = f"two round trips of {DELAY_MS} ms"
    return Row(
        "a warm command, far away", f"{took_ms:.0f} ms", peer, took_ms / (2 * DELAY_MS), f"<= {2 * DELAY_MS + 10} ms"
    )


def distant_probe(folder: Path, spec: HostSpec) -> Row:
    """A whole probe over a delayed line, in round trips beyond what it takes without the delay."""
    at_once, _ = _probe_scripts(folder, spec)
    host = SshHost(spec)
    near_ms = 1000 * median_s(lambda: host.run_bytes(at_once), 5)
    host.close()
    with delayed(folder, spec):
        host = SshHost(spec)
        far_ms = 1000 * median_s(lambda: host.run_bytes(at_once), 5)
        host.close()
    trips = (far_ms - near_ms) / DELAY_MS
    return Row(
        "a probe, far away", f"{far_ms:.0f} ms", f"the same near by {near_ms:.0f} ms", trips, "<= 2 round trips more"
    )


@contextmanager
def delayed(folder: Path, spec: HostSpec) -> Iterator[None]:
    """The host's line takes DELAY_MS longer for each round trip."""
    lab(folder, "set", spec.name, f"ssh.latency_ms={DELAY_MS}")
    time.sleep(1)  # the lab looks at its state every now and then
    yield
    lab(folder, "set", spec.name, "ssh.latency_ms=0")
    time.sleep(1)


def probes(folder: Path, spec: HostSpec) -> Row:
    """All reads of a host in one command, against one command a read."""
    at_once, each = _probe_scripts(folder, spec)
    host = SshHost(spec)
    ours = median_s(lambda: host.run_bytes(at_once), 5)
    theirs = median_s(lambda: [host.run_bytes(one) for one in each], 3)
    host.close()
    return Row(
        f"a probe of {len(each)} reads",
        f"{1000 * ours:.0f} ms",
        f"one by one {1000 * theirs:.0f} ms",
        ours / theirs,
        "< 1",
    )


def _probe_scripts(folder: Path, spec: HostSpec) -> tuple[str, list[str]]:
    pins = read_pins(folder / "pins.toml")
    declared = {**HOST_READS, **driver.READS, **stack.READS, **runfile.READS, **toolkit.READS, **wheels.READS}
    reads = {name: read if isinstance(read, str) else read(spec, pins) for name, read in declared.items()}
    variables = {"ROOT": spec.root, "BASE": spec.base, "TMP": spec.tmp, "NAME": spec.name, "STACK": f"{spec.base}/x"}
    at_once = script(reads, variables, new_nonce())
    return at_once, [script({name: read}, variables, new_nonce()) for name, read in reads.items()]


def plan_of(folder: Path, hosts: int) -> list[Row]:
    """`nox -s plan` over many hosts: wall time, the harness's own CPU per host, memory; against one host."""
    one, _ = _planned(folder, read_hosts(folder / "hosts.toml")[0].name)
    everything, usage = _planned(folder, "")
    cpu_ms = 1000 * (usage.ru_utime + usage.ru_stime) / hosts
    memory_mb = usage.ru_maxrss / 1000
    return [
        Row(
            f"plan over {hosts} hosts",
            f"{everything:.1f} s",
            f"one host {one:.1f} s",
            everything / one,
            "<= 20 s for 100",
        ),
        Row("CPU of the harness a host", f"{cpu_ms:.0f} ms", "bound 80 ms", cpu_ms / 80, "<= 1"),
        Row("memory of the harness", f"{memory_mb:.0f} MB", "bound 300 MB", memory_mb / 300, "<= 1"),
    ]


def _planned(folder: Path, on: str) -> tuple[float, resource.struct_rusage]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "stages",
        "-q",
        "-s",
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
        "--mode=plan",
    ]
    command += [f"--hosts={folder}/hosts.toml", f"--pins={folder}/pins.toml", f"--reports={folder}/reports"]
    started = time.perf_counter()
    child = subprocess.Popen([*command, f"--on={on}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"the plan failed with {os.waitstatus_to_exitcode(status)}: {' '.join(command)}")
    return time.perf_counter() - started, usage


def overhead(folder: Path, spec: HostSpec) -> Row:
    """A proven no-op of all stages, as the harness's share of a stage."""
    flags = [
        f"--hosts={folder}/hosts.toml",
        f"--pins={folder}/pins.toml",
        f"--reports={folder}/reports",
        "--mode=apply",
    ]
    command = [sys.executable, "-m", "pytest", "stages", "-q", "-s", "-o", "addopts=", f"--on={spec.name}", *flags]
    subprocess.run(command, check=True, capture_output=True)
    took = median_s(lambda: subprocess.run(command, check=True, capture_output=True), 3)
    return Row("a no-op upgrade, per stage", f"{took / 7:.2f} s", "bound 1 s", took / 7, "<= 1")


def solves() -> list[Row]:
    """One solve for 100 hosts that are all different: one that ends in a set, one that names what must change."""
    took = {"a solve for 100 hosts": median_s(solve.solved), "a refusal for 100 hosts": median_s(solve.refused, 5)}
    return [Row(what, f"{seconds:.3f} s", "bound 1 s", seconds, "<= 1") for what, seconds in took.items()]


def main() -> None:
    """Prints the table and, as the last line, the same as JSON."""
    parser = argparse.ArgumentParser(prog="nox -s bench --")
    parser.add_argument("--hosts", type=int, default=100, help="how many lab hosts the plan is measured over")
    hosts = parser.parse_args().hosts
    rows = [imports(), *solves()]
    with lab_of(1) as folder:
        spec = read_hosts(folder / "hosts.toml")[0]
        rows += [
            commands(spec),
            distant_command(folder, spec),
            probes(folder, spec),
            distant_probe(folder, spec),
            overhead(folder, spec),
        ]
    with lab_of(hosts, "--minimal") as folder:
        rows += plan_of(folder, hosts)
    out = sys.stdout
    out.write("All hosts are SIMULATED and share this machine.\n\n")
    for row in rows:
        out.write(f"{row.what:<28} {row.value:>9}   {row.peer:<32} ratio {row.ratio:5.2f}   {row.bound}\n")
    out.write(json.dumps([row._asdict() for row in rows]) + "\n")


if __name__ == "__main__":
    main()
