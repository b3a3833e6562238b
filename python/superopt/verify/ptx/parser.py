"""PTX as text: one kernel's registers, labels and instructions.

Only what instructions say is read; debug sections and locations are skipped. What a line means is for `decode`.
Where a text could mean something else to ptxas (comments in /* */, what follows a location in its line, names
of an inner scope that hide others), it is refused: Triton writes none of that. So is every directive that is not
read here: those of a kernel (`.reqnctapercluster`), of a module (`.func`) and pragmas change what a text does.
Registers of a load whose bytes a pragma calls unused are undefined after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from superopt.errors import BadInput, UnsupportedProgram

_ENTRY = re.compile(r"\.visible\s+\.entry\s+([\w$]+)\s*\(")
_PARAM = re.compile(r"\.param\s+\.[usb](32|64)\s+(?:\.ptr\s+\.global\s+\.align\s+(?:1|2|4|8|16)\s+)?([\w$]+)")
# What a text may have before its kernel but tables, between its parameters and its body, and after it.
_BEFORE = re.compile(
    r"\.version\s+\d+\.\d+\s*$|\.target\s+sm_\d+[af]?\s*$|\.address_size\s+64\s*$|"
    r"\.extern\s+\.shared\s+\.align\s+16\s+\.b8\s+global_smem\[\];",
    re.MULTILINE,
)
_THREADS = re.compile(r"\.reqntid\s+(\d{1,4})\b(?:\s*,\s*1\s*,\s*1\b)?(?!\s*,)")
_FEWER_REGISTERS = re.compile(r"\.maxnreg\s+\d+")
_AFTER = re.compile(r'\.file\s+\d+\s+""(?:\s*,\s*\d+)*|\.section\s+\.debug_\w+\s*\{[^{}]*\}')
_TABLE = re.compile(r"^\.global\s+\.align\s+\d+\s+\.b8\s+([\w$]+)\[\d+\]\s*=\s*\{([\d,\s]*)\};", re.MULTILINE)
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+([^<>]+(?:<\d{1,6}>[^<>]*)*);")
_LABEL = re.compile(r"([\w$]+):")
_INSTRUCTION = re.compile(r"(?:@(!?)([%\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_OPERAND = re.compile(r"\{[^{}]*\}|\[[^\[\]]*\]|[^,\s][^,{}\[\]]*")
_PRAGMA = re.compile(r'"(?:nounroll|used_bytes_mask 0x([0-9a-f]{1,8}))"')
_USED = "@used"  # the opcode of such a pragma
_VECTOR_LOAD = re.compile(r"ld\..*\.v[248]\.[bsuf](16|32|64)")
_STRING_OR_COMMENT = re.compile(r'("[^"\n]*")|//[^\n]*')
_LOCATION = re.compile(
    r"\.loc(?:\s+\d+){3}(?:\s*,\s*function_name\s+[\w$]+(?:\s*\+\s*\d+)?\s*,\s*inlined_at(?:\s+\d+){3})?"
)

SHARED_MEMORY = "global_smem"
# Names that nobody declares; these registers are set where a kernel starts.
SPECIAL = (
    "%tid.x",
    "%laneid",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%ntid.x",
    SHARED_MEMORY,
)


@dataclass(frozen=True)
class Line:
    """An instruction: its predicate's register ("" for none), opcode, operands as text, and line in the file."""

    number: int
    predicate: str
    negated: bool
    opcode: str
    operands: tuple[str, ...]


@dataclass
class Kernel:
    """The one entry of a PTX file; `labels` are positions in `lines`, `widths` are in bits, 1 for predicates.

    `param_widths` are those of `params`, `tables` are constant arrays of bytes that it may read.
    """

    name: str
    target: str = ""
    threads: int = 0
    params: list[str] = field(default_factory=list[str])
    param_widths: list[int] = field(default_factory=list[int])
    widths: dict[str, int] = field(default_factory=dict[str, int])
    labels: dict[str, int] = field(default_factory=dict[str, int])
    lines: list[Line] = field(default_factory=list[Line])
    tables: dict[str, bytes] = field(default_factory=dict[str, bytes])


