"""Asks whether a CUDA toolkit is complete and works: version.json, nvcc, a kernel compiled for the host's GPUs."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from checks import driver, runfile
from checks.stack import Stack, anew, parse_version_json
from fleet.model import Check, Command
from fleet.pins import Pins
from fleet.view import View
from fleet.work import q, sh

FETCH = Path(__file__).parent / "remote" / "fetch.py"
READS: Mapping[str, Any] = {
    **driver.READS,
    "toolkit.complete": 'cat "$STACK"/cuda-*/.complete',
    "toolkit.version": 'cat "$STACK"/cuda-*/version.json',
    "toolkit.system_link": 'readlink "$ROOT/usr/local/cuda"',
}
KERNEL = "__global__ void probe(float *x) { x[threadIdx.x] *= 2.0f; }"


def is_complete(host: View, stack: Stack) -> bool:
    """The installation went to its end: the mark is written after the installer and its check."""
    return host.read("toolkit.complete").out.strip() == stack.cuda_version


def downloaded(host: View, pins: Pins) -> str:
    """Where the runfile is kept on the host until it has been installed."""
    found = runfile.pinned_runfile(host, pins)
    return f"{host.spec.base}/downloads/{found.file if found else 'none'}"


def download(host: View, pins: Pins) -> Command:
    """Fetches the runfile to the host, resumed and verified; done at once when the verified file is there."""
    pinned = runfile.pinned_runfile(host, pins)
    assert pinned is not None, "the runfile stage has checked that there is one"
    target = downloaded(host, pins)
    known = ["--size", str(pinned.size_bytes), "--sha256", pinned.sha256]
    # A mirror that is a folder lies on the machine of the controller: the host cannot read it.
    places = [place for place in pins.cuda.mirrors if place.startswith(("http://", "https://"))]
    urls = [runfile.url_of(pins, pinned, place) for place in (pins.cuda.mirror, *places)]
    # The first mirror that serves the pinned file, whole, ends the list.
    fetches = [shlex.join(["python3", "./fetch.py", url, target, *known]) for url in urls]
    return Command(
        why=f"download {pinned.file}",
        shell=sh(f"mkdir -p {q(host.spec.base + '/downloads')}", " || ".join(fetches)),
        undo=f"rm -f {q(target)} {q(target + '.part')}",
        # 1 MB/s is the slowest line that is worth waiting for.
        timeout_s=600 + pinned.size_bytes / 1e6,
        size_bytes=pinned.size_bytes,
        keep=True,
        files={"fetch.py": FETCH.read_text("utf-8")},
    )


def install(host: View, pins: Pins, stack: Stack) -> Command:
    """Runs the installer silently, toolkit only, into the stack's own directory."""
    target, archive = stack.cuda_dir, downloaded(host, pins)
    root = host.spec.root.rstrip("/")
    link, logs = q(f"{root}/usr/local/cuda"), f"{q(f'{root}/var/log')} {q(host.spec.tmp)}"
    options = ["--silent", "--toolkit", f"--toolkitpath={target}", f"--tmpdir={host.spec.tmp}", "--override"]
    # As root the installer points /usr/local/cuda at the new toolkit: that link belongs to the stack in use.
    return Command(
        why=f"install the CUDA {stack.cuda_version} toolkit",
        shell=sh(
            # Another run may have made it since the plan, and may use it by now.
            f'[ "$(cat {q(target)}/.complete 2>/dev/null)" != {q(stack.cuda_version)} ] || exit 0',
            f"before=$(readlink {link} || true)",
            f"rm -rf {q(target)}",
            f"mkdir -p {q(target)}",
            # What went wrong stands only in the installer's own log: as root in /var/log, else in tmp.
            f"env -u DISPLAY -u SUDO_USER LANG=C sh {q(archive)} {shlex.join(options)} --no-man-page || {{",
            "  rc=$?",
            f"  for d in {logs}; do",
            '    if [ "$d/cuda-installer.log" -nt run.sh ]; then tail -n 20 "$d/cuda-installer.log"; fi',
            "  done",
            "  exit $rc",
            "}",
            f"after=$(readlink {link} || true)",
            'if [ "$after" != "$before" ]; then',
            f'  if [ -n "$before" ]; then ln -sfn "$before" {link}; else rm -f {link}; fi',
            "  echo 'gave /usr/local/cuda back to the stack in use'",
            "fi",
            f"[ -x {q(target)}/bin/nvcc ] || {{ echo 'the installer exited 0 and left no bin/nvcc' >&2; exit 90; }}",
            f"printf %s {q(stack.cuda_version)} > {q(target)}/.complete",
            f"rm -f {q(archive)}",
        ),
        undo=f"rm -rf {q(target)}",
        timeout_s=3600,
    )


