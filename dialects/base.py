"""Loading the four dialects into a context, and checking modules against them.

An operation with a fixed number of operands is defined over IRDL (the bindings' `ext`), with a verifier that
runs when it is parsed. An operation with a variadic group of operands of different types cannot be: IRDL
makes one constraint variable of a group, so all its types would have to be equal. Such operations live in a
namespace of their own, `superopt.*`, which stays unregistered for the bindings; `verify` checks them, and rejects
every unknown name:

    superopt.custom   a kernel of our own: its region is a block graph; `grid`, `loops`
    superopt.tiled    a kernel of our own as tile loops; `name`, `num_warps`, `num_stages`, `cache_hints`,
                      `descriptors`, `separate_loads`, `separate_masks`, `alone`
    superopt.extern   something that superopt cannot express: opaque, kept in place; `target`, `reason`
    superopt.fused    a thread graph in a block graph: steps that stay in registers
    superopt.yield    the results of a thread graph
    superopt.concat   the operator table's `concat`, at every level
"""

from __future__ import annotations

import re
from typing import Any

from superopt.dialects import block, kernel, reader, thread, tile
from superopt.dialects.define import VARIADIC, VARIADIC_NAMESPACE
from superopt.dialects.mlir import ir
from superopt.errors import BadInput, IllegalProgram, Location
from superopt.inputs.source import lowering_hint
from superopt.spec import check_kernel

DIALECTS = {d.NAMESPACE: d for d in (kernel, block, thread, tile)}


def load(context: Any) -> None:
    """Load the dialects into `context`; does nothing for those that are already loaded."""
    with context, ir.Location.unknown(context):
        for dialect in DIALECTS.values():
            if not context.is_dialect_loaded(dialect.NAMESPACE):
                dialect.dialect_class().load()
    context.allow_unregistered_dialects = True


def context() -> Any:
    """A fresh context with every dialect of superopt and of the bindings."""
    fresh = ir.Context()
    load(fresh)
    return fresh


def location_of(operation: Any, filename: str = "") -> Location:
    """Where `operation` comes from; `filename` stands in where the source was not a file."""
    return to_location(operation.location, filename)


def to_location(place: Any, filename: str = "") -> Location:
    """The first file location within `place`, a location of the bindings; `filename` stands in for none.

    Read off the text: the locations of diagnostics lack accessors.
    """
    found = re.search(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)', str(place))
    if found is None:
        return Location(filename)
    file, line, column = found.groups()
    return Location(filename if file in ("-", "") else file, int(line), int(column))


def verify(module: Any, *, allow_unregistered: bool = False, filename: str = "") -> None:
    """Check `module` against the rules of every level.

    Raises BadInput for an operation of an unknown dialect (unless `allow_unregistered`) and IllegalProgram for
    one that breaks a rule of its level; both located.
    """
    root = getattr(module, "operation", module)

    def visit(operation: Any) -> Any:
        name = operation.name
        namespace = name.split(".")[0]
        known = operation.context.is_registered_operation(name) or name in VARIADIC
        ours = namespace == VARIADIC_NAMESPACE
        if not known and (ours or not allow_unregistered):
            what = f"operation of dialect '{namespace}'" if ours else "registered operation"
            got = f"got '{name}'{lowering_hint(name)}"
            raise BadInput(f"expected a known {what}, {got}", location_of(operation, filename))
        return ir.WalkResult.ADVANCE

    _walk(root, visit)
    for function in reader.functions(module):
        if reader.is_kernel_function(function):
            check_kernel(reader.read_function(function, filename))


def _walk(operation: Any, visit: Any) -> None:
    """Visit every operation, outer first; an exception of `visit` ends the walk and is raised here.

    `Operation.walk` cannot carry a Python exception out, so it is kept and raised afterwards.
    """
    raised: list[Exception] = []

    def guarded(op: Any) -> Any:
        try:
            return visit(op)
        except (BadInput, IllegalProgram) as error:
            raised.append(error)
            return ir.WalkResult.INTERRUPT

    operation.walk(guarded, ir.WalkOrder.PRE_ORDER)
    if raised:
        raise raised[0]
