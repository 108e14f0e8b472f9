"""The import rules of the house, read off the source: who may know whom."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import loaderbench
from loaderbench.plugins import DECODERS, LOADERS, TABLES, Table

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(loaderbench.__file__).parent
MODULES = {
    ".".join(("loaderbench", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
ONE_WAY = ("errors", "plain", "printable", "cases", "findings", "recording", "pipeline", "analysis")
"""Each may use those before it, stdlib and numpy, and nothing else; the pipeline what READINGS say, too."""
READINGS = {f"loaderbench.analysis.{name}" for name in ("latency", "processors", "statistics", "storage")}
"""What single facts say, before anything is made of them."""
LIGHT = (*ONE_WAY, "reporting", "studies", "commands", "plugins", "interrupts", "attach", "__main__")
"""Rooms that never name torch."""
PURE = ("facts", "judge")
"""Files of a capability's own folder that only store and conclude, as the rooms ONE_WAY do."""
DEVICE_KINDS = {"cpu", "cpu:", "cuda", "cuda:", "xpu", "xpu:", "emulated", "emulated:"}
DEVICE_CLASSES = {"CpuDevice", "CudaDevice", "XpuDevice", "StreamDevice", "EmulatedDevice"}
OWN_STRINGS = {
    "loaderbench.workloads.emulated": "the other half of the emulated device",
    "loaderbench.studies.precision": "turns --device auto into the device to ask for",
    "loaderbench.watching.within": "looks for what a script's own code names",
}
"""Where a device's kind may be compared with a text although the room is not `devices`."""
ARMS = {"device", "host", "ram", "real", "free", "fetch"}
LONGEST_FUNCTION, LONGEST_COMMAND = 60, 200
"""Lines: what a screen shows; one file of `commands/`."""
SAME_NAME = {
    "loaderbench.findings.advice": {"multiprocess", "threaded", "turbojpeg", "libjpeg"},  # in examples of changes
    "loaderbench.images.convert": {"litdata", "ffcv"},  # a format of containers is called as the library that reads it
    "loaderbench.prefixes": {"pillow-simd"},  # the package that `loaderbench install` builds
    "loaderbench.workloads.vision": {"torchvision"},  # the package that has the models
    "loaderbench.workloads.known": {"torchvision"},
    "loaderbench.lacking": {"torchvision"},  # the package, of the extra `run`
}
"""What is called as a loader or decoder is, and is none."""
PRINTERS = {
    "loaderbench.commands.first",  # prints its own texts, before anything else is imported
    "loaderbench.commands.terminal",
    "loaderbench.reporting.live",
    "loaderbench.images.files",
    "loaderbench.selftest.__main__",  # prints its own commands
}
"""Who writes text to a terminal without rich: each cleans it there."""
CONSOLES = {"loaderbench.reporting.console"}
OF_OTHERS = {"fs", "kernel", "mm", "net", "references"}
"""Folders of files that are cited from Linux and torchvision."""


def room(module: str) -> str:
    """`loaderbench.cases.study` → `cases`; what is not of the package → its top name."""
    parts = module.split(".")
    return parts[1] if parts[0] == "loaderbench" and len(parts) > 1 else parts[0]


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path, *, late: bool) -> set[str]:
    """Modules that a file imports; `late`: those imported inside functions too. Not those for types alone."""
    found: set[str] = set()
    pending: list[ast.AST] = [parsed(path)]
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
        is_reading = room(module) == "pipeline" and name in READINGS
        assert is_reading or room(name) in allowed, f"{module} imports {name}"


@pytest.mark.parametrize("module", [f"loaderbench.attach.{name}" for name in PURE])
def test_a_capabilitys_facts_and_judge_are_pure(module: str) -> None:
    allowed = {*ONE_WAY, "numpy", *sys.stdlib_module_names}
    for name in imports(MODULES[module], late=True):
        is_own = name in {f"loaderbench.attach.{one}" for one in PURE}
        assert is_own or room(name) in allowed, f"{module} imports {name}"


@pytest.mark.parametrize("module", sorted(READINGS))
def test_what_single_facts_say_knows_no_pipeline(module: str) -> None:
    assert "pipeline" not in {room(name) for name in imports(MODULES[module], late=True)}


