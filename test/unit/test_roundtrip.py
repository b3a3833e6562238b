"""`--verify-roundtrip`: what was read, printed and read again, must be what it was."""

from __future__ import annotations

from typing import Any

import pytest

from superopt.errors import BadInput
from superopt.inputs import source

pytest.importorskip("torch_mlir")


def test_what_is_not_read_as_it_was_printed_is_an_error() -> None:
    from superopt.dialects.mlir import ir

    module: Any = ir.Module.parse("func.func private @f(i32)", ir.Context())
    source.check_roundtrip(module.operation, "f.mlir")
    other: Any = ir.Module.parse("func.func private @g(i32)", module.context)

    class Differs:
        """The module, printed as another one, in one form."""

        name, context = "builtin.module", module.context

        def __init__(self, form: str) -> None:
            self.form = form

        def get_asm(self, **how: Any) -> str:
            if how.get("print_generic_op_form"):
                return str(module.operation.get_asm(**how))
            return {"text": str(other), "broken text": "?"}.get(
                self.form, str(module.operation.get_asm(**how))
            )

        def write_bytecode(self, file: Any) -> None:
            (other if self.form == "bytecode" else module).operation.write_bytecode(file)

    for form, said in (
        ("text", "expected text of the input to be read as it was, got another module"),
        ("broken text", "expected text of the input to be read again, got an error"),
        ("bytecode", "expected bytecode of the input to be read as it was, got another module"),
    ):
        with pytest.raises(BadInput, match=said):
            source.check_roundtrip(Differs(form), "f.mlir")
