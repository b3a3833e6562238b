"""A text of MLIR as an editor shows it: what is wrong where, and what each operation and value is and costs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from superopt import cost
from superopt.cost.gpus import Target
from superopt.cost.gpus import target as find_target
from superopt.diagnostics import Diagnostics
from superopt.dialects import base, reader
from superopt.dialects.mlir import ir
from superopt.errors import Location, SuperoptError, UnsupportedProgram
from superopt.inputs import source
from superopt.inputs.source import Message, Source, SourceError
from superopt.transforms.ingest.linalg_reader import LinalgReader
from superopt.transforms.ingest.tosa import lower_tosa
from superopt.weights import main_part

_NAMES = re.compile(r"(%[\w.$-]+)(?::(\d+))?")
_WORD = re.compile(r"%[\w.$-]+(?:#\d+)?|@?[\w.$-]+")


@dataclass
class Inspected:
    """The messages on a text, and what there is to say of its operations and values.

    Places are (line, column) from 1, in bytes, as MLIR counts them. `operations` has an operation by the place
    of its name, `values` what a name means from each line of a definition on, `functions` one by its
    symbol, up to the last line of its chunk.
    """

    messages: list[Message] = field(default_factory=list[Message])
    operations: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    values: dict[str, list[tuple[int, str]]] = field(default_factory=dict[str, list[tuple[int, str]]])
    functions: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])

    def hover(self, text: str, line: int, column: int) -> tuple[str, int, int] | None:
        """What is said of the word at a place, and the columns from and to which it reaches; None for nothing.

        The place is that of an editor: `line` and `column` from 0, in characters.
        """
        lines = text.splitlines()
        if line >= len(lines):
            return None
        for word in _WORD.finditer(lines[line]):
            if word.start() <= column < word.end():
                said = self._said(word[0], line + 1, len(lines[line][: word.start()].encode()) + 1)
                return (said, word.start(), word.end()) if said else None
        return None

    def _said(self, word: str, line: int, column: int) -> str | None:
        if word.startswith("%"):
            before = [said for start, said in self.values.get(word, ()) if start <= line]
            return before[-1] if before else None
        if word.startswith("@"):
            return next((said for end, said in self.functions.get(word, {}).items() if line <= end), None)
        # MLIR's generic form has quotes around the name, where its place is.
        return self.operations.get((line, column)) or self.operations.get((line, column - 1))


def inspect(text: str, name: str, target: str) -> Inspected:
    """Read `text` as `superopt-opt --split-input-file` does, with its errors, and price it for `target`."""
    found = Inspected()
    try:
        chunks = source.split(source.from_bytes(text.encode(), name))
    except SuperoptError as error:
        found.messages.append(Message("error", error.message, error.location))
        return found
    for chunk in chunks:
        if chunk.text.strip() or len(chunks) == 1:
            _inspect_chunk(chunk, find_target(target), found)
    return found


def _inspect_chunk(chunk: Source, target: Target, found: Inspected) -> None:
    try:
        module = source.parse(chunk, base.context())
        _index(module, chunk, found)
        base.verify(module, filename=chunk.name)
        _price(module, chunk, target, found)
    except SourceError as error:
        found.messages += [m.named(chunk.name) for m in error.messages]
    except SuperoptError as error:
        found.messages.append(Message("error", error.message, error.location).named(chunk.name))
    except RecursionError:
        deep = "expected a program of less depth, got one too deep to walk"
        found.messages.append(Message("error", deep, Location(chunk.name, 1, 1)))


def _index(module: Any, chunk: Source, found: Inspected) -> None:
    """Note every operation, and the names of its results and of its blocks' arguments, with types."""
    lines = chunk.text.split("\n")

    def visit(operation: Any) -> Any:
        place = base.location_of(operation, chunk.name)
        if 0 < place.line <= len(lines):
            operands = ", ".join(str(v.type) for v in operation.operands)
            results = ", ".join(str(v.type) for v in operation.results)
            found.operations[place.line, place.column] = (
                f"`{operation.name}`: ({operands}) → {results or '()'}"
            )
            _name_results(operation, place, lines[place.line - 1], found)
        if operation.name == "func.func":
            kind = ir.FunctionType(ir.TypeAttr(operation.attributes["function_type"]).value)
            takes, gives = (", ".join(map(str, types)) for types in (kind.inputs, kind.results))
            symbol = _symbol(operation)
            said = f"`{symbol}`: ({takes}) → {gives or '()'}"
            found.functions.setdefault(symbol, {})[len(lines)] = said
        for region in operation.regions:
            for block in region.blocks:
                for argument in block.arguments:
                    _name_argument(argument, lines, found)
        return ir.WalkResult.ADVANCE

    module.walk(visit, ir.WalkOrder.PRE_ORDER)


