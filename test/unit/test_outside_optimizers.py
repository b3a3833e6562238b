"""An optimizer from outside the package may do anything: it costs time, or is an error that names it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from superopt.cost import Target
from superopt.diagnostics import Diagnostics
from superopt.driver import plugins
from superopt.errors import BadInput, BadOption
from superopt.program import KernelGraph, Node, TensorType, Value
from superopt.run import context
from superopt.run.propose import Candidate, parts, propose
from superopt.run.settings import Settings
from superopt.transforms import optimizers
from superopt.transforms.optimizers import Optimizer, Proposal, Proposals, never
from superopt.transforms.search_pass import SearchPass

MATRIX = TensorType((256, 256), "f32")


def program() -> KernelGraph:
    """mul(exp(x), exp(x))"""
    x, e, y = (Value(MATRIX, name) for name in "xey")
    return KernelGraph("f", [x], [Node("exp", (x,), (e,)), Node("mul", (e, e), (y,))], [y])


def change_nodes(graph: KernelGraph) -> KernelGraph:
    """Another program in place of the one that proofs are about."""
    graph.nodes[1] = replace(graph.nodes[1], op="add")
    return graph


def change_a_node(graph: KernelGraph) -> KernelGraph:
    graph.nodes[1].op = "add"
    return graph


def drop_the_input(graph: KernelGraph) -> KernelGraph:
    graph.inputs.clear()
    return graph


def give_up(graph: KernelGraph) -> KernelGraph:
    raise RuntimeError("no idea")


def unknown_operator(graph: KernelGraph) -> KernelGraph:
    return replace(graph, nodes=[graph.nodes[0], replace(graph.nodes[1], op="nonsense")])


def use_before_definition(graph: KernelGraph) -> KernelGraph:
    return replace(graph, nodes=graph.nodes[::-1])


def nothing_computed(graph: KernelGraph) -> KernelGraph:
    return replace(graph, nodes=[])


def defined_twice(graph: KernelGraph) -> KernelGraph:
    exp, mul = graph.nodes
    return replace(graph, nodes=[exp, replace(mul, op="relu", operands=exp.results), mul])


def no_program(graph: KernelGraph) -> Any:
    return graph.nodes


def good(graph: KernelGraph) -> KernelGraph:
    exp, mul = graph.nodes
    return replace(graph, nodes=[exp, replace(mul, op="square", operands=exp.results)])


@dataclass(frozen=True)
class Odd(Optimizer):
    """Proposes what `does` makes of the program, and then what is right."""

    name: ClassVar[str] = "odd"
    does: ClassVar[Callable[[KernelGraph], KernelGraph]] = good

    def refusal(self, program: KernelGraph) -> str:
        """None."""
        return ""

    def propose(
        self,
        program: KernelGraph,
        target: Target,
        *,
        budget: float,
        seed: int = 0,
        stop: Callable[[], bool] = never,
    ) -> Proposals:
        """What `does` makes of it, at a price that nothing has."""
        made = type(self).does(program)
        return Proposals([Proposal(made, float("nan")), Proposal(good(program), -1.0)])


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "_OPTIMIZERS", {"odd": f"{__name__}:Odd"})


def proposed(
    graph: KernelGraph, text: str = "odd", store: str = "none"
) -> tuple[list[Candidate], context.Run]:
    run = context.start(graph, Settings(optimizers=(text,), store=store, budget=5), Diagnostics())
    return propose(run, parts(graph), Diagnostics().progress)[0], run


@pytest.mark.parametrize("does", [change_nodes, change_a_node, drop_the_input])
def test_one_that_changes_the_program_is_an_error(
    does: Callable[[KernelGraph], KernelGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proofs would be about the changed program."""
    monkeypatch.setattr(Odd, "does", staticmethod(does))
    with pytest.raises(BadInput, match="expected the optimizer 'odd' to leave the program as it is"):
        proposed(program())


