"""The text of a kernel as it grows: lines, names, and vectors of indices that are written once."""

from __future__ import annotations

import builtins
import keyword

from superopt.program import LoopVar, Window
from superopt.transforms.lower.builder import identifier


class Writer:
    """Lines of a function's body; `header` precedes the rest, outside every loop.

    `tensors` are the names of buffers in memory, `loops` those of loop variables, `sequential` those of `for`
    loops, `block` the name of the running block's number, where something needs it.
    """

    def __init__(self) -> None:
        self.header: list[str] = []
        self.lines: list[str] = []
        self.used: set[str] = {"EARLY", "tl", "triton", *keyword.kwlist, *dir(builtins)}
        self.tensors: set[str] = set()
        self.loops: dict[LoopVar, str] = {}
        self.sequential: set[LoopVar] = set()
        self.block = ""
        self._indent = 1
        self._spans: list[dict[str, str]] = [{}]

    def unique(self, name: str) -> str:
        """`name`, with a number where it is taken."""
        text, i = name, 1
        while text in self.used:
            text, i = f"{name}_{i}", i + 1
        self.used.add(text)
        return text

    def index(self, var: LoopVar, kind: str) -> str:
        """Name a loop variable after itself, or with `kind` before it where a tensor has that name."""
        name = identifier(var.name, kind)
        name = self.unique(f"{kind}_{name}" if name in self.tensors else name)
        self.loops[var] = name
        return name

    def line(self, text: str) -> None:
        """Append a line."""
        self.lines.append("    " * self._indent + text)

    def enter(self) -> None:
        """The following lines are inside a loop."""
        self._indent += 1
        self._spans.append({})

    def leave(self) -> None:
        """The following lines are after the loop."""
        self._indent -= 1
        self._spans.pop()

    def start(self, window: Window, *, wide: bool = False) -> str:
        """The first index of a window, as text."""
        parts = [
            (f"{self.loops[var]}.to(tl.int64)" if wide else self.loops[var])
            + (f" * {scale}" if scale != 1 else "")
            for var, scale in window.terms
        ]
        if window.base or not parts:
            parts.append(str(window.base))
        return " + ".join(parts)

    def span(self, window: Window, pad: int) -> str:
        """The name of the vector of a window's indices, written where first needed, outside loops if possible."""
        lanes = f"tl.arange(0, {pad})" + (f" * {window.stride}" if window.stride != 1 else "")
        start = self.start(window)
        text = lanes if start == "0" else f"{start} + {lanes}"
        for scope in self._spans:
            if text in scope:
                return scope[text]
        moving = [var for var, _ in window.terms if var in self.sequential]
        variables = "_".join(self.loops[var] for var, _ in window.terms)
        name = self.unique(f"{variables}_span" if variables else f"span_{pad}")
        if moving:
            self.line(f"{name} = {text}")
            self._spans[-1][text] = name
        else:
            self.header.append(f"    {name} = {text}")
            self._spans[0][text] = name
        return name
