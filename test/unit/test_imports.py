"""Every module can be imported, none in a circle, and imports inside functions keep tools quick, no more."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "superopt": "python/superopt",
    "superopt.transforms": "transforms",
    "superopt.dialects": "dialects",
    "superopt.tools": "tools",
}
# Imports of superopt's own modules inside functions: those that keep `--help` quick and those that cut a circle.
MOST_INSIDE_FUNCTIONS = 99

IMPORT_ALL = """
import importlib, sys
for module in sys.stdin.read().split():
    try:
        importlib.import_module(module)
    except Exception as error:
        print(f"{module}: {type(error).__name__}: {error}")
"""


@cache
def modules() -> dict[str, ast.Module]:
    found: dict[str, ast.Module] = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder)
            if any((ROOT / folder / p).is_symlink() for p in inside.parents):
                continue
            name = ".".join([package, *inside.with_suffix("").parts]).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text())
    return found


def imported(statement: ast.stmt) -> Iterator[str]:
    """The modules of superopt that an import statement loads, without the packages around them."""
    if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        for alias in statement.names:
            inner = f"{statement.module}.{alias.name}"
            yield inner if inner in modules() else statement.module
    elif isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)


def loaded(module: str, by: str) -> Iterator[str]:
    """A module and the packages around it, but for those around the module that imports it."""
    parts = module.split(".")
    names = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
    yield from (n for n in names if n == module or not f"{by}.".startswith(f"{n}."))


def test_each_module_can_be_imported() -> None:
    """In one process: as there are no circles, whatever is imported first loads what it needs before itself."""
    # What is copied into prepared folders and bundles runs where superopt is not.
    names = [n for n in modules() if not any(p in n for p in (".standalone", ".attention_kernels"))]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], input="\n".join(names), capture_output=True, text=True,
        check=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout == ""


def test_no_modules_import_each_other_in_a_circle() -> None:
    edges = {
        name: {
            m for s in tree.body for i in imported(s) for m in loaded(i, name) if m in modules() and m != name
        }
        for name, tree in modules().items()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a circle: {' -> '.join([*path[path.index(name) :], name])}"
        if name not in done:
            for other in sorted(edges[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in modules():
        visit(name, ())


def test_few_imports_stand_inside_functions() -> None:
    inside = {
        (name, node.lineno)
        for name, tree in modules().items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
        if any(m.split(".")[0] == "superopt" for m in imported(node))
    }
    assert len(inside) <= MOST_INSIDE_FUNCTIONS, "imports belong at the top of a file"
