"""The import rules of the house, read off the source: who may know whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import loaderbench

PACKAGE = Path(loaderbench.__file__).parent
MODULES = {
    ".".join(("loaderbench", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
ONE_WAY = ("errors", "cases", "recording", "analysis")
"""Each may use those before it, stdlib and numpy, and nothing else."""
LIGHT = (*ONE_WAY, "reporting", "studies", "cli", "plugins", "interrupts", "__main__")
"""Rooms that never name torch."""


def room(module: str) -> str:
    """`loaderbench.cases.study` → `cases`; what is not of the package → its top name."""
    parts = module.split(".")
    return parts[1] if parts[0] == "loaderbench" and len(parts) > 1 else parts[0]


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(path: Path, *, late: bool) -> set[str]:
    """Modules that a file imports; `late`: those imported inside functions too. Not those for types alone."""
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names}
        if _is_type_checking(node) or (not late and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            continue
        pending += ast.iter_child_nodes(node)
    return found


def modules_of(*rooms: str) -> list[str]:
    chosen = [module for module in MODULES if module != "loaderbench" and room(module) in rooms]
    assert chosen
    return chosen


@pytest.mark.parametrize("module", modules_of(*ONE_WAY))
def test_facts_and_conclusions_know_only_what_comes_before_them(module: str) -> None:
    allowed = {*ONE_WAY[: ONE_WAY.index(room(module)) + 1], "numpy", *sys.stdlib_module_names}
    for name in imports(MODULES[module], late=True):
        assert room(name) in allowed, f"{module} imports {name}"


@pytest.mark.parametrize("module", modules_of("running"))
def test_running_uses_of_the_analysis_only_the_statistics(module: str) -> None:
    used = {name for name in imports(MODULES[module], late=True) if room(name) == "analysis"}
    assert used <= {"loaderbench.analysis.statistics"}


@pytest.mark.parametrize("module", modules_of("running", "samplers", "loaders", "decoders", "devices", "images"))
def test_nothing_below_knows_who_calls_it(module: str) -> None:
    above = {room(name) for name in imports(MODULES[module], late=True)} & {"studies", "reporting", "cli"}
    assert not above, f"{module} imports {above}"


@pytest.mark.parametrize("module", modules_of(*LIGHT))
def test_rooms_that_only_read_never_name_torch(module: str) -> None:
    assert not {"torch", "torchvision"} & {room(name) for name in imports(MODULES[module], late=True)}


@pytest.mark.parametrize("module", modules_of("cases", "recording", "samplers", "decoders", "devices", "workloads"))
def test_no_contract_knows_a_loader(module: str) -> None:
    loaders = {name for name in imports(MODULES[module], late=False) if room(name) == "loaders"}
    assert loaders <= {"loaderbench.loaders.base", "loaderbench.loaders.transform"}, f"{module} imports {loaders}"


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("loaderbench.cli", {"torch", "numpy"}),
        ("loaderbench.cases.study", {"torch", "numpy"}),
        ("loaderbench.analysis.record", {"torch"}),
        ("loaderbench.reporting.html", {"torch"}),
        ("loaderbench.reporting.terminal", {"torch"}),
        ("loaderbench.studies.measure", {"torch"}),
        ("loaderbench.running.supervisor", {"torch"}),
        ("loaderbench.doctor", {"torch"}),
    ],
)
def test_importing_it_leaves_the_heavy_packages_alone(module: str, never: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({never!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_help_imports_neither_torch_nor_numpy() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "loaderbench", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"torch", "numpy", "torchvision"}


def test_there_is_no_drawer_for_everything() -> None:
    assert not [path for path in MODULES.values() if path.stem in ("util", "utils", "helpers", "common", "misc")]
