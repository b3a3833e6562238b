"""The language server: located errors while one types, types and predicted costs under the pointer.

Texts are read in a process of their own: a crash of MLIR's parser costs one check, and the editor never waits.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from urllib.parse import unquote, urlparse

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.workspace import PositionCodec, TextDocument

from superopt import __version__
from superopt.editor.inspect import Inspected, inspect
from superopt.errors import Location
from superopt.inputs.source import Message

_WORD = re.compile(r"[\"%@!#\w.$-]+")
_SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "remark": types.DiagnosticSeverity.Information,
    "note": types.DiagnosticSeverity.Hint,
}


class Server(LanguageServer):
    """The state of a session: the process that reads, and what it found in the newest version of each text."""

    def __init__(self, target: str) -> None:
        super().__init__("superopt-lsp", __version__)  # pyright: ignore[reportUnknownMemberType]
        self.target = target
        self.found: dict[str, Inspected] = {}
        self.checking: set[str] = set()
        self._reader: ProcessPoolExecutor | None = None

    async def check(self, uri: str) -> None:
        """Read the text until what is shown is of its newest version."""
        if uri in self.checking:
            return
        self.checking.add(uri)
        try:
            version = object()
            while (document := self._open(uri)) is not None and document.version != version:
                version, text = document.version, document.source
                found = await self._inspected(text, uri)
                if (now := self._open(uri)) is not None and now.version == version:
                    self._publish(now, found)
        finally:
            self.checking.discard(uri)

    def close(self, uri: str) -> None:
        """Forget a text, and what was said of it."""
        self.found.pop(uri, None)
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    def hover(self, uri: str, position: types.Position) -> types.Hover | None:
        """What is known of the word at a position."""
        found, document = self.found.get(uri), self._open(uri)
        if found is None or document is None:
            return None
        codec, lines = self._codec, document.lines
        at = codec.position_from_client_units(lines, position)
        said = found.hover(document.source, at.line, at.character)
        if said is None:
            return None
        text, start, end = said
        place = types.Range(types.Position(at.line, start), types.Position(at.line, end))
        content = types.MarkupContent(types.MarkupKind.Markdown, text)
        return types.Hover(content, codec.range_to_client_units(lines, place))

    def end(self) -> None:
        """End the process that reads."""
        if self._reader is not None:
            self._reader.shutdown(wait=False, cancel_futures=True)
            self._reader = None

    @property
    def _codec(self) -> PositionCodec:
        """Between characters and what the editor counts in, by default units of UTF-16."""
        return self.workspace.position_codec

    def _open(self, uri: str) -> TextDocument | None:
        # Versions of pygls differ in the keys of this mapping.
        return next((d for d in self.workspace.text_documents.values() if d.uri == uri), None)

    async def _inspected(self, text: str, uri: str) -> Inspected:
        name = unquote(urlparse(uri).path)
        for _ in range(2):  # another text may have ended the process
            if self._reader is None:
                self._reader = ProcessPoolExecutor(
                    1, multiprocessing.get_context("spawn"), initializer=_keep_to_itself
                )
            try:
                return await asyncio.wrap_future(self._reader.submit(inspect, text, name, self.target))
            except BrokenProcessPool:
                self.end()
        crashed = "expected a text that MLIR can read, got one that ends the process that reads it"
        return Inspected([Message("error", crashed, Location(name, 1, 1))])

    def _publish(self, document: TextDocument, found: Inspected) -> None:
        self.found[document.uri] = found
        shown = [self._diagnostic(document, m) for m in found.messages]
        self.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(document.uri, shown, document.version)
        )

    def _diagnostic(self, document: TextDocument, message: Message) -> types.Diagnostic:
        lines = document.lines
        related = [
            types.DiagnosticRelatedInformation(
                types.Location(document.uri, self._range(lines, note.location)), note.text
            )
            for note in _notes(message)
        ]
        return types.Diagnostic(
            self._range(lines, message.location),
            message.text,
            _SEVERITIES.get(message.severity, types.DiagnosticSeverity.Error),
            source="superopt",
            related_information=related,
        )

    def _range(self, lines: Sequence[str], place: Location) -> types.Range:
        """The word at a place, as the editor counts; the first line for a place that is unknown."""
        number = min(max(place.line, 1), max(len(lines), 1)) - 1
        line = lines[number].rstrip("\r\n") if lines else ""
        start = len(line.encode()[: max(place.column - 1, 0)].decode(errors="ignore"))
        word = _WORD.match(line, start)
        word_end = word.end() if word else len(line)
        shown = types.Range(types.Position(number, start), types.Position(number, word_end))
        return self._codec.range_to_client_units(lines, shown)


def _keep_to_itself() -> None:
    """What the reading process prints must not mix with what the server says to the editor."""
    os.dup2(2, 1)


def _notes(message: Message) -> Iterator[Message]:
    for note in message.notes:
        yield note
        yield from _notes(note)


def server(target: str) -> Server:
    """A server that prices for `target`."""
    made = Server(target)

    @made.feature(types.TEXT_DOCUMENT_DID_OPEN)
    async def opened(params: types.DidOpenTextDocumentParams) -> None:
        await made.check(params.text_document.uri)

    @made.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(params: types.DidChangeTextDocumentParams) -> None:
        await made.check(params.text_document.uri)

    @made.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        made.close(params.text_document.uri)

    @made.feature(types.TEXT_DOCUMENT_HOVER)
    def hovered(params: types.HoverParams) -> types.Hover | None:
        return made.hover(params.text_document.uri, params.position)

    @made.feature(types.SHUTDOWN)
    def ended(*_: object) -> None:
        made.end()

    return made
