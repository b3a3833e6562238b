"""What is made of weights once: which nodes these are, that programs stay what they are, and that nothing is stale."""

from __future__ import annotations

import copy
import pickle
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_programs import Builder, random_kernel, value

import superopt
from superopt.cost import best_baseline, cost, target
from superopt.dialects.reader import read
from superopt.dialects.writer import to_text
from superopt.errors import IllegalProgram
from superopt.program import KernelGraph, Value
from superopt.spec import check_kernel
from superopt.transforms.derivation.channels_last import channels_last
from superopt.transforms.emit.launcher import Launcher
from superopt.transforms.emit.prepared import Prepared
from superopt.transforms.emit.program_source import emit_program
from superopt.transforms.lower import lower
from superopt.transforms.lower.kernel_to_tile import fuse_windows
from superopt.verify import certify, program_hash
from superopt.verify.domains import FloatDomain
from superopt.verify.evaluate import evaluate
from superopt.verify.hashing import canonical_text, parse
from superopt.weights import main_part, split

torch: Any = pytest.importorskip("torch")
H100 = target("sm_90")


def program(
    build: Callable[[Builder, Value, Value], list[Value]], weights: tuple[int, ...] = (1,)
) -> KernelGraph:
    """A program of an input x and a weight w, both 4 x 6."""
    b, x, w = Builder(), value(4, 6), value(4, 6)
    outputs = build(b, x, w)
    graph = KernelGraph("main", [x, w], b.nodes, outputs, weights=weights)
    check_kernel(graph)
    return graph


def product(b: Builder, x: Value, w: Value) -> list[Value]:
    return [b("matmul", x, b("transpose", b("exp", w), perm=(1, 0)))]


# --- the IR -----------------------------------------------------------------------------------------------


def test_weights_are_written_and_read() -> None:
    graph = program(product)
    text = to_text(graph)
    assert text.count("{superopt.weight}") == 1
    assert read(text).weights == lower(graph).weights == (1,)
    assert program_hash(read(text)) == program_hash(graph) == program_hash(parse(canonical_text(graph)))
    assert program_hash(replace(graph, weights=())) != program_hash(graph)


def test_what_is_stated_to_be_a_weight_may_be_held_to_it() -> None:
    """A program may make less of weights than was promised, never more: what it prepares would be stale."""
    graph = program(product)
    assert certify(graph, replace(graph, weights=())).equivalent
    verdict = certify(replace(graph, weights=()), graph)
    assert not verdict.equivalent
    assert "expected weights among arguments [], got [1]" in str(verdict.counterexample)


@pytest.mark.parametrize("weights", [(2,), (1, 1), (1, 0), (-1,)])
def test_weights_are_arguments(weights: tuple[int, ...]) -> None:
    with pytest.raises(IllegalProgram, match="expected weights as numbers of 2 arguments in order"):
        check_kernel(replace(program(product), weights=weights))


def test_a_weight_is_not_overwritten() -> None:
    graph = program(lambda b, x, w: [b("add", x, w)])
    with pytest.raises(IllegalProgram, match="expected a weight that stays as it is"):
        check_kernel(replace(graph, aliases=(1,)))


# --- what is prepared -------------------------------------------------------------------------------------


def _prepared(graph: KernelGraph) -> list[str]:
    return [n.op for n in split(graph).prepare]


def test_moves_and_arithmetic_of_weights_alone_are_prepared() -> None:
    assert _prepared(program(product)) == ["exp", "transpose"]
    assert _prepared(program(product, weights=())) == []
    assert _prepared(program(product, weights=(0,))) == []


NOT_PREPARED: dict[str, Callable[[Builder, Value, Value], list[Value]]] = {
    "both": lambda b, x, w: [b("add", x, w)],
    "nothing": lambda b, x, w: [b("mul", x, x), w],
    "views": lambda b, x, w: [b("add", x, b("reshape", b("reshape", w, shape=(24,)), shape=(4, 6)))],
    "returned": lambda b, x, w: [b("exp", w)],
    "returned as a view": lambda b, x, w: [b("reshape", b("exp", w), shape=(24,)), x],
    "a sum": lambda b, x, w: [b("mul", x, b("reduce_sum", w, dims=(1,), keepdims=True))],
    "a product": lambda b, x, w: [b("matmul", x, b("matmul", b("reshape", w, shape=(6, 4)), w))],
}