def explain(rc: int, log: str) -> tuple[str, str]:
    """The cause behind an installer's exit code and log, and what to do: two empty texts when unknown."""
    for known_rc, words, cause, advice in _KNOWN:
        if (known_rc is None or rc == known_rc) and words in log:
            return cause, advice
    return "", ""


_KNOWN: list[tuple[int | None, str, str, str]] = [
    (
        90,
        "",
        "the installer reports success and installed nothing",
        "read /var/log/cuda-installer.log on the host, then `nox -s toolkit`",
    ),
    (15, "", "the archive could not be unpacked", "free space in tmp, or set `tmp` in hosts.toml"),
    (2, "archive size", "the downloaded archive is cut", "`nox -s toolkit` downloads it again"),
    (127, "libxml2", "the installer needs libxml2.so.2", "install libxml2 on the host, then `nox -s toolkit`"),
    (None, "No space left on device", "a disk is full", "free it, then `nox -s toolkit`"),
    (
        None,
        '"verdict": "truncated"',
        "the download ends too early",
        "`nox -s toolkit` resumes it; else try another mirror",
    ),
    (None, '"verdict": "checksum', "the download is not the pinned file", "compare the mirror with pins.toml"),
    (None, '"verdict": "no space"', "a disk is full", "free it, then `nox -s toolkit`"),
    (None, '"verdict": "', "the download failed", "`nox -s runfile` tells what the mirror says now"),
    (None, "Installation failed", "", "the end of the log tells why; mend that, then `nox -s toolkit`"),
]
"""Exit code (None: any), words in the log, cause, advice; codes as makeself and public reports have them."""


def compiles(stack: Stack, capability: str) -> str:
    """A command that compiles a kernel for one compute capability and prints the size of what came out."""
    arch = q("-arch=sm_" + capability.replace(".", ""))
    nvcc = q(f"{stack.cuda_dir}/bin/nvcc")
    script = sh(
        "d=$(mktemp -d)",
        "trap 'rm -rf \"$d\"' EXIT",
        f"printf '%s\\n' {q(KERNEL)} > \"$d/probe.cu\"",
        f'timeout 60 {nvcc} {arch} -cubin -o "$d/probe.cubin" "$d/probe.cu"',
        'wc -c < "$d/probe.cubin"',
    )
    return shlex.join(["sh", "-c", script])


def title(host: View, stack: Stack) -> str:
    """The toolkit in a line: its release, and the GPUs it is asked to compile for."""
    arches = sorted({f"sm_{gpu.capability.replace('.', '')}" for gpu in driver.gpus(host)})
    return f"CUDA {stack.cuda_version or 'unknown'} for {', '.join(arches) or 'no GPU'}"


def works(host: View, stack: Stack) -> Iterator[Check]:
    """Whether the toolkit says it is that release, and compiles a kernel for each of the host's GPUs."""
    if not stack.cuda_dir:
        yield Check(
            name="toolkit", want="a toolkit in use", got="none found", ok=None, hint="set in_use.cuda in hosts.toml"
        )
        return
    yield _release(host, stack)
    capabilities = sorted({gpu.capability for gpu in driver.gpus(host)})
    if not capabilities:
        yield Check(name="nvcc compiles", want="a kernel for the host's GPUs", got="no GPU visible", ok=None)
    for capability in capabilities:
        answer = host.ask(compiles(stack, capability), timeout_s=90)
        made = answer.out.strip()
        good = answer.ok and re.fullmatch(r"0*[1-9][0-9]*", made) is not None
        hint = f"it does not know this GPU, or is {anew(host, stack.name, stack.cuda_dir, 'toolkit')}"
        last = (answer.err.strip() or answer.out.strip() or f"exit {answer.rc}").splitlines()[-1]
        yield Check(
            name=f"nvcc compiles for sm_{capability.replace('.', '')}",
            want="a kernel, by use",
            got=f"{made} bytes" if good else last[:200],
            ok=good,
            hint="" if good else hint,
            read=f"{stack.cuda_dir}/bin/nvcc",
        )


def _release(host: View, stack: Stack) -> Check:
    # version.json, not nvcc: 13.0.1 to 13.0.3 all print V13.0.88.
    path = f"{stack.cuda_dir}/version.json"
    got = parse_version_json(host.ask(f"cat {q(path)}").out)
    ok = bool(got) and got == stack.cuda_version
    hint = (
        "" if ok else "another toolkit, or none, is in that directory: `nox -s plan -- --only toolkit` shows the change"
    )
    return Check(name="toolkit", want=stack.cuda_version, got=got or "no version.json", ok=ok, hint=hint, read=path)
