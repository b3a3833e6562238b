"""A module that stands where another stood: called, moved, copied, saved and compiled as the original.

One run makes the module that most tests share; its kernels run in Triton's interpreter, in a process of its own.
"""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import superopt
from superopt.errors import BadInput, BadOption, UnsupportedProgram

torch: Any = pytest.importorskip("torch")
SETTINGS: dict[str, Any] = {"budget": 2, "store": None, "seed": 0}


class Gated(torch.nn.Module):
    """Nested results, an argument with a default, one by name only, and a buffer that is a constant."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.gate = torch.nn.Linear(32, 64, bias=False)
        self.up = torch.nn.Linear(32, 64, bias=False)
        self.width = 64

    def forward(self, hidden: Any, scale: float = 1.0, *, extra: Any = None) -> Any:
        made = torch.nn.functional.silu(self.gate(hidden)) * self.up(hidden) * scale
        return {"made": made, "rest": (None, 3, extra)}


class Turned(torch.nn.Module):
    """A buffer of integers, which is a constant of the program."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.register_buffer("order", torch.arange(7, -1, -1))

    def forward(self, x: Any) -> Any:
        return torch.relu(x) * self.order


class Tied(torch.nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.into = torch.nn.Linear(16, 16, bias=False)
        self.out = torch.nn.Linear(16, 16, bias=False)
        self.out.weight = self.into.weight

    def forward(self, x: Any) -> Any:
        return self.out(torch.relu(self.into(x)))


class Appends(torch.nn.Module):
    """Overwrites rows of a cache."""

    def forward(self, cache: Any, rows: Any) -> Any:
        cache[:, 4:6] = rows * 2
        return cache.sum(1)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def x() -> Any:
    return torch.randn(16, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def first(x: Any) -> Any:
    torch.manual_seed(0)
    return superopt.optimize(Gated(), (x,), interpret=True, **SETTINGS)


@pytest.fixture
def made(first: Any) -> Any:
    return copy.deepcopy(first)


def close(mine: Any, theirs: Any) -> bool:
    return torch.allclose(mine, theirs, atol=1e-5)


def test_it_is_called_as_the_original(made: Any, x: Any) -> None:
    wanted = made.original(x)
    for got in (made(x), made(hidden=x), made(x, 1.0), made(x, scale=1.0, extra=None)):
        assert close(got["made"], wanted["made"])
        assert got["rest"] == (None, 3, None)
    assert made.calls == {"kernels": 4, "original": 0}
    assert made.report.improved
    assert made.certificate.delta is not None
    assert "@triton.jit" in made.triton
    assert "func.func" in made.mlir
    assert ".entry" in made.ptx
    assert made.width == 64


def test_on_a_cpu_the_original_runs_unless_the_interpreter_is_asked_for(made: Any, x: Any) -> None:
    made.interpret = False
    assert torch.equal(made(x)["made"], made.original(x)["made"])
    assert made.calls == {"kernels": 0, "original": 1}


def test_parameters_are_those_of_the_original(made: Any, x: Any) -> None:
    assert isinstance(made, torch.nn.Module)
    assert list(made.state_dict()) == list(made.original.state_dict()) == ["gate.weight", "up.weight"]
    assert made.gate.weight is made.original.gate.weight
    other = Gated()
    made.load_state_dict(other.state_dict())
    assert close(made(x)["made"], other(x)["made"])
    holder = torch.nn.ModuleDict({"mlp": made})
    assert list(holder.state_dict()) == ["mlp.gate.weight", "mlp.up.weight"]
    holder.load_state_dict({k: torch.zeros_like(v) for k, v in holder.state_dict().items()})
    assert not made(x)["made"].any()
    made.original.up = torch.nn.Linear(32, 64, bias=False)
    made.original.gate = torch.nn.Linear(32, 64, bias=False)
    assert close(made(x)["made"], made.original(x)["made"])


def test_it_moves_with_its_parameters(made: Any, x: Any) -> None:
    assert made.to(torch.float64) is made
    assert made.original.gate.weight.dtype == torch.float64
    with pytest.raises(
        BadInput, match=r"argument 1 \('gate.weight'\) of \(64, 32\) torch.float32, got .* torch.float64"
    ):
        made(x)
    made.to("meta")
    assert made.original.up.weight.is_meta


def test_copies_pickles_and_files_compute_the_same(made: Any, x: Any, tmp_path: Path) -> None:
    wanted = made(x)["made"]
    stream = io.BytesIO()
    torch.save(torch.nn.Sequential(made), stream)
    stream.seek(0)
    loaded = torch.load(stream, weights_only=False)[0]
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), loaded):
        assert torch.equal(other(x)["made"], wanted)
        assert other.calls == {"kernels": 1, "original": 0}
        other.gate.weight.zero_()
        assert not other(x)["made"].any()
    assert torch.equal(made(x)["made"], wanted)


