"""Stand-in CUDA toolkits: the files of one release, as a runfile installs them."""

import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli

from lab.cache import HERE

LATE = ("version.json", "nvvm/bin/cicc", "bin/cuda-uninstaller")
"""Files that an installer writes last: a killed one leaves a toolkit without them."""

COMPONENTS = {"cuda_cccl": "CUDA C++ Core Compute Libraries", "cuda_cudart": "CUDA Runtime (cudart)"}


@dataclass(frozen=True)
class Release:
    """One CUDA release: what its tools print."""

    version: str
    driver: str
    nvcc: str
    built: str
    build: str
    archs: tuple[str, ...]
    floor: str

    @property
    def branch(self) -> str:
        """Major and minor version, as in cuda-13.0."""
        return ".".join(self.version.split(".")[:2])


def release(version: str, driver: str = "") -> Release:
    """The release of that version; one that is not in the table is made up from its branch."""
    table = tomli.loads((HERE / "data/toolkits.toml").read_text())
    branch = ".".join(version.split(".")[:2])
    known: dict[str, Any] = table["toolkit"].get(version) or {
        "driver": driver,
        "nvcc": f"{branch}.88",
        "built": "Wed_Aug_20_01:58:59_PM_PDT_2025",
        "build": f"cuda_{branch}.r{branch}/compiler.0_0",
    }
    archs = table["archs"].get(branch) or table["archs"]["13.0"]
    floor = table["driver_floors"].get(branch, driver or "580.00")
    return Release(version=version, archs=tuple(archs), floor=floor, **known)


def platform_name() -> str:
    """NVIDIA's name of this machine's platform."""
    return "linux-sbsa" if platform.machine() == "aarch64" else "linux-x86_64"


def fill(template: str, rel: Release) -> str:
    """A shell stand-in from lab/tools with the release's values put in."""
    text = (HERE / "tools" / template).read_text()
    values = {
        "VERSION": rel.version,
        "RELEASE": rel.branch,
        "NVCC": rel.nvcc,
        "BUILT": rel.built,
        "BUILD": rel.build,
        "FLOOR": rel.floor,
        "ARCHS": " ".join(f"sm_{arch}" for arch in rel.archs),
        "DEFAULT": f"sm_{rel.archs[0]}",
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def files(rel: Release, target: str) -> dict[str, str]:
    """Path -> text of all regular files; `target` is the folder name under targets/."""
    libraries = f"targets/{target}/lib"
    major = rel.branch.split(".", maxsplit=1)[0]
    return {
        "bin/nvcc": fill("nvcc.sh", rel),
        "bin/ptxas": fill("ptxas.sh", rel),
        "bin/cuda-uninstaller": fill("cuda-uninstaller.sh", rel),
        "nvvm/bin/cicc": "#!/bin/sh\n# Stand-in for cicc: nvcc only looks whether it is there.\nexit 0\n",
        "version.json": version_json(rel),
        "EULA.txt": "SIMULATED: a stand-in, not NVIDIA's software.\n",
        f"targets/{target}/include/cuda.h": f"/* SIMULATED */\n#define CUDA_VERSION {_number(rel)}\n",
        f"targets/{target}/include/cuda_runtime.h": "/* SIMULATED */\n",
        f"{libraries}/libcudart.so.{major}": "SIMULATED libcudart\n",
        f"{libraries}/stubs/libcuda.so": "SIMULATED link stub\n",
    }


def links(rel: Release, target: str) -> dict[str, str]:
    """Path -> text of all symbolic links."""
    major = rel.branch.split(".", maxsplit=1)[0]
    return {
        "include": f"targets/{target}/include",
        "lib64": f"targets/{target}/lib",
        f"targets/{target}/lib/libcudart.so": f"libcudart.so.{major}",
    }


def target_name(platform_: str) -> str:
    """Folder of a platform under targets/."""
    return "sbsa-linux" if platform_ == "linux-sbsa" else "x86_64-linux"


def version_json(rel: Release) -> str:
    """Text of version.json: the only file that tells the updates of a branch apart."""
    entries = {"cuda": {"name": "CUDA SDK", "version": rel.version}}
    entries |= {key: {"name": name, "version": rel.nvcc} for key, name in COMPONENTS.items()}
    entries["cuda_nvcc"] = {"name": "CUDA NVCC", "version": rel.nvcc}
    return json.dumps(entries, indent=3, separators=(",", " : ")) + "\n"


def is_program(path: str) -> bool:
    """Whether a file of the toolkit is executable."""
    return "/bin/" in f"/{path}"


def lay_out(folder: Path, rel: Release, target: str, only_late: bool | None = None) -> None:
    """Write a toolkit to `folder`: all of it, or only what an installer writes early or late."""
    for path, text in files(rel, target).items():
        if only_late is None or (path in LATE) == only_late:
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755 if is_program(path) else 0o644)
    if not only_late:
        for path, text in links(rel, target).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).symlink_to(text)


def _number(rel: Release) -> int:
    major, minor = rel.branch.split(".")
    return int(major) * 1000 + int(minor) * 10
