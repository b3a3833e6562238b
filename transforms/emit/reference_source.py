"""A program as plain PyTorch, against which a bundle checks its kernels; uses no part of the lowering."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from superopt.aliasing import pairs
from superopt.errors import UnsupportedProgram
from superopt.operators import OPERATORS, Move, Nest, Scalar, dense_elements, elements_of, normalize_attrs
from superopt.program import (
    COMPUTE_DTYPES,
    Attr,
    BlockGraph,
    Buffer,
    Compute,
    KernelGraph,
    Load,
    Loop,
    LoopVar,
    Node,
    NodeKind,
    Statement,
    TileProgram,
    Value,
    Window,
)
from superopt.quasi_affine import ALWAYS, Read
from superopt.transforms.emit.program_source import EXTERN_HELPER, TORCH_DTYPES, unique_names
from superopt.transforms.emit.spelling import number, spell
from superopt.transforms.lower.block_to_tile import tile_program

_HEADER = '''"""{name} as plain PyTorch, one operation a line: what the kernels are checked against.

`rounded(value, dtype)` is applied to every result: the identity for a reference in float64, a rounding for the
program at its own precision. For sums it gets a third argument: `again(f)` is the operator on f(operands).
"""

{imports}import torch

MAX = torch.finfo(torch.float64).max


def maximum(a, b):
    """The larger of two tensors or numbers."""
    return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))


def minimum(a, b):
    """The smaller of two tensors or numbers."""
    return torch.minimum(torch.as_tensor(a), torch.as_tensor(b))

'''

Array = np.ndarray[Any, Any]

# PyTorch's names of reductions: its mean lacks a partial sum that could overflow.
_TORCH_REDUCTIONS = {"reduce_sum": "sum", "reduce_mean": "mean", "reduce_max": "amax", "reduce_min": "amin"}


def reference_source(graph: KernelGraph, constants: dict[str, Array]) -> str:
    """`reference.py`: `run(inputs..., rounded)`. Dense constants are added to `constants`, by name."""
    reserved = (
        "rounded",
        "f",
        "torch",
        "maximum",
        "minimum",
        "constants",
        "externs",
        "like",
        "device",
        "kernels",
    )
    names = unique_names(graph, reserved)
    lines: list[str] = []
    for node in graph.nodes:
        lines += _node(node, names, constants)
    has_extern = any(n.op == NodeKind.EXTERN for n in graph.nodes)
    arguments = ", ".join([*(names[v] for v in graph.inputs), "*", "rounded", "constants", "externs"])
    numbers = [names[v] for v in graph.inputs if v.dtype in COMPUTE_DTYPES]
    device = f", device={names[graph.inputs[0]]}.device" if graph.inputs else ""
    like = numbers[0] if numbers else f"torch.empty(0, dtype=torch.float64{device})"
    out = [_HEADER.format(name=graph.name, imports="import json\n\n" if has_extern else "")]
    out += [EXTERN_HELPER] if has_extern else []
    out += [f"\ndef run({arguments}):", f"    like = {like}"]
    out += ["    " + line for line in lines]
    outputs = "".join(f"{names[v]}, " for v in graph.outputs)
    return "\n".join([*out, f"    return ({outputs.rstrip()})"]) + "\n"


def _node(node: Node, names: dict[Value, str], constants: dict[str, Array]) -> list[str]:
    operands = [names[v] for v in node.operands]
    if node.op == NodeKind.EXTERN:
        target, args = str(node.attrs["target"]), node.attrs.get("args")
        results = ", ".join(names[v] for v in node.results) + ","
        listed = f"[{', '.join(operands)}]"
        return [
            f"call = externs.get({target!r})",
            f"made = call(*{listed}) if call else extern({target!r}, {args!r}, {listed})",
            f"{results} = made if isinstance(made, (tuple, list)) else (made,)",
            # Its result, in the requested dtype, meets numbers of the reference's dtype.
            *(
                f"{names[v]} = rounded({names[v]}.to(like), {TORCH_DTYPES[v.dtype]})"
                for v in node.results
                if v.dtype in COMPUTE_DTYPES
            ),
        ]
    if isinstance(node.body, (BlockGraph, TileProgram)):
        body = node.body
        program = (
            tile_program(body, "custom", [""] * (len(node.operands) + len(node.results)), node)
            if isinstance(body, BlockGraph)
            else body
        )
        return _Loops(program, operands, [names[v] for v in node.results]).lines
    if (array := dense_elements(node)) is not None:
        kept = f"reference{len(constants)}"
        constants[kept] = np.asarray(array, np.float32)
        return [f'{names[node.result]} = constants["{kept}"].to(like)']
    shapes = [v.shape for v in node.operands]
    text = torch_text(node.op, operands, shapes, node.attrs)
    result = node.result
    entry = OPERATORS[node.op]
    again = ""
    if entry.combiner == "add":
        again = f", lambda f: {torch_text(node.op, [f'f({o})' for o in operands], shapes, node.attrs)}"
    return [f"{names[result]} = rounded({text}, {TORCH_DTYPES[result.dtype]}{again})"]


def torch_text(
    op: str, operands: Sequence[str], shapes: Sequence[tuple[int, ...]], attrs: dict[str, Attr]
) -> str:
    """One operator of the table as a PyTorch expression."""
    entry = OPERATORS[op]
    values = normalize_attrs(entry, attrs)
    if entry.elementwise and entry.body is not None:
        text = spell(entry.body(values), operands)
        if text == operands[0]:
            return text
        text = text.replace("tl.maximum", "maximum").replace("tl.minimum", "minimum").replace("tl.", "torch.")
        return text if any(o in text for o in operands) else f"torch.full_like({operands[0]}, {text})"
    if entry.contraction:
        a, b = (
            f"{o}.mT" if values[k] else o
            for o, k in zip(operands, ("transpose_a", "transpose_b"), strict=True)
        )
        return f"torch.matmul({a}, {b})"
    if entry.windowed:
        return _windows_text(op, operands, shapes, values)
    if entry.constant:
        value = elements_of(entry, values)
        if not isinstance(value, int | float):
            raise UnsupportedProgram("expected dense constants at the kernel level, got one inside")
        return f"torch.full({values['shape']}, {number(value)}, dtype=like.dtype, device=like.device)"
    if entry.reduction:
        dims = f"dim={values['dims']}, keepdim={values['keepdims']}"
        return f"torch.{_TORCH_REDUCTIONS[op]}({operands[0]}, {dims})"
    match entry.move:
        case Move.SLICE:
            cuts = [c for c in (values[k] for k in ("offsets", "sizes", "strides")) if isinstance(c, tuple)]
            parts = [f"{o}:{o + (n - 1) * s + 1}:{s}" for o, n, s in zip(*cuts, strict=True)]
            return f"{operands[0]}[{', '.join(parts)}]"
        case Move.UPDATE:
            dim, start = values["dim"], values["offset"]
            end = f"{start} + {shapes[1][int(str(dim))]}"
            return f"torch.slice_scatter({operands[0]}, {operands[1]}, {dim}, {start}, {end})"
        case Move.REPEAT:
            times = [values["times"] if d == values["dim"] else 1 for d in range(len(shapes[0]))]
            return f"{operands[0]}.repeat({', '.join(map(str, times))})"
        case Move.BROADCAST:
            return f"{operands[0]}.expand({values['shape']})"
        case Move.TRANSPOSE:
            return f"{operands[0]}.permute({values['perm']})"
        case Move.RESHAPE:
            return f"{operands[0]}.reshape({values['shape']})"
        case Move.CONCAT:
            return f"torch.cat([{', '.join(operands)}], dim={values['dim']})"
        case None:
            raise UnsupportedProgram(f"expected an operator that PyTorch has, got '{op}'")


def _windows_text(
    op: str, operands: Sequence[str], shapes: Sequence[tuple[int, ...]], attrs: dict[str, Attr]
) -> str:
    """An operator on windows: PyTorch's own on an operand that is padded before, or a result cut after."""
    entry = OPERATORS[op]
    if entry.nest is not None and (nest := entry.nest(shapes, attrs)).reads and entry.body is not None:
        return _nest_text(nest, entry.body(attrs), operands, shapes)
    if (text := _WINDOWS.get(op)) is None:
        raise UnsupportedProgram(f"expected an operator that PyTorch has, got '{op}'")
    return text(operands, shapes, attrs)


