"""An e-graph as a drawing (Graphviz) or as data (JSON): classes, their nodes, and the nodes' payloads."""

from __future__ import annotations

import json
from typing import Any

from superopt.transforms.tile_saturation.encode import Encoder


def _classes(encoder: Encoder) -> dict[int, list[dict[str, Any]]]:
    out: dict[int, list[dict[str, Any]]] = {}
    for owner, op, payload, a, b in encoder.graph.dump():
        node: dict[str, Any] = {"op": op, "children": [c for c in (a, b) if c >= 0]}
        if text := _payload(encoder, op, payload):
            node["payload"] = text
        out.setdefault(owner, []).append(node)
    return out


def _payload(encoder: Encoder, symbol: str, payload: int) -> str:
    g = encoder.graph
    if symbol in ("load", "store"):
        return encoder.region_text(payload)
    if symbol == "loop":
        var, starts = g.loop_at(payload)
        started = [f"{encoder.region_text(r)}={'0' if kind == 0 else '-inf'}" for r, kind in starts]
        return " ".join([encoder.vars[var].name, *started])
    if symbol == "const":
        return f"{g.constant_at(payload)[0]:g}"
    if symbol in ("rsum", "rmax", "permute"):
        return "x".join(map(str, g.ints_at(payload)))
    if symbol in ("reshape", "bcast"):
        return "x".join(map(str, g.shape_at(payload)))
    if symbol == "unary":
        return json.loads(g.name_at(payload))[0]
    return str(payload) if symbol == "concat" else ""


def as_json(encoder: Encoder) -> str:
    """{"root": class, "classes": {class: [{"op", "payload", "children"}]}}"""
    classes = {str(k): v for k, v in _classes(encoder).items()}
    root = encoder.graph.find(encoder.root)
    return json.dumps({"version": 1, "root": root, "classes": classes}, indent=1) + "\n"


def as_dot(encoder: Encoder) -> str:
    """One box for each class, edges from nodes to the classes of their operands."""
    lines = ["digraph egraph {", "  compound=true; node [shape=box, fontname=monospace];"]
    classes = _classes(encoder)
    for owner, nodes in classes.items():
        lines.append(f'  subgraph cluster_{owner} {{ label="{owner}"; style=dashed;')
        for i, node in enumerate(nodes):
            label = " ".join(filter(None, [node["op"], node.get("payload", "")])).replace('"', "'")
            lines.append(f'    n{owner}_{i} [label="{label}"];')
        lines.append("  }")
    for owner, nodes in classes.items():
        for i, node in enumerate(nodes):
            for child in node["children"]:
                lines.append(f"  n{owner}_{i} -> n{child}_0 [lhead=cluster_{child}];")
    return "\n".join([*lines, "}"]) + "\n"
