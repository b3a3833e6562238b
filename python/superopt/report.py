"""The records of a run: the report (funnel, candidates, costs, times) and the schedule that replays it.

Both are versioned JSON. The report is for reading; the schedule, with the program that it names by hash, is
enough to get the same kernels again without a search.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from superopt.diagnostics import counted
from superopt.program import LAUNCH_FLAGS, KernelGraph, TileProgram

VERSION = 1
# Programs whose predicted seconds differ by less than this factor are alike: a tie.
TIE = 1.01


class Funnel(BaseModel):
    """How many candidates there were at each stage, and why the others dropped out."""

    model_config = ConfigDict(extra="forbid")

    enumerated: int = 0
    pruned: dict[str, int] = Field(default_factory=dict[str, int])
    search: dict[str, int] = Field(default_factory=dict[str, int])
    proposed: int = 0
    verified: int = 0
    compiled: int = 0
    ranked: int = 0
    rejected: dict[str, int] = Field(default_factory=dict[str, int])

    def reject(self, reason: str) -> None:
        """Count one rejected candidate."""
        self.rejected = dict(Counter(self.rejected) + Counter({reason: 1}))

    def add(self, counts: dict[str, int]) -> None:
        """Add what a search counted.

        Names read `<stage>.pruned.<reason>` or `<stage>.rejected.<reason>` for what dropped out there; all others
        are kept unchanged, as `search`. Enumerated is what was attempted: values and kernel states.
        """
        fallen = {n: c for n, c in counts.items() if ".pruned." in n or ".rejected." in n}
        self.pruned = dict(Counter(self.pruned) + Counter(fallen))
        self.search = dict(
            Counter(self.search) + Counter({n: c for n, c in counts.items() if n not in fallen})
        )
        attempted = ("values.attempted", "kernels.states", "tiles.nodes")
        self.enumerated += sum(counts.get(name, 0) for name in attempted)


class Kept(BaseModel):
    """Why a kernel makes more than 1.5 times the memory transactions that suffice: `cause` is the kind of reason,
    which kernels may share, `why` the whole sentence."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cause: Literal["cheap", "tried", "given"]
    """Too little time to gain; variants were compiled and none is better; the schedule was given."""
    why: str


class KernelReport(BaseModel):
    """One kernel of the result: what the cost model counted, what limits it, and what the compiler reports."""

    model_config = ConfigDict(extra="forbid")

    name: str
    predicted_seconds: float
    limit: str = ""
    dram_bytes: float
    l2_bytes: float
    tensor_flops: float
    vector_flops: float
    blocks: int
    shared_bytes: int | None = None
    registers: int | None = None
    spilled_bytes: int | None = None
    wavefronts: tuple[int, int] | None = None
    """Of shared memory, in the first block, and how many would suffice (`superopt.cost.counted`)."""
    sectors: tuple[int, int] | None = None
    """Of device memory, likewise."""
    kept: str | None = None
    """Where one of the two is above 1.5 times what would suffice: why it stays."""
    trips: tuple[float, int] | None = None
    """Of the loops that a mask cuts short: how many run, on average over the blocks, of how many."""
    prepared: bool = False
    """Whether it runs once, when weights are loaded, and not in every call."""


class CandidateReport(BaseModel):
    """One ranked candidate: how far it came, and its predicted time, by its tiles and by its compiled kernels.

    It was compiled when the run had worked for `compiled_after` seconds of processor time.
    `segment` is None for candidates for the whole program; of those, the one of optimizer "segments" combines
    what was chosen for each segment.
    """

    model_config = ConfigDict(extra="forbid")

    segment: int | None
    optimizer: str
    rank: int
    kernels: int
    predicted_seconds: float
    compiled_seconds: float | None = None
    compiled_after: float | None = None
    outcome: str


class RuleCounts(BaseModel):
    """What one rule of equality saturation did: how often it matched, its guard refused it, and it fired."""

    model_config = ConfigDict(extra="forbid")

    matched: int
    refused: int
    fired: int


class EGraphReport(BaseModel):
    """One saturated e-graph: `stopped` says why it grew no further, `programs` how many it holds."""

    model_config = ConfigDict(extra="forbid")

    name: str
    nodes: int
    classes: int
    iterations: int
    stopped: str
    programs: float
    seconds: float
    rules: dict[str, RuleCounts]


class SearchReport(BaseModel):
    """What one search pass did with one segment; `program` where it searched the whole function.

    `predicted` are the predicted seconds of its candidates, cheapest first; `chosen` is one of them, or None
    where the segment stays as it is, and `remark` says why. `complete` is None where a search does not know.
    """

    model_config = ConfigDict(extra="forbid")

    by: str
    program: str
    segment: int | None
    input_predicted_seconds: float
    predicted: list[float]
    chosen: int | None
    complete: bool | None
    funnel: dict[str, int]
    seconds: dict[str, float]
    egraphs: list[EGraphReport] = Field(default_factory=list[EGraphReport])
    remark: str = ""


