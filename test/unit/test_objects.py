"""Arguments and results that are objects, and what a call leaves in its arguments."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import superopt
from superopt.errors import BadInput, UnsupportedProgram

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SETTINGS: dict[str, Any] = {"budget": 1, "store": None, "against": "operators", "interpret": "cpu"}


class Layer:
    """Keys of one layer, None at first."""

    def __init__(self, keys: Any = None) -> None:
        self.keys = keys
        self.length = 0 if keys is None else keys.shape[0]
        self.device = torch.device("cpu")


class Cache:
    """As those of transformers: layers, which grow, and a class of new ones."""

    scale = 2.0

    def __init__(self, *keys: Any) -> None:
        self.layers = [Layer(k) for k in keys]
        self.made_of: type[Any] = Layer

    def append(self, new: Any) -> Any:
        layer = self.layers[0]
        layer.keys = new if layer.keys is None else torch.cat([layer.keys, new])
        layer.length += new.shape[0]
        return layer.keys * self.scale


class Attends(torch.nn.Module):
    """Appends to its cache, and returns it."""

    def forward(self, x: Any, cache: Cache) -> Any:
        return torch.softmax(x @ cache.append(x).T, -1), {"cache": cache}


class Fills(torch.nn.Module):
    """Puts tensors into a dictionary and a list, which are one inside the other."""

    def forward(self, x: Any, held: dict[str, Any]) -> Any:
        held["sum"] = torch.relu(x) + held["all"][0]
        held["all"].append(x * 2)
        return held["sum"] * 3


def tensors_of(held: Any) -> list[Any]:
    """Everything in a cache or a container, in order."""
    if isinstance(held, Cache | Layer):
        return [type(held).__name__, *tensors_of(vars(held))]
    leaves = torch.utils._pytree.tree_leaves_with_path(held)
    inner = [(str(path), value) for path, value in leaves]
    opened = [(name, tensors_of(x) if isinstance(x, Cache | Layer) else [x]) for name, x in inner]
    return [x for name, values in opened for x in (name, *values)]


def assert_same(mine: Any, theirs: Any) -> None:
    for a, b in zip(tensors_of(mine), tensors_of(theirs), strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b)
        else:
            assert a == b


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture
def x() -> Any:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("module", "state"),
    [
        (Attends(), lambda: Cache(torch.ones(3, 8))),
        (Attends(), lambda: Cache(None)),
        (Fills(), lambda: {"all": [torch.ones(4, 8)]}),
    ],
    ids=["a cache", "an empty cache", "containers"],
)
def test_a_call_leaves_what_the_original_leaves(
    module: Any, state: Callable[[], Any], x: Any, tmp_path: Path
) -> None:
    example = state()
    made = superopt.optimize(module.eval(), (x, example), **SETTINGS)
    assert_same(example, state())
    made.save(tmp_path / "bundle")
    loaded = superopt.load(tmp_path / "bundle", original=module, interpret="cpu")
    for each in (made, copy.deepcopy(made), loaded):
        mine, theirs = state(), state()
        inner = mine.layers[0] if isinstance(mine, Cache) else mine["all"]
        got, wanted = each(x + 1, mine), module(x + 1, theirs)
        assert_same(got, wanted)
        assert_same(mine, theirs)
        assert (mine.layers[0] if isinstance(mine, Cache) else mine["all"]) is inner
        if isinstance(mine, Cache):
            assert got[1]["cache"] is mine
        assert each.calls == {"kernels": 1, "original": 0}


def test_objects_are_compared_in_each_call(x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = superopt.optimize(Attends().eval(), (x, Cache(torch.ones(3, 8))), **SETTINGS)
    with pytest.raises(BadInput, match=r"'cache.layers.0.keys'.* of \(3, 8\) .*, got \(5, 8\)"):
        made(x, cache=same_length(Cache(torch.ones(5, 8)), 3))
    with pytest.raises(BadInput, match=r"expected 3 for 'cache.layers.0.length', which .*, got 7"):
        made(x, cache=same_length(Cache(torch.ones(3, 8)), 7))
    with pytest.raises(BadInput, match=r"expected a tensor for 'cache.layers.0.keys', got None"):
        made(x, cache=Cache(None))
    with pytest.raises(BadInput, match=r"expected tensor for 'cache.layers.0.keys', which .*, got nothing"):
        made(x, cache=Cache())
    monkeypatch.setattr(Cache, "scale", 3.0)
    with pytest.raises(BadInput, match=r"expected 'scale' of Cache to be 2.0, as when .*, got 3.0"):
        made(x, Cache(torch.ones(3, 8)))


def same_length(cache: Cache, length: int) -> Cache:
    cache.layers[0].length = length
    return cache


def scaled(x: Any, held: Any) -> Any:
    return torch.relu(x) * held.scaled()


def test_another_class_of_the_same_name_is_another_argument(x: Any) -> None:
    def class_of(factor: float) -> Any:
        class Held:
            def __init__(self, y: Any) -> None:
                self.y = y

            def scaled(self) -> Any:
                return self.y * factor

        return Held

    first, second = class_of(2.0), class_of(3.0)
    made = superopt.optimize(scaled, (x, first(x)), **SETTINGS)
    torch.testing.assert_close(made(x, first(x)), torch.relu(x) * x * 2)
    with pytest.raises(BadInput, match="as it was, got another class of that name"):
        made(x, second(x))


@dataclass
class Made:
    y: Any
    n: int = 3


def in_a_dataclass(x: Any) -> Made:
    return Made(torch.relu(x) / 2)


def test_dataclasses_are_results(x: Any) -> None:
    made = superopt.optimize(in_a_dataclass, (x,), **SETTINGS)
    got = made(x)
    assert type(got) is Made
    assert got.n == 3
    assert torch.equal(got.y, torch.relu(x) / 2)


class Guarded:
    """Holds what no kernel can take."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Slotted:
    """Holds its tensor elsewhere than other objects do."""

    __slots__ = ("y",)

    def __init__(self, y: Any) -> None:
        self.y = y


