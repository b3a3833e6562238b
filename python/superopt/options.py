"""Options as text: the fields of a frozen dataclass.

    @dataclass(frozen=True)
    class Sampling(Configured):
        points: int = 16
        \"\"\"How many points are drawn.\"\"\"

The string below a field documents the option. A field `max_points` is the option `max-points`, given as
`max-points=5`. Fields may be `bool`, `int`, `float`, `str`, `Literal[...]` of strings, `Annotated[str,
OneOf(...)]`, `tuple[X, ...]` of these (comma-separated), or `X | None` (`none`).
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Self, Union, cast, get_args, get_origin

from superopt.errors import UNKNOWN, BadOption, Location

# The largest integer that an option may be: native code takes 32 bits.
MAX_INTEGER = 2**31 - 1


@dataclass(frozen=True)
class OneOf:
    """Lists the names that an option may take, for its help; `canonical` refuses others with BadOption.

    It turns other spellings of a name into the one listed.
    """

    names: Callable[[], Sequence[str]]
    canonical: Callable[[str], str]


@dataclass(frozen=True)
class Option:
    """One option of a pass: name as written, type in words, default as written (None: required), help."""

    field: str
    annotation: Any
    default: Any
    help: str

    @property
    def name(self) -> str:
        """The name on the command line."""
        return self.field.replace("_", "-")

    @property
    def type_name(self) -> str:
        """The type in words, for error messages and help."""
        return _type_name(self.annotation)


@dataclass(frozen=True)
class Configured:
    """Base of everything that takes options as text, such as passes and optimizers."""

    @classmethod
    def called(cls) -> str:
        """What stands before the options, such as the flag of a pass."""
        return cls.__name__

    def __post_init__(self) -> None:
        """Check the options; an override calls its base's, and raises BadOption."""

    @classmethod
    def summary(cls) -> str:
        """The first paragraph of the class's own docstring, on one line."""
        doc = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
        return " ".join(doc.split("\n\n")[0].split())

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        """The options, in the order of the fields."""
        return _options(cls)

    @classmethod
    def parse(cls, text: str, location: Location = UNKNOWN) -> Self:
        """The pass or optimizer with the options of `text`, as in `"max-ops=5 prune=smt"`.

        `location` is where `text` begins; errors (`BadOption`) point into it.
        """
        known = {o.name: o for o in cls.options()}
        values: dict[str, Any] = {}
        for name, value, column in split_options(text, location):
            where = shifted(location, column)
            option = known.get(name.replace("_", "-"))
            if option is None:
                have = ", ".join(known) or "none"
                hint = did_you_mean(name.replace("_", "-"), known)
                raise BadOption(f"{cls.called()} has no option '{name}'{hint}; its options: {have}", where)
            if option.field in values:
                raise BadOption(f"{cls.called()}: option '{option.name}' is given twice", where)
            try:
                values[option.field] = _convert(option.annotation, value)
            except ValueError:
                got = "no value" if value is None else f"'{value}'"
                raise BadOption(
                    f"{cls.called()}: option '{option.name}' expects {option.type_name}, got {got}", where
                ) from None
            except OverflowError:
                what = f"an integer between {-MAX_INTEGER} and {MAX_INTEGER}, got {value}"
                raise BadOption(f"{cls.called()}: option '{option.name}' expects {what}", where) from None
            except BadOption as error:
                raise BadOption(error.message, where) from None
        required = dataclasses.MISSING
        missing = [o.name for o in known.values() if o.default is required and o.field not in values]
        if missing:
            raise BadOption(f"{cls.called()}: option '{missing[0]}' is required", location)
        try:
            return cls(**values)
        except BadOption as error:  # a constraint that the dataclass checks itself, in __post_init__
            raise BadOption(error.message, location) if error.location == UNKNOWN else error from None

    def __str__(self) -> str:
        """As a pipeline writes it: `flag{a=1 b=x}`, with the options that are not the default."""
        given = [
            f"{o.name}={spell_value(value)}"
            for o in self.options()
            if (value := getattr(self, o.field)) != o.default
        ]
        return f"{self.called()}{{{' '.join(given)}}}" if given else self.called()


# --- option text ------------------------------------------------------------------------------------------


def shifted(location: Location, columns: int) -> Location:
    """`location` moved `columns` to the right; unchanged where it lacks a line."""
    return dataclasses.replace(location, column=location.column + columns) if location.line else location


def split_options(text: str, location: Location = UNKNOWN) -> list[tuple[str, str | None, int]]:
    """`a=1 b="x y" c={d e} f` as (name, value without its quotes or None, offset of the name)."""
    out: list[tuple[str, str | None, int]] = []
    i = 0
    while i < len(text):
        if text[i].isspace():
            i += 1
            continue
        start = i
        while i < len(text) and not text[i].isspace() and text[i] != "=":
            i += 1
        name = text[start:i]
        if not name or not (name[0].isalpha() and all(c.isalnum() or c in "-_." for c in name)):
            raise BadOption(
                f"expected options as name=value, got '{text[start:].strip()}'", shifted(location, start)
            )
        if i == len(text) or text[i] != "=":
            out.append((name, None, start))
            continue
        value, i = _option_value(text, i + 1, location)
        out.append((name, value, start))
    return out


_CLOSERS = {"{": "}", "[": "]", "(": ")"}