def _nest_text(nest: Nest, body: Scalar, operands: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> str:
    """A nest whose reads are given: operands are spread by gathers, and multiplied by einsum."""
    parts = [_spread_text(nest, r, x, s) for r, x, s in zip(nest.reads, operands, shapes, strict=True)]
    result = "".join(map(_letter, range(len(nest.result))))

    def summed(body: Scalar) -> str:
        if body.head == "add":
            return " + ".join(map(summed, body.args))
        numbers = factors(body)
        held = {d for n in numbers for d in nest.reads[n].dims}
        # What no factor depends on: ones, as many.
        idle = [d for d in range(len(nest.extents)) if d not in held]
        maps = ["".join(map(_letter, nest.reads[n].dims)) for n in numbers] + list(map(_letter, idle))
        ones = [f"torch.ones({nest.extents[d]}, dtype=like.dtype, device=like.device)" for d in idle]
        return (
            f"torch.einsum('{','.join(maps)}->{result}', {', '.join([*(parts[n] for n in numbers), *ones])})"
        )

    def factors(body: Scalar) -> list[int]:
        return [int(body.payload)] if body.head == "arg" else [n for a in body.args for n in factors(a)]

    text = f"({summed(body)})"
    if nest.where is None or nest.where.guard == ALWAYS:
        return text
    dims = range(len(nest.result))
    return f"torch.where({_over(nest, dims, _held(nest.where))}, {text}, 0.0)"


def _letter(d: int) -> str:
    return chr(ord("a") + d)


def _spread_text(nest: Nest, read: Read, x: str, shape: Sequence[int]) -> str:
    places = [read.text(i).replace("floordiv", "//") for i in read.index]
    held = [_held(read), *(f"({p} >= 0) & ({p} < {e})" for p, e in zip(places, shape, strict=True))]
    index = ", ".join(
        f"torch.as_tensor({p}, device=like.device).clamp(0, {e - 1})"
        for p, e in zip(places, shape, strict=True)
    )
    kept = " & ".join(f"torch.as_tensor({h}, device=like.device)" for h in held)
    sizes = tuple(nest.extents[d] for d in read.dims)
    return f"{_over(nest, read.dims, f'torch.where({kept}, {x}[{index or ()}], 0.0)')}.expand({sizes})"


def _held(read: Read) -> str:
    """The guard of a read, of tensors."""
    if read.guard == ALWAYS:
        return "True"
    cases = (
        " & ".join(f"({read.text(c.of)} {'==' if c.equal else '>='} 0)" for c in every)
        for every in read.guard
    )
    return (" | ".join(f"({case})" for case in cases) or "False").replace("floordiv", "//")


def _over(nest: Nest, dims: Sequence[int], text: str) -> str:
    """`text` of d0, d1, ..., each along an axis of its own."""
    names = ", ".join(f"d{d}" for d in dims)
    ramps = ", ".join(
        f"torch.arange({nest.extents[d]}, device=like.device)"
        f".reshape({tuple(-1 if e == d else 1 for e in dims)})"
        for d in dims
    )
    return f"(lambda {names}: {text})({ramps})"


_FUNCTIONAL = "torch.nn.functional"


def _padded(text: str, low: Sequence[int], high: Sequence[int], value: float = 0.0) -> str:
    amounts = [n for pair in reversed([*zip(low, high, strict=True)]) for n in pair]
    return f"{_FUNCTIONAL}.pad({text}, {amounts}, value={number(value)})" if any(amounts) else text


def _conv_text(x: str, weight: str, groups: Attr, attrs: dict[str, Attr]) -> str:
    low, high = _numbers(attrs, "low"), _numbers(attrs, "high")
    steps = f"stride={attrs['strides']}, dilation={attrs['dilations']}, groups={groups}"
    return f"{_FUNCTIONAL}.conv{len(low)}d({_padded(x, low, high)}, {weight}, {steps})"


def _conv_transpose_text(
    operands: Sequence[str], _: Sequence[tuple[int, ...]], attrs: dict[str, Attr]
) -> str:
    low, high, extra = (_numbers(attrs, name) for name in ("low", "high", "extra"))
    steps = f"stride={attrs['strides']}, dilation={attrs['dilations']}, groups={attrs['groups']}"
    whole = f"{_FUNCTIONAL}.conv_transpose{len(low)}d({operands[0]}, {operands[1]}, {steps})"
    return _padded(whole, [-n for n in low], [e - n for e, n in zip(extra, high, strict=True)])


def _pool_max_text(operands: Sequence[str], _: Sequence[tuple[int, ...]], attrs: dict[str, Attr]) -> str:
    low, high = _numbers(attrs, "low"), _numbers(attrs, "high")
    steps = f"{attrs['sizes']}, stride={attrs['strides']}, dilation={attrs['dilations']}"
    return f"{_FUNCTIONAL}.max_pool{len(low)}d({_padded(operands[0], low, high, -math.inf)}, {steps})"


def _pool_sum_text(operands: Sequence[str], shapes: Sequence[tuple[int, ...]], attrs: dict[str, Attr]) -> str:
    """A convolution of every channel by ones."""
    shape = shapes[0]
    ones = f"torch.ones({(shape[1], 1, *_numbers(attrs, 'sizes'))}, dtype=like.dtype, device=like.device)"
    return _conv_text(operands[0], ones, shape[1], attrs)


def _shifted_sum_text(
    operands: Sequence[str], shapes: Sequence[tuple[int, ...]], attrs: dict[str, Attr]
) -> str:
    """A convolution of every channel, of which kernel positions are channels, by a one for each."""
    shape = shapes[0]
    rank = len(_numbers(attrs, "low"))
    sizes, channels, extents = shape[1 : 1 + rank], shape[1 + rank], shape[2 + rank :]
    taps = math.prod(sizes)
    order = (0, 1 + rank, *range(1, 1 + rank), *range(2 + rank, 2 + 2 * rank))
    x = f"{operands[0]}.permute({order}).reshape({(shape[0], channels * taps, *extents)})"
    ones = f"torch.eye({taps}, dtype=like.dtype, device=like.device).reshape({(taps, *sizes)})"
    return _conv_text(x, f"{ones}.expand({(channels, taps, *sizes)})", channels, attrs)


def _band_rows(x: str, rows: int, width: int, shape: tuple[int, ...], attrs: dict[str, Attr]) -> str:
    """The rows of `x`, of this shape, that each row of a band reads, as a last dimension."""
    low, dilation = int(str(attrs["low"])), int(str(attrs["dilation"]))
    span = dilation * (width - 1) + 1
    padded = _padded(x, (low, 0), (rows + span - 1 - low - shape[-2], 0))
    return f"{padded}.unfold(-2, {span}, 1)[..., ::{dilation}]"


def _g2bmm_text(operands: Sequence[str], shapes: Sequence[tuple[int, ...]], attrs: dict[str, Attr]) -> str:
    rows = _band_rows(operands[1], shapes[0][-2], int(str(attrs["width"])), shapes[1], attrs)
    return f'torch.einsum("...mk,...mkw->...mw", {operands[0]}, {rows})'


def _gbmm_text(operands: Sequence[str], shapes: Sequence[tuple[int, ...]], attrs: dict[str, Attr]) -> str:
    rows = _band_rows(operands[1], shapes[0][-2], shapes[0][-1], shapes[1], attrs)
    return f'torch.einsum("...mw,...mnw->...mn", {operands[0]}, {rows})'


_WINDOWS: dict[str, Callable[[Sequence[str], Sequence[tuple[int, ...]], dict[str, Attr]], str]] = {
    "conv": lambda operands, _, attrs: _conv_text(operands[0], operands[1], attrs["groups"], attrs),
    "conv_transpose": _conv_transpose_text,
    "pool_max": _pool_max_text,
    "pool_sum": _pool_sum_text,
    "shifted_sum": _shifted_sum_text,
    "g2bmm": _g2bmm_text,
    "gbmm": _gbmm_text,
    "pad": lambda operands, _, attrs: _padded(
        operands[0], _numbers(attrs, "low"), _numbers(attrs, "high"), float(str(attrs["value"]))
    ),
}


def _numbers(attrs: dict[str, Attr], name: str) -> tuple[int, ...]:
    found = attrs[name]
    assert isinstance(found, tuple)
    return found


class _Loops:
    """A block graph or tile program as Python loops over slices of tensors."""

    def __init__(self, program: TileProgram, operands: Sequence[str], results: Sequence[str]) -> None:
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.buffers: dict[Buffer, str] = dict(zip(program.params, [*operands, *results], strict=True))
        self.variables: dict[LoopVar, str] = {}
        prefix = results[0]
        aliases = pairs(program.aliases)
        if any(buffer.view is not None for buffer in program.locals):
            raise UnsupportedProgram("expected a program without views as reference, got one")
        for i, buffer in enumerate([*program.params[program.n_inputs :], *program.locals]):
            name = self.buffers.setdefault(buffer, f"{prefix}_local{i}")
            shape = buffer.type.shape
            if i in aliases:
                self.lines.append(f"{name} = {operands[aliases[i]]}.clone()")
                continue
            self.lines.append(f"{name} = torch.empty({shape}, dtype=like.dtype, device=like.device)")
        self.prefix = prefix
        self.body(program.body, "")
        for buffer in program.params[program.n_inputs :]:
            name = self.buffers[buffer]
            self.lines.append(f"{name} = rounded({name}, {TORCH_DTYPES[buffer.type.dtype]})")

    def body(self, body: Sequence[Statement], indent: str) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                var = self.variables[statement.var] = f"{self.prefix}_i{len(self.variables)}"
                bounds = f"{statement.start}, {statement.stop}, {statement.step}"
                self.lines.append(f"{indent}for {var} in range({bounds}):")
                self.body(statement.body, indent + "    ")
            elif isinstance(statement, Load):
                text = self.cut(statement.buffer, statement.windows)
                self.lines.append(f"{indent}{self.name(statement.result)} = {text}.clone()")
            elif isinstance(statement, Compute):
                if statement.bounds:
                    raise UnsupportedProgram("expected a program without masked tiles as reference, got one")
                operands = [self.names[v] for v in statement.operands]
                shapes = [v.shape for v in statement.operands]
                text = torch_text(statement.op, operands, shapes, dataclasses.replace(statement).attrs)
                self.lines.append(f"{indent}{self.name(statement.result)} = {text}")
            else:
                target = self.cut(statement.buffer, statement.windows)
                self.lines.append(f"{indent}{target} = {self.names[statement.value]}")

    def name(self, value: Value) -> str:
        return self.names.setdefault(value, f"{self.prefix}_v{len(self.names)}")

    def cut(self, buffer: Buffer, windows: Sequence[Window]) -> str:
        parts: list[str] = []
        for window in windows:
            terms = [f"{self.variables[var]} * {scale}" for var, scale in window.terms]
            start = " + ".join([*terms, str(window.base)])
            end = f"{start} + {(window.size - 1) * window.stride + 1}"
            parts.append(f"{start}:{end}:{window.stride}")
        return f"{self.buffers[buffer]}[{', '.join(parts) or '...'}]"
