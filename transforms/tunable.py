"""Passes whose decisions can be searched, alone or together with those of other passes.

A tunable pass asks for each of its decisions, a *site*, with what it would do by itself and what else is valid:

    for node in transposes(graph):
        choice = pick(Site(fingerprints[node], default="stays", others=lambda: ["saved", "read"]))

Who answers decides: the pass itself (the default), or a configuration. So the decisions of a pass, what they may
be, and what they do stand in one place, and a decision that exists only because of an earlier one is asked for
only then. A site is named by a fingerprint of what it looks at; equal sites, such as those of equal layers, are
one decision (Phothilimthana et al., A Flexible Approach to Autotuning Multi-Pass Machine Learning Compilers,
PACT 2021, section IV).
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, cast

from superopt.errors import UNKNOWN, BadOption, Location
from superopt.transforms.passes import GraphPass

if TYPE_CHECKING:
    from superopt.diagnostics import Diagnostics
    from superopt.program import KernelGraph

# Choices by fingerprint, and configurations: choices of several passes, by flag.
Choices: TypeAlias = Mapping[str, str]
Config: TypeAlias = Mapping[str, Choices]


def _nothing_else() -> Sequence[str]:
    return ()


@dataclass(eq=False)
class Site:
    """One decision: `at` is the fingerprint of what it looks at, `default` what the pass does by itself.

    `others` lists what else is valid; it is called only where somebody wants to know. `of` is the pass whose
    decision it is, where another one asks for it.
    """

    at: str
    default: str
    others: Callable[[], Sequence[str]] = _nothing_else
    location: Location = UNKNOWN
    of: str = ""

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """What may be chosen, the default first."""
        return tuple(dict.fromkeys((self.default, *self.others())))


Pick: TypeAlias = Callable[[Site], str]


@dataclass
class Picked:
    """Answers by `choices`, and by the default where they lack a site or what they say is not valid there.

    `sites` are those that were asked for, one of each fingerprint, and `taken` what each was told.
    """

    choices: Choices = field(default_factory=dict[str, str])
    sites: dict[str, Site] = field(default_factory=dict[str, Site])
    taken: dict[str, str] = field(default_factory=dict[str, str])

    def __call__(self, site: Site) -> str:
        """What to choose at `site`."""
        wanted = self.taken.get(site.at) or self.choices.get(site.at)
        taken = wanted if wanted is not None and wanted in site.choices else site.default
        self.sites.setdefault(site.at, site)
        self.taken.setdefault(site.at, taken)
        return taken


@dataclass(frozen=True)
class Tunable(GraphPass):
    """A pass that asks for its decisions; `level` says whether a site sees the program or one kernel.

    `hops` is how far around its node a site's fingerprint looks.
    """

    level: ClassVar[Literal["graph", "kernel"]]
    hops: ClassVar[int] = 0

    config: str = ""
    """What to choose at which site, as JSON, {"PASS": {"SITE": "CHOICE"}}, or a file with it; the pass decides at
    other sites. `--list-sites` prints sites and choices."""

    @abstractmethod
    def decided(self, graph: KernelGraph, pick: Pick, diagnostics: Diagnostics) -> KernelGraph:
        """The graph after the pass, `pick` having been asked for each decision."""

    def sites(self, graph: KernelGraph, diagnostics: Diagnostics) -> list[Site]:
        """The decisions of the pass by itself, one of each fingerprint."""
        picked = Picked()
        self.decided(graph, picked, diagnostics)
        return list(picked.sites.values())

    def applied(self, graph: KernelGraph, choices: Choices, diagnostics: Diagnostics) -> KernelGraph:
        """The graph after the pass with these choices; what they do not say, the pass decides."""
        return self.decided(graph, Picked(choices), diagnostics)

    def apply(self, graph: KernelGraph, diagnostics: Diagnostics) -> KernelGraph:
        """The graph after the pass with the choices of `config`; raises BadOption for one that is not valid."""
        config = read_config(self.config)
        if config and self.flag not in config:
            diagnostics.remark(
                f"{self.flag}: the configuration has choices of {', '.join(config)}, and none of this pass"
            )
        choices = config.get(self.flag, {})
        picked = Picked(choices)
        made = self.decided(graph, picked, diagnostics)
        for at, site in picked.sites.items():
            if (wanted := choices.get(at, site.default)) != picked.taken[at]:
                expected = ", ".join(f"'{c}'" for c in site.choices[:8]) + ", ..." * (len(site.choices) > 8)
                raise BadOption(
                    f"{self.flag}: expected one of {expected} at site {at}, got '{wanted}'", site.location
                )
        if unknown := [at for at in choices if at not in picked.sites]:
            diagnostics.remark(
                f"{self.flag}: the program lacks {len(unknown)} sites of the configuration, such as {unknown[0]}"
            )
        return made


def read_config(text: str) -> Config:
    """The configuration that `text` spells as JSON, or that the file of that name holds; raises BadOption."""
    if not text:
        return {}
    if text.lstrip().startswith('"'):  # the braces of an option's value are not part of it
        text = f"{{{text}}}"
    inline = text.lstrip().startswith("{")
    file = "" if inline else text
    try:
        found: Any = json.loads(text if inline else Path(text).read_bytes())
    except OSError as error:
        raise BadOption(
            f"expected a configuration or a file with one, got '{text}': {error.strerror}"
        ) from None
    except (ValueError, RecursionError) as error:
        at = (error.lineno, error.colno) if isinstance(error, json.JSONDecodeError) and file else (0, 0)
        said = f"expected a configuration as JSON, got '{text[:60]}': {error}"
        raise BadOption(said, Location(file, *at) if file else UNKNOWN) from None
    if not _is_config(found):
        said = 'expected a configuration as in {"PASS": {"SITE": "CHOICE"}}, got other JSON'
        raise BadOption(said, Location(file) if file else UNKNOWN)
    return found


def _is_config(found: object) -> bool:
    if not isinstance(found, dict):
        return False
    passes = list(cast("dict[str, object]", found).values())
    return all(
        isinstance(p, dict) and all(isinstance(c, str) for c in cast("dict[str, object]", p).values())
        for p in passes
    )
