"""PTX instructions as the numbers that the core (`transforms/core/ptx`) runs.

One entry per family of opcodes says what its operands are (`registers`, `accesses`); whatever is not there is
refused by name, as are modifiers that change what an instruction computes. Rounding, flushing of subnormals and
approximation are not represented.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from superopt.errors import IllegalProgram
from superopt.transforms.core import _ptx
from superopt.verify.domains import Array
from superopt.verify.ptx.accesses import ACCESSES
from superopt.verify.ptx.functions import fold
from superopt.verify.ptx.operands import Arg, Decoder
from superopt.verify.ptx.parser import SPECIAL, Kernel, Line
from superopt.verify.ptx.registers import REGISTERS

_OPS = _ptx.ops()
_RULES = {**REGISTERS, **ACCESSES}
_MODE = 2  # the column of an instruction's mode


@dataclass
class Decoded:
    """A kernel as arrays; `numbers` are those of its registers, special values and parameters.

    `code` has a row for each instruction, the line in the file last; `opcodes` are their names.
    """

    kernel: Kernel
    code: Array
    args: Array
    numbers: Mapping[str, int]
    opcodes: tuple[str, ...]

    def electing(self, lane: int) -> Decoded:
        """The same, where `elect.sync` elects another thread of each warp than the first."""
        code = self.code.copy()
        code[code[:, 0] == _OPS["elect"], _MODE] = lane
        return replace(self, code=code)

    @cached_property
    def preset(self) -> Mapping[str, int]:
        """The registers that hold special values and parameters."""
        return {n: i for n, i in self.numbers.items() if n in SPECIAL or n in self.kernel.params}


def decode(kernel: Kernel, numbers: Mapping[str, int] | None = None) -> Decoded:
    """The kernel as arrays; registers in `numbers` get these.

    Raises UnsupportedProgram for unknown opcodes, IllegalProgram for waits that may end too early.
    """
    return _decoded(fold(kernel), numbers)


def _decoded(kernel: Kernel, numbers: Mapping[str, int] | None = None) -> Decoded:
    """As `decode`, where library functions have been found."""
    _check_tests(kernel)
    made = Decoder(kernel, dict(numbers or {}))
    code: list[list[int]] = []
    args: list[Arg] = []
    opcodes: list[str] = []
    for line in kernel.lines:
        made.line = line
        parts = line.opcode.split(".")
        rule = _RULES.get(parts[0])
        if rule is None:
            raise made.unknown()
        try:
            one = rule(made, parts)
            number = _OPS[one.op]
        except (ValueError, IndexError, KeyError, StopIteration):
            raise made.unknown() from None
        predicate = made.register(line.predicate) if line.predicate else -1
        fields = [number, one.width, one.mode, predicate, int(line.negated), len(args), len(one.args)]
        code.append([*fields, one.aux, line.number])
        args += one.args
        opcodes.append(line.opcode)
    words = [[r, v - (1 << 64) if v >= 1 << 63 else v] for r, v in args]
    return Decoded(
        kernel,
        np.asarray(code, np.int64).reshape(-1, 9),
        np.asarray(words, np.int64).reshape(-1, 2),
        made.numbers,
        tuple(opcodes),
    )


def with_made_mbarriers(decoded: Decoded) -> Decoded:
    """The same kernel, where each warp has a barrier after it made an mbarrier."""
    kernel, lines, moved = decoded.kernel, list[Line](), list[int]()
    for line in kernel.lines:
        moved.append(len(lines))
        lines.append(line)
        if line.opcode.startswith("mbarrier.init"):
            lines.append(Line(line.number, "", False, "bar.warp.sync", ("-1",)))
    moved.append(len(lines))
    labels = {name: moved[place] for name, place in kernel.labels.items()}
    return _decoded(replace(kernel, lines=lines, labels=labels))


def _check_tests(kernel: Kernel) -> None:
    """Raise IllegalProgram where a test of an mbarrier, which may fail, is not repeated until it succeeds."""
    for i, (line, after) in enumerate(zip(kernel.lines, [*kernel.lines[1:], None], strict=True)):
        if not line.opcode.startswith("mbarrier.try_wait"):
            continue
        if (
            after is None
            or line.predicate
            or after.opcode not in ("bra", "bra.uni")
            or (after.negated, after.predicate) != (True, line.operands[0])
            or kernel.labels.get(after.operands[0]) != i
        ):
            raise IllegalProgram(
                f"line {line.number} of its PTX: race: expected the test of an mbarrier to be repeated until its "
                "phase is over, got one that may fail"
            )
