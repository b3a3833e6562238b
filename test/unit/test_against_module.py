"""A PyTorch module beside its import: a fault planted in the reader is found, at its line, and nothing is silent."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false
# Faults are planted inside.

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from ingest_support import ops

from superopt import from_torch
from superopt.diagnostics import Diagnostics
from superopt.errors import UNKNOWN, UnsupportedProgram
from superopt.transforms.ingest import against_module, against_source


def test_a_module_that_cancels_has_the_tolerance_of_its_roundings(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")

    class Cancels(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.sum() * x.mean() - 1

    x = torch.randn(3, 7, generator=torch.Generator().manual_seed(37))
    from_torch(Cancels(), (x,))
    with monkeypatch.context() as patch:
        patch.setattr(against_module, "DRAWS", 0)  # one run of this module happens to lose little
        with pytest.raises(UnsupportedProgram, match=r"in its own dtypes on 'example' inputs"):
            from_torch(Cancels(), (x,))
    kept = against_source.graph_values

    def wrong(graph: Any, inputs: Any, *, faithful: bool) -> Any:
        return {v: n * (1 + 1e-5 * faithful) for v, n in kept(graph, inputs, faithful=faithful).items()}

    monkeypatch.setattr(against_source, "graph_values", wrong)
    with pytest.raises(UnsupportedProgram, match=r"expected to read what the module computes"):
        from_torch(Cancels(), (x,))


def test_products_of_narrow_numbers_are_run_in_f32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where processors lack f16, PyTorch takes forty times as long for them; what is read stays what it is."""
    torch: Any = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    from superopt.transforms.ingest import import_torch

    seen: set[tuple[str, Any]] = set()

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            held = [x.dtype for x in args if isinstance(x, torch.Tensor)]
            seen.update((str(func), dtype) for dtype in held)
            return func(*args, **(kwargs or {}))

    kept = import_torch.products_in_f32

    @contextmanager
    def noted(arguments: Any) -> Generator[None]:
        with Noted(), kept(arguments):
            yield

    monkeypatch.setattr(import_torch, "products_in_f32", noted)
    monkeypatch.setattr(against_module, "products_in_f32", noted)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 5)
    )
    read = from_torch(module.half(), (torch.randn(2, 3, 8, 8).half(),))
    assert {v.dtype for v in read.graph.inputs} == {"f16"}
    products = {(op, dtype) for op, dtype in seen if "conv" in op or "mm" in op}
    assert {dtype for _, dtype in products} == {torch.float32}
    assert len(products) == 2
    assert any(dtype == torch.float16 for op, dtype in seen if "relu" in op)


def test_products_in_f32_are_rounded_once_and_faults_stay_pytorchs() -> None:
    torch: Any = pytest.importorskip("torch")
    x, w = (torch.randn(64, 64, generator=torch.Generator().manual_seed(n)).half() for n in (1, 2))
    with against_module.products_in_f32([x, w]):
        made = x @ w
        with pytest.raises(RuntimeError, match="dtype"):
            _ = x @ w.float()
    assert made.dtype == torch.float16
    assert torch.equal(made, (x.float() @ w.float()).half())


@pytest.mark.parametrize("seed", range(4))
def test_long_sums_may_be_added_in_another_order(seed: int) -> None:
    """A product of f32 that is large as a whole, and small where a sigmoid is taken of it."""
    torch: Any = pytest.importorskip("torch")
    from superopt.transforms.ingest import import_torch

    class Gate(torch.nn.Module):
        def forward(self, x: Any, w: Any) -> Any:
            return torch.nn.functional.linear(x, w).sigmoid(), (x * w[:1]).sum(-1).sigmoid()

    numbers = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(rows, 4096, generator=numbers) for rows in (48, 64))
    diagnostics = Diagnostics()
    graph = import_torch.from_torch(Gate(), (x, w), diagnostics=diagnostics).graph
    assert "extern" not in ops(graph)
    assert not diagnostics.messages


