"""torch.compile(backend="superopt"), `superopt.explain` and `superopt.replace`, on a tiny Llama and on smaller models."""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import superopt
from superopt.cost import target
from superopt.cost.baseline import copy_seconds
from superopt.errors import BadInput, BadOption, IllegalProgram, UnsupportedProgram
from superopt.report import Report

torch: Any = pytest.importorskip("torch")
from superopt.pytorch import regions  # noqa: E402
from superopt.pytorch.backend import Backend, compile_graph  # noqa: E402

ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {"budget": 1, "store": None}


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


class Layer(torch.nn.Module):
    """Normalizes, multiplies and adds."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.norm = torch.nn.RMSNorm(32)
        self.mlp = torch.nn.Linear(32, 32, bias=False)

    def forward(self, x: Any) -> Any:
        return x + torch.nn.functional.silu(self.mlp(self.norm(x)))


class Model(torch.nn.Module):
    """Equal layers, between them complex numbers, which superopt does not take."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            made = layer(x)
            x = torch.view_as_real(torch.complex(made, x))[..., 0] * 2
        return x


class Overwrites(torch.nn.Module):
    """Writes to its argument, and returns a view of it."""

    def forward(self, x: Any) -> Any:
        x[:, :2] = x[:, 2:4].exp() * 2
        return x[:, 1:], torch.relu(x) / 3


@pytest.fixture(scope="module")
def x() -> Any:
    return torch.randn(8, 32, generator=torch.Generator().manual_seed(2))


def test_the_entry_point_is_the_backend() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    place, _, name = project["entry-points"]["torch_dynamo_backends"]["superopt"].partition(":")
    assert getattr(import_module(place), name) is compile_graph


def test_equal_layers_share_one_run(x: Any) -> None:
    model = Model().eval()
    backend = Backend(interpret=True, **SETTINGS)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    assert torch.allclose(compiled(x), model(x), atol=1e-5)
    (graph,) = backend.graphs
    done = [p for p in graph.parts if p.replaced]
    assert [p.path for p in done] == ["layers.0", "layers.1", "layers.2"]
    assert [p.shared for p in done] == [False, True, True]
    assert len(graph.parts) > len(done)
    for layer in model.layers:
        layer.mlp.weight.copy_(torch.randn(32, 32))
    assert torch.allclose(compiled(x), model(x), atol=1e-5)


def test_a_graph_runs_what_replaced_its_parts(x: Any) -> None:
    """Also one whose code was made before, which Dynamo's graphs put off until they are called."""
    model, backend = Model().eval(), Backend(interpret=True, **SETTINGS)
    graphs: list[Any] = []

    def at_once(graph: Any, inputs: Any) -> Any:
        graphs.append(torch.fx.GraphModule(graph, graph.graph))
        return backend(graphs[-1], inputs)

    assert torch.allclose(torch.compile(model, backend=at_once, fullgraph=True)(x), model(x), atol=1e-5)
    assert any(p.replaced for p in backend.graphs[0].parts)
    (graph,) = graphs
    assert graph.code == graph.graph.python_code("self").src


