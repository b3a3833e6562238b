"""Whether two Python sources differ only in comments and names of variables; reads them, never runs them."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator

_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
}


def same_source(first: str, second: str) -> bool:
    """Whether renaming the variables and parameters of each function of `first` gives `second`.

    Names of functions, of other modules and of attributes must be equal, so that `tl.load` is never taken for
    `tl.store`. Docstrings, being strings that stand alone, are ignored.
    """
    try:
        a, b = list(_tokens(first)), list(_tokens(second))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return False
    if len(a) != len(b):
        return False
    own = _defined(a), _defined(b)
    forth: dict[str, str] = {}
    back: dict[str, str] = {}
    for (kind, text), (other_kind, other) in zip(a, b, strict=True):
        if kind != other_kind:
            return False
        if text == other == "def":
            forth, back = {}, {}
        if kind == tokenize.NAME and text in own[0] and other in own[1]:
            if forth.setdefault(text, other) != other or back.setdefault(other, text) != text:
                return False
        elif text != other:
            return False
    return True


def _tokens(source: str) -> Iterator[tuple[int, str]]:
    """Tokens with their kind, including line ends and indentation but not strings that are statements."""
    line: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            yield token.type, ""
        elif token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            if not (len(line) == 1 and line[0][0] == tokenize.STRING):
                yield from line
                yield tokenize.NEWLINE, ""
            line = []
        elif token.type not in _SILENT:
            line.append((token.type, token.string))


def _defined(tokens: list[tuple[int, str]]) -> set[str]:
    """Parameters, assigned and loop variables."""
    names: set[str] = set()
    start, depth, parameters = True, 0, False
    for i, (kind, text) in enumerate(tokens):
        before = tokens[i - 1][1] if i else ""
        after = tokens[i + 1][1] if i + 1 < len(tokens) else ""
        if text in "([{" and text:
            depth += 1
        elif text in ")]}" and text:
            depth -= 1
            parameters = parameters and depth > 0
        if kind == tokenize.NAME and before != ".":
            parameters = parameters or before == "def"
            if (
                before == "for"
                or (parameters and depth == 1 and before in ("(", ","))
                or (depth == 0 and (start or before == ",") and after in ("=", ","))
            ):
                names.add(text)
        start = kind in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return names
