"""Every rule has a file in test/rules, which lit runs; the text of tile loops; all rules together."""

from __future__ import annotations

from pathlib import Path

import pytest
from parse_terms import parse_terms
from tile_terms import wrong_samples
from try_rules import trials

from superopt.errors import BadInput
from superopt.transforms.core import _egraph
from superopt.transforms.tile_saturation.encode import Encoder
from superopt.transforms.tile_saturation.saturate import enabled_rules
from superopt.transforms.tile_saturation.terms import render

RULES = Path(__file__).parents[1] / "rules"

TOGETHER = """
input x[8], y[8], z[1]
temporary r[1], s[1], t[1], u[1], a[8], b[8]
output out[8]
start r[:] = -inf
for k in 0..8 by tile_k:
  r[:] = max(r[:], reduce_max(x[k], dims=-1))
start s[:] = 0
for k in 0..8 by tile_k:
  s[:] = (s[:] + reduce_sum(exp((x[k] - r[:])), dims=-1))
start t[:] = 0
for k in 0..8 by tile_k:
  t[:] = (t[:] + (reduce_sum(y[k], dims=-1) / z[:]))
for n in 0..8 by tile_n:
  a[n] = (x[n] * s[:])
for n in 0..8 by tile_n:
  b[n] = square(a[n])
u[:] = sqrt(z[:])
for n in 0..8 by tile_n:
  out[n] = ((b[n] + t[:]) / u[:])
"""


def test_every_rule_has_a_file_where_it_fires_and_where_it_is_refused() -> None:
    assert {p.stem for p in RULES.glob("*.loops")} == {name for name, *_ in _egraph.rules()}
    for name, before, after, guards, source, _ in _egraph.rules():
        text = (RULES / f"{name}.loops").read_text()
        guarded = f"Guard: {'. And: '.join(asks for _, asks in guards)}. " if guards else ""
        assert text.startswith(f"// {before}  ->  {after}\n// {guarded}Source: {source}.\n"), name
        assert "// CHECK: --- fires: fired {{[1-9]}}" in text, name
        assert "--- refused: fired 0" in text, name
    assert len([r for r in _egraph.rules() if r[4] == "A.2"]) == 31


def test_a_file_fails_where_its_rule_is_not_applied() -> None:
    """The lit tests can fail: without its rule a program has no others."""
    found = trials((RULES / "loop-fusion.loops").read_text(), ["comm-add"])
    assert [(t.fired, t.others) for t in found] == [(0, ()), (0, ())]


@pytest.mark.parametrize("seed", range(3))
def test_all_rules_together_stay_sound(seed: int) -> None:
    p = parse_terms(TOGETHER)
    encoder = Encoder(p)
    rules = enabled_rules(["loop-fission", "loop-fission-tail"])
    encoder.graph.saturate(rules, 6, 4000, 1 << 30, 20.0)
    assert encoder.graph.count(encoder.root) > 1000
    assert wrong_samples(encoder, p, 150, seed) == 0


def test_text_is_read_as_it_is_printed() -> None:
    p = parse_terms(TOGETHER)
    declared = "\n".join(TOGETHER.split("\n")[1:4]) + "\n"
    assert render(p.body) == TOGETHER.split("\n", 4)[4]
    assert render(parse_terms(declared + render(p.body)).body) == render(p.body)
    other = "input x[4, 8], w[4, 2, 2]\noutput y[8, 4]\n"
    other += "for h in 0..4 by 1:\n  y[block h of 2, :] = transpose(x[:, 0:2], perm=1x0)\n"
    assert render(parse_terms(other).body) == "".join(other.splitlines(keepends=True)[2:])


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "statements"),
        ("input x[8]\ny[:] = x[:]\n", 2, "a tensor that was declared"),
        ("input x[8]\noutput y[8]\ny[:] = (x[:] x[:])\n", 3, "an operator"),
        ("input x[8]\noutput y[8]\ny[n] = x[:]\n", 3, "a loop over 'n'"),
        ("input x[8]\noutput y[8]\ny[:] = x[:, :]\n", 3, "1 indices"),
        ("input x[8]\noutput y[8]\ny[:] = x[:]\n    y[:] = x[:]\n", 4, "indentation"),
        ("output y[1]\nstart y[:] = 0\n", 2, "a loop after 'start'"),
    ],
)
def test_bad_text_is_told_where_it_stands(text: str, line: int, message: str) -> None:
    with pytest.raises(BadInput, match=message) as raised:
        parse_terms(text, "f.loops")
    assert raised.value.location.line == line


def test_a_start_that_the_graph_has_no_number_for_is_an_error() -> None:
    text = "input x[8]\noutput y[1]\nstart y[:] = 1\nfor k in 0..8 by 4:\n  y[:] = (y[:] + reduce_sum(x[k], dims=-1))\n"
    with pytest.raises(ValueError, match="a start of 0 or minus infinity, got 1"):
        Encoder(parse_terms(text))