class SearchReports(BaseModel):
    """What `--report` writes where searches ran as passes of their own, without `--superoptimize`."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = VERSION
    superopt: str
    searches: list[SearchReport]


class TuningReport(BaseModel):
    """What `tune` did: programs priced by each evaluator, those without a price by reason, and what came of it.

    `config` holds the choices of the program that is delivered, by pass and site; empty where the program found
    before stays. `prices` are the seconds of the programs that the deciding evaluator priced, in order, or None
    for those without a price. `refused` are the reasons of the gates that refused cheaper ones, `ended` is
    why the search with each evaluator ended, `screen` what was learned of the dearer one's prices. Seconds are
    predicted, or `measured` on the CPU.
    """

    model_config = ConfigDict(extra="forbid")

    strategy: str
    evaluations: dict[str, int]
    ended: dict[str, str] = Field(default_factory=dict[str, str])
    screen: str = ""
    rejected: dict[str, int] = Field(default_factory=dict[str, int])
    before_seconds: float
    after_seconds: float
    config: dict[str, dict[str, str]] = Field(default_factory=dict[str, dict[str, str]])
    prices: list[float | None] = Field(default_factory=list[float | None])
    refused: list[str] = Field(default_factory=list[str])
    measured: bool = False

    @property
    def programs(self) -> int:
        """Prices of programs, by all evaluators."""
        return sum(self.evaluations.values())


class Report(BaseModel):
    """One run of the optimizer on one program.

    One model predicts all seconds: `input_predicted_seconds` of the input operator by operator, each by a
    library; `baseline_seconds` of the input in the fastest way that a user has, called `baseline`;
    `predicted_seconds` of what is delivered: `kernels`, and `others` that are not ours (products that are left to
    a library, opaque operations, copies).
    """

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = VERSION
    superopt: str
    program: str
    target: str
    command: str = ""
    """What does the same again on a command line, but for what it writes (`superopt.again`); empty for a program
    that no command reads."""
    settings: dict[str, str | int | float | bool | tuple[str, ...]]
    segments: int = 0
    funnel: Funnel = Field(default_factory=Funnel)
    candidates: list[CandidateReport] = Field(default_factory=list[CandidateReport])
    input_predicted_seconds: float = 0.0
    baseline: str = ""
    baseline_seconds: float = 0.0
    predicted_seconds: float = 0.0
    improved: bool = False
    tuning: TuningReport | None = None
    kernels: list[KernelReport] = Field(default_factory=list[KernelReport])
    others: list[KernelReport] = Field(default_factory=list[KernelReport])
    guarantee: str = ""
    delta: float | None = None
    numerics: str = ""
    prepared_bytes: int = 0
    """Bytes of the tensors that are made of weights once and kept."""
    seconds: dict[str, float] = Field(default_factory=dict[str, float])
    remarks: list[str] = Field(default_factory=list[str])

    @property
    def best_before(self) -> tuple[float, str]:
        """Predicted seconds of the input as the setting `against` compares it, and what that way is called."""
        operators = self.input_predicted_seconds, "operator by operator"
        if self.settings.get("against") == "operators":
            return operators
        return min((self.baseline_seconds, self.baseline), operators)

    @property
    def each_call(self) -> list[KernelReport]:
        """Those of `kernels` that run in every call."""
        return [k for k in self.kernels if not k.prepared]

    @property
    def prepared(self) -> str:
        """What runs once, in a clause; empty where nothing does."""
        once = [k for k in self.kernels if k.prepared]
        if not once:
            return ""
        seconds = sum(k.predicted_seconds for k in once)
        kernels = counted(len(once), "kernel")
        return f"prepared once: {kernels}, {seconds * 1e6:.1f} us, {self.prepared_bytes} bytes"

    @property
    def faster(self) -> bool:
        """Whether what is delivered is predicted to be faster than that; a tie is not."""
        return self.improved and self.predicted_seconds * TIE < self.best_before[0]


class Launch(BaseModel):
    """How a kernel of the result is launched: warps of a block, stages of the software pipeline, and whether its
    loads have cache hints and tensor descriptors, and are separate for products, its trips for masks; whether no
    other kernel starts before its end."""

    model_config = ConfigDict(extra="forbid")

    warps: Literal[1, 2, 4, 8, 16, 32]
    stages: int = Field(ge=1, le=8)
    cache_hints: bool = False
    descriptors: bool = False
    separate_loads: bool = False
    separate_masks: bool = False
    alone: bool = False


def launches(lowered: KernelGraph) -> dict[str, Launch]:
    """How the kernels of a lowered program are launched."""
    programs = [n.body for n in lowered.nodes if isinstance(n.body, TileProgram)]
    return {
        p.name: Launch.model_validate(
            {
                "warps": p.num_warps,
                "stages": p.num_stages,
                **{flag: getattr(p, flag) for flag in LAUNCH_FLAGS},
            }
        )
        for p in programs
    }


class Schedule(BaseModel):
    """A saved result: `superopt-opt INPUT --schedule=FILE` turns INPUT into it again, and proves it again."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = VERSION
    superopt: str
    target: str
    seed: int
    program_sha256: str
    optimized: str
    names: list[str] = Field(default_factory=list[str])
    library: list[int] = Field(default_factory=list[int])
    """Places of the matrix products in `optimized` that a library computes."""
    launches: dict[str, Launch] = Field(default_factory=dict[str, Launch])
    """By the kernels' names; kernels that are not in it are launched as `lower` chooses."""
    parameters: dict[str, int] = Field(default_factory=dict[str, int])
    """Tiles and splits, by the names of `superopt.transforms.schedule.tilings`; others are as `lower` chooses."""
    reason: str = ""
    """Why launches, tiles and splits are not what `lower` chooses; empty where they are."""
    kept: dict[str, Kept] = Field(default_factory=dict[str, Kept])
    """Why kernels, by name, make more than 1.5 times the memory transactions that suffice."""


class StoredProgram(BaseModel):
    """A program as the store keeps it: its canonical text (`superopt.verify.hashing`), and the names in it."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = VERSION
    program: str
    names: list[str] = Field(default_factory=list[str])