def _option_value(text: str, start: int, location: Location) -> tuple[str, int]:
    """The value at `start` and the offset after it; spaces end it outside quotes and brackets."""
    i = start
    if i < len(text) and text[i] in "\"'":
        quote, end = text[i], quoted_end(text, i)
        if end < 0:
            raise BadOption(f"unterminated {quote} in option value", shifted(location, i))
        return text[i + 1 : end].replace(2 * quote, quote), end + 1
    stack: list[str] = []
    while i < len(text) and (stack or not text[i].isspace()):
        if text[i] in _CLOSERS:
            stack.append(_CLOSERS[text[i]])
        elif stack and text[i] == stack[-1]:
            stack.pop()
        i += 1
    if stack:
        raise BadOption(f"missing '{stack[-1]}' in option value '{text[start:]}'", shifted(location, start))
    value = text[start:i]
    return (value[1:-1] if value.startswith("{") and value.endswith("}") else value), i


def quoted_end(text: str, start: int) -> int:
    """The offset of the quote that ends the one at `start`, or -1; within, two quotes stand for one."""
    quote = text[start]
    end = text.find(quote, start + 1)
    while end >= 0 and text[end + 1 : end + 2] == quote:
        end = text.find(quote, end + 2)
    return end


def split_list(text: str) -> list[str]:
    """The elements of `a,b{c=1,d=2},e`: commas within brackets do not separate."""
    out, depth = [""], 0
    for c in text:
        depth += (c in _CLOSERS) - (c in _CLOSERS.values())
        if c == "," and not depth:
            out.append("")
        else:
            out[-1] += c
    return out


def did_you_mean(name: str, known: typing.Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the closest of `known`, or nothing."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


def fits(annotation: Any, value: Any) -> bool:
    """Whether a value given in Python is one of the annotation; integers are numbers, truth values are not."""
    origin, args = _members(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(a, value) for a in args)
    if origin is Annotated:
        return fits(args[0], value)
    if origin is Literal:
        return value in args
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(args[0], v) for v in cast("tuple[Any, ...]", value))
    if annotation in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if annotation is float else annotation)


def _members(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(annotation), get_args(annotation)


def _type_name(annotation: Any) -> str:
    origin, args = _members(annotation)
    if origin is Literal:
        return "one of " + "|".join(map(str, args))
    if origin is Annotated:
        return "one of " + "|".join(args[1].names())
    if origin is tuple:
        return f"a comma-separated list, each {_type_name(args[0])}"
    if origin in (Union, types.UnionType):
        return " or ".join("none" if a is type(None) else _type_name(a) for a in args)
    return {bool: "true or false", int: "an integer", float: "a number", str: "text"}[annotation]


def _convert(annotation: Any, text: str | None) -> Any:
    """`text` as a value of the annotation; raises ValueError, and OverflowError for too large an integer."""
    origin, args = _members(annotation)
    if origin in (Union, types.UnionType):
        if type(None) in args and text is not None and text.lower() == "none":
            return None
        for member in args:
            if member is not type(None):
                try:
                    return _convert(member, text)
                except ValueError:
                    continue
        raise ValueError
    if origin is Annotated:
        return args[1].canonical(_convert(args[0], text))
    if annotation is bool:
        values = {None: True, "true": True, "1": True, "false": False, "0": False}
        key = text.lower() if text is not None else None
        if key not in values:
            raise ValueError
        return values[key]
    if text is None:
        raise ValueError
    if origin is Literal:
        if text not in args:
            raise ValueError
        return text
    if origin is tuple:
        body = text[1:-1] if text[:1] + text[-1:] in ("[]", "()") else text
        return tuple(_convert(args[0], part.strip()) for part in split_list(body)) if body.strip() else ()
    if annotation in (int, float) and "_" in text:  # int("1_0") is 10: not what an option means
        raise ValueError
    if annotation is float:
        number = float(text)
        if number != number:
            raise ValueError
        return number
    if annotation is int:
        if abs(number := int(text)) > MAX_INTEGER:
            raise OverflowError
        return number
    return annotation(text)


def spell_value(value: Any) -> str:
    """`value` as an option writes it, such that parsing reads it back."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        elements = cast("tuple[Any, ...]", value)
        return spell_value(",".join(map(str, elements))) if elements else "[]"
    text = str(value)
    if text and not any(c.isspace() or c in "{}[]()\"'" for c in text):
        return text
    quote = "'" if '"' in text and "'" not in text else '"'
    return quote + text.replace(quote, 2 * quote) + quote


@cache
def _options(cls: type[Configured]) -> tuple[Option, ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs |= _field_docs(base) if dataclasses.is_dataclass(base) else {}
    return tuple(
        Option(f.name, hints[f.name], f.default, docs.get(f.name, "")) for f in dataclasses.fields(cls)
    )


def _field_docs(cls: type) -> dict[str, str]:
    """The string literals below the fields in the source of the class."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (
        OSError,
        TypeError,
    ):  # the source is missing (a frozen application): so is the options' documentation
        return {}
    docs: dict[str, str] = {}
    body = cast(ast.ClassDef, tree.body[0]).body
    for above, below in itertools.pairwise(body):
        if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name):
            literal = below.value if isinstance(below, ast.Expr) else None
            if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                docs[above.target.id] = " ".join(literal.value.split())
    return docs
