"""What is read beside its source: a fault planted in either reader is found, at its place, and nothing is silent."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false
# Faults are planted inside.

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ingest_support import ops, read_text

from superopt import from_torch
from superopt.diagnostics import Diagnostics
from superopt.errors import UNKNOWN, UnsupportedProgram
from superopt.program import TensorType, Value
from superopt.transforms.ingest import against_execution, against_module, against_source, bodies, run_linalg
from superopt.transforms.ingest.linalg_reader import LinalgReader
from superopt.transforms.ingest.run_in_llvm import Tensor, execute

CHAIN = """
func.func @f(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4x8xf32>, tensor<4xf32>) {
  %0 = math.tanh %x : tensor<4x8xf32>
  %e = tensor.empty() : tensor<4x8xf32>
  %z = arith.constant 0.0 : f32
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = linalg.matmul ins(%0, %w : tensor<4x8xf32>, tensor<8x8xf32>) outs(%i : tensor<4x8xf32>) -> tensor<4x8xf32>
  %s = linalg.softmax dimension(1) ins(%1 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
  %e1 = tensor.empty() : tensor<4xf32>
  %i1 = linalg.fill ins(%z : f32) outs(%e1 : tensor<4xf32>) -> tensor<4xf32>
  %r = linalg.reduce ins(%0 : tensor<4x8xf32>) outs(%i1 : tensor<4xf32>) dimensions = [1]
    (%a: f32, %b: f32) { %q = arith.addf %a, %b : f32 linalg.yield %q : f32 }
  return %s, %r : tensor<4x8xf32>, tensor<4xf32>
}
"""


def test_a_faithful_reading_of_linalg_is_not_remarked_on() -> None:
    graph, said = read_text(CHAIN)
    assert ops(graph)[:2] == ["tanh", "matmul"]
    assert said.messages == []


def test_a_fault_of_the_linalg_reader_is_an_error_at_the_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bodies._UNARY, "math.tanh", "erf")
    with pytest.raises(
        UnsupportedProgram, match=r"expected to read what the linalg program computes"
    ) as raised:
        read_text(CHAIN)
    assert (raised.value.location.file, raised.value.location.line) == ("input.mlir", 3)


def test_what_is_lost_by_rounding_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {
      %c = arith.constant dense<1.0e-6> : tensor<8xf32>
      %0 = arith.mulf %x, %c : tensor<8xf32>
      %1 = math.log1p %0 : tensor<8xf32>
      return %1 : tensor<8xf32>
    }"""
    assert ops(read_text(text)[0]) == ["mul", "log1p"]

    def lossy(self: Any, name: str, args: Any, element: str, forms: Any) -> Any:
        if name == "math.log1p":
            one = bodies.Aligned(self.build.constant(1.0, "f32", ()), ())
            return self.space.apply("log", self.space.apply("add", args[0], one))
        return kept(self, name, args, element, forms)

    kept = bodies.Body._apply
    monkeypatch.setattr(bodies.Body, "_apply", lossy)
    with pytest.raises(UnsupportedProgram, match=r"result 0 is off by \S+ in its own dtypes"):
        read_text(text)


# The sum nearly cancels what it starts from; rounding the terms in another order loses most of it.
CANCELS = """
func.func @f(%x: tensor<1x3xf16>) -> tensor<1xf16> {
  %h = arith.constant dense<-0.5> : tensor<1x3xf16>
  %0 = arith.mulf %x, %h : tensor<1x3xf16>
  %e = tensor.empty() : tensor<1xf16>
  %c = arith.constant 0.5 : f16
  %i = linalg.fill ins(%c : f16) outs(%e : tensor<1xf16>) -> tensor<1xf16>
  %r = linalg.reduce ins(%0 : tensor<1x3xf16>) outs(%i : tensor<1xf16>) dimensions = [1]
    (%a: f16, %b: f16) { %q = arith.addf %a, %b : f16 linalg.yield %q : f16 }
  return %r : tensor<1xf16>
}
"""


def test_a_sum_that_cancels_has_the_tolerance_of_its_roundings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_text(CANCELS)[1].messages == []
    with monkeypatch.context() as patch:
        patch.setattr(against_execution, "DRAWS", 0)  # one run of this source happens to lose nothing
        with pytest.raises(UnsupportedProgram, match=r"in its own dtypes on 'ordinary' inputs"):
            read_text(CANCELS)
    kept = bodies.Body._apply

    def wrong(self: Any, name: str, args: Any, *rest: Any) -> Any:
        scaled = kept(self, name, args, *rest)
        near = bodies.Aligned(self.build.constant(1.02, "f16", ()), ())
        return self.space.apply("mul", scaled, near) if name == "arith.mulf" else scaled

    monkeypatch.setattr(bodies.Body, "_apply", wrong)
    with pytest.raises(UnsupportedProgram, match=r"expected to read what the linalg program computes"):
        read_text(CANCELS)


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


def test_a_fault_in_an_opaque_operation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = math.floor %x : tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    graph, said = read_text(text)
    assert ops(graph) == ["extern"]
    assert len(said.messages) == 1
    monkeypatch.setattr(run_linalg, "scalar_operation", lambda operation, args: np.ceil(args[0]))
    with pytest.raises(UnsupportedProgram, match=r"expected to read what the linalg program computes"):
        read_text(text)


def test_programs_in_bf16_are_compared() -> None:
    """On every CPU: most lack instructions for it, and LLVM's own function is in no library of ours."""
    text = """func.func @f(%x: tensor<4xbf16>) -> tensor<4xbf16> {
      %e = tensor.empty() : tensor<4xbf16>
      %0 = linalg.exp ins(%x : tensor<4xbf16>) outs(%e : tensor<4xbf16>) -> tensor<4xbf16>
      %1 = linalg.add ins(%0, %x : tensor<4xbf16>, tensor<4xbf16>) outs(%e : tensor<4xbf16>) -> tensor<4xbf16>
      return %1 : tensor<4xbf16>
    }"""
    assert not read_text(text)[1].messages


def test_what_is_not_compared_is_remarked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, reason in (("MOST_WORK", "operations, of at most"), ("MOST_ELEMENTS", "elements, of at most")):
        with monkeypatch.context() as patch:
            patch.setattr(against_execution, name, 10)
            (message,) = read_text(CHAIN)[1].messages
        assert "not compared with an execution of the source" in message.message
        assert reason in message.message
    monkeypatch.setattr(against_execution, "SECONDS", 0.0)
    (message,) = read_text(CHAIN)[1].messages
    assert message.message.endswith("it takes more than 0 s")


def test_the_execution_is_that_of_mlir() -> None:
    """Signs, ties, every float type; and what kills a process kills none of ours."""

    def run(body: str, x: Any, element: str, result: str) -> Any:
        text = f"""func.func @f(%x: tensor<4x{element}>) -> tensor<4x{result}> {{
            {body}
            return %r : tensor<4x{result}>
        }}"""
        ((wide, narrow),) = execute(
            text.encode(), "f", [Tensor((4,), result)], [Tensor((4,), element)], [[np.array(x)]], seconds=20
        )
        return wide[0].tolist(), narrow[0].tolist()

    unsigned = "%r = arith.uitofp %x : tensor<4xi8> to tensor<4xf32>"
    assert run(unsigned, [1, -1, 3, -128], "i8", "f32")[0] == [1, 255, 3, 128]
    for element in ("f16", "bf16", "f32"):
        wide, narrow = run(
            f"%r = math.roundeven %x : tensor<4x{element}>", [0.5, 1.5, -2.5, 3], element, element
        )
        assert wide == narrow == [0, 2, -2, 3]
    third = "%c = arith.constant dense<3.0> : tensor<4xbf16>\n%r = arith.divf %x, %c : tensor<4xbf16>"
    wide, narrow = run(third, [1, 2, 4, 8], "bf16", "bf16")
    np.testing.assert_allclose(wide, np.array([1, 2, 4, 8]) / 3, rtol=1e-15)
    np.testing.assert_allclose(narrow, np.array([1, 2, 4, 8]) / 3, rtol=2**-8)
    assert max(abs(np.subtract(wide, narrow))) > 1e-4
    divided = "%c = arith.constant dense<7> : tensor<4xi32>\n%r = arith.divsi %c, %x : tensor<4xi32>"
    with pytest.raises(UnsupportedProgram, match=r"it ends with SIGFPE"):
        run(divided, [1, 2, 0, 3], "i32", "i32")
    with pytest.raises(UnsupportedProgram, match=r"MLIR does not lower it"):
        run('%r = "other.op"(%x) : (tensor<4xf32>) -> tensor<4xf32>', [1, 2, 0, 3], "f32", "f32")


# The mean of 4096 features, heads of 256, a square weight: more than is executed.
LARGE = """
#id = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>
func.func @f(%x: tensor<512x4096xf32>, %w: tensor<4096x4096xf32>) -> tensor<512x16x256xf32> {
  %z = arith.constant 0.0 : f32
  %n = arith.constant 4096.0 : f32
  %e1 = tensor.empty() : tensor<512xf32>
  %i1 = linalg.fill ins(%z : f32) outs(%e1 : tensor<512xf32>) -> tensor<512xf32>
  %s = linalg.reduce ins(%x : tensor<512x4096xf32>) outs(%i1 : tensor<512xf32>) dimensions = [1]
    (%a: f32, %b: f32) { %q = arith.addf %a, %b : f32 linalg.yield %q : f32 }
  %e = tensor.empty() : tensor<512x4096xf32>
  %c = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
    ins(%x, %s : tensor<512x4096xf32>, tensor<512xf32>) outs(%e : tensor<512x4096xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %m = arith.divf %b, %n : f32
      %d = arith.subf %a, %m : f32
      linalg.yield %d : f32
  } -> tensor<512x4096xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<512x4096xf32>) -> tensor<512x4096xf32>
  %p = linalg.matmul ins(%c, %w : tensor<512x4096xf32>, tensor<4096x4096xf32>)
    outs(%i : tensor<512x4096xf32>) -> tensor<512x4096xf32>
  %t = math.tanh %p : tensor<512x4096xf32>
  %r = tensor.expand_shape %t [[0], [1, 2]] output_shape [512, 16, 256]
    : tensor<512x4096xf32> into tensor<512x16x256xf32>
  return %r : tensor<512x16x256xf32>
}
"""


def test_a_large_source_is_compared_at_smaller_extents() -> None:
    graph, said = read_text(LARGE)
    assert ops(graph)[:2] == ["reduce_mean", "sub"]
    (message,) = said.messages
    assert "the reading is compared with an execution of the source at smaller extents" in message.message
    assert "(5 for 16, 7 for 256, 11 for 512, 35 for 4096)" in message.message


@pytest.mark.parametrize("fault", ["tanh", "sum for difference"])
def test_a_fault_of_the_reader_is_found_on_a_large_source(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "tanh":
        monkeypatch.setitem(bodies._UNARY, "math.tanh", "erf")
    else:
        kept = bodies.Body._apply
        monkeypatch.setattr(
            bodies.Body,
            "_apply",
            lambda self, name, args, *rest: kept(
                self, "arith.addf" if name == "arith.subf" else name, args, *rest
            ),
        )
    with pytest.raises(UnsupportedProgram, match="expected to read what the linalg program") as raised:
        read_text(LARGE)
    before = LARGE.partition("%t = " if fault == "tanh" else "%c = ")[0]
    assert raised.value.location.line == before.count("\n") + 1


def test_a_fault_at_large_extents_alone_is_not_called_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read as something else at smaller extents says nothing of the large source."""
    kept = LinalgReader._read

    def wrong(self: Any, operation: Any) -> Any:
        if operation.name == "math.tanh" and operation.results[0].type.shape[0] > 100:
            return [self.build.emit("erf", self.value(operation.operands[0]))]
        return kept(self, operation)

    monkeypatch.setattr(LinalgReader, "_read", wrong)
    (message,) = read_text(LARGE)[1].messages
    assert "not compared with an execution of the source" in message.message
    assert "at smaller extents, it is read as other operators" in message.message


def test_what_depends_on_an_extent_keeps_it() -> None:
    """Here 400, as the body asks for the index."""
    text = """
    #map = affine_map<(i, j) -> (i, j)>
    func.func @f(%x: tensor<900x400xf32>, %y: tensor<64x800x800xf32>)
        -> (tensor<900x400xf32>, tensor<64x800x800xf32>) {
      %e = tensor.empty() : tensor<900x400xf32>
      %0 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]}
        ins(%x : tensor<900x400xf32>) outs(%e : tensor<900x400xf32>) {
        ^bb0(%a: f32, %o: f32):
          %j = linalg.index 1 : index
          %c = arith.constant 200 : index
          %z = arith.constant 0.0 : f32
          %b = arith.cmpi slt, %j, %c : index
          %s = arith.select %b, %a, %z : f32
          linalg.yield %s : f32
      } -> tensor<900x400xf32>
      %1 = math.tanh %y : tensor<64x800x800xf32>
      return %0, %1 : tensor<900x400xf32>, tensor<64x800x800xf32>
    }"""
    (message,) = read_text(text)[1].messages
    assert "(5 for 64, 7 for 800, 11 for 900)" in message.message


# --- PyTorch ----------------------------------------------------------------------------------------------


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


def test_an_infinity_of_the_source_is_compared() -> None:
    """The tolerance ignores what is not finite; a finite number, or the other infinity, in its place is a fault."""
    of, source = Value(TensorType((3,), "f32")), np.array([1.0, np.inf, -np.inf])
    assert against_source.judge(of, source, "ordinary", source, source).ratio <= 1
    for wrong in ([1.0, 5.0, -np.inf], [1.0, np.inf, np.inf], [1.0, np.inf, np.nan]):
        assert against_source.judge(of, np.array(wrong), "ordinary", source, source).ratio > 1
