"""Downloads one file of known size and SHA-256 on the host that needs it, and says what it got.

    python3 fetch.py URL DEST --size N --sha256 HEX [--deadline S] [--backoff S]

Stand-alone, standard library only, Python 3.9 or newer. The bytes go to DEST.part, which a later call
resumes; DEST appears by rename, and only when size and checksum are right. On stdout: `progress <done>
<total>` lines, then one JSON line {"ok", "verdict", "bytes", "sha256", "resumed_from", "attempts", "error"}.
Exit 0 only when DEST is complete.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import hashlib
import http.client
import json
import os
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, BinaryIO

CHUNK_BYTES = 1 << 20
READ_TIMEOUT_S = 30.0
LONGEST_PAUSE_S = 60.0
FAILURES_IN_A_ROW = 6
PROGRESS_EVERY_S = 0.2
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
PAGE_STARTS = (b"<!doctype", b"<html", b"<?xml", b"<head")


class Final(Exception):
    """A verdict that trying again would not change."""

    def __init__(self, verdict: str, error: str) -> None:
        super().__init__(error)
        self.verdict = verdict
        self.error = error


class Again(Exception):
    """A fault that may pass: the verdict it becomes when it does not, and the pause the server asked for."""

    def __init__(self, verdict: str, error: str, wait_s: float | None = None) -> None:
        super().__init__(error)
        self.verdict = verdict
        self.error = error
        self.wait_s = wait_s


@dataclass(frozen=True)
class Job:
    """What to bring, and where to."""

    url: str
    dest: Path
    size: int
    sha256: str
    ends_at: float
    backoff_s: float

    @property
    def part(self) -> Path:
        """The unfinished file."""
        return self.dest.with_name(self.dest.name + ".part")

    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.ends_at - time.monotonic()


@dataclass
class State:
    """How far the download is."""

    total: int
    done: int = 0
    best: int = 0
    attempts: int = 0
    resumed_from: int = 0
    sha256: str | None = None
    told_at: float = field(default=-PROGRESS_EVERY_S)

    def restart(self) -> None:
        """Forget the bytes so far: they do not continue the file that is served now."""
        self.done = self.resumed_from = 0

    def tell(self, last: bool = False) -> None:
        """Print a progress line, unless one was printed just now."""
        now = time.monotonic()
        if last or now - self.told_at >= PROGRESS_EVERY_S:
            self.told_at = now
            sys.stdout.write(f"progress {min(self.done, self.total)} {self.total}\n")
            sys.stdout.flush()


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, as hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def disk_fault(error: OSError, path: Path) -> Final:
    """What a failed write means."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return Final("no space", f"{path}: {error.strerror}")
    return Final("not writable", f"{path}: {error.strerror or error}")


