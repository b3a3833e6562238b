"""Reading unvetted MLIR: files, standard input, text, bytecode.

MLIR's parser recurses on nesting and on its way down a stack overflow kills the process, so text is measured
before it is parsed. All errors are `BadInput`, located.
"""

from __future__ import annotations

import io
import re
import stat
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from superopt.errors import BadInput, Location, SuperoptError

MAX_BYTES = 1 << 30
MAX_NESTING = 256  # MLIR's parser needs about 4 KB of stack per level; 8 MB suffice for about 2000
BYTECODE_MAGIC = b"ML\xefR"
SPLIT_MARKER = "// -----"


@dataclass(frozen=True)
class Source:
    """The source of one module: its text (or bytecode) and the file that errors name.

    Chunks of a split file are padded with newlines, so that line numbers are those of the whole file.
    """

    name: str
    text: str
    bytecode: bytes = b""

    def line(self, number: int) -> str:
        """Line `number` (from 1) of the text, empty where there is none."""
        lines = self.text.split("\n", number) if 0 < number <= self.text.count("\n") + 1 else []
        return lines[number - 1] if lines else ""


def read(path: str) -> Source:
    """The file at `path`, or standard input for `-`; raises `BadInput`."""
    name = "<stdin>" if path == "-" else path
    if (hint := _READ_BY.get(Path(path).suffix)) and Path(path).is_file():
        raise BadInput(f"expected MLIR, got {hint.format(path)}", Location(path))
    return from_bytes(_stdin() if path == "-" else _file(path), name)


def from_bytes(data: bytes, name: str) -> Source:
    """Text or bytecode as it came; raises `BadInput` for what can be neither."""
    if data.startswith(BYTECODE_MAGIC):
        return Source(name, "", data)
    if b"\0" in data:
        line, column = _place(data, data.index(b"\0"))
        raise BadInput(
            "expected MLIR text or bytecode, got binary data (a zero byte)", Location(name, line, column)
        )
    try:
        text = data.decode("utf-8-sig")  # some editors begin a file with a mark of its encoding
    except UnicodeDecodeError as error:
        line, column = _place(data, error.start)
        byte = data[error.start]
        raise BadInput(
            f"expected UTF-8 text, got the byte 0x{byte:02x}", Location(name, line, column)
        ) from None
    return Source(name, text.replace("\r\n", "\n"))


def split(source: Source, marker: str = SPLIT_MARKER) -> list[Source]:
    """The chunks between lines of `marker`, each padded to its own line numbers."""
    if source.bytecode:
        return [source]
    chunks: list[Source] = []
    between = re.compile(rf"^{re.escape(marker)}[^\n]*$", re.MULTILINE)
    start = 0
    for end in [*(m.span() for m in between.finditer(source.text)), (len(source.text), len(source.text))]:
        padding = "\n" * source.text.count("\n", 0, start)
        chunks.append(Source(source.name, padding + source.text[start : end[0]]))
        start = end[1]
    return chunks


def check_roundtrip(module: Any, name: str) -> None:
    """Raise BadInput where `module`, printed as text or as bytecode, is not read as it was."""
    from superopt.dialects import base, mlir

    def text(operation: Any) -> str:
        return str(operation.get_asm(print_generic_op_form=True, enable_debug_info=True))

    def read(written: Any) -> Any:
        context = base.context()  # in its own, resources would be another's of the same name
        context.allow_unregistered_dialects = module.context.allow_unregistered_dialects
        return mlir.ir.Module.parse(written, context).operation

    buffer = io.BytesIO()
    module.write_bytecode(buffer)
    if module.name != "builtin.module":
        raise BadInput(f"--verify-roundtrip reads modules: expected one, got '{module.name}'", Location(name))
    wanted = text(module)
    forms = {"text": module.get_asm(enable_debug_info=True), "bytecode": buffer.getvalue()}
    for form, written in forms.items():
        try:
            got = text(read(written))
        except (mlir.ir.MLIRError, ValueError) as error:
            first = str(error).strip().splitlines()[0]
            raise BadInput(
                f"expected {form} of the input to be read again, got an error: {first}", Location(name)
            ) from None
        if got != wanted:
            raise BadInput(
                f"expected {form} of the input to be read as it was, got another module", Location(name)
            )


def parse(source: Source, context: Any, *, implicit_module: bool = True) -> Any:
    """The operation of `source` in `context`: a module, or whatever stands alone without `implicit_module`.

    Raises `SourceError`, which carries every message of MLIR.
    """
    from superopt.dialects import argument_names, mlir

    if not source.bytecode:
        if not source.text.strip():
            raise BadInput("expected an MLIR module, got empty input", Location(source.name, 1, 1))
        check_nesting(source)
    try:
        if implicit_module:
            if source.bytecode:
                return mlir.ir.Module.parse(source.bytecode, context).operation
            return argument_names.parse(source.text, context).operation
        content = source.bytecode or source.text
        return mlir.ir.Operation.parse(content, source_name=source.name, context=context).operation
    except mlir.ir.MLIRError as error:
        raise SourceError(error, source.name) from None
    except ValueError as error:
        raise BadInput(str(error), Location(source.name)) from None


