"""Questions, programs, prices: until the evaluations are spent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from superopt.tuning import strategies
from superopt.tuning.evaluators import Evaluation, Evaluator
from superopt.tuning.learned import Learned
from superopt.tuning.log import Log
from superopt.tuning.space import Question, Traceable, Traced
from superopt.tuning.strategies.exhaustive import Exhaustive
from superopt.tuning.strategies.strategy import Strategy, Trial

ScheduleName: TypeAlias = Literal["joint", "sequential", "all"]
# Questions of a batch.
BATCH = 8
# With a screen, so many questions are asked for each that is priced.
SCREENED = 4
# A strategy that asks for known programs only, in so many batches one after the other, starts again elsewhere.
_IDLE = 8
# So many such batches of an enumeration, too: nearly all choices make the same programs.
_GIVEN_UP = 256

# Why a search ends.
SPENT = "the evaluations are spent"
EXHAUSTED = "every program that the choices make is priced"
STOPPED = "it was stopped"
REPEATS = f"{_GIVEN_UP * BATCH} questions brought no new program"


def phases(schedule: ScheduleName, graph: Sequence[str], kernel: Sequence[str]) -> list[frozenset[str]]:
    """The passes whose choices move together, phase by phase, given those on graphs and on kernels.

    sequential  each pass alone, in order
    joint       the passes on graphs together, then each pass on kernels (XTAT, section V: more at once was worse)
    all         each pass alone, and then all of them together, from the best of that on
    """
    alone = [frozenset((flag,)) for flag in (*graph, *kernel)]
    if schedule == "sequential":
        return alone
    if schedule == "all":
        return [*alone, frozenset((*graph, *kernel))]
    first = [frozenset(graph)] if graph else []
    return [*first, *alone[len(graph) :]]


@dataclass
class Trials:
    """Makes trials of questions: each program is priced once, however often it is asked for.

    `evaluations` are the programs priced, `rejected` those without a price, by reason. What the log of an earlier
    run holds counts as priced, too, and is not priced again. `ended` is why the last search over them ended.
    With a `screen`, which learns from every price, a strategy's most promising questions alone are priced.
    """

    space: Traceable
    evaluator: Evaluator
    log: Log = field(default_factory=lambda: Log(None, ""))
    done: list[Trial] = field(default_factory=list[Trial])
    rejected: Counter[str] = field(default_factory=Counter[str])
    known: dict[str, Evaluation] = field(default_factory=dict[str, Evaluation])
    ended: str = ""
    screen: Learned | None = None

    @property
    def evaluations(self) -> int:
        """Programs that were priced, or found to have no price."""
        return len(self.known)

    def run(self, questions: Sequence[Question]) -> list[Trial]:
        """One trial for each question."""
        return self._run(questions, [self.space.trace(question) for question in questions])

    def screened(self, ask: Callable[[int], list[Question]], count: int) -> list[Trial]:
        """Trials of `count` of `SCREENED` times as many questions: the most promising, and one that is just new.

        What is known already is left out, unless nothing else is asked for.
        """
        assert self.screen is not None
        questions = ask(SCREENED * count)
        new: dict[str, tuple[Question, Traced]] = {}
        for question in questions:
            traced = self.space.trace(question)
            if (key := traced.key) not in self.known:
                new.setdefault(key, (question, traced))
        if not new:
            return self.run(questions[:count])
        able = [key for key, (_, traced) in new.items() if not traced.error]
        priced = self.screen.evaluate([new[key][1].program for key in able])
        seconds = {k: e.seconds for k, e in zip(able, priced, strict=True) if e.seconds is not None}
        taken = sorted(seconds, key=lambda key: seconds[key])[: max(count - 1, 1)]
        taken = [*dict.fromkeys((*taken, *new))][:count]
        return self._run([new[key][0] for key in taken], [new[key][1] for key in taken])

    def _run(self, questions: Sequence[Question], traced: Sequence[Traced]) -> list[Trial]:
        at = [t.key for t in traced]
        name = self.evaluator.name
        new = {key: t for key, t in zip(at, traced, strict=True) if key not in self.known}
        with self.log.alone() if new else nullcontext():
            priced = {key: t for key, t in new.items() if not t.error and self.log.get(name, key) is None}
            found = dict(
                zip(priced, self.evaluator.evaluate([t.program for t in priced.values()]), strict=True)
            )
            for key, t in new.items():
                known = self.log.get(name, key)
                evaluation = known or found.get(key) or Evaluation(None, t.error, name)
                self.known[key] = evaluation
                if known is None:
                    self.log.add(key, evaluation, t.config)
                if evaluation.seconds is None:
                    self.rejected[evaluation.status] += 1
        if self.screen is not None:
            able = [(t.program, self.known[key]) for key, t in new.items() if not t.error]
            self.screen.learn([program for program, _ in able], [evaluation for _, evaluation in able])
        trials = [
            Trial(question, t, self.known[key])
            for question, t, key in zip(questions, traced, at, strict=True)
        ]
        self.done += trials
        return trials

    def best(self) -> list[Trial]:
        """One trial for each program with a price, fewest seconds first; among equals, the one found first."""
        found: dict[str, Trial] = {}
        for trial in self.done:
            if trial.evaluation.seconds is not None:
                found.setdefault(trial.traced.key, trial)
        return sorted(found.values(), key=lambda t: t.seconds)


def search(
    trials: Trials,
    starts: Sequence[Question],
    moving: Sequence[frozenset[str]],
    *,
    evaluations: int,
    strategy: str,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Trial:
    """The best program after `evaluations` prices, from the best of `starts` on; `moving` are the phases.

    Each phase starts from the best program so far and has a share of what is left, in proportion to the passes
    that move in it and have something to decide there. The starts are priced, too, the first of them in any case
    and others while evaluations are left, so the result is never slower, by this evaluator, than any of these.
    `trials.ended` says why it ended.
    """
    last = trials.evaluations + evaluations
    (best,) = trials.run(starts[:1])
    for start in starts[1:]:
        if trials.evaluations < last:
            best = min(best, *trials.run([start]), key=lambda t: t.seconds)
    moving = [phase - trials.evaluator.blind for phase in moving if phase - trials.evaluator.blind]
    trials.ended = EXHAUSTED
    for number, phase in enumerate(moving):
        asked = {d.flag for d in best.traced.decisions}
        if not phase & asked:
            continue
        share = len(phase & asked) / sum(len(later & asked) for later in moving[number:])
        end = trials.evaluations + math.ceil((last - trials.evaluations) * share)
        best = _phase(trials, best, phase, end, strategies.load(strategy), seed + number, stop)
    return best


def _phase(
    trials: Trials,
    best: Trial,
    phase: frozenset[str],
    end: int,
    strategy: type[Strategy],
    seed: int,
    stop: Callable[[], bool],
) -> Trial:
    """The best program once `end` programs are priced.

    A strategy that asks for what is known already starts again from a random program. If that brings nothing new
    either, choices are enumerated, which finds what is left, or that nothing is.
    """
    method: Strategy = strategy(best, phase, seed)
    idle = 0
    while trials.evaluations < end and not stop():
        count, before = min(BATCH, end - trials.evaluations), trials.evaluations
        if trials.screen is None or isinstance(method, Exhaustive):
            told = trials.run(method.ask(count))
        else:
            told = trials.screened(method.ask, count)
        method.tell(told)
        best = min((best, *told), key=lambda t: t.seconds)
        idle = idle + 1 if trials.evaluations == before else 0
        if isinstance(method, Exhaustive):
            if not told or idle == _GIVEN_UP:
                trials.ended = REPEATS if told else EXHAUSTED
                return best
        elif not told or idle == 2 * _IDLE:
            method = Exhaustive(best, phase, seed)
        elif idle == _IDLE:
            seed += 1 << 16  # apart from the seeds of other phases
            start = trials.run([method.sampled()])[0]
            best = min(best, start, key=lambda t: t.seconds)
            method = strategy(start, phase, seed)
    trials.ended = STOPPED if stop() else SPENT
    return best
