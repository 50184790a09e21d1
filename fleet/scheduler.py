"""Hands whole hosts to xdist's workers: one host's stages stay on one worker, in order."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class HostScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Groups items by host.

    `--dist loadgroup` would do the same, but silently stops grouping on pytest 9.2.0
    (https://github.com/pytest-dev/pytest-xdist/issues/1386).
    """

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.rpartition("[")[2].rstrip("]")


def host_scheduling(config: pytest.Config, log: Any) -> HostScheduling:
    """The scheduler of a run that changes hosts."""
    return HostScheduling(config, log)
