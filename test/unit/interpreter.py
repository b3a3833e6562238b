"""One interpreter that the tests share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from superopt.numerics.interpreter import Interpreter
from superopt.program import KernelGraph
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower

_INTERPRETER = Interpreter()


def interpret(graph: KernelGraph, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Outputs of `graph`, lowered and emitted, as float32 arrays; inputs are rounded to the inputs' dtypes."""
    return _INTERPRETER.run(emit_program(lower(graph)), inputs, [v.dtype for v in graph.inputs])
