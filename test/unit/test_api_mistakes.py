"""What users of the Python API get wrong, and the message that each mistake gets."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import superopt
from superopt.errors import BadInput, BadOption, SuperoptError, UnsupportedProgram

torch: Any = pytest.importorskip("torch")
from superopt.pytorch.backend import Backend, compile_graph  # noqa: E402

X = torch.ones(4, 8)
RELU = torch.nn.ReLU()
GOOD = """func.func @f(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = "kernel.relu"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}"""


class Object:
    """Holds neither tensors nor numbers."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def chosen(x: Any) -> Any:
    return x[x > 0]


def grows(x: Any) -> Any:
    return x.nonzero()


def noisy(x: Any) -> Any:
    return x + torch.randn_like(x)


def unused() -> Any:
    model = torch.nn.ModuleDict({"a": torch.nn.ReLU(), "b": torch.nn.ReLU()})
    model.forward = model.a.forward
    return model


def run(program: Any, *args: Any, **more: Any) -> Callable[[], Any]:
    return lambda: superopt.optimize(program, *args, **{"store": None, "budget": 1, **more})


MISTAKES: list[tuple[str, Callable[[], Any], type[SuperoptError], str]] = [
    # models
    ("a class to explain that needs arguments", lambda: superopt.explain(torch.nn.Linear, X), BadInput, "expected a module, got the class Linear: .*missing"),
    ("a number to explain", lambda: superopt.explain(3, X), BadInput, "expected a module or function, got int"),
    ("a class in which to replace", lambda: superopt.replace(torch.nn.ReLU, "a", X), BadInput, "expected a module whose modules are replaced, got the class ReLU"),
    ("a function in which to replace", lambda: superopt.replace(chosen, "a", X), BadInput, "expected a module whose modules are replaced, got a function"),
    # settings
    ("a setting misspelt", run(RELU, X, bugdet=3), BadOption, r"got 'bugdet' \(did you mean 'budget'\?\)"),
    ("a parameter misspelt", run(RELU, X, fallbak=True), BadOption, r"got 'fallbak' \(did you mean 'fallback'\?\)"),
    ("an unknown target", run(RELU, X, target="sm_75"), BadOption, "expected a target of .*, got 'sm_75'"),
    ("a GPU misspelt", run(RELU, X, target="H10"), BadOption, r"did you mean 'H100'\?"),
    ("a target that is a number", run(RELU, X, target=90), BadOption, r"expected target to be one of sm_80\|.*, got 90"),
    ("a budget in words", run(RELU, X, budget="soon"), BadOption, "expected budget to be a number, got 'soon'"),
    ("a budget of nothing", run(RELU, X, budget=0), BadOption, "expected a positive budget in seconds, got 0"),
    ("a budget without end", run(RELU, X, budget=math.inf), BadOption, "expected a positive budget in seconds, got inf"),
    ("a budget that is no number", run(RELU, X, budget=math.nan), BadOption, "expected a positive budget in seconds, got nan"),
    ("a negative seed", run(RELU, X, seed=-1), BadOption, "expected a non-negative seed, got -1"),
    ("a seed beyond 32 bits", run(RELU, X, seed=1 << 40), BadOption, "expected a seed of at most 2147483647"),
    ("a seed that is a fraction", run(RELU, X, seed=0.5), BadOption, "expected seed to be an integer, got 0.5"),
    ("a delta above one", run(RELU, X, delta=2.0), BadOption, "expected a delta between 0 and 1, got 2.0"),
    ("no candidates", run(RELU, X, candidates=0), BadOption, "expected at least one candidate, got 0"),
    ("a truth value in words", run(RELU, X, numerics="no"), BadOption, "expected numerics to be true or false, got 'no'"),
    ("an unknown optimizer as text", run(RELU, X, optimizers="mugrph"), BadOption, "mugrph"),
    ("no optimizers", run(RELU, X, optimizers=()), BadOption, "expected at least one optimizer of .*saturation, mugraph"),
    ("an unknown optimizer", run(RELU, X, optimizers=("mugrph",)), BadOption, "mugrph"),
    ("a store that is a number", run(RELU, X, store=3), BadOption, "expected store to be text or none, got 3"),
    # programs
    ("a number for a program", run(3), BadInput, "expected a path, MLIR, a KernelGraph, or a module, .*, got int"),
    ("a list of modules", run([RELU], X), BadInput, "got list"),
    ("a file that is missing", run("missing.mlir"), BadInput, "missing.mlir: error: no such file"),
    ("a folder for a program", run(Path(__file__).parent), BadInput, "expected a file, got a directory"),
    ("MLIR with a syntax error", run("func.func @f( {\n}\n"), SuperoptError, "<text>:1:15: error|<text>:1:14: error"),
    ("an empty text", run("\n"), BadInput, "<text>:1:1: error: expected an MLIR module, got empty input"),
    ("two functions", run(GOOD + GOOD.replace("@f", "@g")), SuperoptError, "expected one function with a body, got 2"),
    ("StableHLO", run(GOOD.replace("kernel.relu", "stablehlo.abs")), BadInput, "stablehlo-opt --stablehlo-legalize-to-linalg turns"),
    ("a class to be constructed", run(torch.nn.Linear, X), BadInput, "expected a module, got the class Linear: .*in_features"),
    ("a class that is not a module", run(Object, X), BadInput, "expected a module, got the class Object"),
    # example inputs
    ("a module without inputs", run(RELU), BadInput, "expected example inputs with a torch module, got none"),
    ("a number for inputs", run(RELU, 3), BadInput, "expected a tuple of example inputs, got int"),
    ("inputs that do not fit", run(torch.nn.Linear(3, 3), X), UnsupportedProgram, "the module raises RuntimeError on the example inputs: mat1 and mat2"),
    ("an argument too many", run(RELU, (X, X)), UnsupportedProgram, "the module raises TypeError on the example inputs"),
    ("an argument of no name", run(RELU, (X,), kwargs={"dim": 1}), UnsupportedProgram, "unexpected keyword argument 'dim'"),
    ("an empty tensor", run(RELU, torch.ones(0, 8)), UnsupportedProgram, "expected input 'input' to have extents of 1 to"),
    ("complex numbers", run(torch.abs, torch.ones(4, dtype=torch.complex64)), UnsupportedProgram, "complex"),
    ("an object", run(RELU, (Object(),)), UnsupportedProgram, "expected arguments of tensors, numbers, texts and objects that hold these, got lock"),
    # what programs do
    ("a shape that depends on data", run(grows, X), UnsupportedProgram, r"test_api_mistakes.py:\d+:1: error: |dynamic|static"),
    ("a choice that depends on data", run(chosen, X), UnsupportedProgram, r"test_api_mistakes.py:\d+:1: error: |dynamic|static"),
    ("random numbers", run(noisy, X), UnsupportedProgram, r"expected equal results for equal arguments, got 'aten.randn_like'"),
    # folders, models, backends
    ("a bundle that is missing", lambda: superopt.load("missing"), BadInput, "expected a bundle, got no such folder: missing"),
    ("a bundle that is a file", lambda: superopt.load(__file__), BadInput, "expected a bundle .a folder., got a file"),
    ("modules of no such name", lambda: superopt.replace(unused(), "c", X), BadInput, "expected modules named 'c', got none"),
    ("a module that is not called", lambda: superopt.replace(unused(), "b", X), BadInput, "expected the model to call 'b'"),
    ("a setting of explain", lambda: superopt.explain(RELU, X, budjet=1), BadOption, r"did you mean 'budget'\?"),
    ("inputs of explain", lambda: superopt.explain(RELU, 3), BadInput, "expected a tuple of example inputs, got int"),
    ("an unknown rest", lambda: Backend(rest="xla"), BadOption, "expected rest to be one of inductor, eager, got 'xla'"),
    ("a mode of torch.compile", lambda: compile_graph(None, [], mode="fast"), BadOption, "expected no mode .*, got 'fast'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "says"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_message(call: Callable[[], Any], error: type[SuperoptError], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        call()
    assert "error: " in str(caught.value)


def test_there_are_forty() -> None:
    assert len(MISTAKES) >= 40
    assert len({name for name, *_ in MISTAKES}) == len(MISTAKES)


@pytest.mark.parametrize("name", ["missing", "Optimised"])
def test_names_that_the_package_lacks(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'superopt' lacks '{name}'"):
        getattr(superopt, name)


def test_settings_of_other_types_are_taken(tmp_path: Path) -> None:
    made = superopt.optimize(GOOD, store=tmp_path, optimizers=["mugraph"], budget=1, target="a100")
    assert made.report.target == "sm_80"
    assert any(tmp_path.iterdir())


def test_a_class_is_explained_by_one_of_it() -> None:
    """And torch.compile goes on as before: compiling a class made every later call of it fail."""
    said = superopt.explain(torch.nn.ReLU, X, store=None, budget=1)
    assert len(said.graphs) == 1
    with torch.no_grad():
        assert torch.equal(torch.compile(torch.nn.ReLU(), backend="eager")(X), X)