@pytest.mark.parametrize("name", NOT_PREPARED)
def test_nothing_else_is_prepared(name: str) -> None:
    assert _prepared(program(NOT_PREPARED[name])) == []


@pytest.mark.parametrize(
    ("columns", "small", "count"), [(2, 0, 1), (3, 0, 0), (3, 4 * 72, 1), (4, 4 * 72, 0)]
)
def test_prepared_tensors_are_small_or_not_much_larger_than_weights(
    columns: int, small: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("superopt.weights.MOST_BYTES", small)

    def build(b: Builder, x: Value, w: Value) -> list[Value]:
        table = b("mul", b("reshape", w, shape=(24, 1)), b.constant(2.0, (1, columns)))
        return [b("matmul", b("reshape", x, shape=(1, 24)), table)]

    assert ("mul" in _prepared(program(build))) == count


@pytest.mark.parametrize("name", ["broadcast", "repeat", "computed", "joined", "numbers"])
def test_what_repeats_weights_is_left_to_kernels(name: str) -> None:
    """They read the weight itself, as often as they need it; what holds more numbers than weights is another thing."""

    def build(b: Builder, x: Value, w: Value) -> list[Value]:
        if name == "numbers":
            return [b("mul", x, b("exp", b.constant(1.0, (4, 6))))]
        if name == "joined":
            both = b("mul", b("reshape", w, shape=(24, 1)), b("reshape", w, shape=(1, 24)))
            return [b("matmul", b("reshape", x, shape=(1, 24)), b("concat", both, both, dim=1))]
        wide = b("reshape", w, shape=(1, 24))
        moves: dict[str, Any] = {"times": 3, "dim": 0} if name == "repeat" else {"shape": (3, 24)}
        wide = b("repeat" if name == "repeat" else "broadcast", wide, **moves)
        wide = b("exp", wide) if name == "computed" else wide
        return [b("matmul", b("reshape", x, shape=(1, 24)), wide, transpose_b=True)]

    assert _prepared(program(build)) == (["reshape", "reshape", "mul", "concat"] if name == "joined" else [])


def test_constants_are_prepared() -> None:
    b, x = Builder(), value(4, 6)
    held = b("constant", value=np.arange(24.0).reshape(6, 4), shape=(6, 4), dtype="f32")
    number = b.constant(2.0)
    graph = KernelGraph(
        "main", [x], b.nodes, [b("mul", b("add", x, b("transpose", held, perm=(1, 0))), number)]
    )
    assert _prepared(graph) == ["constant", "transpose"]
    emitted = emit_program(lower(graph))
    assert emitted.prepare == ()
    made = Launcher(emitted, graph.inputs, graph.outputs)(torch.ones(4, 6))
    np.testing.assert_allclose(made.numpy(), 2 * (1 + np.arange(24.0).reshape(6, 4).T))


def test_layouts_that_kernels_read_are_not_prepared() -> None:
    """With channels last a weight is moved once, and read from there: moving it back would undo that."""
    b, x, w = Builder(), value(1, 16, 8, 8), value(32, 16, 3, 3)
    windows = {"strides": (1, 1), "dilations": (1, 1), "low": (1, 1), "high": (1, 1)}
    graph = KernelGraph("main", [x, w], b.nodes, [b("conv", x, w, **windows)], weights=(1,))
    last = channels_last(graph)
    assert last is not None
    assert [(n.op, n.attrs["perm"]) for n in split(last).prepare] == [("transpose", (2, 3, 1, 0))]
    fused = fuse_windows(last, H100)
    (kernel,) = (n for n in split(fused).main if n.body is not None)
    assert {v.shape for v in kernel.operands} == {x.shape, (3, 3, 16, 32)}


def test_a_program_is_its_two_parts() -> None:
    """Random programs with random weights: the main part of what is prepared is the whole program."""
    rng, prepared = random.Random(3), 0
    for seed in range(60):
        graph = random_kernel(rng)
        graph.weights = tuple(i for i in range(len(graph.inputs)) if rng.random() < 0.7)
        parts, main = split(graph), main_part(graph)
        domain, drawn = FloatDomain(), np.random.default_rng(seed)
        inputs = [domain.tensor(drawn.uniform(0.2, 1.7, v.shape)) for v in graph.inputs]
        once = replace(graph, nodes=list(parts.prepare), outputs=list(parts.held))
        held = evaluate(once, inputs, domain)
        wholes, mains = evaluate(graph, inputs, domain), evaluate(main, [*inputs, *held], domain)
        for a, b in zip(wholes, mains, strict=True):
            np.testing.assert_array_equal(a.planes[0], b.planes[0])
        inputs_read = {v for n in parts.prepare for v in n.operands} & set(graph.inputs)
        assert inputs_read <= {graph.inputs[i] for i in graph.weights}
        lowered = lower(graph)
        assert certify(graph, lowered).equivalent
        prepared += bool(split(lowered).held)
    assert prepared > 10


def test_what_is_prepared_costs_nothing_here_and_for_a_user() -> None:
    graph = program(product)
    plain = replace(graph, weights=())
    alone = cost(plain, H100).seconds - cost(graph, H100).seconds
    assert alone == pytest.approx(sum(k.seconds for k in cost(plain, H100).kernels[:2]))
    assert best_baseline(graph, H100).seconds < best_baseline(plain, H100).seconds


# --- stale ------------------------------------------------------------------------------------------------


class Net(torch.nn.Module):
    """A scale and a shift that follow from a parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.scale = torch.nn.Parameter(torch.randn(8, 16))
        self.register_buffer("shift", torch.randn(8, 16))

    def forward(self, x: Any) -> Any:
        return torch.relu(x * torch.exp(self.scale).t() + torch.exp(self.shift).t())


@pytest.fixture(scope="module")
def made() -> Any:
    torch.manual_seed(0)
    net = Net().eval()
    x = torch.randn(16, 8)
    settings: dict[str, Any] = {"budget": 20, "store": None, "against": "operators"}
    return superopt.optimize(net, (x,), interpret=True, **settings)


@pytest.fixture
def module(made: Any) -> Any:
    return copy.deepcopy(made)


@pytest.fixture
def check(module: Any) -> Callable[[], int]:
    """Compares the kernels with the original; returns how often something was prepared since the last time."""
    launcher, counted = module.result.launcher, [0]
    get = launcher.prepared.get

    def count(weights: Any, device: Any, make: Callable[[], Any]) -> Any:
        def counting() -> Any:
            counted[0] += 1
            return make()

        return get(weights, device, counting)

    launcher.prepared.get = count
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(2))

    def checked() -> int:
        counted[0] = 0
        with torch.no_grad():
            torch.testing.assert_close(module(x), module.original(x), rtol=1e-3, atol=1e-3)
        return counted[0]

    return checked


def test_what_was_prepared_is_kept(made: Any, check: Callable[[], int]) -> None:
    assert made.report.prepared.startswith("prepared once: ")
    assert made.report.predicted_seconds < sum(k.predicted_seconds for k in made.report.kernels)
    check()
    assert check() == 0


def _double_data(module: Any) -> None:
    """Twice other memory, the second time perhaps where the first one was."""
    for _ in range(2):
        module.original.scale.data = module.original.scale.data * 2


def _share(module: Any) -> None:
    """A parameter of its own in the memory of another that was written to."""
    module.original.scale.mul_(2)
    module.original.scale = torch.nn.Parameter(module.original.scale.data)


def _step(module: Any) -> None:
    """A fused optimizer, whose writes PyTorch does not count."""
    scale = module.original.scale
    scale.grad, before = torch.ones_like(scale), scale._version
    torch.optim.AdamW([scale], lr=0.1, fused=True).step()
    assert scale._version == before


STALE: dict[str, Callable[[Any], Any]] = {
    "fused optimizer": _step,
    "in place": lambda m: m.original.scale.mul_(3),
    "a buffer": lambda m: m.original.shift.add_(1),
    "load_state_dict": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "assigned": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}, assign=True),
    "another": lambda m: setattr(m.original, "scale", torch.nn.Parameter(m.original.scale * 2)),
    "other memory": _double_data,
    "shared memory": _share,
    "there and back": lambda m: (m.double(), m.original.scale.mul_(2), m.float()),
    "a view": lambda m: m.original.shift[2:].fill_(1),
    "set_": lambda m: m.original.shift.set_(m.original.shift + 1),
}


@pytest.mark.parametrize("name", STALE)
def test_a_weight_that_changes_is_prepared_again(name: str, module: Any, check: Callable[[], int]) -> None:
    check()
    with torch.no_grad():
        before = module.original(torch.ones(16, 8))
        STALE[name](module)
        assert not torch.equal(before, module.original(torch.ones(16, 8)))
    check()
    assert check() == 0


def test_what_pytorch_does_not_count_is_for_the_user_to_say(module: Any, check: Callable[[], int]) -> None:
    check()
    module.original.scale.data.mul_(2)
    with pytest.raises(AssertionError):
        check()
    module.prepare_again()
    assert check() == 1


def test_a_user_says_it_to_a_module_of_an_equal_program(module: Any) -> None:
    """Equal programs share an operator, which runs the kernels of the first."""
    other, x = pickle.loads(pickle.dumps(module)), torch.ones(16, 8)
    with torch.no_grad():
        for each in (module, other):
            each(x)
        other.original.scale.data.mul_(2)
        other.prepare_again()
        torch.testing.assert_close(other(x), other.original(x), rtol=1e-3, atol=1e-3)


def test_modules_of_one_program_have_weights_of_their_own(module: Any, check: Callable[[], int]) -> None:
    other = copy.deepcopy(module)
    assert other.result.launcher is module.result.launcher
    x = torch.ones(16, 8)
    with torch.no_grad():
        other.original.scale.mul_(-1)
        for _ in range(2):
            torch.testing.assert_close(other(x), other.original(x), rtol=1e-3, atol=1e-3)
            check()
    assert check() == 0


def test_weights_of_inference_mode_are_prepared_each_time(module: Any) -> None:
    x = torch.ones(16, 8)
    with torch.inference_mode():
        module.original.scale = torch.nn.Parameter(module.original.scale.clone())
        for _ in range(2):
            module.original.scale.mul_(2)
            torch.testing.assert_close(module(x), module.original(x), rtol=1e-3, atol=1e-3)


def test_a_bundle_prepares_once(made: Any, tmp_path: Path) -> None:
    folder = made.save(tmp_path / "bundle")
    loaded = superopt.load(folder, interpret=True)
    x = torch.ones(16, 8)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(loaded(x), made.original(x), rtol=1e-3, atol=1e-3)
        loaded.original.scale.mul_(2)
        changed = copy.deepcopy(made.original)
        changed.scale.mul_(2)
        torch.testing.assert_close(loaded(x), changed(x), rtol=1e-3, atol=1e-3)


def test_memory_of_the_same_address_is_other_memory() -> None:
    """What is freed may come again at the same address, with other numbers and the same count of writes."""
    weight, prepared, kept = torch.zeros(5000), Prepared(), list[Any]()
    made = prepared.get([weight], weight.device, lambda: weight.clone())
    address = weight.data_ptr()
    weight.data = torch.ones(5000)
    for _ in range(1000):
        kept.append(torch.full((5000,), 2.0))
        if kept[-1].data_ptr() == address:
            break
    weight.data = kept[-1]
    assert weight._version == 0
    again = prepared.get([weight], weight.device, lambda: weight.clone())
    assert float(made[0]) == 0
    assert float(again[0]) == 2


def test_another_tensor_in_the_memory_of_a_weight_has_its_own_count_of_writes() -> None:
    first, weight, prepared = torch.zeros(4), torch.zeros(4), Prepared()
    prepared.get([first, weight], weight.device, lambda: weight.clone())
    weight.add_(1)
    other = torch.nn.Parameter(weight.data, requires_grad=False)
    assert float(prepared.get([first, other], weight.device, lambda: other.clone())[0]) == 1


def test_what_was_prepared_is_freed_with_its_weights() -> None:
    weight, prepared = torch.zeros(4), Prepared()
    made = weakref.ref(prepared.get([weight], weight.device, lambda: torch.zeros(4)))
    assert made() is not None
    del weight
    assert made() is None


@pytest.mark.parametrize("weights", [[], [torch.zeros(4)]], ids=["constants", "weights"])
def test_nothing_is_prepared_while_a_graph_is_recorded(
    weights: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared, made, waited = Prepared(), list[int](), list[Any]()
    cuda = torch.device("cuda")

    def make() -> int:
        made.append(len(waited))
        return len(made)

    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert prepared.get(weights, cuda, make) is None
    assert (made, waited) == ([], [])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert [prepared.get(weights, cuda, make) for _ in range(2)] == [1, 1]
    assert (made, waited) == ([0], [cuda])  # calls on any stream read what was prepared
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    # A weight may change before a replay; a constant does not.
    assert prepared.get(weights, cuda, make) == (None if weights else 1)
