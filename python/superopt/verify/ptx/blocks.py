"""Basic blocks in an order in which only loops branch backward.

Compilers lay out a loop with its end before its middle, to save a branch. What is computed on a way through a
kernel is easier to follow in reverse postorder (Aho, Lam, Sethi, Ullman, Compilers, 2nd edition, section 9.6.6).
"""

from __future__ import annotations

from dataclasses import replace

from superopt.verify.ptx.parser import Kernel, Line


def in_order(kernel: Kernel) -> Kernel:
    """The kernel with its blocks in reverse postorder; the same where they are already."""
    lines = kernel.lines
    ends = {i + 1 for i, n in enumerate(lines) if n.opcode.startswith("bra") or _returns(n)}
    starts = sorted({0, *kernel.labels.values(), *ends} - {len(lines)})
    index = {start: b for b, start in enumerate(starts)}
    spans = list(zip(starts, [*starts[1:], len(lines)], strict=True))
    order = _reverse_postorder([_successors(kernel, end - 1, index) for _, end in spans])
    if order == list(range(len(spans))) or any(
        n.opcode.startswith("bra") and kernel.labels.get(n.operands[0], len(lines)) == len(lines)
        for n in lines
    ):
        return kernel
    names = {b: f"@block{b}" for b in order}
    labels: dict[str, int] = {}
    found: list[Line] = []
    for place, b in enumerate(order):
        start, end = spans[b]
        for name in [names[b], *(n for n, p in kernel.labels.items() if p == start)]:
            labels[name] = len(found)
        found += lines[start:end]
        last = lines[end - 1]
        falls = not _returns(last) and not (last.opcode.startswith("bra") and not last.predicate)
        if falls and order[place + 1 : place + 2] != [b + 1]:
            found.append(Line(last.number, "", False, "bra.uni", (names[b + 1],)))
    labels |= {name: len(found) for name in kernel.labels if name not in labels}  # of nothing that runs
    return replace(kernel, lines=found, labels=labels)


def _returns(line: Line) -> bool:
    return line.opcode == "ret" and not line.predicate


def _successors(kernel: Kernel, last: int, index: dict[int, int]) -> list[int]:
    """The blocks that may follow the one that ends with a line, the next one in the text last."""
    line, found = kernel.lines[last], list[int]()
    branches = line.opcode.startswith("bra")
    if branches and line.operands[0] in kernel.labels:
        found.append(index.get(kernel.labels[line.operands[0]], -1))
    if not _returns(line) and not (branches and not line.predicate):
        found.append(index.get(last + 1, -1))
    return [b for b in found if b >= 0]


def _reverse_postorder(successors: list[list[int]]) -> list[int]:
    """Of the blocks that are reached from the first."""
    done: list[int] = []
    seen = {0}
    stack = [(0, iter(successors[0]))]
    while stack:
        block, rest = stack[-1]
        new = next((b for b in rest if b not in seen), None)
        if new is None:
            done.append(block)
            stack.pop()
        else:
            seen.add(new)
            stack.append((new, iter(successors[new])))
    return done[::-1]
