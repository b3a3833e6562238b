"""What a site looks at, as text: the same for equal surroundings in any program, on any machine.

A node's fingerprint is the hash of its operator, attributes, types and body; with `hops`, also of the nodes that
it reads and that read it, refined that many times (Weisfeiler and Leman's colouring).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from superopt.program import KernelGraph, Node, producers, users
from superopt.verify.hashing import program_hash

# Hexadecimal digits that are kept: 64 bits.
_DIGITS = 16


def named(graph: KernelGraph) -> str:
    """That of a whole program: its content, in short."""
    return program_hash(graph)[:_DIGITS]


def kernel_fingerprint(node: Node, *names: str) -> str:
    """That of a node alone, whatever stands around it; `names` are those that its choices use."""
    alone = KernelGraph("kernel", list(dict.fromkeys(node.operands)), [node], list(node.results))
    return _hashed([program_hash(alone), *names])


def fingerprints(graph: KernelGraph, hops: int) -> dict[Node, str]:
    """That of every node, with what is up to `hops` nodes away."""
    found = {n: kernel_fingerprint(n) for n in graph.nodes}
    made_by, used_by = producers(graph.nodes), users(graph.nodes)
    outputs = set(graph.outputs)
    for _ in range(hops):
        before = dict(found)

        def said(node: Node, before: dict[Node, str] = before) -> str:
            read = [before[made_by[v]] if v in made_by else str(v.type) for v in node.operands]
            used = sorted(
                f"{i}:{u.operands.index(v)}:{before[u]}"
                for i, v in enumerate(node.results)
                for u in used_by.get(v, ())
            )
            returned = [v in outputs for v in node.results]
            return _hashed([before[node], *read, "|", *used, "|", *map(str, returned)])

        found = {n: said(n) for n in graph.nodes}
    return found


def _hashed(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_DIGITS]
