"""The types of a kernel: checks that every operand has the element type stated by its operation's line.

Shapes are checked as the kernel runs (`evaluate`), where they are known to the element.
"""

from __future__ import annotations

from collections.abc import Sequence

from superopt.errors import IllegalProgram
from superopt.verify.ttir.parser import Function, Operation, Region, TtirType

_CASTS = (
    "arith.ext",
    "arith.trunc",
    "arith.sitofp",
    "arith.uitofp",
    "tt.fp_to_fp",
    "arith.index_cast",
    "tt.bitcast",
)
_SAME = (
    "tt.splat",
    "tt.unsplat",
    "tt.expand_dims",
    "tt.broadcast",
    "tt.reshape",
    "tt.trans",
    "tt.join",
    "tt.split",
)
_TERMINATORS = ("scf.yield", "tt.reduce.return", "tt.scan.return")


def check_types(kernel: Function) -> None:
    """Raise IllegalProgram at the first operation whose operands have other types than it states."""
    checker = _Checker(kernel.name)
    for number, kind in zip(kernel.params, kernel.types, strict=True):
        checker.types[number] = _element(kind)
    checker.region(kernel.body, ())


def _element(kind: TtirType) -> str:
    return f"ptr<{kind.element}>" if kind.pointer else kind.element


class _Checker:
    def __init__(self, name: str) -> None:
        self.name = name
        self.types: dict[int, str] = {}

    def region(self, region: Region, yielded: Sequence[str]) -> None:
        for op in region.ops:
            if op.name in _TERMINATORS:
                self.expect(op, op.operands, yielded)
            else:
                self.operation(op)

    def expect(self, op: Operation, operands: Sequence[int], wanted: Sequence[str]) -> None:
        got = [self.types.get(v, "?") for v in operands]
        if got != list(wanted):
            raise IllegalProgram(
                f"kernel '{self.name}', line {op.line} of its TTIR: '{op.name}' expected operands of types "
                f"{', '.join(wanted) or 'none'}, got {', '.join(got) or 'none'}"
            )

    def operation(self, op: Operation) -> None:
        try:
            results = self.results(op, [_element(t) for t in op.types])
        except (ValueError, IndexError) as error:  # too few operands, types or regions
            where = f"kernel '{self.name}', line {op.line} of its TTIR"
            raise IllegalProgram(f"{where}: expected '{op.name}' as Triton prints it ({error})") from None
        self.types.update(zip(op.results, results, strict=False))

    def results(self, op: Operation, types: list[str]) -> list[str]:
        """The element types of the results, once the operands are checked."""
        name, count = op.name, len(op.operands)
        if name == "scf.for":
            index, *carried = types
            self.expect(op, op.operands, [index] * 3 + carried)
            self.types.update(zip(op.regions[0].args, types, strict=True))
            self.region(op.regions[0], carried)
            return carried
        if name == "scf.if":
            self.expect(op, op.operands, ["i1"])
            for region in op.regions:
                self.region(region, types)
            return types
        if name in ("tt.reduce", "tt.scan"):
            self.expect(op, op.operands, types[:count])
            self.types.update(zip(op.regions[0].args, types[:count] * 2, strict=True))
            self.region(op.regions[0], types[:count])
            return types[-count:]
        if not types:
            return []
        first, last = types[0], types[-1]
        if name in ("tt.load", "tt.store"):
            pointee = first.removeprefix("ptr<").removesuffix(">")
            masked = [first, "i1", pointee] if name == "tt.load" else [first, pointee, "i1"]
            self.expect(op, op.operands, masked[:count])
            return [pointee]
        if name == "tt.make_tensor_descriptor":
            rank = (count - 1) // 2
            self.expect(op, op.operands, [f"ptr<{first}>", *["i32"] * rank, *["i64"] * rank])
            return [f"desc<{last}>"]
        if name == "tt.descriptor_load":
            self.expect(op, op.operands, [f"desc<{first}>", *["i32"] * (count - 1)])
            return [last]
        if name in ("arith.cmpi", "arith.cmpf"):
            self.expect(op, op.operands, [first] * count)
            return ["i1"]
        if name == "arith.select":
            self.expect(op, op.operands, ["i1", last, last])
            return [last]
        if name == "tt.addptr":
            self.expect(op, op.operands, [first, last])
            return [first]
        if name in ("tt.dot", "tt.extern_elementwise"):
            self.expect(op, op.operands, types[:count] if name != "tt.dot" else [*types[:2], last])
            return [last]
        if name.startswith(_CASTS):
            self.expect(op, op.operands, [first])
            return [last]
        if name in _SAME:
            self.expect(op, op.operands, types[:-1] if len(types) > count else [first] * count)
            if first != last:
                self.expect(op, op.operands, [last] * count)
            return [last] * len(op.results)
        if name.startswith(("arith.", "math.", "tt.precise", "tt.clampf")) and count:
            self.expect(op, op.operands, [first] * count)
        return [last]
