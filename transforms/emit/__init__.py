"""Emission: turns tile programs into Triton source, and that into everything down to cubins and bundles."""

from __future__ import annotations

from superopt.transforms.emit.bundle import read_bundle, save_bundle, write_bundle
from superopt.transforms.emit.compiled_program import CompiledProgram, compile_graph, emit_text
from superopt.transforms.emit.launcher import load_launcher

__all__ = [
    "CompiledProgram",
    "compile_graph",
    "emit_text",
    "load_launcher",
    "read_bundle",
    "save_bundle",
    "write_bundle",
]