def retry_after_s(value: str | None) -> float | None:
    """Seconds of a Retry-After header: a number or an HTTP date; None when absent or unreadable."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def http_fault(error: urllib.error.HTTPError, job: Job, state: State) -> Exception:
    """What an HTTP error status means: final, or worth another try."""
    verdict = f"http {error.code}"
    text = f"{job.url}: {verdict} {error.reason}"
    if error.code == 416 and state.done:
        state.restart()
        return Again("size differs", text, 0.0)
    if error.code in TRANSIENT:
        return Again(verdict, text, retry_after_s(error.headers.get("Retry-After")))
    return Final(verdict, text)


def network_fault(error: Exception, job: Job, state: State) -> Exception:
    """What a broken or refused connection means."""
    reason = getattr(error, "reason", error)
    text = f"{job.url}: {type(reason).__name__}: {reason}"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return Final("unreachable", text)
    return Again("truncated" if state.done else "unreachable", text)


def opened(job: Job, state: State) -> http.client.HTTPResponse:
    """The response to a request for what is missing. Raises Final or Again."""
    headers = {"User-Agent": "gpu-stack-upgrade", "Accept-Encoding": "identity"}
    if state.done:
        headers["Range"] = f"bytes={state.done}-"
    request = urllib.request.Request(job.url, headers=headers)  # noqa: S310  # main() refuses other schemes
    try:
        timeout_s = max(0.1, min(READ_TIMEOUT_S, job.left_s()))
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s)  # noqa: S310
    except urllib.error.HTTPError as error:
        with error:
            raise http_fault(error, job, state) from None
    except (OSError, http.client.HTTPException) as error:
        raise network_fault(error, job, state) from None
    return response


def accept(response: http.client.HTTPResponse, job: Job, state: State) -> None:
    """Check the headers before the body. A server that ignores Range sends everything: start again from 0."""
    kind = (response.headers.get("Content-Type") or "").split(";")[0].strip().lower()
    if kind in {"text/html", "application/xhtml+xml"}:
        raise Final("not a runfile", f"{response.url}: content type {kind}")
    if response.status == 206:
        accept_range(response.headers.get("Content-Range") or "", job, state)
        return
    state.restart()
    length = response.headers.get("Content-Length") or ""
    if length.isdigit() and int(length) != job.size:
        verdict = "truncated" if int(length) < job.size else "size differs"
        raise Final(verdict, f"{response.url}: want {job.size} bytes, the server has {length}")


def accept_range(value: str, job: Job, state: State) -> None:
    """Check that a partial answer continues our file: `bytes <first>-<last>/<total or *>`."""
    span, _, total = value.replace("bytes", "", 1).strip().partition("/")
    if total.isdigit() and int(total) != job.size:
        verdict = "truncated" if int(total) < job.size else "size differs"
        raise Final(verdict, f"{job.url}: want {job.size} bytes, the server has {total}")
    if span.partition("-")[0] != str(state.done):
        text = f"{job.url}: asked for byte {state.done}, got range {value!r}"
        state.restart()
        raise Again("size differs", text, 0.0)


def require_head(head: bytes, job: Job) -> None:
    """A page that says it is a download, or a runfile that is no script, ends the job at its first bytes."""
    if head.lstrip().lower().startswith(PAGE_STARTS):
        raise Final("not a runfile", f"{job.url}: the body is a page: {head[:40]!r}")
    if job.dest.name.endswith(".run") and not head.startswith(b"#!"):
        raise Final("not a runfile", f"{job.url}: want a body that begins with #!, got {head[:16]!r}")


def attempt(job: Job, state: State, file: BinaryIO) -> None:
    """One request, read into the file. Raises Again when the connection ends before the file does."""
    with opened(job, state) as response:
        accept(response, job, state)
        try:
            file.truncate(state.done)
            file.seek(state.done)
        except OSError as error:
            raise disk_fault(error, job.part) from None
        while chunk := next_chunk(response, job, state):
            keep(chunk, file, job, state)
    if state.done < job.size:
        raise Again("truncated", f"{job.url}: the connection ended at byte {state.done} of {job.size}")


def next_chunk(response: http.client.HTTPResponse, job: Job, state: State) -> bytes:
    """More bytes, never beyond one more than the size; empty at the end."""
    if job.left_s() <= 0:
        raise Final("deadline passed", f"{job.url}: {state.done} of {job.size} bytes in the time given")
    wanted = job.size + 1 - state.done
    try:
        # read, not read1, for the first bytes: they are judged together.
        return response.read(min(64, wanted)) if not state.done else response.read1(min(CHUNK_BYTES, wanted))
    except (OSError, http.client.HTTPException) as error:
        raise network_fault(error, job, state) from None


def keep(chunk: bytes, file: BinaryIO, job: Job, state: State) -> None:
    """Write one chunk and count it."""
    if not state.done:
        require_head(chunk, job)
    state.done += len(chunk)
    if state.done > job.size:
        raise Final("size differs", f"{job.url}: more than {job.size} bytes")
    try:
        file.write(chunk)
    except OSError as error:
        raise disk_fault(error, job.part) from None
    state.best = max(state.best, state.done)
    state.tell()


def pause(job: Job, failures: int, fault: Again) -> None:
    """Wait before the next attempt; raise Final when there is none."""
    if failures >= FAILURES_IN_A_ROW:
        raise Final(fault.verdict, f"{fault.error} ({failures} attempts without progress)")
    wait_s = fault.wait_s
    if wait_s is None:
        wait_s = min(LONGEST_PAUSE_S, job.backoff_s * 2 ** (failures - 1))
    if wait_s >= job.left_s():
        raise Final("deadline passed", f"{fault.error}; the next attempt would be in {wait_s:.0f} s")
    time.sleep(wait_s)


def download(job: Job, state: State, file: BinaryIO) -> None:
    """Bring the missing bytes, over as many attempts as bring something new."""
    failures = 0
    while state.done < job.size:
        state.attempts += 1
        before = state.best
        try:
            attempt(job, state, file)
        except Again as fault:
            # The best so far, not this attempt's bytes: a server without Range starts from 0 each time.
            failures = 1 if state.best > before else failures + 1
            if state.done < job.size:
                pause(job, failures, fault)


def verified(job: Job, state: State, file: BinaryIO) -> bool:
    """The part file has the pinned checksum. Raises Final on a fresh file that has not."""
    file.flush()
    os.fsync(file.fileno())
    state.sha256 = sha256_of(job.part)
    if state.sha256 == job.sha256:
        return True
    if state.resumed_from:
        # The old part may be of another file: one download from the first byte decides.
        state.restart()
        state.best = 0
        return False
    job.part.unlink()
    raise Final("checksum differs", f"{job.dest.name}: want sha256 {job.sha256}, got {state.sha256}")


def require_space(job: Job, state: State) -> None:
    """Raise Final when the rest of the file does not fit."""
    free = shutil.disk_usage(job.part.parent).free
    if free < job.size - state.done:
        need = job.size - state.done
        raise Final("no space", f"{job.part.parent}: want {need} bytes free, got {free}")


def bring(job: Job, state: State) -> None:
    """Make DEST complete. Raises Final when that fails."""
    if job.dest.is_file() and job.dest.stat().st_size == job.size:
        state.sha256 = sha256_of(job.dest)
        if state.sha256 == job.sha256:
            state.done = job.size
            return
    try:
        job.dest.parent.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(job.part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b", buffering=0)
    except OSError as error:
        raise disk_fault(error, job.part) from None
    with file:
        fill(job, state, file)


def fill(job: Job, state: State, file: BinaryIO) -> None:
    """Download into the open part file under its lock, verify it, and rename it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Final("busy", f"{job.part}: another download is writing it") from None
    have = job.part.stat().st_size
    state.done = state.best = state.resumed_from = have if have <= job.size else 0
    require_space(job, state)
    state.tell()
    download(job, state, file)
    while not verified(job, state, file):
        download(job, state, file)
    job.part.replace(job.dest)


