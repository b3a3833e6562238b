"""`superopt-lsp`: what an editor starts to show errors, types and costs of MLIR in superopt's dialects."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from superopt.cost.gpus import DEFAULT_TARGET, target
from superopt.driver.arguments import Parser
from superopt.errors import BadOption

_DESCRIPTION = """Speak the Language Server Protocol on standard input and output. Errors are those of
superopt-opt; the pointer on an operation or a value shows its types and what it is predicted to cost."""


def main(argv: Sequence[str] | None = None) -> int:
    """The console entry; `argv` is `sys.argv` without the program's name, the result the exit code."""
    parser = Parser(prog="superopt-lsp", description=_DESCRIPTION)
    parser.add_argument(
        "--target", default=DEFAULT_TARGET, help=f"the GPU to predict costs for (default: {DEFAULT_TARGET})"
    )
    options = parser.parse_args(argv)
    try:
        name = target(options.target).name
        from superopt.editor.server import server
    except BadOption as error:
        print(f"superopt-lsp: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("pygls", "lsprotocol"):
            raise
        print("superopt-lsp: error: expected pygls, got none: pip install 'superopt[lsp]'", file=sys.stderr)
        return 2
    server(name).start_io()
    return 0


if __name__ == "__main__":
    sys.exit(main())