def _symbol(function: Any) -> str:
    return f"@{ir.StringAttr(function.attributes['sym_name']).value}"


def _name_results(operation: Any, place: Location, line: str, found: Inspected) -> None:
    before = line.encode()[: place.column - 1].decode(errors="ignore")
    results = [str(v.type) for v in operation.results]
    if "=" not in before:
        return
    for name, count in _NAMES.findall(before.rpartition("=")[0]):
        mine, results = results[: int(count or 1)], results[int(count or 1) :]
        _define(name, place.line, f"`{name}`: {', '.join(mine)}", found)
        for i, of_type in enumerate(mine):
            _define(f"{name}#{i}", place.line, f"`{name}#{i}`: {of_type}", found)


def _name_argument(argument: Any, lines: list[str], found: Inspected) -> None:
    place = base.to_location(argument.location)
    if 0 < place.line <= len(lines):
        at = lines[place.line - 1].encode()[place.column - 1 :].decode(errors="ignore")
        if name := _NAMES.match(at):
            _define(name[1], place.line, f"`{name[1]}`: {argument.type}", found)


def _define(name: str, line: int, said: str, found: Inspected) -> None:
    found.values.setdefault(name, []).append((line, said))


def _price(module: Any, chunk: Source, target: Target, found: Inspected) -> None:
    """Add what each operation is predicted to take by itself, and each function as a whole."""
    for function in reader.functions(module):
        if not function.regions[0].blocks:
            continue
        diagnostics = Diagnostics()
        try:
            if reader.is_kernel_function(function):
                graph = reader.read_function(function, chunk.name)
            else:
                lower_tosa(module, function, chunk.name)
                graph = LinalgReader(function, diagnostics, False, chunk.name).read()
        except UnsupportedProgram as error:  # well-formed MLIR, which others may read
            found.messages.append(Message("warning", error.message, error.location).named(chunk.name))
            continue
        finally:
            said = (Message(d.severity, d.message, d.location) for d in diagnostics.messages)
            found.messages += [m.named(chunk.name) for m in said]
        priced: defaultdict[tuple[int, int], list[cost.KernelCost]] = defaultdict(list)
        whole = cost.cost(graph, target)
        for node, kernel in cost.costs_alone(main_part(graph), target).items():
            priced[node.location.line, node.location.column].append(kernel)
        for place, kernels in priced.items():
            _add(found, place, f"{_costs(kernels)} on {target.name}, by itself")
        place = base.location_of(function, chunk.name)
        baseline = cost.best_baseline(graph, target)
        best = f"{baseline.seconds * 1e6:.1f} us for the best a user has ({baseline.name})"
        operators = f"{whole.seconds * 1e6:.1f} us operator by operator"
        said = f"predicted on {target.name}: {best}, {operators}"
        _add(found, (place.line, place.column), said)
        found.functions[_symbol(function)][len(chunk.text.split("\n"))] += f"\n\n{said}"


def _costs(kernels: Iterable[Any]) -> str:
    kernels = list(kernels)
    seconds = sum(k.seconds for k in kernels)
    moved = sum(k.traffic.dram_bytes for k in kernels)
    computed = sum(k.traffic.tensor_flops + k.traffic.vector_flops for k in kernels)
    return f"{seconds * 1e6:.1f} us predicted: {moved / 1e6:.3g} MB, {computed:.3g} operations"


def _add(found: Inspected, place: tuple[int, int], said: str) -> None:
    if place in found.operations:
        found.operations[place] += f"\n\n{said}"