def report(job: Job, state: State, verdict: str, error: str) -> int:
    """Print the last progress line and the verdict; the exit status."""
    answer: dict[str, Any] = {
        "ok": verdict == "complete",
        "verdict": verdict,
        "bytes": min(state.done, job.size + 1),
        "sha256": state.sha256,
        "resumed_from": state.resumed_from,
        "attempts": state.attempts,
        "error": error or None,
    }
    state.tell(last=True)
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0 if verdict == "complete" else 1


def run(job: Job) -> int:
    """Bring the file and report."""
    state = State(job.size)
    try:
        if not job.url.startswith(("http://", "https://")):
            raise Final("unreachable", f"{job.url}: want an http or https address")
        bring(job, state)
    except Final as fault:
        return report(job, state, fault.verdict, fault.error)
    except Exception as error:
        return report(job, state, "broken", f"{type(error).__name__}: {error}")
    return report(job, state, "complete", "")


def main(argv: list[str]) -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("url")
    parser.add_argument("dest", type=Path)
    parser.add_argument("--size", type=int, required=True, help="bytes the file must have")
    parser.add_argument("--sha256", required=True, help="hex digits the file must have")
    parser.add_argument("--deadline", type=float, default=14400.0, help="seconds for everything")
    parser.add_argument("--backoff", type=float, default=1.0, help="seconds before attempt 2; doubles")
    given = parser.parse_args(argv)
    ends_at = time.monotonic() + given.deadline
    return run(Job(given.url, given.dest, given.size, given.sha256.lower(), ends_at, given.backoff))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
