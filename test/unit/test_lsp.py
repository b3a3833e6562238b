"""`superopt-lsp` as an editor uses it: the real process, spoken to over its standard input and output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest

from superopt import cost
from superopt.dialects import reader
from superopt.driver.main import run as superopt_opt
from superopt.editor.inspect import inspect
from superopt.tools.superopt_lsp import main

types: Any = pytest.importorskip("lsprotocol.types")
client_module: Any = pytest.importorskip("pygls.lsp.client")

GOOD = """func.func @f(%x: tensor<8x16xf32>, %w: tensor<16x32xf32>) -> tensor<8x32xf32> {
  %0 = "kernel.matmul"(%x, %w) : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %1 = "kernel.exp"(%0) : (tensor<8x32xf32>) -> tensor<8x32xf32>
  return %1 : tensor<8x32xf32>
}
"""
LINALG = """func.func @g(%a: tensor<4x8xf32>, %b: tensor<8x4xf32>) -> tensor<4x4xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x4xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x4xf32>) -> tensor<4x4xf32>
  %product = linalg.matmul ins(%a, %b : tensor<4x8xf32>, tensor<8x4xf32>) outs(%init : tensor<4x4xf32>) -> tensor<4x4xf32>
  return %product : tensor<4x4xf32>
}
"""
WRONG = {
    "a syntax error": GOOD.replace("tensor<8x32xf32> {", "tensor<8x32xf32 {"),
    "an undeclared value": GOOD.replace("(%0)", "(%2)"),
    "types that contradict each other, with a note": GOOD.replace("(%0) : (tensor<8x32xf32>)", "(%0) : (tensor<8xf32>)"),
    "a wrong result shape": GOOD.replace("-> tensor<8x32xf32>\n  %1", "-> tensor<8x33xf32>\n  %1").replace(
        "(%0) : (tensor<8x32xf32>)", "(%0) : (tensor<8x33xf32>)"
    ),
    "a rule of the verifier": GOOD.replace('"kernel.exp"(%0)', '"superopt.frobnicate"(%0)'),
    "StableHLO": GOOD.replace('"kernel.exp"(%0)', '"stablehlo.exponential"(%0)'),
    "nothing": "",
    "too many brackets": "(" * 1000,
    "two parts, both wrong": GOOD.replace("(%0)", "(%2)") + "// -----\n" + GOOD.replace("(%0)", "(%3)"),
}  # fmt: skip


class Editor:
    """A client, and the newest diagnostics of each file."""

    def __init__(self) -> None:
        self.client: Any = client_module.BaseLanguageClient("editor", "1")
        self.told: asyncio.Queue[Any] = asyncio.Queue()

        def published(params: Any) -> None:
            self.told.put_nowait(params)

        self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(published)

    async def open(self, uri: str, text: str) -> list[Any]:
        item = types.TextDocumentItem(uri, "mlir", 1, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        return await self.diagnostics(uri, 1)

    async def change(self, uri: str, version: int, text: str) -> list[Any]:
        which = types.VersionedTextDocumentIdentifier(version, uri)
        whole = types.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(which, [whole]))
        return await self.diagnostics(uri, version)

    async def diagnostics(self, uri: str, version: int | None) -> list[Any]:
        while True:
            params = await asyncio.wait_for(self.told.get(), 60)
            if params.uri == uri and params.version == version:
                return list(params.diagnostics)

    async def hover(self, uri: str, line: int, character: int) -> Any:
        where = types.TextDocumentIdentifier(uri), types.Position(line, character)
        return await self.client.text_document_hover_async(types.HoverParams(*where))

    @property
    def server(self) -> int:
        return self.client._server.pid

    async def start(self) -> None:
        await self.client.start_io(sys.executable, "-m", "superopt.tools.superopt_lsp", "--target=A100")
        capabilities = types.ClientCapabilities()
        answer = await self.client.initialize_async(
            types.InitializeParams(capabilities, process_id=os.getpid())
        )
        assert answer.capabilities.hover_provider
        self.client.initialized(types.InitializedParams())

    async def end(self) -> None:
        """The server has to exit by itself, and cleanly."""
        await self.client.shutdown_async(None)
        self.client.exit(None)
        assert await asyncio.wait_for(self.client._server.wait(), 30) == 0
        await self.client.stop()


Session = Callable[[Callable[[Editor], Coroutine[Any, Any, None]]], None]


@pytest.fixture(scope="module")
def session() -> Generator[Session]:
    """Runs what a test does with the editor; starting one takes seconds, so all tests share it."""
    made = Editor()
    with asyncio.Runner() as runner:
        runner.run(made.start())
        yield lambda what: runner.run(what(made))
        runner.run(made.end())


def said_by_opt(path: Path, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """The first lines of the errors and notes of `superopt-opt`."""
    superopt_opt([str(path), "--split-input-file", "-o", os.devnull])
    lines = capfd.readouterr().err.splitlines()
    return [line for line in lines if line.startswith(f"{path}:")]


def test_errors_are_those_of_superopt_opt(
    session: Session, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def opened(made: Editor) -> None:
        for name, text in WRONG.items():
            path = tmp_path / f"{name}.mlir"
            path.write_text(text)
            told = await made.open(path.as_uri(), text)
            lines: list[str] = []
            for d in told:
                assert d.severity == types.DiagnosticSeverity.Error
                lines.append(f"{path}:{place(d.range)}: error: {d.message}")
                lines += [
                    f"{path}:{place(r.location.range)}: note: {r.message}" for r in d.related_information
                ]
            assert lines
            assert lines == said_by_opt(path, capfd), name

    session(opened)


def place(found: Any) -> str:
    return f"{found.start.line + 1}:{found.start.character + 1}"


def test_a_change_is_read_and_what_is_shown_is_of_the_newest_text(session: Session) -> None:
    async def typed(made: Editor) -> None:
        uri = "file:///2.mlir"
        (error,) = await made.open(uri, WRONG["an undeclared value"])
        assert (error.range.start.line, error.range.end.character - error.range.start.character) == (2, 2)
        assert await made.change(uri, 2, GOOD) == []
        which = types.VersionedTextDocumentIdentifier(3, uri)
        at = types.Range(types.Position(2, 20), types.Position(2, 22))
        edit = types.TextDocumentContentChangePartial(at, "%9")
        made.client.text_document_did_change(types.DidChangeTextDocumentParams(which, [edit]))
        (error,) = await made.diagnostics(uri, 3)
        assert "undeclared" in error.message
        made.client.text_document_did_close(
            types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(uri))
        )
        assert await made.diagnostics(uri, None) == []

    session(typed)


def test_a_functions_symbol_means_that_of_its_own_chunk() -> None:
    one = "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}\n"
    text = one + "// -----\n" + one.replace("4x", "8x")
    found = inspect(text, "f.mlir", "sm_80")
    for line, size in ((0, 4), (4, 8)):
        said = found.hover(text, line, len("func.func @"))
        assert said is not None
        assert said[0].startswith(f"`@f`: (tensor<{size}xf32>) → tensor<{size}xf32>\n\npredicted on sm_80")


def test_hover_tells_types_and_costs(session: Session) -> None:
    graph = reader.read(GOOD)
    prices = [cost.kernel_cost(n, cost.target("sm_80")).seconds for n in graph.nodes]

    async def pointed(made: Editor) -> None:
        uri = "file:///3.mlir"
        assert await made.open(uri, GOOD) == []

        async def says(line: int, character: int) -> str:
            found = await made.hover(uri, line, character)
            return "" if found is None else found.contents.value

        product, above = GOOD.splitlines()[1], GOOD.splitlines()[0]
        said = await says(1, product.index("matmul"))
        assert said.startswith("`kernel.matmul`: (tensor<8x16xf32>, tensor<16x32xf32>) → tensor<8x32xf32>")
        assert f"{prices[0] * 1e6:.1f} us predicted" in said
        assert "on sm_80, by itself" in said
        assert await says(1, product.index("%w")) == "`%w`: tensor<16x32xf32>"
        assert await says(2, GOOD.splitlines()[2].index("%0")) == "`%0`: tensor<8x32xf32>"
        assert f"{sum(prices) * 1e6:.1f} us operator by operator" in await says(0, above.index("func.func"))
        said = await says(0, above.index("@") + 1)
        assert said.startswith("`@f`: (tensor<8x16xf32>, tensor<16x32xf32>) → tensor<8x32xf32>")
        assert f"{sum(prices) * 1e6:.1f} us operator by operator" in said
        assert await says(0, above.index("%w") + 1) == "`%w`: tensor<16x32xf32>"
        assert await says(0, len(above) - 1) == ""
        assert await says(99, 0) == ""
        assert await made.open("file:///y.mlir", LINALG) == []
        uri = "file:///y.mlir"
        assert "us predicted" in await says(4, LINALG.splitlines()[4].index("linalg.matmul"))
        assert await says(5, 10) == "`%product`: tensor<4x4xf32>"

    session(pointed)


def test_places_count_as_the_editor_does(session: Session) -> None:
    """MLIR counts bytes and the protocol units of UTF-16: of this letter four and two."""
    text = GOOD.replace(
        '  %1 = "kernel.exp"(%0) :', '  %1 = "kernel.exp"(%0) {note = "𝜆𝜆"} : (tensor<3xf32>) -> %'
    )

    async def opened(made: Editor) -> None:
        (error,) = await made.open("file:///4.mlir", text)
        line = text.splitlines()[2]
        place = line.index("-> %") + 3
        assert error.range.start.line == 2
        assert error.range.start.character == len(line[:place].encode("utf-16-le")) // 2

    session(opened)


def test_the_reader_may_die(session: Session) -> None:
    async def killed(made: Editor) -> None:
        uri = "file:///5.mlir"
        assert await made.open(uri, GOOD) == []
        children = Path(f"/proc/{made.server}/task/{made.server}/children").read_text().split()
        assert children
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        (error,) = await made.change(uri, 2, WRONG["an undeclared value"])
        assert "undeclared" in error.message

    session(killed)


def test_what_cannot_start(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["--target=sm_7"]) == 2
    assert "expected a target of" in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "pygls", None)
    for name in [m for m in sys.modules if m.startswith(("pygls.", "superopt.editor"))]:
        monkeypatch.delitem(sys.modules, name)
    assert main([]) == 2
    assert "expected pygls, got none: pip install 'superopt[lsp]'" in capfd.readouterr().err