def guarded(x: Any) -> Any:
    return x * 2, Guarded()


def of_two(x: Any, a: Cache, b: Cache) -> Any:
    return x * a.append(x).sum() + b.append(x).sum()


def queued(x: Any, queue: Any) -> Any:
    queue.append(x * 2)
    return torch.relu(x) * queue[0]


def test_what_cannot_be_opened_or_left_is_refused(x: Any) -> None:
    def takes(x: Any, held: Any) -> Any:
        return torch.relu(x) * 2

    for held in (Guarded(), Slotted(x), torch.nn.ReLU(), object()):
        with pytest.raises(
            UnsupportedProgram, match="expected arguments of tensors, numbers, texts and objects that hold"
        ):
            superopt.optimize(takes, (x, held), **SETTINGS)
    with pytest.raises(UnsupportedProgram, match=r"expected results of tensors, .*, got lock"):
        superopt.optimize(guarded, (x,), **SETTINGS)
    with pytest.raises(
        UnsupportedProgram, match=r"changes lists, dictionaries and objects .*, got .* a deque"
    ):
        superopt.optimize(queued, (x, deque([x])), **SETTINGS)
    cache = Cache(torch.ones(3, 8))
    with pytest.raises(
        UnsupportedProgram, match="expected each object in one place of the arguments, got one in two"
    ):
        superopt.optimize(of_two, (x, cache, cache), **SETTINGS)


def test_lists_that_are_changed_are_in_one_place(x: Any) -> None:
    def both(x: Any, a: Any, b: Any) -> Any:
        a.append(torch.relu(x))
        b.append(x * 2)
        return x * len(a)

    made = superopt.optimize(both, (x, [x], [x]), **SETTINGS)
    mine: tuple[list[Any], list[Any]] = ([x], [x])
    made(x, *mine)
    assert_same(mine, ([x, torch.relu(x)], [x, x * 2]))
    one = [x]
    with pytest.raises(BadInput, match="expected arguments that are each in one place, got one in two"):
        made(x, one, one)
    assert len(one) == 1

    def one_in_the_other(x: Any, a: Any, b: Any) -> Any:
        a["held"] = b
        b.append(torch.relu(x))
        return x * 2

    with pytest.raises(
        UnsupportedProgram, match="change arguments that are each in one place, got one in two"
    ):
        superopt.optimize(one_in_the_other, (x, {}, [x]), **SETTINGS)


def test_objects_have_no_dimensions_that_vary(x: Any) -> None:
    n = torch.export.Dim("n", max=64)
    with pytest.raises(
        BadInput, match=r"expected dynamic_shapes with arguments of tensors, got Cache.*static size"
    ):
        superopt.optimize(Attends().eval(), (x, Cache(x)), dynamic_shapes=({0: n}, None), **SETTINGS)


