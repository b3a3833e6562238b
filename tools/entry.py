"""The console entries of all tools: a Ctrl-C while a tool is imported, which takes up to two seconds, ends it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def _entry(tool: str) -> Callable[[], int]:
    def main() -> int:
        with _interrupt_ends(f"superopt-{tool}"):
            module = import_module(f"superopt.tools.superopt_{tool}")
        return module.main()

    return main


@contextmanager
def _interrupt_ends(tool: str) -> Generator[None]:
    """Within it, Ctrl-C ends this process at once, whatever is being imported: an extension module could turn
    the exception of Python into an error of its own."""

    def leave(received: int, frame: Any) -> None:
        os.write(2, f"{tool}: interrupted; nothing was written\n".encode())
        os._exit(128 + received)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # such as nohup's
        yield
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


bench = _entry("bench")
import_ = _entry("import")
lsp = _entry("lsp")
opt = _entry("opt")
run = _entry("run")
store = _entry("store")
tune = _entry("tune")
verify = _entry("verify")