_WIDTHS = {"pred": 1, "b16": 16, "b32": 32, "b64": 64, "f32": 32, "u32": 32, "s32": 32, "u64": 64, "s64": 64}


def parse(text: str, name: str) -> Kernel:
    """The kernel in a PTX file called `name`.

    Raises BadInput for text that is not PTX with one kernel.
    """
    plain = _STRING_OR_COMMENT.sub(
        lambda m: m[1] if m[1] and _PRAGMA.fullmatch(m[1]) else '""' if m[1] else "", text
    )
    if odd := re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text) or re.search(r"/\*|\*/|[^\n\t -~]|\\", plain):
        raise UnsupportedProgram(f"{name}: expected PTX as compilers write it, got {odd[0]!r}")
    text = plain
    entry = _ENTRY.search(text)
    if entry is None or len(re.findall(r"\.entry\b", text)) > 1:
        raise BadInput(f"expected PTX with one kernel, got another text: {name}")
    kernel = Kernel(entry[1])
    target = re.search(r"^\.target\s+(\w+)", text, re.MULTILINE)
    kernel.target = target[1] if target else ""
    for name_of_table, numbers in _TABLE.findall(text[: entry.start()]):
        kernel.tables[name_of_table] = bytes(int(n) & 255 for n in numbers.split(",") if n.strip())
    _nothing(_BEFORE.sub("", _TABLE.sub("", text[: entry.start()])), "before its kernel", name)
    head, brace, _ = text[entry.end() :].partition("{")
    params, _, limits = head.partition(")")
    threads = _THREADS.search(limits)
    if not brace or threads is None:
        raise BadInput(f"expected a kernel that states its threads, got another: {name}")
    limits = limits[: threads.start()] + limits[threads.end() :]
    _nothing(_FEWER_REGISTERS.sub("", limits), "at its kernel", name)
    kernel.threads = int(threads[1])
    for one in params.split(",") if params.strip() else []:
        param = _PARAM.fullmatch(one.strip())
        if param is None:
            raise UnsupportedProgram(f"{name}: expected arguments of 32 or 64 bits, got '{one.strip()}'")
        kernel.params.append(param[2])
        kernel.param_widths.append(int(param[1]))
    start = entry.end() + len(head)
    _nothing(_AFTER.sub("", _body(kernel, text, start, name)), "after its kernel", name)
    return kernel


def _nothing(left: str, where: str, name: str) -> None:
    """Refuse a text that has other directives than those taken out."""
    if left := left.strip():
        raise UnsupportedProgram(
            f"{name}: expected directives as Triton writes them {where}, got '{left[:60]}'"
        )


def _body(kernel: Kernel, text: str, start: int, name: str) -> str:
    """Statements up to the brace that closes the kernel; what follows it.

    Scopes of inline assembly rename what they declare.
    """
    scopes: list[dict[str, str]] = []
    outer, inner = set[str](), set[str]()
    number, pending, first, count = text.count("\n", 0, start), "", 0, 0
    rows = text[start:].split("\n")
    for place, row in enumerate(rows):
        number += 1
        line = row.strip()
        if not pending and re.match(r"\.loc\b", line):
            if not _LOCATION.fullmatch(line):
                raise UnsupportedProgram(f"line {number} of its PTX: expected a location, got '{line[:60]}'")
            continue
        while line:
            if not pending:
                if line[0] == "{":
                    count += 1
                    scopes.append({})
                    line = line[1:].lstrip()
                    continue
                if line[0] == "}":
                    (inner if len(scopes) > 1 else outer).update(scopes.pop())
                    if not scopes:
                        taken = {*kernel.params, *kernel.tables, *SPECIAL}
                        if hidden := sorted((inner & outer) | ((inner | outer) & taken)):
                            raise UnsupportedProgram(
                                f"{name}: expected other names in scopes, got '{hidden[0]}'"
                            )
                        return "\n".join([line[1:], *rows[place + 1 :]])
                    line = line[1:].lstrip()
                    continue
                label = _LABEL.match(line)
                if label and not line.startswith(f"{label[0]}:"):
                    unique = label[1] if len(scopes) == 1 else f"{label[1]}@{count}"
                    scopes[-1][label[1]] = unique
                    kernel.labels[unique] = len(kernel.lines)
                    line = line[label.end() :].lstrip()
                    continue
                first = number
            part, end, line = line.partition(";")
            pending += " " + part
            line = line.strip()
            if end:
                _statement(kernel, pending.strip(), first, scopes, count)
                pending = ""
    raise BadInput(f"expected PTX whose kernel ends, got the end of the file: {name}")


