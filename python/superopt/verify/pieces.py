"""Cuts two programs at values that both compute, so that large ones are compared piece by piece.

Which values those are is guessed (`shared_values`), and then proved: a piece is what lies between a value and the
nearest ones before it, in both programs, as a function of these. If the pieces of every value that is needed are
equal, on all inputs, so are the programs, by induction along their nodes. (Cut points of combinational
equivalence checking, as in Kuehlmann and Krohm, DAC'97.) Pieces that differ prove nothing: a piece may rely on
how the values before it were computed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.verify.hashing import canonical_text
from superopt.verify.primes import Primes
from superopt.verify.reduce import work
from superopt.verify.shared_values import Shared, shared_values

# Operations of reduced programs that are run to find the pieces: a network with convolutions keeps large images,
# an encoder layer of 1,500 tokens its 5,120 hidden columns.
CUT_WORK = 500_000_000


@dataclass(frozen=True)
class Piece:
    """Two programs whose inputs are values that the cut programs share; if every piece is equal, so are these.

    `alike` says that they are one text: equal where they are defined.
    """

    first: KernelGraph
    second: KernelGraph
    alike: bool = False


def cut(
    a: KernelGraph,
    b: KernelGraph,
    reduced: tuple[KernelGraph, KernelGraph],
    seed: object,
    primes: Primes,
    *,
    rounded: bool = False,
    alike: bool = False,
) -> list[Piece] | None:
    """The pieces to compare in place of `a` and `b`; None where no shared value divides them.

    With `rounded`, what has another dtype is another value; with `alike`, pieces whose programs are one text are
    there, too.

    `reduced` are both programs at smaller extents, node by node. Pieces whose programs are one text are left out,
    and those that repeat others, as those of equal layers do.
    Raises ZeroDivisionError where the random inputs make a denominator vanish.
    """
    shared = shared_values(a, b, reduced, seed, primes, rounded=rounded)
    partner = {w: Shared(v) for v, w in zip(a.inputs, b.inputs, strict=True)} | shared
    # Per node of b: its results to prove, with their partners, of which a result that is returned may have two.
    wanted: dict[Node, dict[tuple[Value, Shared], None]] = {}
    makers = {v: n for n in b.nodes for v in n.results}
    for x, y in zip(a.outputs, b.outputs, strict=True):
        if y in makers:
            wanted.setdefault(makers[y], {})[y, Shared(x)] = None
        elif partner.get(y) != Shared(x):
            return None
    found: dict[tuple[str, str], Piece] = {}
    for node in reversed(b.nodes):
        if not (targets := wanted.get(node)):
            continue
        known = {v for v in partner if v not in node.results}
        nodes, ends = _slice(b.nodes, [v for v, _ in targets], known)
        if any(v not in partner for v in ends):
            return None
        others, first_ends = _slice(
            a.nodes, [s.value for _, s in targets], {partner[v].value for v in ends} | {*a.inputs}
        )
        inputs = dict[Value, Value]()
        for v in ends:
            inputs[partner[v].value], shows = _as_input(v, partner[v])
            nodes = [*shows, *nodes]
        # Inputs that only one of them reads become inputs of both.
        for v, w in zip(a.inputs, b.inputs, strict=True):
            if v in first_ends:
                inputs.setdefault(v, w)
        outputs = list[Value]()
        for v, target in targets:
            output, shows = _as_output(v, target)
            outputs.append(output)
            others = [*others, *shows]
        piece = Piece(
            KernelGraph("piece", list(inputs), others, outputs),
            KernelGraph("piece", list(inputs.values()), nodes, [v for v, _ in targets]),
        )
        for v in ends:
            if v in makers:
                wanted.setdefault(makers[v], {})[v, partner[v]] = None
        texts = canonical_text(piece.first), canonical_text(piece.second)
        if texts[0] == texts[1] and not alike:
            continue
        if (
            texts[0] != texts[1]
            and {*piece.first.inputs} <= {*a.inputs}
            and {*piece.first.outputs} == {*a.outputs}
        ):
            return None
        found.setdefault(texts, replace(piece, alike=texts[0] == texts[1]))
    return [*found.values()]


def finest_first(cuts: Iterable[list[Piece] | None]) -> list[list[Piece]]:
    """Several cuts of the same programs, without those that have no pieces.

    Where numbers of a program stand for extents, only programs that are reduced together with them compute the
    same, and so show where to cut.
    """
    return sorted(filter(None, cuts), key=lambda pieces: max(work(p.second) for p in pieces))


def _as_input(value: Value, shared: Shared) -> tuple[Value, list[Node]]:
    """What the second program of a piece reads in place of `value`, and how that shows it."""
    if shared.shown is None:
        return value, []
    given = Value(TensorType(shared.value.shape, value.dtype))
    return given, shared.shown.nodes(given, value)


def _as_output(value: Value, shared: Shared) -> tuple[Value, list[Node]]:
    """What the first program of a piece gives for `value`, and how that is made of what it computes."""
    if shared.shown is None:
        return shared.value, []
    shown = Value(TensorType(value.shape, shared.value.dtype))
    return shown, shared.shown.nodes(shared.value, shown)


def _slice(
    nodes: Sequence[Node], targets: Iterable[Value], known: set[Value]
) -> tuple[list[Node], list[Value]]:
    """The nodes that `targets` need beyond the values `known`, in order, and the known values they read."""
    needed = dict.fromkeys(v for v in targets if v not in known)
    kept, ends = list[Node](), dict.fromkeys(v for v in targets if v in known)
    for node in reversed(nodes):
        if any(v in needed for v in node.results):
            kept.append(node)
            for v in node.operands:
                if v in known:
                    ends[v] = None
                else:
                    needed[v] = None
    made = {v for node in kept for v in node.results}
    free = [v for v in needed if v not in made]  # graph inputs that are not known, or targets that are inputs
    return [_without(node, ends) for node in reversed(kept)], [*ends, *free]


def _without(node: Node, inputs: Container[Value]) -> Node:
    """The node, with new results in place of those that are inputs here."""
    if not any(v in inputs for v in node.results):
        return node
    return replace(node, results=tuple(Value(v.type) if v in inputs else v for v in node.results))
