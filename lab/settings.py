"""What a lab is made of, and where its files lie."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import shipped
from lab.cache import HERE, digest, tree_digest
from lab.errors import LabError


@dataclass(frozen=True)
class Settings:
    """Everything that decides what a lab serves; equal settings can share a running one."""

    folder: Path
    pins: Path
    hosts: int = 1
    faults: tuple[str, ...] = ()
    minimal: bool = False
    cache: Path | None = None

    @property
    def cache_folder(self) -> Path:
        """Where wheels and runfiles are kept."""
        return self.cache or self.folder / "cache"

    @property
    def host_names(self) -> list[str]:
        """Names of the hosts: lab-01, lab-02 and so on."""
        return [f"lab-{number:02}" for number in range(1, self.hosts + 1)]

    def digest(self) -> str:
        """Changes when a running lab of this folder no longer fits."""
        try:
            pins = self.pins.read_bytes()
        except OSError as error:
            raise LabError(f"{self.pins}: {error.strerror}\nhint: --pins names another file") from error
        words = repr((self.hosts, self.faults, self.minimal, str(self.cache_folder)))
        return digest(pins, words, shipped.text(), tree_digest(HERE))


def ssh_lines(folder: Path, about: dict[str, Any]) -> list[str]:
    """One line per host: how to log in."""
    options = f"-i {folder / 'keys/user'} -o UserKnownHostsFile={folder / 'known_hosts'}"
    return [f"{name}  ssh -p {host['port']} {options} ops@127.0.0.1" for name, host in about["hosts"].items()]
