"""Other expressions for convolutions: each rule gives a program for one node, or None where it does not fit.

They are those of OLLIE (EinNet, OSDI 2023, sections 4 and 5) and PET (OSDI 2021, section 8) that need no
correction. None is trusted: what they give goes through the gates like any other candidate. `y, x, k` stand for
positions of the result, the operand and the kernel, in all spatial dimensions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from superopt.operators import OPERATORS, normalize_attrs, primitive_of
from superopt.program import Attr, KernelGraph, Node, Value, users
from superopt.transforms.derivation.bands import band_blocks, band_residues
from superopt.transforms.derivation.products import MOST_COLUMNS, batched_matmul, one_matmul, pool_as_conv
from superopt.transforms.derivation.rewrite import Rewrite, can_be_one
from superopt.weights import of_weights

Rule: TypeAlias = Callable[[KernelGraph, Node], "KernelGraph | None"]

RULES: dict[str, Rule] = {}
SCALES, SPLIT = "scales-into-weights", "smaller-kernels"
# Residues and kernel positions that are written one by one.
_MOST_PARTS = 32


def rule(name: str) -> Callable[[Rule], Rule]:
    """Register a rule."""

    def register(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return register


class Convolution:
    """A convolution or its transpose: its attributes, extents and a writer at its place."""

    def __init__(self, graph: KernelGraph, node: Node) -> None:
        self.node, self.write = node, Rewrite(graph, node)
        attrs = normalize_attrs(OPERATORS[node.op], node.attrs)
        self.x, self.w = node.operands
        self.strides, self.dilations, self.low, self.high = (
            _ints(attrs, name) for name in ("strides", "dilations", "low", "high")
        )
        groups = attrs["groups"]
        assert isinstance(groups, int)
        self.groups = groups
        self.batch, self.channels, *self.extents = self.x.shape
        self.sizes = self.w.shape[2:]
        self.placed = node.result.shape[2:]
        self.rank = len(self.sizes)

    @property
    def dense(self) -> bool:
        """Whether it reads neighbours, in one group."""
        return set(self.strides) == set(self.dilations) == {1} and self.groups == 1

    def conv(self, x: Value, w: Value, **changed: tuple[int, ...] | int) -> Value:
        """A convolution of `x` by `w`: dense, without padding, but for what is `changed`."""
        one, none = (1,) * self.rank, (0,) * self.rank
        windows: dict[str, Attr] = {"strides": one, "dilations": one, "low": none, "high": none, "groups": 1}
        return self.write.emit("conv", x, w, **{**windows, **changed})

    def done(self, made: Value, instead_of: Value | None = None) -> KernelGraph:
        """The graph with `made` in place of the result, or `instead_of` what follows it."""
        return self.write.instead({instead_of or self.node.result: made})


def _ints(attrs: Mapping[str, Attr], name: str) -> tuple[int, ...]:
    found = attrs[name]
    assert isinstance(found, tuple)
    return found


def is_conv(node: Node) -> bool:
    """Whether it is a convolution, not a transposed one."""
    return _is(node, "conv")


def _is(node: Node, op: str) -> bool:
    return node.op == op


@rule("product")
def conv_as_product(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """conv(x, w) -> reshape(matmul(w, reshape(x))), where the kernel has one position that reads x in place.

    y[n, f, p] = sum over c of w[f, c] x[n, c, p]: what a matrix product says, with groups as batch.
    """
    if not is_conv(node):
        return None
    c = Convolution(graph, node)
    if math.prod(c.sizes) != 1 or set(c.strides) != {1} or any([*c.low, *c.high]):
        return None
    write, positions = c.write, math.prod(c.extents)
    depth, columns = c.channels // c.groups, node.result.shape[1] // c.groups
    if c.groups == 1:
        made = write.emit(
            "matmul", write.reshape(c.w, columns, depth), write.reshape(c.x, c.batch, depth, positions)
        )
    else:
        w = write.reshape(c.w, c.groups, columns, depth)
        made = write.emit("matmul", w, write.reshape(c.x, c.batch, c.groups, depth, positions))
    return c.done(write.reshape(made, *node.result.shape))


@rule("offset-add")
def split_depth(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """conv(x, w) -> shifted_sum(matmul(w', x)): every kernel position as columns of one product, then their sum.

    t[n, k, f, x] = sum over c of w[f, c, k] x[n, c, x];  y[n, f, y] = sum over k of t[n, k, f, y + k - low].
    """
    if not is_conv(node):
        return None
    c = Convolution(graph, node)
    if c.groups != 1 or math.prod(c.sizes) == 1:
        return None
    write, taps, positions = c.write, math.prod(c.sizes), math.prod(c.extents)
    columns = node.result.shape[1]
    w = write.transpose(c.w, *range(2, 2 + c.rank), 0, 1)
    w = write.reshape(w, taps * columns, c.channels)
    product = write.emit("matmul", w, write.reshape(c.x, c.batch, c.channels, positions))
    apart = write.reshape(product, c.batch, *c.sizes, columns, *c.extents)
    return c.done(
        write.emit("shifted_sum", apart, strides=c.strides, dilations=c.dilations, low=c.low, high=c.high)
    )


@rule(SPLIT)
def smaller_kernels(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """conv(x, w 5x5) -> shifted_sum(conv(x, four kernels of 3x3 as columns)): `split_kernels` of 3 positions."""
    if not is_conv(node) or min(sizes := node.operands[1].shape[2:]) < 4 or max(sizes) > 9:
        return None
    return split_kernels(graph, node, (3,) * len(sizes))


def split_kernels(graph: KernelGraph, node: Node, inner: Sequence[int]) -> KernelGraph | None:
    """conv(x, w) -> shifted_sum(conv(x, kernels of `inner` positions as columns)): k = inner a + b.

    y[f, y] = sum over a of z[a, f, y + 3 a - low], with z[a, f, x] = sum over b of w[f, 3 a + b] x[x + b], for 3.
    None where nothing is split, or a kernel would begin before what is read.
    """
    c = Convolution(graph, node)
    counts = [math.ceil(k / n) for k, n in zip(c.sizes, inner, strict=True)]
    if not c.dense or math.prod(counts) == 1:
        return None
    write, columns = c.write, node.result.shape[1]
    extra = [m * n - k for m, n, k in zip(counts, inner, c.sizes, strict=True)]
    w = write.pad(c.w, [0] * (2 + c.rank), [0, 0, *extra])
    w = write.reshape(w, columns, c.channels, *(e for pair in zip(counts, inner, strict=True) for e in pair))
    outer, within = range(2, 2 + 2 * c.rank, 2), range(3, 2 + 2 * c.rank, 2)
    w = write.transpose(w, *outer, 0, 1, *within)
    w = write.reshape(w, math.prod(counts) * columns, c.channels, *inner)
    # Every position of which something inside is read: `inner` - 1 before the first on. A dimension of one kernel
    # keeps its pads.
    cut = [count > 1 for count in counts]
    before = tuple(n - 1 if many else a for many, n, a in zip(cut, inner, c.low, strict=True))
    after = tuple(n - 1 if many else b for many, n, b in zip(cut, inner, c.high, strict=True))
    low = tuple(a - n if many else 0 for many, a, n in zip(cut, c.low, before, strict=True))
    high = tuple(b - n + e if many else 0 for many, b, n, e in zip(cut, c.high, after, extra, strict=True))
    if min(*low, *high, 0) < 0:
        return None
    part = c.conv(c.x, w, low=before, high=after)
    part = write.reshape(part, c.batch, *counts, columns, *part.shape[2:])
    one, steps = (1,) * c.rank, tuple(inner)
    return c.done(write.emit("shifted_sum", part, strides=one, dilations=steps, low=low, high=high))


@rule("strides-as-channels")
def strides_as_channels(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """conv(x, w, stride s) -> conv(x', w', stride 1), where each s^d block of x is a position of s^d times as
    many channels (space to depth): x = s q + r becomes channel r at q, and so do kernel positions.
    """
    if not is_conv(node):
        return None
    c = Convolution(graph, node)
    if set(c.strides) == {1} or set(c.dilations) != {1} or c.groups != 1:
        return None
    write, columns = c.write, node.result.shape[1]
    counts = [math.ceil(k / s) for k, s in zip(c.sizes, c.strides, strict=True)]
    wanted = [(n + k - 1) * s for n, k, s in zip(c.placed, counts, c.strides, strict=True)]
    after = [n - e - a for n, e, a in zip(wanted, c.extents, c.low, strict=True)]
    kept = [e + min(a, 0) for e, a in zip(c.extents, after, strict=True)]
    if min(kept) < 1:  # padding alone is read
        return None
    cut = {2 + i: (0, e, 1) for i, e in enumerate(kept)}
    x = write.pad(write.slice(c.x, cut), [0, 0, *c.low], [0, 0, *(max(a, 0) for a in after)])
    rest = [n * s - k for n, s, k in zip(counts, c.strides, c.sizes, strict=True)]
    w = write.pad(c.w, [0] * (2 + c.rank), [0, 0, *rest])
    x, w = (_blocks(write, v, c.strides) for v in (x, w))
    return c.done(c.conv(x, write.reshape(w, columns, x.shape[1], *counts)))


def _blocks(write: Rewrite, x: Value, strides: Sequence[int]) -> Value:
    """(n, c, s q + r) as (n, c and r, q), for each spatial dimension."""
    n, c, *extents = x.shape
    counts = [e // s for e, s in zip(extents, strides, strict=True)]
    apart = write.reshape(x, n, c, *(e for pair in zip(counts, strides, strict=True) for e in pair))
    rank = len(extents)
    turned = write.transpose(apart, 0, 1, *range(3, 2 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2))
    return write.reshape(turned, n, c * math.prod(strides), *counts)


@rule("residues-as-batch")
def residues_as_batch(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """conv(x, w, dilation d) -> conv(x', w, dilation 1), where positions with one residue modulo d are an image
    of the batch: y = d q + r reads x = d (q + k) + r - low.
    """
    if not is_conv(node):
        return None
    c = Convolution(graph, node)
    if set(c.dilations) == {1} or set(c.strides) != {1}:
        return None
    write, steps = c.write, c.dilations
    counts = [math.ceil(n / d) for n, d in zip(c.placed, steps, strict=True)]
    wanted = [(n + k - 1) * d for n, k, d in zip(counts, c.sizes, steps, strict=True)]
    after = [n - e - a for n, e, a in zip(wanted, c.extents, c.low, strict=True)]
    if min(after) < 0:
        return None
    x = write.pad(c.x, [0, 0, *c.low], [0, 0, *after])
    inner = [n // d for n, d in zip(wanted, steps, strict=True)]
    x = write.reshape(x, c.batch, c.channels, *(e for pair in zip(inner, steps, strict=True) for e in pair))
    outer, residues = range(2, 2 + 2 * c.rank, 2), range(3, 3 + 2 * c.rank, 2)
    x = write.transpose(x, 0, *residues, 1, *outer)
    x = write.reshape(x, c.batch * math.prod(steps), c.channels, *inner)
    y = c.conv(x, c.w, groups=c.groups)
    y = write.reshape(y, c.batch, *steps, y.shape[1], *counts)
    pairs = [d for i in range(c.rank) for d in (2 + c.rank + i, 1 + i)]
    y = write.transpose(y, 0, 1 + c.rank, *pairs)
    y = write.reshape(y, c.batch, y.shape[1], *(n * d for n, d in zip(counts, steps, strict=True)))
    return c.done(write.slice(y, {2 + i: (0, n, 1) for i, n in enumerate(c.placed)}))


@rule("sub-pixels")
def sub_pixels(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """conv_transpose(x, w, stride s) -> s^d convolutions, one for each residue r of the result's positions, side
    by side: y = s q + r reads x = q + (r + low - k) / s, which is whole at every s-th k only.
    """
    if not _is(node, "conv_transpose"):
        return None
    c = Convolution(graph, node)
    if (
        c.groups != 1
        or set(c.dilations) != {1}
        or set(c.strides) == {1}
        or math.prod(c.strides) > _MOST_PARTS
    ):
        return None
    write = c.write
    counts = [math.ceil(n / s) for n, s in zip(c.placed, c.strides, strict=True)]
    turned = write.transpose(c.w, 1, 0, *range(2, 2 + c.rank))
    parts: list[Value] = []
    for residues in itertools.product(*map(range, c.strides)):
        first = [(r + a) % s for r, a, s in zip(residues, c.low, c.strides, strict=True)]
        taps = [len(range(f, k, s)) for f, k, s in zip(first, c.sizes, c.strides, strict=True)]
        start = [(r + a - f) // s for r, a, f, s in zip(residues, c.low, first, c.strides, strict=True)]
        low = [t - 1 - q for t, q in zip(taps, start, strict=True)]
        high = [n + t - 1 - a - e for n, t, a, e in zip(counts, taps, low, c.extents, strict=True)]
        if min(*taps, 1) < 1 or min(*low, *high) < 0:
            return None
        cut = {2 + i: (f, t, s) for i, (f, t, s) in enumerate(zip(first, taps, c.strides, strict=True))}
        w = write.flip(write.slice(turned, cut), range(2, 2 + c.rank))
        parts.append(c.conv(c.x, w, low=tuple(low), high=tuple(high)))
    columns = node.result.shape[1]
    between = [e for n in counts for e in (n, 1)]
    parts = [write.reshape(p, c.batch, columns, *between) for p in parts]
    for i in reversed(range(c.rank)):
        s = c.strides[i]
        parts = [write.concat(3 + 2 * i, parts[j : j + s]) for j in range(0, len(parts), s)]
    (y,) = parts
    y = write.reshape(y, c.batch, columns, *(n * s for n, s in zip(counts, c.strides, strict=True)))
    return c.done(write.slice(y, {2 + i: (0, n, 1) for i, n in enumerate(c.placed)}))


@rule("one-product")
def merge_columns(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """conv(x, w1), conv(x, w2) -> slices of conv(x, concat(w1, w2)), where all else is the same."""
    if not is_conv(node):
        return None
    c = Convolution(graph, node)
    alike = [
        n
        for n in graph.nodes
        if is_conv(n)
        and n.operands[0] is c.x
        and n.attrs == node.attrs
        and n.operands[1].shape[1:] == c.w.shape[1:]
    ]
    columns = [n.result.shape[1] for n in alike]
    if not can_be_one(graph, alike, node) or c.groups != 1 or sum(columns) > MOST_COLUMNS:
        return None
    w = c.write.concat(0, [n.operands[1] for n in alike])
    y = c.write.emit("conv", c.x, w, **node.attrs)
    starts = itertools.accumulate(columns, initial=0)
    return c.write.instead(
        {n.result: c.write.slice(y, {1: (s, e, 1)}) for n, s, e in zip(alike, starts, columns, strict=False)}
    )


@rule("as-groups")
def merge_groups(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """conv(x1, w1), conv(x2, w2) -> slices of conv(concat(x1, x2), concat(w1, pad(w2)), 2 groups), where all is
    alike but the operands and the columns of the weights: those with fewer get zeros (PET, section 8.3.3).
    """
    if not is_conv(node):
        return None
    c = Convolution(graph, node)
    alike = [
        n
        for n in graph.nodes
        if is_conv(n)
        and n.attrs == node.attrs
        and n.operands[0].shape == c.x.shape
        and n.operands[1].shape[1:] == c.w.shape[1:]
    ]
    images = [n.operands[0] for n in alike]
    columns = [n.result.shape[1] for n in alike]
    most = max(columns, default=0)
    if (
        not can_be_one(graph, alike, node)
        or c.groups != 1
        or len({*images}) < len(alike)
        or len(alike) * most > MOST_COLUMNS
    ):
        return None
    write, none = c.write, [0] * (len(c.w.shape) - 1)
    weights = [
        write.pad(n.operands[1], [0, *none], [most - f, *none]) for n, f in zip(alike, columns, strict=True)
    ]
    changed = {**node.attrs, "groups": len(alike)}
    y = write.emit("conv", write.concat(1, images), write.concat(0, weights), **changed)
    return write.instead(
        {
            n.result: write.slice(y, {1: (i * most, f, 1)})
            for i, (n, f) in enumerate(zip(alike, columns, strict=True))
        }
    )


@rule(SCALES)
def scales_into_weights(graph: KernelGraph, node: Node) -> KernelGraph | None:
    """conv(x, w) * s + b -> conv(x, w * s) + b, where s and b follow from weights, one number for each channel of
    the result: batch norm in inference, (y - mean) * r * s + b. What is made of weights alone is prepared.

    A convolution is linear in its weights, and what it reads outside is zero either way.
    """
    if not (is_conv(node) or _is(node, "conv_transpose")):
        return None
    c, fixed, used = Convolution(graph, node), of_weights(graph), users(graph.nodes)
    axis = 0 if is_conv(node) else 1
    if c.w not in fixed or (axis == 1 and c.groups != 1):
        return None
    write, value, end = c.write, node.result, node.result
    scale: Value | None = None
    shift: Value | None = None

    while value not in graph.outputs and len(uses := used.get(value, ())) == 1:
        (then,) = uses
        others = [v for v in then.operands if v is not value]
        if len(then.operands) == 1 and OPERATORS[then.op].conversion:
            value = then.result
            continue
        kind = primitive_of(then)
        known = len(others) == 1 and others[0] in fixed and _for_channels(others[0], node.result.shape)
        if (
            kind not in ("add", "sub", "mul")
            or not known
            or (kind == "sub" and then.operands[0] is not value)
        ):
            break
        number = write.cast(write.reshape(others[0], others[0].type.elements), "f32")
        if kind == "mul":
            scale = number if scale is None else write.emit("mul", scale, number)
            shift = shift and write.emit("mul", shift, number)
        elif shift is None:
            shift = number if kind == "add" else write.emit("neg", number)
        else:
            shift = write.emit(kind, shift, number)
        value = end = then.result
    if scale is None:
        return None
    sizes = [scale.type.elements if d == axis else 1 for d in range(len(c.w.shape))]
    w = write.emit("mul", write.cast(c.w, "f32"), write.reshape(scale, *sizes))
    made = write.emit(node.op, c.x, write.cast(w, c.w.dtype), **node.attrs)
    made = write.cast(made, end.dtype)
    if shift is not None:
        sizes = (shift.type.elements, *(1 for _ in range(c.rank)))
        made = write.emit("add", made, write.cast(write.reshape(shift, *sizes), end.dtype))
    return c.done(made, instead_of=end)


def _for_channels(value: Value, shape: Sequence[int]) -> bool:
    """Whether a value that is joined to one of `shape` is one number, or one for each of dimension 1."""
    aligned = (1,) * (len(shape) - len(value.shape)) + tuple(value.shape)
    return value.type.elements == 1 or aligned[1] == shape[1] == value.type.elements


RULES.update(
    {
        "one-matmul": one_matmul,
        "batched-matmul": batched_matmul,
        "pool-as-conv": pool_as_conv,
        "band-residues": band_residues,
        "band-blocks": band_blocks,
    }
)
