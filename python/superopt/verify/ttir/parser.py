"""Reads the text of a Triton IR module (TTIR) into a small typed form.

Triton's binding walks operations but hides attribute values, and the MLIR bindings cannot parse the `tt`
dialect's syntax; the text of `module.str_nodebug()` (or an `asm["ttir"]`, whose locations are dropped) is
regular: one operation per line, with regions closed by a line of their own. Only this form is read; anything
else is an error, never a guess.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from superopt.errors import BadInput, Location, NotEquivalent

MOST_BYTES = 16 << 20
ASSEMBLY = "tt.elementwise_inline_asm"
MOST_NESTING = 64


@dataclass(frozen=True)
class TtirType:
    """A scalar (shape ()) or tensor; `element` is "i32", "f16", ... and what a pointer points to."""

    shape: tuple[int, ...]
    element: str
    pointer: bool = False

    @property
    def floating(self) -> bool:
        """Whether it holds floating-point numbers."""
        return not self.pointer and self.element in FLOATS


FLOATS = frozenset(
    {"f16", "bf16", "f32", "f64", "f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ", "f8E4M3B11FNUZ"}
)
INTEGERS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64}


@dataclass(eq=False)
class Region:
    """A block with its arguments; SSA values are numbers, unique in the function."""

    args: tuple[int, ...]
    ops: list[Operation]


@dataclass(eq=False)
class Operation:
    """One operation. `words` are the bare keywords (`slt`, `x`), `types` every type of its line in order."""

    name: str
    results: tuple[int, ...]
    operands: tuple[int, ...]
    words: tuple[str, ...]
    attrs: dict[str, str]
    types: tuple[TtirType, ...]
    line: int
    regions: list[Region] = field(default_factory=list[Region])
    literal: str = ""

    @property
    def result_type(self) -> TtirType:
        """Type of the last result, where the line ends with it."""
        return self.types[-1]

    @cached_property
    def widest(self) -> int:
        """Elements of the largest type: asked for in each trip of a loop."""
        return max((math.prod(t.shape) for t in self.types), default=1)


@dataclass(eq=False)
class Function:
    """The kernel: its name, the types and value numbers of its parameters, its body."""

    name: str
    params: tuple[int, ...]
    types: tuple[TtirType, ...]
    body: Region


def at_extents(function: Function, extents: Sequence[int]) -> Function:
    """The kernel with numbers in place of its last parameters; raises NotEquivalent where those take none."""
    first = len(function.params) - len(extents)
    if first < 0 or any(t != TtirType((), "i32") for t in function.types[first:]):
        expected = f"{len(extents)} extent{'s' * (len(extents) != 1)} as its last parameters"
        raise NotEquivalent(f"kernel '{function.name}': expected {expected}, got others")
    taken = zip(function.params[first:], function.types[first:], extents, strict=True)
    bound = [Operation("arith.constant", (p,), (), (), {}, (t,), 0, literal=str(n)) for p, t, n in taken]
    body = Region(function.body.args, [*bound, *function.body.ops])
    return Function(function.name, function.params[:first], function.types[:first], body)


_VALUE = r"%[\w$.-]+(?:#\d+)?"
_TYPE = re.compile(
    r"tensor<(?P<dims>(?:\d+x)*)(?P<tp>!tt\.ptr<(?P<tpe>\w+)(?:,\s*\d+)?>|(?P<te>\w+))>"
    r"|!tt\.ptr<(?P<pe>\w+)(?:,\s*\d+)?>|\b(?P<e>i1|i8|i16|i32|i64|index|f16|bf16|f32|f64|f8\w+)\b"
    r"|<(?P<bdims>(?:\d+x)+)(?P<be>\w+)>"  # a descriptor's box: Triton 3.7 writes a tensor there
)
_RESULTS = re.compile(r"^((?:%[\w$.-]+(?::\d+)?)(?:\s*,\s*%[\w$.-]+(?::\d+)?)*)\s*=\s*(.*)$")
_LOCAL = re.compile(r"%[\w$.-]+")
_ALIAS = re.compile(r"#loc\d*\s*=")  # of a location, which is gone
_NAME = re.compile(r'^"?([a-z_]\w*(?:\.\w+)+)"?\s*(.*)$')
_FOR = re.compile(
    rf"^scf\.for\s+(?:unsigned\s+)?(%[\w$.-]+)\s*=\s*({_VALUE})\s+to\s+({_VALUE})\s+step\s+({_VALUE})"
    r"\s*(?:iter_args\((.*?)\)\s*->\s*\((.*?)\)\s*)?(?::\s*(\w+)\s*)?\{$"
)
_FUNC = re.compile(
    r"^tt\.func\s+(?:public\s+)?@([\w$.]+)\((.*)\)\s*(?:->\s*.*?)?\s*(?:attributes\s*\{.*\}\s*)?\{$"
)


def parse(text: str, file: str = "ttir") -> Function:
    """The one public function of a TTIR module. Raises BadInput, at the line, for any other text."""
    if len(text) > MOST_BYTES:
        raise BadInput(f"expected at most {MOST_BYTES} characters of TTIR, got {len(text)}", Location(file))
    return _Parser(text, file).module()


def _without_locations(line: str) -> str:
    """`line` without ` loc(...)`, whose parentheses nest and whose strings may hold anything."""
    out: list[str] = []
    at = 0
    while (start := line.find("loc(", at)) >= 0:
        if start > 0 and (line[start - 1].isalnum() or line[start - 1] in '_%."'):
            out.append(line[at : start + 4])
            at = start + 4
            continue
        out.append(line[at:start].rstrip(" "))
        depth, end, quoted = 0, start + 3, False
        while end < len(line):
            c = line[end]
            if c == "\\":  # in a string, the next character stands for itself
                end += 1
            elif c == '"':
                quoted = not quoted
            elif not quoted:
                depth += (c == "(") - (c == ")")
                if depth == 0:
                    break
            end += 1
        at = end + 1
    out.append(line[at:])
    return "".join(out)


def _code(text: str, file: str) -> Iterator[tuple[int, str]]:
    """The lines that compute something, without locations, with their numbers. Raises BadInput where a character
    may end a line for another reader, which would then see more or less than these."""
    for number, raw in enumerate(text.split("\n"), 1):
        if not (raw.isascii() and raw.isprintable()):
            raise BadInput(f"expected printable ASCII, got {ascii(raw)[:80]}", Location(file, number, 1))
        line = _without_locations(raw).strip()
        if line and not line.startswith("//") and not _ALIAS.fullmatch(line):
            yield number, line


def same_ttir(first: str, second: str) -> bool:
    """Whether two texts of TTIR differ only in names of values, locations and comments."""
    try:
        return _renamed(first) == _renamed(second)
    except BadInput:
        return False


def _renamed(text: str) -> list[str]:
    """The lines whose values are numbered as they are defined."""
    found: list[str] = []
    numbers: dict[str, str] = {}
    count = itertools.count()
    for _, line in _code(text, "ttir"):
        results = _RESULTS.match(line)
        end = results.end(1) if results else 0

        def numbered(name: re.Match[str], line: str = line, end: int = end) -> str:
            # Results of an operation, arguments of blocks, what a loop counts and carries.
            if name.start() < end or line.startswith((":", " = "), name.end()):
                numbers[name[0]] = f"%{next(count)}"
            return numbers.get(name[0], name[0])

        found.append(_LOCAL.sub(numbered, line))
    return found


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.lines = list(_code(text, file))
        self.at = 0
        self.line = 0  # of the text, for messages
        self.scopes: list[dict[str, int]] = [{}]
        self.count = 0

    def fail(self, expected: str, got: str) -> BadInput:
        number = self.line or (self.lines[0][0] if self.lines else 0)
        return BadInput(f"expected {expected}, got '{got[:120]}'", Location(self.file, number, 1))

    def peek(self) -> str:
        if self.at >= len(self.lines):
            raise self.fail("more lines of TTIR", "the end")
        self.line, text = self.lines[self.at]
        return text

    def take(self) -> tuple[int, str]:
        text = self.peek()
        self.at += 1
        return self.line, text

    def define(self, name: str) -> int:
        self.count += 1
        self.scopes[-1][name] = self.count
        return self.count

    def use(self, name: str) -> int:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise self.fail("values defined before", name)

    def type(self, text: str) -> TtirType:
        found = self.types(text)
        if len(found) != 1:
            raise self.fail("one type", text)
        return found[0]

    def types(self, text: str) -> tuple[TtirType, ...]:
        found: list[TtirType] = []
        for m in _TYPE.finditer(text):
            shape = tuple(int(d) for d in (m["dims"] or m["bdims"] or "").split("x") if d)
            element = m["tpe"] or m["te"] or m["pe"] or m["e"] or m["be"]
            if element not in INTEGERS and element not in FLOATS:
                raise self.fail("a type of TTIR", text)
            found.append(TtirType(shape, element, bool(m["tpe"] or m["pe"])))
        return tuple(found)

    # --- structure

    def module(self) -> Function:
        if not self.lines or not self.lines[0][1].startswith("module"):
            raise self.fail("'module'", self.lines[0][1] if self.lines else "nothing")
        self.at = 1
        match = _FUNC.match(self.peek())
        if match is None:
            raise self.fail("one public 'tt.func'", self.peek())
        self.at += 1
        params: list[int] = []
        types: list[TtirType] = []
        for param in _split(match[2]):
            name, _, kind = param.partition(":")
            params.append(self.define(name.strip()))
            types.append(self.type(re.sub(r"\{.*\}", "", kind)))
        body = Region((), self.ops(0))
        self.close("}")
        self.close("}")
        if self.at != len(self.lines):
            raise self.fail("one function in the module", self.peek())
        return Function(match[1], tuple(params), tuple(types), body)

    def close(self, prefix: str) -> str:
        _, line = self.take()
        if not line.startswith(prefix):
            raise self.fail(f"'{prefix}'", line)
        return line

    def ops(self, depth: int) -> list[Operation]:
        if depth > MOST_NESTING:
            raise self.fail(f"at most {MOST_NESTING} nested regions", "more")
        ops: list[Operation] = []
        while not self.peek().startswith("}"):
            ops.append(self.op(depth))
        return ops

    def region(self, depth: int, args: list[str]) -> Region:
        self.scopes.append({})
        numbers = tuple(self.define(a) for a in args)
        body = self.ops(depth + 1)
        self.scopes.pop()
        return Region(numbers, body)

    def op(self, depth: int) -> Operation:
        number, line = self.take()
        names: list[str] = []
        if match := _RESULTS.match(line):
            for name in match[1].split(","):
                name, _, count = name.strip().partition(":")
                names += [f"{name}#{i}" for i in range(int(count))] if count else [name]
            line = match[2]
        if len(names) > 1024:
            raise self.fail("at most 1024 results", line)
        if line.startswith("scf.for"):
            op = self.loop(number, line, depth)
        elif line.startswith("scf.if"):
            op = self.branch(number, line, depth)
        else:
            op = self.plain(number, line, depth)
        if op.name == ASSEMBLY:
            return op  # it writes no register, so its result must not be used
        op.results = tuple(self.define(n) for n in names)
        return op

    def loop(self, number: int, line: str, depth: int) -> Operation:
        match = _FOR.match(line)
        if match is None or "unsigned" in line:
            raise self.fail("'scf.for' as Triton prints it", line)
        pairs = [p.split("=") for p in _split(match[5] or "")]
        operands = [self.use(v) for v in (match[2], match[3], match[4])]
        operands += [self.use(p[1].strip()) for p in pairs if len(p) == 2]
        types = (self.type(match[7] or "i32"), *self.types(match[6] or ""))
        if len(operands) - 3 != len(pairs) or len(types) - 1 != len(pairs):
            raise self.fail("an initial value and a type for each of iter_args", line)
        body = self.region(depth, [match[1], *(p[0].strip() for p in pairs)])
        self.close("}")
        return Operation("scf.for", (), tuple(operands), (), {}, types, number, [body])

    def branch(self, number: int, line: str, depth: int) -> Operation:
        match = re.match(rf"^scf\.if\s+({_VALUE})\s*(?:->\s*\((.*)\)\s*)?\{{$", line)
        if match is None:
            raise self.fail("'scf.if' as Triton prints it", line)
        condition = self.use(match[1])
        regions = [self.region(depth, [])]
        if self.close("}").startswith("} else {"):
            regions.append(self.region(depth, []))
            self.close("}")
        return Operation("scf.if", (), (condition,), (), {}, self.types(match[2] or ""), number, regions)

    def plain(self, number: int, line: str, depth: int) -> Operation:
        match = _NAME.match(line)
        if match is None:
            raise self.fail("an operation", line)
        name, rest = match[1], match[2]
        if name == "arith.constant":
            literal, _, kind = rest.rpartition(":")
            return Operation(name, (), (), (), {}, (self.type(kind),), number, literal=literal.strip())
        if name == ASSEMBLY:
            text = re.match(
                r'"([^"\\]*)" \{constraints = "=r", packed_element = 1 : i32, pure = false\} -> i32$', rest
            )
            if text is None:
                raise self.fail("assembly without operands", line)
            return Operation(name, (), (), (), {}, (), number, literal=text[1])
        regions: list[Region] = []
        if rest.endswith("({"):
            header = re.match(r"^\^bb\d+\((.*)\):$", self.peek())
            if header is None:
                raise self.fail("a block's header", self.peek())
            self.at += 1
            regions.append(self.region(depth, [a.partition(":")[0].strip() for a in _split(header[1])]))
            rest = rest[:-2] + self.close("})")[2:]
        elif rest.endswith("{"):
            raise self.fail("an operation of Triton without a region", line)
        attrs: dict[str, str] = {}

        def keep(found: re.Match[str]) -> str:
            for item in _split(found[1]):
                key, _, value = item.partition("=")
                attrs[key.strip()] = value.strip()
            return " "

        rest = re.sub(r"<?\{(.*?)\}>?", keep, rest)
        # `a : type`: operands and keywords precede the last colon outside brackets.
        before, _, kinds = rest.rpartition(" : ") if " : " in rest else (rest, "", "")
        operands = tuple(self.use(v) for v in re.findall(_VALUE, before))
        words = tuple(re.findall(r"[\w.=]+", re.sub(_VALUE, " ", before)))
        return Operation(name, (), operands, words, attrs, self.types(kinds), number, regions)


def _split(text: str) -> list[str]:
    """The parts between commas outside any bracket or string."""
    parts: list[str] = []
    depth, start, quoted = 0, 0, False
    for i, c in enumerate(text):
        if c == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts
