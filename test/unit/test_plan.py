"""Cuts and candidates as decisions: by themselves they are the pipeline's, and every other answer computes the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from search_programs import Program, same
from test_partition import random_graph, reaches

from superopt.cost.gpus import target
from superopt.diagnostics import Diagnostics
from superopt.inputs.programs import read_program
from superopt.program import KernelGraph, Node, Value
from superopt.run.propose import Candidate, parts
from superopt.spec import check_kernel
from superopt.transforms.partition.partition import Partition
from superopt.transforms.partition.segments import Segment, counted, partition
from superopt.transforms.tunable import Picked, Site
from superopt.tuning.confstore import ConfStore
from superopt.tuning.evaluators import PRICED, Evaluation
from superopt.tuning.plan import CUTS, LIBRARY, PLAN, Plan
from superopt.tuning.space import Question, Space
from superopt.tuning.strategies.strategy import Trial
from superopt.verify import certify

H100 = target("sm_90")
MUGRAPHS = sorted((Path(__file__).parents[2] / "benchmarks" / "mugraph").glob("*.mlir"))


def members(segments: Sequence[Segment]) -> list[set[Node]]:
    return [{n for n in s.graph.nodes if n.op != "constant"} for s in segments]


@pytest.mark.parametrize("seed", range(6))
def test_by_itself_cuts_are_where_savings_say(seed: int) -> None:
    graph = random_graph(seed)
    for most in (6, 25):
        asked = Picked()
        assert members(partition(graph, most, pick=asked)) == members(partition(graph, most))
        assert asked.sites


@pytest.mark.parametrize("path", MUGRAPHS[::7], ids=lambda p: p.stem)
def test_by_themselves_benchmark_programs_are_cut_as_ever(path: Path) -> None:
    graph = read_program(path, Diagnostics())
    for most in (4, 25):
        assert members(partition(graph, most, pick=Picked())) == members(partition(graph, most))


@pytest.mark.parametrize("seed", range(10))
def test_any_cuts_leave_segments_that_can_be_searched(seed: int) -> None:
    graph, rng = random_graph(seed, 20), random.Random(seed)
    taken: dict[str, str] = {}

    def pick(site: Site) -> str:
        return taken.setdefault(site.at, rng.choice(site.choices))

    segments = partition(graph, max_values=12, pick=pick)
    seen: set[Node] = set()
    for segment, nodes in zip(segments, members(segments), strict=True):
        assert not nodes & seen
        seen |= nodes
        assert counted(nodes) <= 12
        assert not reaches(graph, nodes, nodes)
        check_kernel(segment.graph)
    usual = {n for nodes in members(partition(graph, max_values=12)) for n in nodes}
    assert {n for n in seen ^ usual if n.op != "slice"} == set(), "all that computes is searched"
    assert len(set(taken.values())) > 1


def test_a_value_that_crosses_is_in_no_segment_with_its_user() -> None:
    graph = layers(6)
    usual = members(partition(graph, 5))
    for site in Partition(max_values=5).sites(graph, Diagnostics()):
        for choice in site.choices[1:]:
            assert members(partition(graph, 5, pick=Picked({site.at: choice}))) != usual, (
                "it is cut elsewhere"
            )
    crossing = Picked({s.at: "crosses" for s in Partition(max_values=5).sites(graph, Diagnostics())})
    alone = members(partition(graph, 5, pick=crossing))
    assert all(len(nodes) == 1 for nodes in alone)


def layers(count: int) -> KernelGraph:
    p = Program("layers")
    x = p.input(64, 64, name="x")
    for _ in range(count):
        x = p("relu", p("matmul", x, p.input(64, 64)))
    return p.graph(x)


def test_equal_layers_are_cut_alike() -> None:
    sites = [len(Partition(max_values=5).sites(layers(n), Diagnostics())) for n in (16, 32, 64)]
    assert sites[0] == sites[1] == sites[2]


def doubled(segment: Segment) -> list[Candidate]:
    """One candidate, which negates its results twice."""
    graph = segment.graph
    nodes, outputs = list(graph.nodes), list[Value]()
    for value in graph.outputs:
        once, twice = Value(value.type), Value(value.type)
        nodes += [Node("neg", (value,), (once,)), Node("neg", (once,), (twice,))]
        outputs.append(twice)
    return [Candidate(replace(graph, nodes=nodes, outputs=outputs), 1e-9, "test")]


def plan_of(graph: KernelGraph) -> Plan:
    found = parts(graph)
    return Plan(found, [doubled(p) for p in found], H100, doubled)


def test_every_plan_computes_the_program() -> None:
    graph = layers(4)
    plan = plan_of(graph)
    space = Space(graph, [plan])
    default = space.trace(Question({}))
    assert [d.flag for d in default.decisions] == [PLAN], "the whole is taken"
    whole = {PLAN: {default.decisions[0].site.at: LIBRARY}}
    made: set[int] = set()
    for seed in range(12):
        traced = space.trace(Question(whole, frozenset({CUTS, PLAN}), seed))
        assert not traced.error
        check_kernel(traced.program)
        assert same(graph, traced.program)
        assert certify(graph, traced.program).equivalent
        made.add(sum(d.flag == CUTS for d in traced.decisions))
    assert len(made) > 1


def test_cuts_are_remembered(tmp_path: Path) -> None:
    graph = layers(4)
    steps = [plan_of(graph)]
    space = Space(graph, steps)
    (whole,) = space.trace(Question({})).decisions
    question = Question({PLAN: {whole.site.at: LIBRARY}}, frozenset({CUTS}), 1)
    traced = space.trace(question)
    ConfStore(tmp_path, "sm_90", steps).keep(
        Trial(question, traced, Evaluation(1.0, PRICED, "tiles")), 2.0, program="p", seed=0
    )
    again = Space(graph, steps, ConfStore(tmp_path, "sm_90", steps).choice)
    assert again.trace(Question({}, remembered=True)).config == traced.config
    assert again.trace(Question({})).decisions[0].choice == whole.choice, "a default asks nobody"
