"""Imports inside the package run one way: no module reaches itself through others."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pai_torchacc"


def modules(package: Path) -> dict[str, Path]:
    """The package's modules by their full names."""
    found = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(p for p in parts if p != "__init__")] = path
    return found


def imported(path: Path, known: dict[str, Path], for_types: bool = False) -> set[str]:
    """Modules among these that a file imports, also inside its functions.

    Imports for type checkers do not run; they count only ``for_types``.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unrun: set[ast.AST] = set()
    for node in ast.walk(tree):
        if for_types:
            break
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            unrun.update(n for s in node.body for n in ast.walk(s))
    found = set()
    for node in set(ast.walk(tree)) - unrun:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            full.discard("pai_torchacc._C")  # the extension, which imports nothing
            found |= {n if n in known else node.module for n in full}
    return found & known.keys()


def graph(package: Path, for_types: bool = False) -> dict[str, set[str]]:
    known = modules(package)
    return {
        name: imported(path, known, for_types) - {name} for name, path in known.items()
    }


def test_no_module_of_adaptive_lr_needs_the_types_of_what_needs_it() -> None:
    found = graph(PACKAGE, for_types=True)
    room = {name for name in found if name.startswith("pai_torchacc.adaptive_lr.")}
    assert len(room) > 10
    TopologicalSorter({name: found[name] & room for name in room}).prepare()


def test_no_module_reaches_itself() -> None:
    found = graph(PACKAGE)
    assert len(found) > 50
    assert any(len(used) > 5 for used in found.values())
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_table_of_features_knows_no_switch() -> None:
    found = graph(PACKAGE)
    assert found["pai_torchacc._features"] == {"pai_torchacc._config"}
    switches = ("adaptive_lr", "fusion", "memory_pool", "memory_reuse", "quantization")
    switches += ("data_parallelism",)
    for module in ("_switch.state", "_switch.handle", "_report", "_options"):
        below = found[f"pai_torchacc.{module}"]
        assert not {name.split(".")[1] for name in below}.intersection(switches)


def test_a_cycle_through_a_function_is_found(tmp_path: Path) -> None:
    package = tmp_path / "house"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "a": "from house import b\n",
        "b": "def f():\n    from house import a\n",
    }.items():
        (package / f"{name}.py").write_text(text)
    with pytest.raises(CycleError):
        TopologicalSorter(graph(package)).prepare()
