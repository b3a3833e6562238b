"""Tile loops from the text that `terms.render` prints, so that programs can be written by hand.

input x[8, 16], w[16, 8]
output y[8, 8]
start y[:, n] = 0
for k in 0..16 by tile_k:
  y[:, :] = (y[:, :] + matmul(x[:, k], w[k, :]))
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from superopt.errors import BadInput, Location
from superopt.transforms.tile_saturation.terms import (
    FULL,
    LoopTerm,
    StatementTerm,
    StoreTerm,
    TermIndex,
    TermProgram,
    TermRegion,
    TermTensor,
    TermTensorKind,
    TermVar,
    ValueTerm,
)

_TOKEN = re.compile(r"\s*(\d+\.\.\d+|[\d.]+(?:e[+-]?\d+)?(?![\w.])|-?inf\b|[\w.]+|[-+*/()\[\],:=])")
_INFIX = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_TENSOR = re.compile(r"(\w+)\[([\d, ]*)\]")
_KINDS: tuple[TermTensorKind, ...] = ("input", "output", "temporary")


def parse_terms(text: str, file: str = "loops", first_line: int = 1) -> TermProgram:
    """The program; raises BadInput, with file and line, for what is no program of tile loops."""
    return _Parser(text, file, first_line).program()


@dataclass
class _Line:
    number: int
    indent: int
    tokens: list[str]
    at: int = 0
    text: str = ""

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self.at += 1
        return token


@dataclass
class _Parser:
    text: str
    file: str
    first_line: int
    tensors: dict[str, TermTensor] = field(default_factory=dict[str, TermTensor])
    vars: dict[str, TermVar] = field(default_factory=dict[str, TermVar])
    lines: list[_Line] = field(default_factory=list[_Line])
    line: _Line = field(default_factory=lambda: _Line(0, 0, []))

    def fail(self, expected: str) -> NoReturn:
        got = self.line.peek() or "the end of the line"
        raise BadInput(f"expected {expected}, got '{got}'", Location(self.file, self.line.number, 1))

    def take(self, token: str) -> None:
        if self.line.peek() != token:
            self.fail(f"'{token}'")
        self.line.next()

    def program(self) -> TermProgram:
        for number, raw in enumerate(self.text.splitlines(), self.first_line):
            stripped = raw.split("//")[0].rstrip()
            if not stripped:
                continue
            kind = stripped.split()[0]
            if kind in _KINDS:
                self.declare(kind, stripped)
            else:
                indent = len(stripped) - len(stripped.lstrip())
                self.lines.append(_Line(number, indent, _TOKEN.findall(stripped), text=stripped.strip()))
        body = self.body(0)
        if self.lines:
            self.line = self.lines[0]
            self.fail("a statement of no deeper indentation")
        if not body:
            raise BadInput("expected statements, got none", Location(self.file, self.first_line, 1))
        tensors = list(self.tensors.values())
        inputs = [t for t in tensors if t.kind == "input"]
        outputs = [t for t in tensors if t.kind == "output"]
        return TermProgram("loops", inputs, outputs, body, tensors)

    def declare(self, kind: TermTensorKind, text: str) -> None:
        for name, shape in _TENSOR.findall(text):
            extents = tuple(int(e) for e in shape.split(",") if e.strip())
            self.tensors[name] = TermTensor(name, extents, "f32", kind)

    def body(self, indent: int) -> tuple[StatementTerm, ...]:
        out: list[StatementTerm] = []
        starts: list[tuple[TermRegion, float]] = []
        while self.lines and self.lines[0].indent == indent:
            self.line = self.lines.pop(0)
            word = self.line.peek()
            if word == "start":
                self.line.next()
                region = self.region(self.line.next())
                self.take("=")
                negative = self.line.peek() == "-"
                if negative:
                    self.line.next()
                number = self.line.next()
                starts.append((region, -math.inf if negative or number == "-inf" else float(number)))
            elif word == "for":
                var = self.loop_var()
                out.append(LoopTerm(var, tuple(starts), self.body(indent + 2)))
                starts = []
            else:
                region = self.region(self.line.next())
                self.take("=")
                out.append(StoreTerm(region, self.value()))
            if self.line.peek():
                self.fail("the end of the line")
        if starts:
            self.fail("a loop after 'start'")
        return tuple(out)

    def loop_var(self) -> TermVar:
        self.take("for")
        name = self.line.next()
        self.take("in")
        end = int(self.line.next().split("..")[1])
        self.take("by")
        step = self.line.next()
        self.take(":")
        width = 0 if step == f"tile_{name}" else int(step)
        known = self.vars.setdefault(name, TermVar(name, end, width, width or max(end // 2, 1)))
        if (known.end, known.step) != (end, width):
            self.fail(f"one range for '{name}'")
        return known

    def region(self, name: str) -> TermRegion:
        if name not in self.tensors:
            self.line.at -= 1
            self.fail("a tensor that was declared")
        tensor = self.tensors[name]
        self.take("[")
        dims: list[TermIndex] = []
        while self.line.peek() != "]":
            dims.append(self.index())
            if self.line.peek() == ",":
                self.line.next()
        self.take("]")
        if len(dims) != len(tensor.shape):
            self.fail(f"{len(tensor.shape)} indices of '{name}'")
        return TermRegion(tensor, tuple(dims))

    def index(self) -> TermIndex:
        token = self.line.next()
        if token == ":":
            return FULL
        if token.isdigit():
            self.take(":")
            return TermIndex("range", None, int(token), int(self.line.next()) - int(token))
        kind = token if token in ("elem", "block") else "tile"
        name = token if kind == "tile" else self.line.next()
        if name not in self.vars:
            self.fail(f"a loop over '{name}'")
        if kind == "block":
            self.take("of")
            return TermIndex("block", self.vars[name], 0, int(self.line.next()))
        base = 0
        if self.line.peek() == "+":
            self.line.next()
            base = int(self.line.next())
        return TermIndex("elem" if kind == "elem" else "tile", self.vars[name], base)

    def value(self) -> ValueTerm:
        token = self.line.next()
        if token == "(":
            left = self.value()
            if self.line.peek() not in _INFIX:
                self.fail("an operator")
            op = _INFIX[self.line.next()]
            right = self.value()
            self.take(")")
            return ValueTerm(op, (left, right))
        if re.fullmatch(r"[\d.]+(e[+-]?\d+)?", token):
            return ValueTerm("const", (), (("shape", ()), ("value", float(token))))
        if self.line.peek() == "[":
            return ValueTerm("load", region=self.region(token))
        self.take("(")
        args: list[ValueTerm] = []
        attrs: dict[str, Any] = {}
        while self.line.peek() != ")":
            if self.line.tokens[self.line.at + 1] == "=":
                name = self.line.next()
                self.take("=")
                attrs[name] = self.attribute(name)
            else:
                args.append(self.value())
            if self.line.peek() == ",":
                self.line.next()
        self.take(")")
        return ValueTerm(token, tuple(args), tuple(sorted(attrs.items())))

    def attribute(self, name: str) -> Any:
        sign = 1
        if self.line.peek() == "-":
            self.line.next()
            sign = -1
        token = self.line.next()
        if name in ("dims", "perm", "shape"):
            parts = [self.vars.get(p, p) for p in token.split("x")]
            return tuple(p if isinstance(p, TermVar) else sign * int(p) for p in parts)
        return sign * (float(token) if "." in token else int(token))