def test_a_bundle_is_loaded(made: Any, x: Any, tmp_path: Path) -> None:
    wanted, folder = made(x)["made"], made.save(tmp_path / "bundle")
    loaded = superopt.load(folder, interpret=True)
    assert torch.equal(loaded(hidden=x)["made"], wanted)
    assert loaded(x)["rest"] == (None, 3, None)
    compiled = superopt.load(folder, interpret="cpu")
    torch.testing.assert_close(compiled(x)["made"], wanted)
    torch.testing.assert_close(copy.deepcopy(compiled)(x)["made"], wanted)
    assert compiled.calls == {"kernels": 1, "original": 0}
    with pytest.raises(BadOption, match="expected interpret to be False, True or \"cpu\", got 'gpu'"):
        superopt.load(folder, interpret="gpu")  # type: ignore[arg-type]
    assert list(loaded.state_dict()) == ["gate.weight", "up.weight"]
    assert "Gated: 1 kernel for sm_90" in repr(loaded)
    assert loaded.certificate == made.certificate
    assert loaded.triton == made.triton
    with pytest.raises(BadInput, match="give the original, as in"):
        superopt.load(folder)(x)
    other = Gated()
    assert torch.equal(superopt.load(folder, other)(x)["made"], other(x)["made"])
    with pytest.raises(BadInput, match="expected the result of a run"):
        _ = loaded.report
    (folder / "weights.pt").write_bytes(b"")
    with pytest.raises(BadInput, match=r"expected the file 'weights.pt' as it was written"):
        superopt.load(folder)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_torch_compile_takes_it_whole(first: Any, x: Any, backend: str) -> None:
    model = torch.nn.Sequential(first, Second())
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    assert close(compiled(x), model(x))


class Second(torch.nn.Module):
    """Takes what `Gated` returns."""

    def forward(self, given: dict[str, Any]) -> Any:
        return given["made"] + 1


@pytest.mark.parametrize("strict", [False, True])
def test_torch_export_holds_one_operator(first: Any, x: Any, strict: bool) -> None:
    exported = torch.export.export(first, (x,), strict=strict)
    called = [str(n.target) for n in exported.graph.nodes if n.op == "call_function"]
    assert len(called) == 1
    assert called[0].startswith("superopt.main_")
    assert close(exported.module()(x)["made"], first(x)["made"])


def test_the_operator_is_what_it_says(first: Any, x: Any) -> None:
    operator = getattr(torch.ops.superopt, operators(first, x)[0])
    weights = (first.gate.weight.detach(), first.up.weight.detach())
    torch.library.opcheck(operator.default, ([x, *weights],), test_utils=("test_schema", "test_faketensor"))


