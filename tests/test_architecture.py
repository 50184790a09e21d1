"""The walls of the product, read from its own syntax trees: who may know whom, and what stands nowhere."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
PACKAGES = ("fleet", "checks", "stages", "lab", "bench")
REMOTE = sorted((TOP / "checks" / "remote").glob("*.py"))
# What a stack has, beside the standard library: only the scripts that measure it may ask for it.
OF_THE_STACK = {"kernels.py": {"torch", "sgl_kernel"}}
PYTEST_USERS = re.compile(r"fleet/(plugin|options|scheduler|report\w*)\.py")
SSH = {"fabric", "paramiko", "invoke"}


def files(*packages: str) -> list[Path]:
    """The modules of packages, without the scripts that run on hosts and the tools of simulated ones."""
    found = [path for package in packages for path in sorted((TOP / package).rglob("*.py"))]
    return [path for path in found if "remote" not in path.parts and "standins" not in path.parts]


def tree(path: Path) -> ast.Module:
    """The syntax of a module."""
    return ast.parse(path.read_text("utf-8"), str(path))


def imported(path: Path) -> set[str]:
    """The top-level names of all that a module imports, anywhere in it."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: an import that begins with a dot hides where it goes"
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


def offenders(packages: tuple[str, ...], forbidden: set[str]) -> list[str]:
    """`module: name` of each import that must not be."""
    return [
        f"{path.relative_to(TOP)}: {name}" for path in files(*packages) for name in sorted(imported(path) & forbidden)
    ]


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("fleet", {"checks", "stages", "lab", "tests", "bench", "asyncssh", "tomlkit"}),
        ("checks", {"stages", "lab", "tests", "bench", "asyncssh", "pytest"} | SSH),
        ("stages", {"lab", "tests", "bench", "asyncssh", "tomlkit", "pytest"} | SSH),
        ("lab", {"fleet", "checks", "stages", "tests", "bench", "pytest"} | SSH),
    ],
)
def test_who_may_know_whom(package: str, forbidden: set[str]) -> None:
    """Stages know checks, checks know the engine, never back; the lab knows none of them, and none knows the lab."""
    assert files(package)
    assert offenders((package,), forbidden) == []


def test_one_module_knows_ssh() -> None:
    """Its libraries and their defaults are one module's business; the bench alone measures us against them."""
    product = [package for package in PACKAGES if package != "bench"]
    users = {str(path.relative_to(TOP)) for path in files(*product) if imported(path) & SSH}
    assert users == {"fleet/host.py"}


def test_few_modules_know_pytest() -> None:
    """The engine and the checks work without it."""
    users = [str(path.relative_to(TOP)) for path in files("fleet", "checks", "stages") if "pytest" in imported(path)]
    assert [name for name in users if not PYTEST_USERS.fullmatch(name)] == []


@pytest.mark.parametrize("path", REMOTE, ids=lambda path: path.name)
def test_scripts_for_hosts_stand_alone(path: Path) -> None:
    """A host has Python and, for some of them, the stack: nothing of ours and nothing else."""
    allowed = sys.stdlib_module_names | OF_THE_STACK.get(path.name, set())
    assert imported(path) - allowed == set()
    ast.parse(path.read_text("utf-8"), feature_version=(3, 9))


@pytest.mark.parametrize("module", ["fleet", "fleet.plugin", "fleet.stage", "checks.runfile"])
def test_importing_stays_light(module: str) -> None:
    """Plots and the lab are loaded by whoever needs them: not by every worker and every plan."""
    code = f"import sys, {module}; print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in answer.stdout.split()}
    assert loaded & {"matplotlib", "numpy", "asyncssh", "tomlkit", "lab", "stages"} == set()
    assert module != "fleet" or not loaded & (SSH | {"pytest", "requests", "msgspec"})


def public(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """The public functions and classes of a module, and the public methods of these."""
    for node in tree(path).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield node.name, node
            for inner in node.body if isinstance(node, ast.ClassDef) else []:
                if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)) and not inner.name.startswith("_"):
                    if any(ast.unparse(one).endswith(".setter") for one in inner.decorator_list):
                        continue
                    yield f"{node.name}.{inner.name}", inner


def test_every_public_name_is_documented() -> None:
    """Modules, classes, functions and methods, in one sentence that ends."""
    missing = []
    for path in files("fleet", "checks", "stages", "lab", "bench", "tests"):
        named = [("", tree(path)), *public(path)]
        for name, node in named:
            text = (
                ast.get_docstring(node)
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
                else None
            )
            if not text or text.strip().splitlines()[0][-1] not in ".:`!?":
                missing.append(f"{path.relative_to(TOP)}: {name or 'module'}")
    assert missing == []


def test_modules_stay_readable() -> None:
    """No module of the product is longer than 400 lines."""
    lengths = {path: path.read_text("utf-8").count("\n") for path in [*files(*PACKAGES), *REMOTE]}
    assert [f"{path.relative_to(TOP)}: {count}" for path, count in lengths.items() if count > 400] == []


def sessions() -> dict[str, ast.FunctionDef]:
    """The sessions of the noxfile, by name."""
    found = {}
    for node in tree(TOP / "noxfile.py").body:
        if isinstance(node, ast.FunctionDef) and any("session" in ast.unparse(one) for one in node.decorator_list):
            found[node.name] = node
    return found


def test_sessions_have_help() -> None:
    """The docstring of a session is its help."""
    assert len(sessions()) > 10
    assert [name for name, node in sessions().items() if not ast.get_docstring(node)] == []


def test_make_has_the_same_names() -> None:
    """`make plan` is `nox -s plan`, for each session."""
    line = next(row for row in (TOP / "Makefile").read_text("utf-8").splitlines() if row.startswith("SESSIONS :="))
    assert sorted(line.partition(":=")[2].split()) == sorted(sessions())


def test_a_session_is_a_line_of_arguments() -> None:
    """The work is in stages and engine: no session branches or loops."""
    kinds = (ast.For, ast.While, ast.If, ast.Try, ast.With)
    assert [name for name, node in sessions().items() if any(isinstance(one, kinds) for one in ast.walk(node))] == []


def tracked() -> list[Path]:
    """The files of the product: those that git has or would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=True).stdout.split("\0")
    return [TOP / name for name in names if name and (TOP / name).is_file()]


def test_nothing_names_a_machine_or_a_registry() -> None:
    """No folder of whoever built it, no package registry by its host: the index is the user's choice."""
    registries = ["py" + "pi.org", "pythonho" + "sted.org", "deb." + "debian.org", "registry.np" + "mjs"]
    places = ["/wo" + "rk/", "/t" + "mp/plan", "../sha" + "red"]
    words = [word.encode() for word in [*registries, *places]]
    found = []
    for path in tracked():
        content = path.read_bytes().lower()
        found += [f"{path.relative_to(TOP)}: {word.decode()}" for word in words if word in content]
    assert found == []


def test_nothing_is_left_to_do() -> None:
    """No mark of unfinished work in the code."""
    mark = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    paths = [*files(*PACKAGES, "tests"), *REMOTE, TOP / "noxfile.py"]
    assert [str(path.relative_to(TOP)) for path in paths if mark.search(path.read_text("utf-8"))] == []
