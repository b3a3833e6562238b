"""Pass pipelines: MLIR's textual form, over native and Python passes alike.

    builtin.module(func.func(canonicalize,cse),ingest-linalg{keep=x},mugraph-search)

MLIR's own parser knows native passes only, so the text is parsed here into a flat list of steps, one pass
each, with the operations it is nested in. Native steps are handed to MLIR one by one; running `func.func(a)`
and then `func.func(b)` does to every function what `func.func(a,b)` does.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from superopt.errors import UNKNOWN, BadOption, Location
from superopt.options import quoted_end, shifted
from superopt.transforms import registry
from superopt.transforms.passes import GraphPass, Pass

_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
MODULE = "builtin.module"


@dataclass(frozen=True)
class Step:
    """One pass of a pipeline.

    `anchors` are the operations it is nested in, outermost first; `implementation` is the Python pass, None
    for a native one, whose `options` stay text.
    """

    name: str
    options: str = ""
    anchors: tuple[str, ...] = (MODULE,)
    location: Location = field(default=UNKNOWN, compare=False)
    implementation: Pass | None = None

    def spell(self) -> str:
        """The pass with its options, without the operations around it."""
        if self.implementation is not None:
            return str(self.implementation)
        return f"{self.name}{{{self.options}}}" if self.options else self.name

    def __str__(self) -> str:
        """The step as a pipeline of its own."""
        return "(".join([*self.anchors, self.spell()]) + ")" * len(self.anchors)


def spell(steps: Sequence[Step]) -> str:
    """The steps as one pipeline; `parse` reads it back."""
    if not steps:
        return f"{MODULE}()"
    out, open_anchors = steps[0].anchors[0], list(steps[0].anchors[:1])
    out += "("
    first = True
    for step in steps:
        shared = 0
        while shared < min(len(open_anchors), len(step.anchors)) and (
            open_anchors[shared] == step.anchors[shared]
        ):
            shared += 1
        out += ")" * (len(open_anchors) - shared)
        del open_anchors[shared:]
        out += "" if first else ","
        for anchor in step.anchors[shared:]:
            out += f"{anchor}("
            open_anchors.append(anchor)
        out += step.spell()
        first = False
    return out + ")" * len(open_anchors)


def parse(text: str, source: str = "--pass-pipeline") -> list[Step]:
    """The steps of a pipeline; raises `BadOption`, located in `text` (`source` is its name)."""
    start = Location(source, 1, 1)
    reader = _Reader(text, start)
    reader.space()
    anchor = reader.name("the operation the pipeline runs on")
    if not reader.take("("):
        raise BadOption(
            f"expected a pipeline wrapped in the operation it runs on, such as '{MODULE}({text.strip()})'",
            start,
        )
    steps = reader.passes((anchor,))
    reader.space()
    if reader.at < len(text):
        raise BadOption(f"unexpected '{text[reader.at :]}' after the pipeline", reader.here())
    return steps


def flag_step(flag: str, options: str) -> Step:
    """The step for `--flag="options"` on the command line."""
    location = Location(f"--{flag}", 1, len(flag) + 4)
    return _step(flag, options, (MODULE,), location)


def _step(name: str, options: str, anchors: tuple[str, ...], location: Location) -> Step:
    if name not in registry.flags():
        return Step(name, options.strip(), anchors, location)
    implementation = registry.load(name).parse(options, location)
    allowed = ((MODULE,), (MODULE, "func.func")) if isinstance(implementation, GraphPass) else ((MODULE,),)
    if anchors not in allowed:
        raise BadOption(
            f"pass '{name}' runs on {MODULE}{' or func.func' if len(allowed) > 1 else ''}, "
            f"and stands in '{'('.join(anchors)}({')' * len(anchors)}'",
            location,
        )
    return Step(name, options, anchors, location, implementation)


@dataclass
class _Reader:
    text: str
    start: Location
    at: int = 0

    def here(self) -> Location:
        return shifted(self.start, self.at)

    def space(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def take(self, token: str) -> bool:
        self.space()
        found = self.text.startswith(token, self.at)
        self.at += len(token) if found else 0
        return found

    def name(self, what: str) -> str:
        self.space()
        match = _NAME.match(self.text, self.at)
        if not match:
            got = f"'{self.text[self.at]}'" if self.at < len(self.text) else "the end of the pipeline"
            raise BadOption(f"expected {what}, got {got}", self.here())
        self.at = match.end()
        return match.group()

    def passes(self, anchors: tuple[str, ...]) -> list[Step]:
        """The steps between parentheses, the opening one read already."""
        if self.take(")"):
            return []
        if len(anchors) > 16:
            raise BadOption("pipelines nest at most 16 operations deep", self.here())
        steps: list[Step] = []
        while True:
            self.space()
            where = self.here()
            name = self.name("the name of a pass")
            if self.take("("):
                steps += self.passes((*anchors, name))
            else:
                steps.append(self.leaf(name, anchors, where))
            if self.take(")"):
                return steps
            if not self.take(","):
                got = f"'{self.text[self.at]}'" if self.at < len(self.text) else "the end of the pipeline"
                raise BadOption(f"expected ',' or ')' after '{name}', got {got}", self.here())

    def leaf(self, name: str, anchors: tuple[str, ...], where: Location) -> Step:
        options, inside = "", where
        if self.take("{"):
            begin, depth = self.at, 1
            inside = self.here()
            while self.at < len(self.text) and depth:
                if (
                    self.text[self.at - 1] == "=" and self.text[self.at] in "\"'"
                ):  # a brace in quotes closes nothing
                    self.at = max(quoted_end(self.text, self.at), self.at)
                depth += {"{": 1, "}": -1}.get(self.text[self.at], 0)
                self.at += 1
            if depth:
                raise BadOption(f"missing '}}' after the options of '{name}'", inside)
            options = self.text[begin : self.at - 1]
        step = _step(name, options, anchors, inside)
        return dataclasses.replace(step, location=where)