@pytest.mark.parametrize("module", modules_of("running"))
def test_running_uses_of_the_analysis_only_the_statistics_and_what_a_window_must_hold(module: str) -> None:
    used = {name for name in imports(MODULES[module], late=True) if room(name) == "analysis"}
    assert used <= {"loaderbench.analysis.statistics", "loaderbench.analysis.latency"}


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
        ("loaderbench.commands.app", {"torch", "numpy"}),
        ("loaderbench.cases.options", {"torch", "numpy"}),
        ("loaderbench.cases.study", {"torch", "numpy"}),
        ("loaderbench.analysis.record", {"torch"}),
        ("loaderbench.offloading.plan", {"torch"}),
        ("loaderbench.reporting.html", {"torch"}),
        ("loaderbench.reporting.terminal", {"torch"}),
        ("loaderbench.studies.measure", {"torch"}),
        ("loaderbench.studies.again", {"torch"}),
        ("loaderbench.running.supervisor", {"torch"}),
        ("loaderbench.doctor", {"torch"}),
    ],
)
def test_importing_it_leaves_the_heavy_packages_alone(module: str, never: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({never!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_help_imports_neither_torch_nor_numpy() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "loaderbench", "list", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"torch", "numpy", "torchvision"}


def test_there_is_no_drawer_for_everything() -> None:
    assert not [path for path in MODULES.values() if path.stem in ("util", "utils", "helpers", "common", "misc")]


def trees() -> list[tuple[str, ast.Module]]:
    return [(module, parsed(path)) for module, path in MODULES.items()]


def constants(node: ast.AST) -> set[str]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def test_nobody_outside_asks_a_device_for_its_kind() -> None:
    asked = []
    for module, tree in trees():
        if room(module) == "devices" or module in OWN_STRINGS:
            continue
        for node in ast.walk(tree):
            compared = isinstance(node, ast.Compare) and constants(node) & DEVICE_KINDS
            matched = isinstance(node, ast.MatchValue) and constants(node) & DEVICE_KINDS
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
            name = "" if not called else node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            begins = name in ("startswith", "partition", "split") and constants(node) & DEVICE_KINDS
            classes = (
                {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} if name == "isinstance" else set()
            )
            if compared or matched or begins or classes & DEVICE_CLASSES:
                asked.append(f"{module}:{node.lineno}")
    assert asked == []


def test_text_reaches_the_terminal_where_it_is_cleaned() -> None:
    def writes(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and bool(
            re.fullmatch(r"print|typer\.(echo|secho)|sys\.(stdout|stderr)\.write", ast.unparse(node.func))
        )

    def shows_text_from_outside(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and not (node.args and isinstance(node.args[0], ast.Constant))

    writers = {
        module for module, tree in trees() for node in ast.walk(tree) if writes(node) and shows_text_from_outside(node)
    }
    assert writers == PRINTERS
    makers = {
        module
        for module, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Console")
    }
    assert makers == CONSOLES


def test_nothing_untyped_crosses_a_border() -> None:
    """No public function takes or gives, and no public class holds, a dict or mapping of anything."""
    untyped = []
    for module, tree in trees():
        if module == "loaderbench.plain":
            continue  # it turns dataclasses into such, and back
        for owner, node in _public(tree):
            for annotation in _annotations(node):
                if re.search(r"\b(dict|Mapping|MutableMapping|defaultdict)\[str, Any\]", ast.unparse(annotation)):
                    untyped.append(f"{module}: {owner}: {ast.unparse(annotation)}")
    assert untyped == []


def _public(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Public functions, and the fields and public methods of public classes."""
    for node in tree.body:
        name = getattr(node, "name", "")
        if name.startswith("_"):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                own = getattr(member, "name", "")
                if isinstance(member, ast.AnnAssign) or not own.startswith("_") or own == "__init__":
                    yield f"{name}.{own}", member


def _annotations(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.AnnAssign):
        return [node.annotation]
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg]
    found = [argument.annotation for argument in every if argument is not None]
    return [annotation for annotation in [*found, node.returns] if annotation is not None]


def test_each_process_is_started_in_a_folder_that_was_chosen() -> None:
    """The current one may be anybody's: a library that a process loads may look for others there."""
    calls = [
        (f"{module}:{node.lineno}", {keyword.arg for keyword in node.keywords})
        for module, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and re.match(r"(subprocess|asyncio|os)\.(\w*[pP]open|run|call|check_\w+|"
                                                   r"create_subprocess\w*|system|spawn\w+|posix_spawn\w*|exec[lv]\w*)\Z",
                                                   ast.unparse(node.func))
    ]  # fmt: skip
    assert len(calls) > 5
    assert [where for where, given in calls if "cwd" not in given] == []


def test_folders_for_temporary_files_are_made_in_one_place() -> None:
    """There alone one that a killed process left is found again."""
    makers = {
        module
        for module, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and re.search(r"(mkdtemp|mkstemp|TemporaryDirectory|NamedTemporaryFile)\Z", ast.unparse(node.func))
    }
    # What is spilled stays.
    assert makers == {"loaderbench.temporary", "loaderbench.recording.spill"}


def test_a_function_fits_a_screen() -> None:
    functions = [
        (f"{module}.{node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for module, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [one for one in functions if one[1] > LONGEST_FUNCTION] == []


def test_an_arm_has_its_name_in_one_place() -> None:
    """Nobody else compares with, or looks up, an arm by its name as text."""
    named = []
    for module, tree in trees():
        if module == "loaderbench.cases.arms":
            continue
        for node in ast.walk(tree):
            looked_up = isinstance(node, ast.Subscript) and re.search("arm", ast.unparse(node.value))
            compared = isinstance(node, ast.Compare) and re.search(r"\barms?\b", ast.unparse(node))
            if (looked_up or compared) and constants(node) & ARMS:
                named.append(f"{module}:{node.lineno}: {ast.unparse(node)}")
    assert named == []


def test_nobody_keeps_state_in_whether_an_attribute_is_there() -> None:
    kept = [
        f"{module}:{node.lineno}"
        for module, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "hasattr"
        and ast.unparse(node.args[0]).startswith("self")
    ]
    assert kept == []


# -- the arrows between rooms ------------------------------------------------------------------------------

LEVELS = (
    {"errors", "plain", "printable", "interrupts", "forks", "neutral", "temporary", "lacking", "originals"},
    {"cases"},
    {"findings"},
    {"recording"},
    {"analysis", "pipeline"},
    {"images", "native", "prefixes", "plugins", "decoders", "samplers", "machine", "offloading", "splitting"},
    {"devices", "workloads", "loaders"},
    {"running", "watching"},
    {"reporting", "trackers"},
    {"studies", "pytest_plugin"},
    {"integrations"},
    {"doctor"},
    {"selftest"},
    {"commands", "attach", "notebook"},
    {"__main__"},
)
"""Bottom first. A room may use those of its own level and below."""
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}


def test_no_arrow_runs_upward() -> None:
    upward = [
        f"{module} → {name}"
        for module in MODULES
        if module != "loaderbench"
        for name in imports(MODULES[module], late=True)
        if name.startswith("loaderbench.") and LEVEL[room(name)] > LEVEL[room(module)]
    ]
    assert upward == []


def test_no_circle_of_modules() -> None:
    sorter = TopologicalSorter(
        {
            module: {name for name in imports(path, late=True) if name in MODULES} - {module}
            for module, path in MODULES.items()
        }
    )
    sorter.prepare()  # raises CycleError, which names the circle


def test_only_its_command_imports_the_selftest() -> None:
    users = {
        module
        for module, path in MODULES.items()
        if room(module) != "selftest" and any(room(name) == "selftest" for name in imports(path, late=True))
    }
    assert users == {"loaderbench.commands.doctor", "loaderbench.commands.selftest"}


# -- names, traits and texts -------------------------------------------------------------------------------


def test_nobody_outside_knows_a_loader_or_a_decoder_by_name() -> None:
    names = {*LOADERS.built_in, *DECODERS.built_in, *DECODERS.aliases}
    known = [
        f"{module}:{node.lineno}: {node.value}"
        for module, tree in trees()
        if room(module) not in ("plugins", "loaders", "decoders")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in names - SAME_NAME.get(module, set())
    ]
    assert known == []


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_the_traits_of_a_plugin_are_had_without_its_code(table: Table[Any]) -> None:
    assert {room(name) for name in imports(MODULES["loaderbench.plugins"], late=True)} <= {
        "cases", "decoders", "errors", "lacking", *sys.stdlib_module_names,
    }  # fmt: skip
    for name, plugin in table.built_in.items():
        assert isinstance(plugin.traits, table.traits), name
        assert plugin.module in MODULES, name


def test_nobody_calls_with_all_its_variables() -> None:
    called = [
        f"{module}:{node.lineno}"
        for module, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "locals"
    ]
    assert called == []


def test_a_command_is_one_short_file() -> None:
    assert {
        module: lines
        for module in modules_of("commands")
        if (lines := len(MODULES[module].read_text().splitlines())) > LONGEST_COMMAND
    } == {}


TEXTS = [
    path
    for pattern in ("loaderbench/**/*.py", "tests/**/*.py", "benchmarks/**/*.py", "docs/**/*.md", "*.md", "Makefile")
    for path in sorted(ROOT.glob(pattern))
]


WRITTEN = {
    "comment.md",
    "summary.md",
    "runner/summary.md",
    "runner/loaderbench/comment.md",
    "log_format.md",
    "nowhere.md",
}
"""Files of programs and of tests."""


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_cited_is_there(path: Path) -> None:
    """A document or a file that a comment, a text or a page names is part of this repository."""
    folders = (ROOT, ROOT / "docs", ROOT / "loaderbench", ROOT / "tests", path.parent)
    cited = re.findall(r"(?<![\w/.{}*-])[\w-]+(?:/[\w-]+)*\.md\b", path.read_text())
    absent = {name for name in cited if not any((folder / name).is_file() for folder in folders)}
    assert absent <= WRITTEN


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_cited_file_of_the_package_is_there(path: Path) -> None:
    folders = (ROOT, ROOT / "loaderbench", ROOT / "docs", path.parent)
    cited = re.findall(r"(?<![\w/.{}*-])(?:[a-z0-9_]+/)+[a-z0-9_]+\.(?:py|c)\b", path.read_text())
    absent = {name for name in cited if not any((folder / name).is_file() for folder in folders)}
    assert {name for name in absent if name.partition("/")[0] not in OF_OTHERS} == set()


@pytest.mark.parametrize("module", modules_of("commands", "reporting", "analysis", "studies"))
def test_what_the_user_names_is_written_in_one_way(module: str) -> None:
    # recording/output.py: with it a pipe, a link and an old file are treated alike by every command
    calls = [node.func for node in ast.walk(parsed(MODULES[module])) if isinstance(node, ast.Call)]
    names = {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}
    assert not names & {"write_text", "write_bytes", "write_atomic"}