@pytest.mark.parametrize("does", [change_nodes, change_a_node])
def test_a_pass_that_changes_what_it_searches_is_an_error(
    does: Callable[[KernelGraph], KernelGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True)
    class OddPass(SearchPass, Odd):
        """The optimizer as a pass."""

        flag: ClassVar[str] = "odd"

    monkeypatch.setattr(Odd, "does", staticmethod(does))
    with pytest.raises(BadInput, match="expected the optimizer 'odd' to leave the program as it is"):
        OddPass().apply(program(), Diagnostics())


PASS = """
from dataclasses import dataclass
from typing import ClassVar

from superopt.transforms.passes import GraphPass


@dataclass(frozen=True)
class Faulty(GraphPass):
    flag: ClassVar[str] = "NAME"

    def apply(self, graph, diagnostics):
        BODY
"""


@pytest.mark.parametrize(
    ("body", "line", "said"),
    [
        ("return graph.nodes[9]", 13, "the pass 'faulty-0' raised IndexError: list index out of range"),
        ("pass", 0, "expected the pass 'faulty-1' to return a KernelGraph, got NoneType"),
    ],
)
def test_a_faulty_pass_is_an_error_in_its_file(body: str, line: int, said: str, tmp_path: Path) -> None:
    file, name = tmp_path / "faulty.py", f"faulty-{int(not line)}"
    file.write_text(PASS.replace("NAME", name).replace("BODY", body))
    source = tmp_path / "x.mlir"
    source.write_text(
        "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
        '  %y = "kernel.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>\n  return %y : tensor<4xf32>\n}\n'
    )
    done = subprocess.run(
        [Path(sys.executable).parent / "superopt-opt", source, f"--load-pass-plugin={file}", f"--{name}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert f"{file}:{line}:" in done.stderr if line else str(file) in done.stderr
    assert "Traceback" not in done.stderr


def test_one_that_raises_is_an_error_in_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "does", staticmethod(give_up))
    with pytest.raises(BadInput, match="the optimizer 'odd' raised RuntimeError: no idea") as caught:
        proposed(program())
    line = give_up.__code__.co_firstlineno + 1
    assert (caught.value.location.file, caught.value.location.line) == (__file__, line)


@pytest.mark.parametrize(
    "does", [unknown_operator, use_before_definition, nothing_computed, defined_twice, no_program]
)
def test_illegal_proposals_are_counted_and_the_others_looked_at(
    does: Callable[[KernelGraph], KernelGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Odd, "does", staticmethod(does))
    found, run = proposed(program())
    assert [[n.op for n in c.graph.nodes] for c in found] == [["exp", "square"]]
    assert found[0].seconds == run.predicted(found[0].graph)
    ((reason, count),) = run.report.funnel.rejected.items()
    assert reason.startswith("illegal: ")
    assert (count, run.report.funnel.proposed) == (1, 2)


PLUGIN = """
from dataclasses import dataclass, replace
from typing import ClassVar

from superopt.transforms.optimizers import Optimizer, Proposal, Proposals


@dataclass(frozen=True)
class Made(Optimizer):
    name: ClassVar[str] = "NAME"

    def refusal(self, program):
        return ""

    def propose(self, program, target, **rest):
        exp, mul = program.nodes
        return Proposals([Proposal(replace(program, nodes=[exp, replace(mul, op="OP")]), 1.0)])
"""


def written(place: Path, name: str, op: str) -> Path:
    place.parent.mkdir(exist_ok=True)
    place.write_text(PLUGIN.replace("NAME", name).replace("OP", op))
    return place


def test_an_edited_optimizer_is_not_answered_from_the_store(tmp_path: Path) -> None:
    file, folder = written(tmp_path / "made.py", "made", "add"), str(tmp_path / "store")
    plugins.load(str(file))
    for answered in (False, True):
        found, run = proposed(program(), "made", folder)
        assert [n.op for n in found[0].graph.nodes] == ["exp", "add"]
        assert ("store.made" in run.report.funnel.search) is answered
    written(file, "made", "sub")
    _, run = proposed(program(), "made", folder)
    assert "store.made" not in run.report.funnel.search


def test_files_of_one_name_in_two_folders_are_two_optimizers(tmp_path: Path) -> None:
    for name, op in (("first", "add"), ("second", "sub")):
        plugins.load(str(written(tmp_path / name / "made.py", name, op)))
    for name, op in (("first", "add"), ("second", "sub")):
        found, _ = proposed(program(), name)
        assert [n.op for n in found[0].graph.nodes] == ["exp", op]
    with pytest.raises(BadOption, match="an optimizer named 'first' is registered already"):
        plugins.load(str(written(tmp_path / "third" / "made.py", "first", "sub")))


@pytest.mark.parametrize("name", ["a,b", "a{b", "a b", "", "segments"])
def test_names_that_lists_and_reports_could_not_hold_are_refused(name: str) -> None:
    with pytest.raises(BadOption, match="expected an optimizer's name of letters"):
        optimizers.register(name, f"{__name__}:Odd")
