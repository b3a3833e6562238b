"""The memory that a kernel launch gets: its node's operands, results and scratch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from superopt.aliasing import pairs
from superopt.program import Node, TileProgram
from superopt.verify.domains import Tensor
from superopt.verify.ttir.memory import Buffer


def launch_buffers(
    node: Node, arguments: Sequence[tuple[str, int, str]], operands: Sequence[Tensor]
) -> tuple[list[Buffer], list[Buffer]]:
    """The memory that a launch of `node` gets, and the part that holds the node's results.

    `operands` are flat. A result that lies in an operand's memory starts as that operand.
    """
    program = node.body
    assert isinstance(program, TileProgram)
    outputs = program.params[program.n_inputs :]
    made: list[Buffer] = []
    for i, (name, elements, dtype) in enumerate(arguments):
        parameter = program.arguments[i] if i < len(program.arguments) else None
        made.append(Buffer(name, elements, dtype, writable=parameter is None or parameter in outputs))
    by_parameter = dict(zip(program.arguments, made, strict=False))
    for parameter, tensor in zip(program.params, operands, strict=False):
        if parameter in by_parameter:
            by_parameter[parameter].fill(tensor)
    for out, at in pairs(program.aliases).items():
        start = operands[at]
        by_parameter[outputs[out]].fill(Tensor(tuple(map(np.array, start.planes)), start.degree, start.dtype))
    return made, [by_parameter[b] for b in outputs]