def found_beside(module: Any, other: Any, arguments: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said of the graph of `other`, taken for that of `module`."""
    from superopt.transforms.ingest import import_torch

    reads: list[Any] = []
    monkeypatch.setattr(import_torch, "check_import", lambda read, *_: reads.append(read))
    for each in (module, other):
        import_torch.from_torch(each, arguments)
    try:
        against_module._check(replace(reads[0], graph=reads[1].graph), Diagnostics(), UNKNOWN)
    except UnsupportedProgram as error:
        return error.message
    return ""


def normed(x: Any, eps: float = 1e-5) -> Any:
    return (x.float() * (x.float().square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)


def gelu(x: Any, cubic: float = 0.044715) -> Any:
    y = x.float()
    return (0.5 * y * (1 + (0.79788456 * (y + cubic * y**3)).tanh())).to(x.dtype)


def product(x: Any, w: Any) -> Any:
    return x @ w.t()


# What a module computes, and what a reader that is slightly wrong would make of it.
SLIGHT: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "a term of many": (product, lambda x, w: product(x[:, 1:], w[:, 1:])),
    "a bias": (lambda x, w: product(x, w) + 1e-2, product),
    "a row": (product, lambda x, w: product(x, w) * (1 + (x[:, :1] == x[0, 0]).to(x.dtype) / 100)),
    "epsilon": (lambda x, w: normed(x) * w[:1], lambda x, w: normed(x, 1e-6) * w[:1]),
    "a constant": (lambda x, w: gelu(x), lambda x, w: gelu(x, 0.0447)),
    "a scale": (lambda x, w: (product(x, w) / 64).softmax(-1), lambda x, w: (product(x, w) / 63).softmax(-1)),
    "a count": (lambda x, w: x.var(-1), lambda x, w: x.var(-1, correction=0)),
    "digits of a product": (
        lambda x, w: product(x, w).float().sigmoid(), lambda x, w: (product(x, w).float() * 1.00005).sigmoid()
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", SLIGHT)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_sums_and_narrow_numbers_lose_hides_no_fault(
    dtype: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp64, where neither loses anything, the graph is off by no more than the module is in f32."""
    torch: Any = pytest.importorskip("torch")

    class Module(torch.nn.Module):
        def __init__(self, body: Callable[[Any, Any], Any]) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Any, w: Any) -> Any:
            return self.body(x, w)

    numbers = torch.Generator().manual_seed(1)
    given = [torch.randn(rows, 1024, generator=numbers).to(getattr(torch, dtype)) for rows in (48, 64)]
    right, wrong = map(Module, SLIGHT[fault])
    assert found_beside(right, copy.deepcopy(right), tuple(given), monkeypatch) == ""
    assert " in fp64 on " in found_beside(right, wrong, tuple(given), monkeypatch)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_that_a_graph_holds_in_narrow_dtypes_are_not_faults(dtype: str) -> None:
    """PyTorch computes with them in f32; where they are rounded to 1 or 0, the graph has no operator left."""
    torch: Any = pytest.importorskip("torch")
    of = {
        "a factor": lambda x: x * 0.1,
        "several": lambda x: ((x * 0.1 + 0.3) / 0.7).clamp(-0.3, 0.3),
        "a table": lambda x: x * torch.arange(64, dtype=x.dtype).mul(0.1),
        "almost one": lambda x: x * 1.0001,
        "almost zero": lambda x: x * 1e-9,
        "logarithms": lambda x: torch.exp2(x) + x.abs().log2(),
    }  # fmt: skip
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))

    class Module(torch.nn.Module):
        def __init__(self, body: Callable[[Any], Any]) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Any) -> Any:
            return self.body(x)

    for name, body in of.items():
        said = from_torch(Module(body), (x,)).diagnostics
        assert said.messages == [], name