@pytest.mark.parametrize("fullgraph", [True, False])
def test_in_a_graph_of_torch_compile_the_original_runs(x: Any, fullgraph: bool) -> None:
    torch.compiler.reset()  # a warning is given where it is traced
    for module, state in ((Attends(), Cache(torch.ones(3, 8))), (Fills(), {"all": [torch.ones(4, 8)]})):
        made = superopt.optimize(module.eval(), (x, copy.deepcopy(state)), **SETTINGS)
        mine, theirs = copy.deepcopy(state), copy.deepcopy(state)
        with pytest.warns(
            UserWarning, match="takes objects or changes its arguments, which a graph of torch.comp"
        ):
            got = torch.compile(made, backend="eager", fullgraph=fullgraph)(x, mine)
        assert_same(got, module(x, theirs))
        assert_same(mine, theirs)


# --- caches of transformers ----------------------------------------------------------------------------------


def llama() -> tuple[Any, Any]:
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=32, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval(), config


@pytest.mark.models
def test_layers_of_a_llama_are_replaced_and_it_generates_the_same() -> None:
    """The prompt runs kernels, which fill the `DynamicCache`; later tokens, for which it is longer, the original."""
    model, _ = llama()
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    how = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    wanted = model.generate(ids, **how)
    done = superopt.replace(model, "model.layers.*.self_attn", ids, **SETTINGS)
    assert list(done.modules) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    with pytest.warns(
        UserWarning, match=r"'(past_key_values|cache)\.layers\.0\.keys', which the program was made for"
    ):
        assert torch.equal(model.generate(ids, **how), wanted)
    assert [m.calls for m in done.modules.values()] == [{"kernels": 1, "original": 5}] * 2


def decoded(model: Any, cache: Any, tokens: int) -> list[int]:
    """Tokens after a prompt, one at a time."""
    token, out = torch.tensor([[3, 1, 4]]), list[int]()
    for _ in range(tokens):
        token = model(token, past_key_values=cache).logits[:, -1:].argmax(-1)
        out.append(int(token))
    return out


@pytest.mark.models
def test_a_cache_of_static_size_decodes_with_one_set_of_kernels() -> None:
    transformers: Any = pytest.importorskip("transformers")
    model, config = llama()

    def cache() -> Any:
        return transformers.StaticCache(config=config, max_cache_len=12)

    theirs = cache()
    wanted = decoded(model, theirs, 6)
    started = cache()
    decoded(model, started, 1)
    inputs = {"input_ids": torch.tensor([[7]]), "past_key_values": started}
    done = superopt.replace(model, "model.layers.*.self_attn", inputs, **SETTINGS)
    mine = cache()
    assert decoded(model, mine, 6) == wanted
    assert [m.calls["kernels"] for m in done.modules.values()] == [5] * len(done.modules)
    assert done.modules
    for a, b in zip(mine.layers, theirs.layers, strict=True):
        torch.testing.assert_close(a.keys, b.keys)
        torch.testing.assert_close(a.values, b.values)
        assert a.cumulative_length == b.cumulative_length == 8


def test_positions_are_cut_in_objects_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of [batch, width] and a cache of [batch, positions, width] with as many positions, the cache is cut."""
    from superopt.transforms.ingest import against_module, from_torch
    from superopt.transforms.ingest.aten import HANDLERS

    class Keys:
        def __init__(self, keys: Any) -> None:
            self.keys = keys

    class Reads(torch.nn.Module):
        def forward(self, x: Any, cache: Any) -> Any:
            return torch.tanh(cache.keys).sum(2) * x.sum()

    drawn = torch.Generator().manual_seed(1)
    given = torch.randn(2, 9, generator=drawn), Keys(torch.randn(2, 9, 64, generator=drawn))
    monkeypatch.setattr(against_module, "MOST_ELEMENTS", 1500)
    (message,) = from_torch(Reads(), given).diagnostics.messages
    assert "the import is compared with the module on the first 2 positions" in message.message
    monkeypatch.setitem(HANDLERS, "tanh", HANDLERS["erf"])
    with pytest.raises(UnsupportedProgram, match=r"expected to read what the module computes"):
        from_torch(Reads(), given)
