"""Strategies: which programs to price next, given the prices of those before. Each has a file and a line here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from superopt.errors import BadOption
from superopt.options import did_you_mean

if TYPE_CHECKING:
    from superopt.tuning.strategies.strategy import Strategy

# name -> "module:class".
_STRATEGIES: dict[str, str] = {
    "evolution": "superopt.tuning.strategies.evolution:Evolution",
    "annealing": "superopt.tuning.strategies.annealing:Annealing",
    "mcmc": "superopt.tuning.strategies.mcmc:Mcmc",
    "tpe": "superopt.tuning.strategies.tpe:Tpe",
    "random": "superopt.tuning.strategies.sampling:Sampling",
    "exhaustive": "superopt.tuning.strategies.exhaustive:Exhaustive",
}


def names() -> tuple[str, ...]:
    """The names of all strategies, the default first."""
    return tuple(_STRATEGIES)


def load(name: str) -> type[Strategy]:
    """The class of a strategy; raises BadOption for an unknown name."""
    if name not in _STRATEGIES:
        hint = did_you_mean(name, _STRATEGIES)
        raise BadOption(f"expected a strategy of {', '.join(_STRATEGIES)}, got '{name}'{hint}")
    module, _, attribute = _STRATEGIES[name].partition(":")
    loaded: type[Strategy] = getattr(import_module(module), attribute)
    return loaded
