"""What a pass is: a frozen dataclass whose fields are its options.

    @dataclass(frozen=True)
    class DropDead(GraphPass):
        \"\"\"Drop nodes whose results nobody uses.\"\"\"

        flag: ClassVar[str] = "drop-dead"

        keep_extern: bool = True
        \"\"\"Keep opaque operations even when their results are unused.\"\"\"

        def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph: ...

The first paragraph of the class's docstring is the pass's line in `--help`; the string below a field
documents the option (`superopt.options`). A field `keep_extern` is the option `keep-extern`, given on the command
line as `--drop-dead="keep-extern=false"` and in a pipeline as `drop-dead{keep-extern=false}`.

Modules of passes are imported to print help: they must not import torch, triton, z3 or the MLIR bindings when
they are imported themselves (import those inside `apply` or `run`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from superopt.options import Configured

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph


@dataclass(frozen=True)
class Pass(Configured):
    """Base of every pass; derive from `GraphPass` or `ModulePass`."""

    flag: ClassVar[str]

    @classmethod
    def called(cls) -> str:
        """The flag."""
        return cls.flag


class GraphPass(Pass, ABC):
    """A pass on one function in memory; the driver reads the graph from MLIR and writes it back."""

    @abstractmethod
    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph after the pass; raises `SuperoptError` where it cannot be applied."""


class ModulePass(Pass, ABC):
    """A pass on an MLIR module (`ir.Module`), changed in place."""

    @abstractmethod
    def run(self, module: Any, diagnostics: Diagnostics) -> None:
        """Change `module`; raises `SuperoptError` where it cannot be applied."""
