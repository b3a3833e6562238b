"""Whether two Python sources differ only in comments and names of variables; reads them, never runs them."""

from __future__ import annotations

import io
import re
import string
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
# Other characters end a line for some readers of Python only: `tokenize` takes a carriage return for part of a
# comment, `compile` does not; `inspect`, from which Triton reads a function, splits at form feeds and U+2028.
_PLAIN = frozenset(string.printable) - frozenset("\t\r\x0b\x0c")
# It decides how an import decodes the file (PEP 263), so what a comment is, too.
_CODING = re.compile(r"^[ \t]*#.*coding[:=]", re.MULTILINE)


def same_source(first: str, second: str) -> bool:
    """Whether renaming the variables and parameters of each function of `first` gives `second`.

    Names of functions, of modules and what they define, of attributes and of named arguments must be equal, so
    that `tl.load` is never taken for `tl.store`. Docstrings, being strings that stand alone, are ignored.
    """
    if set(first) - set(second) - _PLAIN or (_CODING.search(first) and not _CODING.search(second)):
        return False
    try:
        a, b = list(_tokens(first)), list(_tokens(second))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return False
    if len(a) != len(b):
        return False
    own = _defined(a), _defined(b)
    forth: dict[str, str] = {}
    back: dict[str, str] = {}
    before, depth = "", 0
    for i, ((kind, text), (other_kind, other)) in enumerate(zip(a, b, strict=True)):
        if kind != other_kind:
            return False
        if text == other == "def":
            forth, back = {}, {}
        named = before in (".", "def") or (depth > 0 and i + 1 < len(a) and a[i + 1][1] == "=")
        if kind == tokenize.NAME and not named and (text in own[0] or other in own[1]):
            if text not in own[0] or other not in own[1]:
                return False
            if forth.setdefault(text, other) != other or back.setdefault(other, text) != text:
                return False
        elif text != other:
            return False
        before, depth = text, depth + _nested(text)
    return True


def _tokens(source: str) -> Iterator[tuple[int, str]]:
    """Tokens with their kind, including line ends and indentation but not strings that are statements."""
    line: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            yield token.type, ""
        elif token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            if not (len(line) == 1 and _is_text(line[0])):
                yield from line
                yield tokenize.NEWLINE, ""
            line = []
        elif token.type not in _SILENT:
            line.append((token.type, token.string))


def _is_text(token: tuple[int, str]) -> bool:
    """Whether it is a string that computes nothing, which an f-string may do."""
    return token[0] == tokenize.STRING and token[1][0] in "\"'"


def _nested(text: str) -> int:
    """By how much a token changes the number of open brackets."""
    return (text in ("(", "[", "{")) - (text in (")", "]", "}"))


def _defined(tokens: list[tuple[int, str]]) -> set[str]:
    """Parameters, assigned and loop variables of functions."""
    names: set[str] = set()
    start, depth, level, parameters = True, 0, 0, False
    for i, (kind, text) in enumerate(tokens):
        before = tokens[i - 1][1] if i else ""
        after = tokens[i + 1][1] if i + 1 < len(tokens) else ""
        level += (kind == tokenize.INDENT) - (kind == tokenize.DEDENT)
        if change := _nested(text):
            depth += change
            parameters = parameters and depth > 0
        if kind == tokenize.NAME and before != ".":
            parameters = parameters or before == "def"
            assigned = depth == 0 and (start or before == ",") and after in ("=", ",")
            if (parameters and depth == 1 and before in ("(", ",")) or (
                level > 0 and (before == "for" or assigned)
            ):
                names.add(text)
        start = kind in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return names
