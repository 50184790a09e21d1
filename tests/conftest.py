"""Fixtures of the end-to-end tests; those that need a whole scene run after all others."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from stages_kit import Scene, open_scene


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests first: whoever broke something small need not wait for the long ones."""
    items.sort(key=lambda item: "lab_cache" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def lab_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels and runfiles of all scenes, built once."""
    return tmp_path_factory.mktemp("lab-cache")


@pytest.fixture
def scene(tmp_path: Path, lab_cache: Path) -> Iterator[Callable[..., Scene]]:
    """Opens the test's own scene: `scene(hosts=3, faults=["tmp-full"])`."""
    with ExitStack() as opened:

        def make(**settings: Any) -> Scene:
            return opened.enter_context(open_scene(tmp_path, lab_cache, **settings))

        yield make
