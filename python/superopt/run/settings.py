"""What a user may set for a search and for a whole run, and every check of these options."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from superopt.cost.gpus import DEFAULT_TARGET, TargetName, target
from superopt.errors import BadOption
from superopt.options import MAX_INTEGER, Configured
from superopt.transforms import optimizers

if TYPE_CHECKING:
    from superopt.verify.certificate import Certificate

UNBOUNDED = "equivalent, but not proved with the bound asked for"
_BOUNDS = re.compile(r"([A-Za-z_]\w*)=(\d{1,9}(?:\.\.\d{1,9})*\.\.(?:auto\.\.)?\d{1,9})")


@dataclass(frozen=True)
class SearchSettings(Configured):
    """The settings of every search; raises BadOption for values out of range."""

    target: TargetName = DEFAULT_TARGET
    """The GPU to optimize for."""

    budget: float = 60.0
    """Seconds of work, measured in processor time so that a busy machine finds what an idle one does."""

    seed: int = 0
    """Seed of everything random; the same seed gives the same result."""

    delta: float = 1e-9
    """Largest acceptable probability that the certificate is wrong."""

    allow: Literal["bounded", "congruence-without-bound"] = "bounded"
    """Which certificates to accept: those whose bound is at most delta, or those without one, too."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", target(self.target).name)
        if not 0 < self.budget < math.inf:  # JSON has no infinity: reports could not be read again
            raise BadOption(f"expected a positive budget in seconds, got {self.budget}")
        if self.seed < 0:
            raise BadOption(f"expected a non-negative seed, got {self.seed}")
        if self.seed > MAX_INTEGER:
            raise BadOption(f"expected a seed of at most {MAX_INTEGER}, got {self.seed}")
        if not 0 < self.delta < 1:
            raise BadOption(f"expected a delta between 0 and 1, got {self.delta}")

    def unbounded(self, certificate: Certificate) -> str:
        """Why the certificate does not suffice; empty where it does."""
        delta = certificate.delta
        if self.allow == "bounded" and (delta is None or delta > self.delta):
            return f"{UNBOUNDED}: {certificate.bound}, expected delta {self.delta:.1e}"
        return ""


@dataclass(frozen=True)
class Settings(SearchSettings):
    """The settings of a run of all optimizers."""

    budget: float = 60.0
    """Seconds of work, measured in processor time: half for searches, the rest for proofs and compilation. After
    the first, no check starts that would overrun."""

    against: Literal["best", "operators"] = "best"
    """What a result must beat: the fastest way that a user has to run the program, by the same model, or one
    kernel per operator, for those who want superopt's own kernels in any case."""

    optimizers: tuple[str, ...] = optimizers.DEFAULT
    """Optimizers that propose candidates, in this order; options follow in braces, as in mugraph{prune=smt}. What
    one leaves of its share of the budget goes to those after it."""

    candidates: int = 8
    """How many candidates of each optimizer to check for a part of the program before leaving it unchanged."""

    tune: int = 0
    """How many programs to price to tune the choices of all passes together, from the result on; none by default.
    An eighth as many are compiled. The result is never predicted to be slower than without."""

    tune_by: Literal["kernels", "cpu"] = "kernels"
    """What decides between tuned programs in the end: the model, on compiled kernels, or what their tile programs
    take on one thread of this CPU, measured. The latter is for comparing strategies and models: it says nothing
    of a GPU."""

    numerics: bool = True
    """Check candidates, run in their real precision, against fp64."""

    dynamic: str = ""
    """Bounds of the extents that the `?` of a linalg program stand for, such as n=1..512, or b=1..8,n=1..512
    where its arguments name them (superopt.extents): the kernels take all of these. n=1..64..512 asks for two
    buckets with kernels of their own, up to 64 and up to 512, n=1..auto..512 for as many as make it cheaper. The
    program that is printed is the one at extents inside, in the last bucket."""

    store: str | None = "default"
    """Folder that keeps results between runs, or none. "default" means $SUPEROPT_STORE (which may be none, too),
    or else superopt in the user's cache folder. Results from the store are proved again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates < 1:
            raise BadOption(f"expected at least one candidate, got {self.candidates}")
        if self.dynamic and not all(map(_BOUNDS.fullmatch, self.dynamic.split(","))):
            raise BadOption(f"expected bounds as in n=1..512, got '{self.dynamic}'")
        if len(self.bounds) < len(self.dynamic.split(",")) and self.dynamic:
            raise BadOption(f"expected one range for each extent, got '{self.dynamic}'")
        if self.tune < 0:
            raise BadOption(f"expected a number of programs to tune with, got {self.tune}")
        if isinstance(self.optimizers, str):
            raise BadOption(f"expected a tuple of optimizers, got the text '{self.optimizers}'")
        if not self.optimizers:
            raise BadOption(f"expected at least one optimizer of {', '.join(optimizers.names())}, got none")
        for text in self.optimizers:
            optimizers.load(text)

    @property
    def bounds(self) -> dict[str, tuple[int, ...]]:
        """The least extent of each in `dynamic`, and where its buckets end, the last one at its largest."""
        found = {m[1]: m[2].split("..") for m in _BOUNDS.finditer(self.dynamic)}
        return {name: tuple(int(n) for n in ends if n != "auto") for name, ends in found.items()}

    @property
    def halves(self) -> bool:
        """Whether `dynamic` leaves it to superopt where buckets end."""
        return "auto" in self.dynamic