def test_a_product_of_rounded_operands_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As matrix units round them (tf32): right in fp64, and off by more than another order of the sum."""
    torch: Any = pytest.importorskip("torch")

    class Module(torch.nn.Module):
        def __init__(self, *, rounded: bool) -> None:
            super().__init__()
            self.rounded = rounded

        def forward(self, x: Any, w: Any) -> Any:
            return product(x.half().float(), w.half().float()) if self.rounded else product(x, w)

    numbers = torch.Generator().manual_seed(1)
    given = tuple(torch.randn(rows, 4096, generator=numbers) for rows in (48, 64))
    said = found_beside(Module(rounded=False), Module(rounded=True), given, monkeypatch)
    assert "in its own dtypes" in said


class Chain:
    """Made where PyTorch is there: two linear layers, a tangent between them, and two results."""

    def __new__(cls) -> Any:
        torch: Any = pytest.importorskip("torch")

        class Module(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

            def forward(self, x: Any) -> Any:
                h = self.first(x)
                h = torch.tanh(h)
                g = self.second(h)
                return g.softmax(-1), h * 2

        torch.manual_seed(0)
        return Module().eval()


@pytest.mark.torch
@pytest.mark.parametrize("fault", ["none", "handler", "decomposition", "bias that is zero at first"])
def test_a_fault_of_the_torch_reader_is_an_error_at_its_line(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = pytest.importorskip("torch")
    from superopt.transforms.ingest import from_torch
    from superopt.transforms.ingest.aten import HANDLERS
    from superopt.transforms.ingest.decompositions import functions

    module, x = Chain(), torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    softmax, linear = functions.softmax, HANDLERS["linear"]
    line = type(module).forward.__code__.co_firstlineno
    if fault == "handler":
        monkeypatch.setitem(HANDLERS, "tanh", HANDLERS["erf"])
    elif fault == "decomposition":
        monkeypatch.setattr(functions, "softmax", lambda x, *rest: softmax(x * 1.01, *rest))
    elif fault != "none":
        torch.nn.init.zeros_(module.first.bias)
        torch.nn.init.zeros_(module.second.bias)
        monkeypatch.setitem(HANDLERS, "linear", lambda r, args: linear(r, [*args[:2], None]))
    else:
        assert from_torch(module, (x,)).diagnostics.messages == []
        return
    with pytest.raises(UnsupportedProgram, match=r"expected to read what the module computes") as raised:
        from_torch(module, (x,))
    if fault in ("handler", "decomposition"):
        offset = {"handler": 2, "decomposition": 4}[fault]
        assert (raised.value.location.file, raised.value.location.line) == (__file__, line + offset)


@pytest.mark.torch
def test_what_the_module_raises_comes_first_and_limits_are_remarked_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch: Any = pytest.importorskip("torch")
    from superopt.transforms.ingest import against_module, from_torch

    module = Chain()
    with pytest.raises(UnsupportedProgram, match=r"the module raises RuntimeError on the example inputs"):
        from_torch(module, (torch.zeros(4, 7),))
    monkeypatch.setattr(against_module, "MOST_WORK", 10)
    (message,) = from_torch(module, (torch.zeros(4, 8),)).diagnostics.messages
    assert "the import is not compared with the module" in message.message
    assert message.message.count("operations, of at most") == 2, "nor at two examples"
    assert message.message.endswith("there are no more than the first 2 positions")


@pytest.mark.torch
@pytest.mark.parametrize(("shape", "readings"), [((1, 1, 8), 1), ((4, 1, 8), 2), ((4, 5, 8), 3)])
def test_what_has_no_fewer_examples_or_positions_is_not_read_again(
    shape: tuple[int, ...], readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = pytest.importorskip("torch")
    from superopt.transforms.ingest import against_module, from_torch, import_torch

    read, read_of = import_torch._read, list[Any]()

    def counted(module: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
        read_of.append([tuple(x.shape) for x in inputs])
        return read(module, inputs, *rest, **options)

    monkeypatch.setattr(import_torch, "_read", counted)
    monkeypatch.setattr(against_module, "MOST_WORK", 1)
    (message,) = from_torch(Chain(), (torch.zeros(shape),)).diagnostics.messages
    assert "the import is not compared with the module" in message.message
    assert len(read_of) == readings, read_of


@pytest.mark.torch
@pytest.mark.parametrize("via", ["torch", "linalg"])
@pytest.mark.parametrize(
    ("shape", "said"), [((64, 8), "2 examples of its batch"), ((1, 64, 8), "the first 2 positions")]
)
def test_large_modules_are_compared_on_less(
    via: Any, shape: tuple[int, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = pytest.importorskip("torch")
    from superopt.transforms.ingest import against_module, from_torch
    from superopt.transforms.ingest.aten import HANDLERS

    module, x = Chain(), torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(against_module, "MOST_ELEMENTS", 1500)
    (message,) = from_torch(module, (x,), via=via).diagnostics.messages
    assert f"the import is compared with the module on {said}" in message.message
    assert from_torch(module, (x[..., :1, :],), via=via).diagnostics.messages == [], "small enough"
    if via == "torch":
        monkeypatch.setitem(HANDLERS, "tanh", HANDLERS["erf"])
        with pytest.raises(UnsupportedProgram, match=r"expected to read what the module computes"):
            from_torch(module, (x,))


@pytest.mark.torch
@pytest.mark.parametrize("mask", [(1, 1, 64, 64), (1, 64), (64, 64), (1, 1, 1, 64)])
def test_masks_are_cut_with_the_positions(mask: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    from superopt.transforms.ingest import against_module, from_torch
    from superopt.transforms.ingest.aten import HANDLERS

    class Attention(torch.nn.Module):
        def forward(self, x: Any, mask: Any) -> Any:
            heads = x.unflatten(-1, (2, 8)).transpose(1, 2)
            scores = heads @ heads.transpose(-1, -2) + mask
            return scores.softmax(-1) @ torch.tanh(heads)

    drawn = torch.Generator().manual_seed(1)
    x, m = (torch.randn(*shape, generator=drawn) for shape in ((1, 64, 16), mask))
    monkeypatch.setattr(against_module, "MOST_ELEMENTS", 1500)
    (message,) = from_torch(Attention(), (x, m)).diagnostics.messages
    assert "the import is compared with the module on the first 2 positions" in message.message
    monkeypatch.setitem(HANDLERS, "tanh", HANDLERS["erf"])
    with pytest.raises(UnsupportedProgram, match=r"expected to read what the module computes"):
        from_torch(Attention(), (x, m))


@pytest.mark.torch
def test_large_weights_are_held_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    from superopt.transforms.ingest import against_module, from_torch
    from superopt.transforms.ingest.aten import HANDLERS

    module, x = Chain(), torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    arrays, held = list[Any](), against_module._held_array
    monkeypatch.setattr(against_module, "LARGE_WEIGHT", 60)
    monkeypatch.setattr(against_module, "USUAL_WORK", 0)  # no draw but that of slightly changed weights
    monkeypatch.setattr(against_module, "_held_array", lambda t: arrays.append(t) or held(t))
    assert from_torch(module, (x,)).diagnostics.messages == []
    assert {a.data_ptr() for a in arrays} == {p.data_ptr() for p in module.parameters() if p.dim() == 2}
    linear = HANDLERS["linear"]
    monkeypatch.setitem(HANDLERS, "linear", lambda r, args: linear(r, [*args[:2], None]))
    with pytest.raises(UnsupportedProgram, match=r"expected to read what the module computes"):
        from_torch(module, (x,))
    monkeypatch.setattr(against_module, "MOST_WEIGHTS", 100)
    (message,) = from_torch(module, (x,)).diagnostics.messages
    assert message.message.count("1.4e+02 elements of weights, of at most 1.0e+02") == 2


@pytest.mark.torch
@pytest.mark.parametrize("number", [0.0, 1.0])
def test_large_weights_of_one_number_hide_no_fault(number: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros take everything before them out of the comparison, and ones all but its sum."""
    torch: Any = pytest.importorskip("torch")
    from superopt.transforms.ingest import against_module, from_torch
    from superopt.transforms.ingest.aten import HANDLERS

    class Gated(torch.nn.Module):
        """A residual branch as it is initialized."""

        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self.out = torch.nn.Linear(8, 8, bias=False)
            torch.nn.init.constant_(self.out.weight, number)

        def forward(self, x: Any) -> Any:
            return x + self.out(torch.tanh(x) - torch.tanh(x).mean(-1, keepdim=True))

    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(against_module, "LARGE_WEIGHT", 60)
    assert from_torch(Gated(), (x,)).diagnostics.messages == []
    monkeypatch.setitem(HANDLERS, "tanh", HANDLERS["erf"])
    with pytest.raises(UnsupportedProgram, match=r"expected to read what the module computes"):
        from_torch(Gated(), (x,))