class Many(torch.nn.Module):
    """More weights than an operator of PyTorch has arguments."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.shifts = torch.nn.ParameterList([torch.randn(4) for _ in range(70)])

    def forward(self, x: Any) -> Any:
        for shift in self.shifts:
            x = x + shift
        return x


def test_a_module_may_have_many_weights() -> None:
    x, module = torch.randn(4), Many()
    made = superopt.optimize(module, (x,), interpret=True, against="operators", **SETTINGS)
    assert close(made(x), module(x))
    assert close(torch.compile(made, backend="aot_eager", fullgraph=True)(x), module(x))


def operators(module: Any, *inputs: Any) -> list[str]:
    graph = torch.export.export(module, inputs).graph
    names = [str(n.target) for n in graph.nodes if n.op == "call_function"]
    return [n.split(".")[1] for n in names if n.startswith("superopt.")]


def test_what_is_overwritten_is_overwritten() -> None:
    cache, rows = torch.randn(2, 8, 16), torch.randn(2, 2, 16)
    mine, theirs = cache.clone(), cache.clone()
    module = superopt.optimize(Appends(), (cache, rows), interpret=True, **SETTINGS)
    assert close(module(mine, rows), Appends()(theirs, rows))
    assert close(mine, theirs)
    assert not close(mine, cache)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    again = cache.clone()
    assert close(compiled(again, rows), theirs.sum(1))
    assert close(again, theirs)
    with pytest.raises(
        BadInput, match="which is overwritten, in memory of its own, got it shared with argument 1"
    ):
        module(cache, cache[:, :2])
    both = torch.cat([cache, cache])  # halves of one tensor share no memory
    assert close(module(both[:2], both[2:, :2]), Appends()(cache.clone(), cache[:, :2]))
    module.fallback = True
    with pytest.warns(UserWarning, match="runs the original"):
        assert close(module(both[2:], both[2:, :2]), Appends()(cache, cache[:, :2]))


class Counts(torch.nn.Module):
    """Writes rows where a tensor says, and counts: operations of PyTorch compute what is overwritten."""

    def forward(self, rows: Any, cache: Any, count: Any) -> Any:
        places = torch.arange(2) + count
        before = count.view(1)  # a view, of what it was
        count.add_(2)
        cache.index_copy_(0, places, rows)
        return torch.softmax(rows @ cache.T, -1), before * 1


@pytest.mark.parametrize("interpret", ["cpu", True])
def test_what_operations_of_pytorch_compute_is_overwritten(interpret: Any) -> None:
    given = torch.randn(2, 16), torch.randn(8, 16), torch.tensor(3)
    module = superopt.optimize(Counts(), given, interpret=interpret, **SETTINGS)
    mine, theirs = [t.clone() for t in given], [t.clone() for t in given]
    for _ in range(2):
        for got, wanted in zip(module(*mine), Counts()(*theirs), strict=True):
            assert close(got, wanted)
        assert all(close(a, b) for a, b in zip(mine, theirs, strict=True))
    assert int(mine[2]) == 7
    assert module.calls == {"kernels": 2, "original": 0}


def test_a_view_that_pytorch_returns_is_not_overwritten() -> None:
    """`run` of a bundle takes functions for operations; one of them may return what it got."""
    given = torch.randn(2, 16), torch.randn(8, 16), torch.tensor(3)
    made: Any = superopt.optimize(Counts(), given, **SETTINGS).result.launcher
    program: Any = made.program
    scope: dict[str, Any] = {}
    start = program.launcher_source.index("def apart(")
    exec(program.launcher_source[start : program.launcher_source.index("def run(")], {"torch": torch}, scope)
    cache = torch.zeros(4, 4)
    for view in (cache, cache[1:], cache.T):
        made = scope["apart"](view, [given[1], cache])
        assert made.is_contiguous()
        assert made.untyped_storage().data_ptr() != cache.untyped_storage().data_ptr()
    assert scope["apart"](given[0], [cache]) is given[0]


def test_arguments_may_be_called_as_what_the_launcher_uses() -> None:
    def function(made: Any, call: Any, list: Any, isinstance: Any, tl: Any, overwritten: Any) -> Any:
        return torch.relu(made) * list + tl, torch.nonzero_static(isinstance, size=3), call * overwritten

    given = tuple(torch.randn(4, 4) for _ in range(6))
    module = superopt.optimize(function, given, interpret=True, **SETTINGS)
    assert all(close(a, b) for a, b in zip(module(*given), function(*given), strict=True))


@pytest.mark.parametrize("name", ["device", "torch", "kernels", "tl"])
def test_extents_may_not(name: str) -> None:
    shapes = ({0: torch.export.Dim(name, max=64)},)
    with pytest.raises(
        BadOption, match=f"expected an extent by another name than '{name}', which kernels or"
    ):
        superopt.optimize(torch.nn.ReLU(), torch.randn(4, 8), dynamic_shapes=shapes, **SETTINGS)


def thrice(x: Any) -> Any:
    return x, x.exp(), x.reshape(4, 4)


def test_a_result_that_is_an_argument_has_memory_of_its_own() -> None:
    module = superopt.optimize(thrice, (torch.randn(16),), interpret=True, **SETTINGS)
    x = torch.randn(16)
    same, grown, turned = module(x)
    assert torch.equal(same, x)
    assert close(grown, x.exp())
    assert torch.equal(turned.flatten(), x)
    assert len({t.data_ptr() for t in (x, same, grown, turned)}) == 4


def test_gradients_come_from_the_original(made: Any, x: Any) -> None:
    with torch.enable_grad():
        with pytest.warns(UserWarning, match=r"Gated is asked for gradients.*torch.no_grad"):
            made(x)["made"].sum().backward()
        assert made.gate.weight.grad is not None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made(x)  # said once
        for parameter in made.parameters():
            parameter.requires_grad_(False)
        made(x)
    assert made.calls == {"kernels": 1, "original": 2}


class Scales(torch.nn.Module):
    """A parameter with a name that modules have otherwise, an argument by position only."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.name = torch.nn.Parameter(torch.rand(16))

    def forward(self, x: Any, /, more: Any, times: float = 2.0) -> Any:
        return torch.relu(x * self.name) * times + more


