"""Decisions of passes: defaults change nothing, every choice computes the same, equal surroundings are one site."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from test_layouts import by_blocks, sample, views

from superopt.cost.gpus import target
from superopt.diagnostics import Diagnostics
from superopt.errors import BadOption, Location
from superopt.program import KernelGraph, Node, TensorType, TileProgram, Value
from superopt.transforms.fingerprints import fingerprints
from superopt.transforms.lower import lower
from superopt.transforms.lower.choose_layouts import ChooseLayouts, choose_layouts
from superopt.transforms.schedule.choose_launch import ChooseLaunch, launch_of
from superopt.transforms.schedule.choose_tiles import ChooseTiles
from superopt.transforms.tunable import Picked, Site, Tunable, read_config
from superopt.verify import certify, program_hash

H100 = target("sm_90")
QUIET = Diagnostics()


def product(rows: int = 64, names: str = "xw") -> KernelGraph:
    x, w = (Value(TensorType(s, "f16"), n) for s, n in zip(((rows, 64), (64, 64)), names, strict=True))
    y = Value(TensorType((rows, 64), "f16"), "y")
    return KernelGraph("f", [x, w], [Node("matmul", (x, w), (y,))], [y])


@pytest.mark.parametrize("pass_", [ChooseTiles(), ChooseLaunch()], ids=lambda p: p.flag)
def test_defaults_change_nothing(pass_: Tunable) -> None:
    lowered = lower(product(), H100)
    assert program_hash(pass_.apply(lowered, QUIET)) == program_hash(lowered)
    (site,) = pass_.sites(lowered, QUIET)
    assert len(site.choices) > 1
    assert site.choices[0] == site.default
    same = pass_.applied(lowered, {site.at: site.default}, QUIET)
    assert program_hash(same) == program_hash(lowered)


def test_each_tile_and_layout_computes_the_same() -> None:
    lowered = lower(product(), H100)
    (site,) = ChooseTiles().sites(lowered, QUIET)
    made = [ChooseTiles().applied(lowered, {site.at: c}, QUIET) for c in site.choices]
    assert len(set(map(program_hash, made))) == len(made), "each choice is another program"
    assert all(certify(product(), m).equivalent for m in made[::8])
    changed = 0
    for seed in range(20):
        graph = sample(seed)
        for site in ChooseLayouts().sites(graph, QUIET):
            for choice in site.choices:
                other = ChooseLayouts().applied(graph, {site.at: choice}, QUIET)
                changed += program_hash(other) != program_hash(choose_layouts(graph, H100))
                assert certify(graph, other).equivalent
    assert changed > 3


def test_launches_are_taken() -> None:
    lowered = lower(product(), H100)
    (site,) = ChooseLaunch().sites(lowered, QUIET)
    for choice in site.choices:
        (node,) = ChooseLaunch().applied(lowered, {site.at: choice}, QUIET).nodes
        assert isinstance(node.body, TileProgram)
        warps, stages, hints, descriptors, separate, unmasked = launch_of(node.body)
        flags = f"hints={int(hints)} descriptors={int(descriptors)} separate={int(separate)}"
        flags += f" unmasked={int(unmasked)}"
        assert choice == f"warps={warps} stages={stages} {flags}"


def layers(count: int) -> KernelGraph:
    """The same kernels and views `count` times, one after the other."""
    x = Value(TensorType((32, 32), "f32"), "x")
    nodes: list[Node] = []
    value = x
    for _ in range(count):
        rng = random.Random(4)
        nodes.append(by_blocks(value, "exp", rng))
        nodes.append(Node("transpose", (nodes[-1].result,), (Value(x.type),), {"perm": (1, 0)}))
        value = nodes[-1].result
    return KernelGraph("layers", [x], nodes, [value])


def test_equal_layers_are_one_site() -> None:
    graph = layers(8)
    kernels = [n for n in graph.nodes if n.op == "custom"]
    near = fingerprints(graph, 1)
    assert len({near[k] for k in kernels[1:]}) == 1, "the inner ones look alike"
    assert near[kernels[0]] != near[kernels[1]], "the first one reads an argument"
    assert len(set(fingerprints(graph, 0).values())) == 2
    assert len({fingerprints(graph, 3)[k] for k in kernels}) > 2, "further away lie the ends"


def test_names_and_places_do_not_matter_to_a_fingerprint() -> None:
    one, other = product(), product(names="ab")
    assert list(fingerprints(one, 2).values()) == list(fingerprints(other, 2).values())
    assert list(fingerprints(one, 2).values()) != list(fingerprints(product(rows=128), 2).values())
    moved = replace(one, nodes=[replace(n, attrs={"transpose_b": True}) for n in one.nodes])
    assert list(fingerprints(one, 0).values()) != list(fingerprints(moved, 0).values())


def test_who_is_told_what_is_not_valid_does_the_default() -> None:
    asked: list[int] = []

    def others() -> list[str]:
        asked.append(1)
        return ["a", "b"]

    assert Picked({"s": "b"})(Site("s", "a", others)) == "b"
    assert Picked({"s": "c"})(Site("s", "a", others)) == "a"
    assert len(asked) == 2
    picked = Picked()
    assert picked(Site("s", "a", others)) == "a"
    assert len(asked) == 2, "who does not want to know is not told"
    picked = Picked({"s": "b"})
    assert [picked(Site("s", "a", others)), picked(Site("s", "b", others))] == ["b", "b"]


def test_a_malformed_file_is_located(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    for text, line, column in (('{"choose-tiles":\n {bad', 2, 3), ("[]", 0, 0)):
        path.write_text(text)
        with pytest.raises(BadOption, match="expected a configuration") as caught:
            read_config(str(path))
        assert caught.value.location == Location(str(path), line, column)


@pytest.mark.parametrize("text", ['{"p": {"s": 1}}', '{"p": []}', "{", '"p": 1', '{"p": {"s": "c"}'])
def test_what_is_no_configuration(text: str) -> None:
    with pytest.raises(BadOption, match="expected a configuration"):
        read_config(text)
    assert read_config('"p": {"s": "c"}') == read_config('{"p": {"s": "c"}}') == {"p": {"s": "c"}}


def test_random_views_have_sites_that_are_asked_once() -> None:
    rng = random.Random(1)
    for seed in range(30):
        graph = sample(seed)
        again = views(graph.outputs[0], rng)
        longer = replace(graph, nodes=[*graph.nodes, *again], outputs=[again[-1].result])
        sites = ChooseLayouts().sites(longer, QUIET)
        assert len({s.at for s in sites}) == len(sites)
        assert all(len(s.choices) > 1 for s in sites)
