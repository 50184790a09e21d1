"""The decision record: why a version or a file was chosen, as plain data that a run keeps and a report shows."""

from fleet.model import Data


class Evidence(Data, frozen=True, kw_only=True):
    """What one source said about a candidate. Empty fields: the source does not tell."""

    source: str
    """`md5sum.txt`, `redistrib JSON`, `catalogue`, …"""
    says: str
    url: str = ""
    status: int = 0
    """HTTP status; 0 when no server was asked or none answered."""
    size_bytes: int = -1
    """Size of what the candidate names (not of the list); -1 when the source does not tell."""
    checksum: str = ""
    """`md5:…` or `sha256:…`."""
    date: str = ""
    """When it was read: UTC, ISO."""


class Candidate(Data, frozen=True, kw_only=True):
    """One thing that could have been chosen, and what is known of it."""

    name: str
    evidence: list[Evidence] = []


class Rejected(Data, frozen=True, kw_only=True):
    """One thing that was not chosen, and why."""

    name: str
    reason: str


class Decision(Data, frozen=True, kw_only=True):
    """One choice with its whole ground."""

    subject: str
    """What was to be chosen: `CUDA runfile for linux-x86_64`."""
    wish: str
    """What was asked for: `13.0.2`, `newest in 13.0`."""
    candidates: list[Candidate] = []
    chosen: str = ""
    """Empty when nothing fits."""
    reason: str
    rejected: list[Rejected] = []
    conflicts: list[str] = []
    """Where sources contradict each other, a sentence each."""
