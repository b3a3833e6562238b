"""Exponentials relative to a maximum that is hidden from the search: softmax by the degree argument.

    e = exp(x - max x);  out = (e / sum e) V     ->     e = exp x;  out = (e / sum e) V
                                                        and `rescale.py` puts maxima back

Give every value its degree in exp(-m), where m is constant along the axes that are summed. `exp(x - m)` has
degree 1 and is `exp(x) exp(-m)`; sums and products with values of degree 0 keep the degree, products add and
quotients subtract degrees, sums of two values need equal ones. A value of degree 0 does not depend on m, so m may
be any number, and any maximum may replace any other: that of the elements seen so far (online softmax), or that
of a part of the keys (FlashDecoding). The search therefore works on `exp x`, whose sums distribute over all its
operations, and stores a value of another degree in device memory only as a partial result together with its m.

The program's own operations stay, `aside`: they remain the library's way to compute values of degree 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from superopt.operators import primitive_of, reduction_of
from superopt.transforms.named_axes.axis_program import AxisProgram, Function, Operation

Degrees = dict[int, int]
"""Degree of a value in exp(-m) for each exponential, by its operation; no entry where it is 0."""

MOST = 8
"""The most exponentials of one program that are made relative."""


def relative_exponentials(program: AxisProgram) -> AxisProgram:
    """`program` with plain exponentials in place of those relative to a maximum, and its own operations aside."""
    return _Rewriter(program).run()


class _Rewriter:
    def __init__(self, program: AxisProgram) -> None:
        self.program = program
        self.base = len(program.roles) + len(program.constants)
        self.axes: list[frozenset[int]] = [frozenset(r.axes) for r in program.roles]
        self.axes += [frozenset() for _ in program.constants]
        for o in program.operations:
            self.axes.append(frozenset[int]().union(*(self.axes[a] for a in o.args)) - set(o.reduced))
        self.functions = list(program.functions)
        self.relative: dict[int, tuple[int, int]] = {}  # operation -> its plain argument and new function
        self.degrees: list[Degrees] = [{} for _ in self.axes]

    def run(self) -> AxisProgram:
        for number, operation in enumerate(self.program.operations, self.base):
            if operation.kind == "unary" and primitive_of(self.functions[operation.function]) == "exp":
                self._try(number, operation)
            if len(self.relative) == MOST:
                break
        if not self.relative:
            return self.program
        return self._rewritten()

    # --- the argument ---

    def _try(self, number: int, operation: Operation) -> None:
        """Make one exponential relative where the degrees allow it."""
        (x,) = operation.args
        found = self._propagate(number)
        if found is None:
            return
        degrees, summed = found
        if not summed:
            return
        plain = self._without_maximum(x, summed)
        self.relative[number] = (plain, len(self.functions))
        along = tuple(sorted(self.axes[number] - summed))
        self.functions.append(Function("exp", (), tuple(sorted(summed)), len(self.relative), along))
        for ref, degree in degrees.items():
            self.degrees[ref][number] = degree

    def _propagate(self, start: int) -> tuple[dict[int, int], set[int]] | None:
        """Degrees of the values that have one, and the axes along which m must be constant; None where degrees
        are inconsistent."""
        degrees = {start: 1}
        summed: set[int] = set()
        for number, o in enumerate(self.program.operations, self.base):
            below = [degrees.get(a, 0) for a in o.args]
            if number == start or not any(below):
                continue
            if o.kind in ("add", "sub", "sum"):
                if len(set(below)) > 1:
                    return None
                degree = below[0]
            elif o.kind in ("mul", "contract"):
                degree = below[0] + below[-1]
            elif o.kind == "div":
                degree = below[0] - below[-1]
            else:
                return None
            if abs(degree) > 1:
                return None
            if degree:
                degrees[number] = degree
                summed |= set(o.reduced)
        if any(degrees.get(o, 0) for o in self.program.outputs):
            return None
        return degrees, summed & self.axes[start]

    def _without_maximum(self, x: int, summed: set[int]) -> int:
        """y where x = y - max(y) over axes that m may not vary along; x itself otherwise."""
        operation = self._operation(x)
        if operation is None or operation.kind != "sub":
            return x
        y, top = operation.args
        maximum = self._operation(top)
        if maximum is None or maximum.kind != "reduce" or maximum.args != (y,):
            return x
        if reduction_of(self.functions[maximum.function]) != "max" or self.axes[top] & summed:
            return x
        return y

    def _operation(self, ref: int) -> Operation | None:
        return self.program.operations[ref - self.base] if ref >= self.base else None

    # --- rewriting ---

    def _rewritten(self) -> AxisProgram:
        operations: list[Operation] = []
        plain = {i: i for i in range(self.base)}  # old number -> the number used by the search
        own = dict(plain)  # old number -> the number in the program's own way

        def emit(operation: Operation, through: dict[int, int]) -> int:
            operations.append(replace(operation, args=tuple(through[a] for a in operation.args)))
            return self.base + len(operations) - 1

        for number, o in enumerate(self.program.operations, self.base):
            if number in self.relative:
                argument, function = self.relative[number]
                plain[number] = emit(replace(o, args=(argument,), function=function), plain)
                own[number] = emit(replace(o, aside=True), own)
            elif self.degrees[number]:
                plain[number] = emit(o, plain)
                own[number] = emit(replace(o, aside=True), own)
            elif any(self.degrees[a] for a in o.args):
                plain[number] = own[number] = emit(o, plain)
                emit(replace(o, aside=True, same=plain[number]), own)
            else:
                plain[number] = own[number] = emit(o, plain)
        outputs = [plain[o] for o in self.program.outputs]
        return replace(
            self.program,
            functions=self.functions,
            operations=self._set_aside(operations, outputs),
            outputs=outputs,
        )

    def _set_aside(self, operations: Sequence[Operation], outputs: Sequence[int]) -> list[Operation]:
        """Also set aside what only operations aside use, such as the maximum."""
        used = set(outputs)
        for number in range(len(operations) - 1, -1, -1):
            if self.base + number in used and not operations[number].aside:
                used.update(operations[number].args)
        return [
            o if o.aside or self.base + i in used else replace(o, aside=True)
            for i, o in enumerate(operations)
        ]