@pytest.mark.torch
@pytest.mark.parametrize("of", ["batch", "examples", "positions"])
def test_what_depends_on_the_batch_is_not_compared_on_less(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    from superopt.transforms.ingest import against_module, from_torch

    class Batch(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            if of == "batch":
                return torch.cat([x, x[:5]]) if x.shape[0] > 5 else x + x
            if of == "positions":
                return x * torch.arange(float(x.shape[1]))[:, None].sin()
            return x.reshape(64, 8) * 2.0

    monkeypatch.setattr(against_module, "MOST_ELEMENTS", 600)
    shape = (1, 64, 8) if of == "positions" else (64, 8)
    (message,) = from_torch(Batch(), (torch.ones(*shape),)).diagnostics.messages
    assert "the import is not compared with the module" in message.message
    said = "the module raises RuntimeError" if of == "examples" else "it is read as other operators"
    assert said in message.message


@pytest.mark.torch
def test_inputs_are_drawn_as_large_as_the_examples() -> None:
    """Weights may be inputs: products of many numbers of size one are infinite in f16, and nothing is compared."""
    torch: Any = pytest.importorskip("torch")
    drawn = torch.Generator().manual_seed(0)
    sizes = (1.0, 0.02, 30.0, 0.0)
    examples = [size * torch.randn(64, 64, generator=drawn, dtype=torch.float16) for size in sizes]
    made = against_module._drawn([*examples, torch.arange(4)], len(examples))
    assert not any(torch.equal(a, b) for a, b in zip(made[:4], examples, strict=True))
    assert [float(t.double().std()) for t in made[:4]] == pytest.approx([1.0, 0.02, 30.0, 1.0], rel=0.05)
    assert torch.equal(made[4], torch.arange(4))
