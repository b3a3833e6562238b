"""`--verify-diagnostics`: every message must be announced by a comment, and every comment must come true.

    // expected-error @+1 {{expected f32, got f16}}
    // expected-remark @above {{kept as superopt.extern}}
    // expected-warning-re @-2 {{at most {{[0-9]+}} bytes}}

Kinds are error, warning, remark and note; the place is this line, `@+N`, `@-N`, `@above`, `@below` or `@unknown`
(anywhere). With `-re`, what stands in inner braces is a regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from superopt.errors import Location
from superopt.inputs.source import Message, Source

_COMMENT = re.compile(
    r"expected-(?P<kind>error|warning|remark|note)(?P<re>-re)?"
    r"(?:\s*@(?P<place>[+-]\d+|above|below|unknown))?(?:\s+(?P<times>\d+))?\s*\{\{(?P<text>.*)\}\}\s*$"
)
_INNER = re.compile(r"\{\{(.*?)\}\}")


@dataclass(frozen=True)
class Expected:
    """One announced message; `line` is 0 for anywhere."""

    kind: str
    line: int
    pattern: str
    written: str
    at: Location

    def matches(self, message: Message) -> bool:
        """Whether `message` is the announced one."""
        return (
            message.severity == self.kind
            and self.line in (0, message.location.line)
            and re.search(self.pattern, message.text) is not None
        )


def expected(source: Source) -> list[Expected]:
    """What the comments of `source` announce."""
    found: list[Expected] = []
    lines = source.text.split("\n")
    for number, line in enumerate(lines, start=1):
        match = _COMMENT.search(line) if "expected-" in line else None
        if match is None:
            continue
        announced = Expected(
            match["kind"],
            _target(match["place"], number, lines),
            _pattern(match["text"], regex=match["re"] is not None),
            match["text"],
            Location(source.name, number, match.start() + 1),
        )
        found += [announced] * int(match["times"] or 1)
    return found


def failures(source: Source, messages: Sequence[Message]) -> list[str]:
    """What is wrong with `messages`, in the words of MLIR; empty where all is as announced."""
    open_ = expected(source)
    wrong: list[str] = []
    for message in _flat(messages):
        hit = next((e for e in open_ if e.matches(message)), None)
        if hit is None:
            wrong.append(f"{message.location}: error: unexpected {message.severity}: {message.text}")
        else:
            open_.remove(hit)
    wrong += [f'{e.at}: error: expected {e.kind} "{e.written}" was not produced' for e in open_]
    return wrong


def _flat(messages: Sequence[Message]) -> list[Message]:
    return [m for message in messages for m in (message, *_flat(message.notes))]


def _target(place: str | None, number: int, lines: list[str]) -> int:
    """The line that a comment on line `number` speaks of; `above` and `below` skip further such comments."""
    if place is None:
        return number
    if place == "unknown":
        return 0
    if place in ("above", "below"):
        step = 1 if place == "below" else -1
        number += step
        while 0 < number <= len(lines) and "expected-" in lines[number - 1]:
            number += step
        return number
    return number + int(place)


def _pattern(text: str, *, regex: bool) -> str:
    if not regex:
        return re.escape(text)
    parts = _INNER.split(text)  # literal, expression, literal, ...
    return "".join(f"(?:{p})" if i % 2 else re.escape(p) for i, p in enumerate(parts))