def _statement(kernel: Kernel, text: str, number: int, scopes: list[dict[str, str]], count: int) -> None:
    if text.startswith(".reg"):
        declared = _REGISTERS.match(text + ";")
        if declared is None or declared[1] not in _WIDTHS:
            raise UnsupportedProgram(f"line {number} of its PTX: expected registers, got '{text}'")
        for part in declared[2].split(","):
            stem, _, many = part.strip().partition("<")
            names = [f"{stem}{i}" for i in range(int(many[:-1]))] if many else [stem]
            for n in names:
                unique = n if len(scopes) == 1 else f"{n}@{count}"
                scopes[-1][n] = unique
                kernel.widths[unique] = _WIDTHS[declared[1]]
        return
    if text.startswith("."):
        if re.fullmatch(r"\.local\s+\.align\s+\d+\s+\.b8\s+__local_depot\d+\[\d+\]", text):
            return
        pragma = _PRAGMA.fullmatch(text.removeprefix(".pragma").strip())
        if text.startswith(".pragma") and pragma:
            if pragma[1]:
                kernel.lines.append(Line(number, "", False, _USED, (pragma[1],)))
            return
        raise UnsupportedProgram(f"line {number} of its PTX: expected an instruction, got '{text[:60]}'")
    found = _INSTRUCTION.fullmatch(text)
    if found is None:
        raise UnsupportedProgram(f"line {number} of its PTX: expected an instruction, got '{text[:60]}'")
    negated, predicate, opcode, rest = found.groups()

    def scoped(word: str) -> str:
        for scope in reversed(scopes[1:]):
            if word in scope:
                return scope[word]
        return word

    operands = tuple(scoped(o.strip()) for o in _OPERAND.findall(rest))
    line = Line(number, scoped(predicate) if predicate else "", negated == "!", opcode, operands)
    if kernel.lines and kernel.lines[-1].opcode == _USED:
        kernel.lines += _used(kernel, kernel.lines.pop(), line)
    else:
        kernel.lines.append(line)


def _used(kernel: Kernel, pragma: Line, load: Line) -> list[Line]:
    """A load, and moves of nothing to its registers of which a pragma says that no byte is used."""
    found, mask = _VECTOR_LOAD.fullmatch(load.opcode), int(pragma.operands[0], 16)
    refused = UnsupportedProgram(
        f"line {pragma.number} of its PTX: expected a load of whole registers that are used or not, got "
        f"'{load.opcode}' with used_bytes_mask 0x{pragma.operands[0]}"
    )
    if found is None or len(kernel.lines) + 1 in kernel.labels.values():
        raise refused
    size, nothing = int(found[1]) // 8, f"@nothing{found[1]}"
    kernel.widths[nothing] = int(found[1])
    registers, moves = [r.strip() for r in load.operands[0].strip("{}").split(",")], list[Line]()
    for i, register in enumerate(registers):
        used = mask >> (i * size) & ((1 << size) - 1)
        if used not in (0, (1 << size) - 1):
            raise refused
        if not used and register != "_":
            to = (register, nothing)
            moves.append(replace(load, number=pragma.number, opcode=f"mov.b{found[1]}", operands=to))
    return [load, *moves]