@dataclass(frozen=True)
class Message:
    """One diagnostic of MLIR with its notes."""

    severity: str
    text: str
    location: Location
    notes: tuple[Message, ...] = ()

    def named(self, file: str) -> Message:
        """The message with `file` for a place in text that was parsed from memory, which MLIR calls `-`."""
        return replace(
            self, location=self.location.named(file), notes=tuple(n.named(file) for n in self.notes)
        )


class SourceError(SuperoptError):
    """MLIR's messages on a program that it could not parse, verify or transform."""

    def __init__(self, error: Any, file: str) -> None:
        self.messages = messages(error, file)
        first = self.messages[0] if self.messages else Message("error", str(error.message), Location(file))
        self.messages = self.messages or (first,)
        super().__init__(first.text, first.location)


_EXPORTED = "a file of PyTorch; superopt-import reads modules from Python: superopt-import FILE.py:FACTORY"
_READ_BY = {
    ".py": "Python; superopt-import {0}:FACTORY -o OUT.mlir writes the MLIR of a PyTorch module",
    ".md": "a text for people: {0}",
    ".onnx": "ONNX; onnx-mlir --EmitMLIR, or torch-mlir's importer, turns {0} into MLIR",
    ".pt": _EXPORTED, ".pth": _EXPORTED, ".pt2": _EXPORTED, ".safetensors": _EXPORTED,
}  # fmt: skip
"""What files of other kinds are, and what reads them."""

_LOWERED_BY = {
    "stablehlo": "stablehlo-opt --stablehlo-legalize-to-linalg",
    "torch": "torch-mlir-opt --torch-backend-to-linalg-on-tensors-backend-pipeline",
    "tosa": "superopt-opt --ingest-linalg",
}


def lowering_hint(operation: str) -> str:
    """The command that lowers an operation's dialect to linalg, as the end of a message; empty for others."""
    dialect = operation.split(".")[0]
    return f"; {_LOWERED_BY[dialect]} turns {dialect} into linalg" if dialect in _LOWERED_BY else ""


def messages(error: Any, file: str) -> tuple[Message, ...]:
    """The diagnostics of an `MLIRError`, with `file` for locations that MLIR writes as `-`."""
    return tuple(_message(d, file) for d in error.error_diagnostics)


def _message(diagnostic: Any, file: str) -> Message:
    from superopt.dialects.base import to_location

    # Operands are printed whole in this note; on a large program it buries the error.
    notes = [n for n in diagnostic.notes if not n.message.startswith("see current operation")]
    text = diagnostic.message.strip()
    if foreign := re.match(r"Dialect `\w+' not found for custom op '(\w+\.[\w.]+)'", text):
        text += lowering_hint(foreign[1])
    return Message(
        str(diagnostic.severity).rsplit(".", 1)[-1].lower(),
        text,
        to_location(diagnostic.location, file),
        tuple(_message(n, file) for n in notes),
    )


def check_nesting(source: Source) -> None:
    """Raise `BadInput` where brackets nest deeper than MLIR's parser can handle."""
    data = np.frombuffer(source.text.encode(), dtype=np.uint8)
    step = np.zeros(256, dtype=np.int32)
    for opening, closing in ("()", "[]", "{}"):
        step[ord(opening)], step[ord(closing)] = 1, -1
    steps = step[data]
    angle = (data == ord("<")).astype(np.int32)
    # A `>` closes only where it ends no arrow or comparison.
    closes = data == ord(">")
    closes[1:] &= data[:-1] != ord("-")
    closes[:-1] &= data[1:] != ord("=")
    for depth in (np.cumsum(steps), np.cumsum(angle - closes)):
        deep = np.flatnonzero(depth > MAX_NESTING)
        if deep.size:
            line, column = _place(data.tobytes(), int(deep[0]))
            raise BadInput(
                f"expected at most {MAX_NESTING} nested brackets, got more",
                Location(source.name, line, column),
            )


def _place(data: bytes, offset: int) -> tuple[int, int]:
    before = data[:offset]
    return before.count(b"\n") + 1, offset - before.rfind(b"\n")


def _file(path: str) -> bytes:
    target = Path(path)
    try:
        status = target.stat()
        if stat.S_ISDIR(status.st_mode):
            raise BadInput("expected a file, got a directory", Location(path))
        if status.st_size > MAX_BYTES:
            raise BadInput(f"expected at most {MAX_BYTES} bytes, got {status.st_size}", Location(path))
        return target.read_bytes()
    except FileNotFoundError:
        raise BadInput("no such file", Location(path)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadInput(f"cannot read: {reason}", Location(path)) from None


def _stdin() -> bytes:
    stream = sys.stdin
    binary = getattr(stream, "buffer", None)
    data: bytes = binary.read() if binary is not None else stream.read().encode()
    return data


_REPRODUCER = re.compile(r'mlir_reproducer\s*:\s*\{.*?pipeline\s*:\s*"((?:[^"\\]|\\.)*)"', re.DOTALL)


def reproducer_pipeline(source: Source) -> str | None:
    """The pipeline recorded in a crash reproducer; None if `source` is not one."""
    found = _REPRODUCER.search(source.text)
    return re.sub(r"\\(.)", r"\1", found[1]) if found else None