def test_names_of_parameters_and_arguments_by_position_only(tmp_path: Path) -> None:
    x = torch.randn(4, 16)
    module = superopt.optimize(Scales(), (x,), {"more": x}, interpret=True, **SETTINGS)
    assert close(module(x, x), module.original(x, more=x))
    assert close(module(x, more=x, times=2.0), module.original(x, x))
    module.save(tmp_path / "bundle")
    assert close(superopt.load(tmp_path / "bundle", interpret=True)(x, x), module.original(x, x))
    with pytest.raises(BadInput, match=r"expected a tensor for 'more', got list"):
        module(x, [x])


def test_training_runs_the_original(made: Any, x: Any) -> None:
    made.train()
    assert made.original.training
    with pytest.warns(UserWarning, match=r"training mode.*\.eval\(\)"):
        made(x)
    assert not made.eval().original.training
    made(x)
    assert made.calls == {"kernels": 1, "original": 1}


def test_a_module_in_training_mode_is_put_into_evaluation_mode_with_a_warning(x: Any) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Dropout())
    with pytest.warns(UserWarning, match=r"puts the original.* into evaluation mode"):
        made = superopt.optimize(module, (x,), interpret=True, **SETTINGS)
    assert not module.training
    assert close(made(x), module[0](x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy.deepcopy(made)
        superopt.optimize(torch.nn.Linear(32, 32), (x,), **SETTINGS)  # trains as it evaluates


def test_under_another_autocast_the_original_runs(made: Any, x: Any, tmp_path: Path) -> None:
    """Kernels of f32 would return f32 where the original returns bf16."""
    loaded = superopt.load(made.save(tmp_path / "bundle"), made.original, interpret=True)
    for each in (made, copy.deepcopy(made), loaded):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            wanted = each.original(x)["made"]
            assert wanted.dtype == torch.bfloat16
            with pytest.warns(
                UserWarning, match="called under autocast to torch.bfloat16, and runs the original"
            ):
                got = each(x)["made"]
        assert got.dtype == wanted.dtype
        assert torch.equal(got, wanted)
        with torch.autocast("cpu", enabled=False):
            assert each(x)["made"].dtype == torch.float32
        assert each.calls == {"kernels": 1, "original": 1}


def test_made_under_autocast_it_computes_what_that_computes(x: Any) -> None:
    layer = torch.nn.Linear(32, 16).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = superopt.optimize(layer, (x,), interpret="cpu", **SETTINGS)
        assert made(x).dtype == torch.bfloat16
        assert torch.allclose(made(x), layer(x), rtol=2e-2, atol=2e-2)
    assert made.calls == {"kernels": 2, "original": 0}
    with pytest.warns(UserWarning, match="called under no autocast"):
        assert made(x).dtype == torch.float32


def test_a_constant_that_changes_is_noticed() -> None:
    x = torch.randn(4, 8)
    module = superopt.optimize(Turned(), (x,), interpret=True, **SETTINGS)
    assert close(module(x), module.original(x))
    module.order += 1
    with pytest.raises(BadInput, match="expected buffer 'order' as it was when the kernels were made"):
        module(x)
    module.fallback = True
    assert torch.equal(module(x), module.original(x))
    module.order = torch.arange(7, -1, -1)
    module(x)
    assert module.calls == {"kernels": 2, "original": 1}
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    compiled(x)
    module.order.fill_(3)
    assert close(compiled(x), torch.relu(x) * 3)


def test_a_constant_in_other_memory_is_compared_again() -> None:
    """Its memory may be replaced under the same count of writes, and another tensor have its name in Python."""
    x = torch.randn(4, 8)
    module = superopt.optimize(Turned(), (x,), interpret=True, **SETTINGS)
    held, last = module.original._buffers, torch.arange(7, -1, -1)
    for _ in range(100):
        held["order"] = last.clone()
        module(x)
        name, held["order"] = id(held["order"]), None
        held["order"] = last * 0
        if id(held["order"]) == name:
            break
    with pytest.raises(BadInput, match="expected buffer 'order' as it was"):
        module(x)
    held["order"] = last.clone()
    module(x)
    held["order"].data = last * 0
    with pytest.raises(BadInput, match="expected buffer 'order' as it was"):
        module(x)
    with torch.inference_mode():  # there PyTorch counts no writes
        held["order"] = last.clone()
        assert close(module(x), module.original(x))
        held["order"].zero_()
        with pytest.raises(BadInput, match="expected buffer 'order' as it was"):
            module(x)


class Buffered(Tied):
    """One weight in two layers, and a buffer that is a constant of the program and not in a `state_dict`."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(16), persistent=False)

    def forward(self, x: Any) -> Any:
        return super().forward(x) * self.order


@pytest.fixture(scope="module")
def buffered() -> Any:
    return superopt.optimize(Buffered(), torch.randn(8, 16), interpret="cpu", **SETTINGS)


def test_what_is_loaded_has_the_same_parameters_and_buffers(buffered: Any, tmp_path: Path) -> None:
    loaded = superopt.load(buffered.save(tmp_path / "bundle"), interpret="cpu")
    for of in ("named_parameters", "named_buffers", "state_dict"):
        wanted, got = dict(getattr(buffered, of)()), dict(getattr(loaded, of)())
        assert sorted(got) == sorted(wanted), of
        assert all(torch.equal(got[name], wanted[name]) for name in wanted)
    assert not any(p.requires_grad for p in loaded.parameters())
    assert loaded.original.into.weight is loaded.original.out.weight
    x = torch.randn(8, 16)
    loaded.load_state_dict(Buffered().state_dict())
    buffered = copy.deepcopy(buffered)
    buffered.load_state_dict(loaded.state_dict())
    assert close(loaded(x), buffered.original(x))
    assert loaded.calls == {"kernels": 1, "original": 0}


def test_tensors_without_values_have_shapes(buffered: Any, made: Any, x: Any) -> None:
    """On the device "meta" the original says which; fake tensors are what operators declare, or the original."""
    moved = copy.deepcopy(buffered).to("meta")
    assert moved(torch.empty(8, 16, device="meta")).shape == (8, 16)
    assert moved.calls == {"kernels": 0, "original": 1}
    assert copy.deepcopy(made).to("meta")(x.to("meta"))["made"].is_meta
    mode, copied = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True), copy.deepcopy(buffered)
    with mode, pytest.warns(UserWarning, match="reads constants, tied weights"):
        assert copied(mode.from_tensor(torch.randn(8, 16))).shape == (8, 16)
    with mode:
        assert made(mode.from_tensor(x))["made"].shape == (16, 64)
    assert made.calls == {"kernels": 1, "original": 0}


def test_weights_that_were_one_tensor_stay_one(tmp_path: Path) -> None:
    x = torch.randn(4, 16)
    module = superopt.optimize(Tied(), (x,), interpret=True, **SETTINGS)
    folder = module.save(tmp_path / "bundle")
    state = {n: t * 2 for n, t in module.state_dict().items()}
    for same in (module, copy.deepcopy(module), superopt.load(folder, interpret=True)):
        same.load_state_dict(state)
        assert close(same(x), module.original(x))
    two = Tied()
    two.load_state_dict(module.state_dict(), assign=True)
    two.out.weight = torch.nn.Parameter(two.into.weight * 1)
    loaded = superopt.load(folder, two, interpret=True)
    assert close(loaded(x), two(x))  # two tensors that hold the same
    two.out.weight += 1
    with pytest.raises(BadInput, match=r"expected 'out.weight' to be 'into.weight', as when"):
        loaded(x)
    loaded.fallback = True
    assert torch.equal(loaded(x), two(x))
    compiled = torch.compile(superopt.load(folder, two, interpret=True), backend="eager", fullgraph=True)
    assert close(compiled(x), two(x))
    with pytest.raises(BadInput, match=r"expected a Tied with 'into.weight' as the original, got a Gated"):
        superopt.load(folder, Gated())


def test_other_shapes_run_the_original_where_that_is_wanted(made: Any, x: Any) -> None:
    with pytest.raises(
        BadInput,
        match=r"test_optimized_module.py:\d+:1: error: superopt's Gated: expected argument 0 \('hidden'\)",
    ):
        made(x[:3])
    made.fallback = True
    assert torch.equal(made(x[:3])["made"], made.original(x[:3])["made"])
    assert close(made(x)["made"], made.original(x)["made"])
    assert made.calls == {"kernels": 1, "original": 1}


def halved(x: Any) -> Any:
    return torch.relu(x) / 2


def dropped(x: Any) -> Any:
    return torch.nn.functional.dropout(x * 2, 0.5)


def test_arguments_are_called_as_the_user_calls_them(x: Any) -> None:
    def function(x: Any, *, pair: Any) -> Any:
        return x * pair[0] + pair[1]["bias"]

    pair = (x, {"bias": x})
    made = superopt.optimize(function, x, kwargs={"pair": pair}, **SETTINGS)
    assert "func.func @main(%x: tensor<16x32xf32>, %pair_0: tensor<16x32xf32>, %pair_1_bias: " in made.mlir
    with pytest.raises(BadInput, match=r"expected argument 2 \('pair.1.bias'\) of \(16, 32\)"):
        made(x, pair=(x, {"bias": x[:3]}))


def test_what_is_laid_out_otherwise_is_said(x: Any) -> None:
    def function(x: Any) -> Any:
        return x * 2, (x * 3).t()

    made = superopt.optimize(function, x, interpret=True, **SETTINGS)
    assert made(x)[1].is_contiguous()
    (said,) = [r for r in made.report.remarks if "contiguous" in r]
    assert said.startswith("result 1 of kernels: contiguous")


def test_warnings_point_at_the_users_line(made: Any, x: Any) -> None:
    with pytest.warns(UserWarning, match="is in training mode") as warned:
        copy.deepcopy(made).train()(x)
    assert [w.filename for w in warned] == [__file__]


def test_errors_say_where_a_function_is(x: Any) -> None:
    place = rf"test_optimized_module.py:{dropped.__code__.co_firstlineno}:1: error: "
    with pytest.raises(UnsupportedProgram, match=place + "expected equal results for equal arguments"):
        superopt.optimize(dropped, (x,), **SETTINGS)


MLIR = """func.func @f(%x: tensor<16x32xf32>) -> tensor<16x32xf32> {
  %0 = "kernel.relu"(%x) : (tensor<16x32xf32>) -> tensor<16x32xf32>
  return %0 : tensor<16x32xf32>
}"""


def test_what_may_be_given_instead_of_a_module(x: Any) -> None:
    exported = torch.export.export(torch.nn.ReLU(), (x,))
    for program, inputs, wanted in (
        (halved, x, halved(x)),
        (torch.nn.ReLU, {"input": x}, torch.relu(x)),
        (exported, None, torch.relu(x)),
    ):
        module = superopt.optimize(program, inputs, interpret=True, **SETTINGS)
        assert torch.equal(module(x), wanted)
        assert module.calls["kernels"] == 1
    assert torch.equal(superopt.optimize(MLIR, **SETTINGS)(x), torch.relu(x))


@pytest.mark.gpu
def test_on_a_gpu_kernels_run_and_cuda_graphs_hold_them(made: Any, x: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    made.interpret = False
    made.to("cuda")
    given = x.cuda()
    wanted = made.original(given)["made"]
    torch.testing.assert_close(made(given)["made"], wanted, rtol=1e-3, atol=1e-3)
    assert made.calls == {"kernels": 1, "original": 0}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = made(given)["made"]
    given.copy_(2 * given)
    graph.replay()
    torch.testing.assert_close(out, made.original(given)["made"], rtol=1e-3, atol=1e-3)
    compiled = torch.compile(made, mode="reduce-overhead", fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(given)["made"], out, rtol=1e-3, atol=1e-3)
