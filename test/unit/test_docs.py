"""docs/passes.md says what the passes say of themselves; run as a program, this writes it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from superopt.driver.command_line import default_text
from superopt.transforms import registry

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "passes.md"
HEAD = """# Passes

Each pass is a flag of `superopt-opt`, `--flag="name=value name=value"`, and a name in `--pass-pipeline`.
`python test/unit/test_docs.py` writes this page from the passes' own documentation; `superopt-opt --help` prints the same.
"""


def page() -> str:
    """The page as the registry has it now."""
    parts = [HEAD]
    for flag in registry.flags():
        loaded = registry.load(flag)
        parts.append(f"## --{flag}\n\n{inspect.cleandoc(loaded.__doc__ or '')}\n")
        if loaded.options():
            rows = [
                f"| {o.name} | {o.type_name.replace('|', ', ')} | {default_text(o)} | {o.help} |"
                for o in loaded.options()
            ]
            parts.append("| option | type | | |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n")
    rows = [f"| {flag} | {summary} |" for flag, summary in registry.NATIVE_PASSES.items()]
    parts.append(
        "## MLIR's passes\n\nAny pass that the bindings know may be named, in a pipeline or as a flag; among them:\n\n"
        "| flag | |\n| --- | --- |\n" + "\n".join(rows) + "\n"
    )
    return "\n".join(parts)


def test_passes_page_is_current() -> None:
    assert DOC.read_text() == page(), "run `python test/unit/test_docs.py`"


@pytest.mark.parametrize("flag", registry.flags())
def test_every_pass_has_a_lit_test(flag: str) -> None:
    tests = [*ROOT.glob("test/transforms/*"), *ROOT.glob("test/e2e/*")]
    assert any(f"--{flag}" in t.read_text() or f"{flag}{{" in t.read_text() for t in tests if t.is_file())


@pytest.mark.parametrize(
    "name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/errors.md", "docs/passes.md"]
)
def test_links_lead_somewhere(name: str) -> None:
    import re

    page = ROOT / name
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{name} links to {target}"


if __name__ == "__main__":
    DOC.write_text(page())