def test_searches_are_logged(x: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Where there is no terminal for a bar: once for equal layers, when it begins and when it ends."""
    with caplog.at_level("INFO", logger="superopt"):
        superopt.explain(Model(), x, seed=7, **SETTINGS)
    said = [record.getMessage() for record in caplog.records if record.name == "superopt"]
    assert sum(line.startswith("layers.0:") for line in said) == 2
    assert not any(line.startswith("layers.1:") for line in said)
    for begins, ends in zip(said[::2], said[1::2], strict=True):
        name = begins.removesuffix(": searching, as it is not known yet")
        assert name != begins
        assert re.fullmatch(rf"{re.escape(name)}: done after \d+ s of processor time", ends)


class Step(torch.nn.Module):
    """A step of decoding: one query against a cache that grows."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v


def test_a_cache_that_grows_is_compiled_once() -> None:
    backend = Backend(interpret=True, against="operators", **SETTINGS)
    compiled, model, q = torch.compile(Step(), backend=backend, fullgraph=True), Step(), torch.randn(2, 1, 16)
    for length in (5, 6, 7, 8, 13, 31, 64, 65):
        cache = torch.randn(2, length, 16)
        if length == 5:
            torch._dynamo.mark_dynamic(cache, 1, min=2, max=64)
        assert torch.allclose(compiled(q, cache, cache), model(q, cache, cache), atol=1e-5), length
        if length == 64:
            assert len(backend.graphs) == 1
    (part,) = backend.graphs[0].parts
    assert part.replaced, part.reason


def test_a_range_that_is_not_compiled_for_a_cpu_stays_with_pytorch() -> None:
    backend = Backend(interpret="cpu", against="operators", **SETTINGS)
    compiled, model, q = torch.compile(Step(), backend=backend, fullgraph=True), Step(), torch.randn(2, 1, 16)
    for length in (5, 6):
        cache = torch.randn(2, length, 16)
        torch._dynamo.maybe_mark_dynamic(cache, 1)
        assert torch.allclose(compiled(q, cache, cache), model(q, cache, cache), atol=1e-5), length
    reasons = [p.reason for graph in backend.graphs for p in graph.parts]
    assert any("compile for the CPU, got a range of extents" in reason for reason in reasons), reasons


def test_a_batch_and_a_cache_that_change_are_compiled_once() -> None:
    """Two symbols, one of them in all arguments."""
    backend = Backend(interpret=True, against="operators", **SETTINGS)
    compiled, model = torch.compile(Step(), backend=backend, fullgraph=True), Step()
    for batch, length in ((2, 5), (3, 5), (2, 7), (4, 61), (3, 31)):
        q, cache = torch.randn(batch, 1, 16), torch.randn(batch, length, 16)
        if not backend.graphs:
            for tensor in (q, cache):
                torch._dynamo.mark_dynamic(tensor, 0, min=2, max=4)
            torch._dynamo.mark_dynamic(cache, 1, min=2, max=64)
        assert torch.allclose(compiled(q, cache, cache), model(q, cache, cache), atol=1e-5), (batch, length)
    (graph,) = backend.graphs
    (part,) = graph.parts
    assert part.replaced, part.reason


class Decoder(torch.nn.Module):
    """A step of decoding with a cache: keys and values of the new token are appended, the next token is chosen."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.embed, self.out = torch.nn.Embedding(16, 16), torch.nn.Linear(16, 16, bias=False)
        self.qkv = torch.nn.Linear(16, 48, bias=False)
        self.step = Step()

    def forward(self, token: Any, k: Any, v: Any) -> Any:
        x = self.embed(token)
        q, new_k, new_v = self.qkv(x).chunk(3, -1)
        k, v = torch.cat([k, new_k], 1), torch.cat([v, new_v], 1)
        return self.out(x + self.step(q, k, v))[:, -1].argmax(-1, keepdim=True), k, v


def test_a_decode_loop_is_compiled_once() -> None:
    backend = Backend(interpret=True, against="operators", **SETTINGS)
    torch.manual_seed(0)
    model = Decoder().eval()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    token, k, v = torch.tensor([[3], [5]]), torch.randn(2, 4, 16), torch.randn(2, 4, 16)
    torch._dynamo.mark_dynamic(k, 1, min=2, max=128)
    torch._dynamo.mark_dynamic(v, 1, min=2, max=128)
    mine, theirs = (token, k, v), (token, k, v)
    for _ in range(12):
        mine, theirs = compiled(*mine), model(*theirs)
        assert torch.equal(mine[0], theirs[0])
    assert mine[1].shape == (2, 16, 16)
    (graph,) = backend.graphs
    assert any(part.replaced for part in graph.parts), graph.parts


def test_on_a_cpu_and_for_gradients_graphs_are_kept(x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("superopt.pytorch.backend"), "_SAID", set[str]())
    model = Model()
    backend = Backend(**SETTINGS)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert torch.equal(torch.compile(model, backend=backend)(x), model(x))
        torch.compile(torch.nn.Sequential(torch.nn.GELU()), backend=backend)(x)
    assert len(backend.graphs) == 2
    mine = [str(w.message) for w in said if "superopt" in str(w.message)]
    assert mine == [
        "superopt replaces nothing of this graph: its tensors are on the CPU; interpret=True runs kernels there, in "
        "Triton's interpreter"
    ]
    assert "interpret=True runs kernels there" in backend.graphs[0].reason
    wanting = Backend(interpret=True, **SETTINGS)
    with torch.enable_grad():
        torch.compile(model, backend=wanting)(x).sum().backward()
    assert "gradients are asked for" in wanting.graphs[0].reason
    assert model.layers[0].mlp.weight.grad is not None


def test_what_is_overwritten_or_viewed_stays_with_pytorch(x: Any) -> None:
    backend = Backend(interpret=True, **SETTINGS)
    compiled, model = torch.compile(Overwrites(), backend=backend), Overwrites()
    mine, theirs = x.clone(), x.clone()
    for got, wanted in zip(compiled(mine), model(theirs), strict=True):
        assert torch.allclose(got, wanted)
    assert torch.allclose(mine, theirs)
    assert not any(p.replaced for p in backend.graphs[0].parts)


class Heads(torch.nn.Module):
    """Its result's dimensions are in another order than memory holds them."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.norm = torch.nn.RMSNorm(32)
        self.query = torch.nn.Linear(32, 32, bias=False)

    def forward(self, x: Any) -> Any:
        made = torch.nn.functional.silu(self.query(self.norm(x)))
        return made.view(2, 4, 4, 8).permute(2, 0, 3, 1)


class Joined(torch.nn.Module):
    """Depends on the order in which memory holds what its heads return."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.heads = Heads()

    def forward(self, x: Any) -> Any:
        made = self.heads(x)
        return made.permute(1, 3, 0, 2).view(8, 32), torch.view_as_real(torch.complex(made, made))[..., 0]


def test_results_are_laid_out_as_they_were(x: Any) -> None:
    model, backend = Joined(), Backend(interpret="cpu", against="operators", **SETTINGS)
    for got, wanted in zip(torch.compile(model, backend=backend)(x), model(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        assert got.stride() == wanted.stride()
    assert [p.path for p in backend.graphs[0].parts if p.replaced] == ["heads"]


class Inner(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return torch.nn.functional.gelu(x * 2 + y)


class Strided(torch.nn.Module):
    """Its inner module gets a tensor transposed, and half of one, perhaps copied."""

    def __init__(self, copied: bool) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.inner, self.copied = Inner(), copied

    def forward(self, x: Any, y: Any) -> Any:
        half = torch.view_as_real(torch.complex(y, y))[..., 0][:, :64]
        turned = torch.view_as_real(torch.complex(x, x))[..., 0].contiguous().transpose(0, 1)
        return self.inner(turned, half.contiguous() if self.copied else half)


def test_what_is_transposed_is_taken_as_it_lies_and_what_has_gaps_is_charged() -> None:
    x, y, after = torch.randn(64, 32), torch.randn(32, 128), list[float]()
    for model in (Strided(copied=True), Strided(copied=False)):
        backend = Backend(interpret="cpu", against="operators", **SETTINGS)
        made, wanted = torch.compile(model, backend=backend)(x, y), model(x, y)
        torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)
        assert made.stride() == wanted.stride()
        (part,) = [p for p in backend.graphs[0].parts if p.path == "inner"]
        assert part.replaced or not model.copied, part.reason
        after.append(part.after)
    assert after[1] - after[0] == pytest.approx(copy_seconds(32 * 64 * 4, target("sm_90")))


def test_what_cannot_be_delivered_stays_with_pytorch_and_is_said(
    x: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A region that is read and yet refused does not end the user's program; a wrong option does."""
    backend: Any = import_module("superopt.pytorch.backend")

    def refused(*_: Any) -> Any:
        raise raised

    monkeypatch.setattr(backend, "superoptimize", refused)
    monkeypatch.setattr(backend, "_KNOWN", {})
    raised: Exception = UnsupportedProgram("expected a program that can be compiled, got another")
    made = superopt.explain(torch.nn.Linear(32, 48).eval(), (x,), **SETTINGS)
    assert not made.replaced
    assert "expected a program that can be compiled, got another" in str(made)
    raised = ZeroDivisionError("division by zero")
    monkeypatch.setattr(backend, "_KNOWN", {})
    with pytest.warns(
        UserWarning, match="superopt could not optimize .*: ZeroDivisionError: division by zero"
    ):
        assert "ZeroDivisionError" in str(superopt.explain(torch.nn.Linear(32, 48).eval(), (x,), **SETTINGS))
    raised = BadOption("expected another option")
    monkeypatch.setattr(backend, "_KNOWN", {})
    with pytest.raises(Exception, match="expected another option"):
        superopt.explain(torch.nn.Linear(32, 48).eval(), (x,), **SETTINGS)


def test_options_are_checked() -> None:
    with pytest.raises(BadOption, match=r"got 'bugdet' \(did you mean 'budget'\?\)"):
        Backend(bugdet=3)
    with pytest.raises(BadOption, match="expected rest to be one of inductor, eager, got 'nvfuser'"):
        Backend(rest="nvfuser")
    with pytest.raises(BadOption, match="expected no mode with backend='superopt', got 'max-autotune'"):
        compile_graph(None, [], mode="max-autotune")
    with pytest.raises(BadOption, match="expected a target of "):
        Backend(target="sm_1")


def test_modules_are_replaced_by_their_names(x: Any) -> None:
    model = Model().eval()
    wanted = model(x)
    done = superopt.replace(model, "layers.*", x, interpret=True, **SETTINGS)
    assert list(done.modules) == ["layers.0", "layers.1", "layers.2"]
    assert done.runs == 1
    assert model.layers[1] is done.modules["layers.1"]
    assert torch.allclose(model(x), wanted, atol=1e-5)
    assert [m.calls["kernels"] for m in done.modules.values()] == [1, 1, 1]
    assert model(x[:2]).shape == (2, 32)
    assert done.modules["layers.0"].calls["original"] == 1
    assert "replaced  layers.2: 1 kernel" in str(done) or "kernels" in str(done)
    again = superopt.replace(model, "layers.*", x, **SETTINGS)
    assert (again.modules, set(again.kept.values())) == ({}, {"it was replaced before"})
    assert [m.calls["original"] for m in done.modules.values()] == [1, 1, 1]
    with pytest.raises(BadInput, match=r"expected modules named 'layer.\*', got none \(did you mean 'layers"):
        superopt.replace(model, "layer.*", x, **SETTINGS)


def test_a_module_that_takes_as_long_as_before_stays(x: Any) -> None:
    model = torch.nn.Sequential(torch.nn.ReLU())
    done = superopt.replace(model, "0", x, **SETTINGS)
    (said,) = done.kept.values()
    assert re.fullmatch(r"nothing is predicted to be faster than \w+: \d+\.\d us", said)
    assert type(model[0]) is torch.nn.ReLU


def test_a_module_that_cannot_be_delivered_stays_and_a_wrong_setting_does_not(
    x: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The modules before it are replaced by then: an error would leave half of a model."""
    replacing: Any = import_module("superopt.pytorch.replace")
    searched = replacing.superoptimize

    def refused(graph: Any, *given: Any) -> Any:
        if graph.outputs[0].shape[-1] == 48:
            raise IllegalProgram("expected a program, got another")
        return searched(graph, *given)

    monkeypatch.setattr(replacing, "superoptimize", refused)
    model = torch.nn.Sequential(Layer(), torch.nn.Linear(32, 48)).eval()
    done = superopt.replace(model, "*", x, **SETTINGS)
    assert list(done.modules) == ["0"]
    assert done.kept == {"1": "expected a program, got another"}
    with pytest.raises(BadOption, match="expected a target of "):
        superopt.replace(Model().eval(), "layers.*", x, target="sm_1", **SETTINGS)
    with pytest.raises(BadOption, match=r"got 'fallbak' \(did you mean 'fallback'\?\)"):
        superopt.replace(model, "*", x, fallbak=True, **SETTINGS)


class Attends(torch.nn.Module):
    """A product of an activation, PyTorch's attention, and another product with a norm before it."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.before = torch.nn.Linear(64, 3 * 64, bias=False)
        self.norm = torch.nn.RMSNorm(64)
        self.after = torch.nn.Linear(64, 64, bias=False)

    def forward(self, x: Any) -> Any:
        q, k, v = (
            t.view(1, -1, 2, 32).transpose(1, 2)
            for t in self.before(torch.nn.functional.silu(x)).chunk(3, -1)
        )
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return torch.nn.functional.silu(self.after(self.norm(y.transpose(1, 2).reshape(1, -1, 64))))


def test_what_surrounds_attention_is_searched_where_the_whole_is_not_faster() -> None:
    """PyTorch's kernel for attention stays, and what precedes and follows it is replaced."""
    said = superopt.explain(Attends().eval(), (torch.randn(1, 16, 64),), against="operators", **SETTINGS)
    (graph,) = said.graphs
    before, _, attention, after = graph.parts  # the second part is views
    assert attention.operations == 1
    said_of_all = r"attention is PyTorch's; for the \d+ operations with it nothing is predicted to be faster"
    assert re.match(said_of_all, attention.reason)
    assert [(p.path, p.replaced) for p in (before, after)] == [("before", True), ("norm + after", True)]
    assert sum(p.operations for p in graph.parts) == graph.operations
    total = sum(p.after for p in graph.parts if p.replaced) * 1e6
    assert f"replaced in all: {total:.1f} us predicted" in str(said)


class Breaks(torch.nn.Module):
    """Branches on numbers, and prints."""

    def forward(self, x: Any) -> Any:
        y = torch.softmax(x, -1)
        if y.sum() > 100:
            y = y + 1
        print(end="")
        return torch.relu(y) * 2


def test_explain_names_every_graph_and_why_it_ended(x: Any) -> None:
    captured: list[int] = []

    def count(graph: Any, _: Any) -> Any:
        captured.append(sum(n.op.startswith("call") for n in graph.graph.nodes))
        return graph.forward

    torch.compile(Breaks(), backend=count, dynamic=False)(x)
    torch.compiler.reset()
    said = superopt.explain(Breaks(), x, **SETTINGS)
    assert len(captured) > 1
    assert [g.operations for g in said.graphs] == captured
    lines = str(said).splitlines()
    for number, operations in enumerate(captured):
        assert f"graph {number}, {operations} operations" in lines
    broken = [each for each in lines if each.startswith("graph break: ")]
    branch = Breaks.forward.__code__.co_firstlineno + 2
    assert len(broken) == 2, lines
    assert any(each.endswith(f"ranching at {__file__}:{branch}") for each in broken), broken
    assert any("builtin" in each for each in broken), broken
    assert not superopt.explain(Model().eval(), x, **SETTINGS).breaks


def test_weights_are_examples_of_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region of an f16 model is tried with its own weights: numbers of size one would overflow f16."""
    seen: list[Any] = []
    examples = regions.Region.examples

    def noted(cut: Any, extents: tuple[int, ...] = ()) -> Any:
        seen.append(made := examples(cut, extents))
        return made

    monkeypatch.setattr(regions.Region, "examples", noted)
    layer = torch.nn.Linear(96, 40, bias=False).eval()
    superopt.explain(layer, (torch.randn(8, 96),), **SETTINGS)
    assert any(torch.equal(t, layer.weight) for t in seen[0])


@pytest.mark.parametrize(
    ("against", "predicted", "faster"),
    [("best", 2.0, False), ("best", 0.995, False), ("best", 0.98, True), ("operators", 2.0, True)],
)
def test_what_a_result_is_faster_than_is_a_setting(against: str, predicted: float, faster: bool) -> None:
    report = Report(
        superopt="", program="f", target="sm_90", settings={"against": against}, improved=True,
        input_predicted_seconds=3.0, baseline="inductor", baseline_seconds=1.0, predicted_seconds=predicted,
    )  # fmt: skip
    assert report.faster is faster


# --- a language model ---------------------------------------------------------------------------------------


def llama(width: int) -> Any:
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=32, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def generated(model: Any, tokens: int, **how: Any) -> Any:
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    return model.generate(ids, max_new_tokens=tokens, do_sample=False, pad_token_id=0, **how)


@pytest.mark.models
def test_a_llama_generates_the_same_tokens() -> None:
    model = llama(32)
    wanted = generated(model, 20)
    backend = Backend(**SETTINGS)
    model.compile(backend=backend)
    assert torch.equal(generated(model, 20), wanted)
    assert wanted.shape == (1, 25)
    assert backend.graphs


@pytest.mark.models
def test_a_llama_generates_the_same_tokens_with_kernels() -> None:
    model = llama(16)
    static = {"cache_implementation": "static", "disable_compile": True}
    wanted = generated(model, 3, **static)
    backend = Backend(interpret=True, optimizers=("saturation",), against="operators", **SETTINGS)
    model.compile(backend=backend, dynamic=False)
    assert torch.equal(generated(model, 3, **static), wanted)
    replaced = [p for g in backend.graphs for p in g.parts if p.replaced]
    assert "model.norm" in "".join(p.path for p in replaced)
    assert any(p.shared for p in replaced)


@pytest.mark.models
def test_explain_names_every_part_of_a_llama() -> None:
    model = llama(16)
    said = superopt.explain(
        model, {"input_ids": torch.tensor([[3, 1, 4, 1, 5]])}, optimizers=("saturation",), **SETTINGS
    )
    (graph,) = said.graphs
    assert sum(p.operations for p in graph.parts) == graph.operations
    assert all(p.reason for p in graph.parts if not p.replaced)
    shared = {n: [p.shared for p in graph.parts if p.path.startswith(f"model.layers.{n}.")] for n in (0, 1)}
    assert shared[0]
    assert shared == {0: [False] * len(shared[0]), 1: [True] * len(shared[0])}
    text = str(said)
    assert "model.layers.0" in text
    assert (
        "kept      model.embed_tokens (1 operation): it has no operation that a kernel could compute" in text
    )
    assert model.training is False


def test_modules_keep_their_names_where_forward_is_decorated() -> None:
    class Inner(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.relu(x)

    def decorated(forward: Any) -> Any:
        def wrapper(*args: Any, **given: Any) -> Any:
            return forward(*args, **given)

        return wrapper

    class Outer(torch.nn.Module):
        inner: Any

        @decorated
        def forward(self, x: Any) -> Any:
            return self.inner[0](x)

    found: list[tuple[str, ...]] = []

    def backend(graph: Any, _: Any) -> Any:
        found.extend(regions.modules_of(n) for n in graph.graph.nodes if n.op == "call_function")
        return graph

    module: Any = Outer()
    module.inner = torch.nn.ModuleList([Inner()])
    torch.compile(module, backend=backend)(torch.ones(3))
    assert found == [("inner.0",)]


def test_a_graph_that_vmap_is_at_work_in_is_kept_whole() -> None:
    """Reading a part of it would enter what another part leaves, and torch.compile asserts that nothing did."""

    def of_row(row: Any) -> Any:
        return torch.softmax(row, -1) * 2

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.relu(torch.vmap(of_row)(x)) @ x.T

    x, backend = torch.randn(8, 16), Backend(budget=1, store="none", interpret=True)
    with torch.no_grad(), pytest.warns(UserWarning, match="torch.func is at work"):
        assert torch.equal(torch.compile(Model(), backend=backend)(x), Model()(x))
    assert "torch.func is at work in it" in backend.graphs[0].reason
