"""Sources of a bundle are those that superopt writes: what else a Python file could say is no matter of names."""

from __future__ import annotations

import tokenize

import pytest
from weakened import weakened

from superopt.verify.ttir.same_source import same_source

KERNEL = (
    "@triton.jit\ndef k(x_ptr, o_ptr):\n    # a comment\n    x = tl.load(x_ptr + 1)\n    tl.store(o_ptr, x)\n"
)
MODULE = """import torch

_ARRAYS = {}
_LOADED = {}


def constant(name, device):
    _LOADED[name] = _ARRAYS[name]


def run(a, prepared=None):
    sin = torch.cos(a, out=a)
    cos = torch.sin(a)
    return (sin + cos,)
"""
EVIL = "raise SystemExit"


def test_sources_are_compared_up_to_variables() -> None:
    second = KERNEL.replace("x_ptr", "in0").replace("# a comment", "# another").replace(" x", " value")
    second = second.replace("o_ptr, x", "o_ptr, value")
    assert same_source(KERNEL, second)
    assert same_source(MODULE.replace("sin =", "value =").replace("(sin +", "(value +"), MODULE)
    for old, new in (
        ("tl.load", "tl.store"),
        ("+ 1", "+ 2"),
        ("o_ptr, x", "x_ptr, x"),
        ("def k", "def f"),
        ("x_ptr +", "o_ptr +"),
    ):
        assert not same_source(KERNEL, KERNEL.replace(old, new)), old
    assert not same_source(KERNEL, KERNEL + "import os\n")
    assert not same_source("(", "(")


def exchanged(text: str, a: str, b: str) -> str:
    return text.replace(a, "%").replace(b, a).replace("%", b)


@pytest.mark.parametrize(
    ("guard", "instead", "text"),
    [
        # What `tokenize` takes for comments, and other readers of the file for code.
        ("set(first) - set(second) - _PLAIN or ", "", f"# a\r{EVIL}\n{MODULE}"),
        ("set(first) - set(second) - _PLAIN or ", "", f"# a\u2028{EVIL}\n{MODULE}"),
        ("set(first) - set(second) - _PLAIN or ", "", f"# a\x0c{EVIL}\n{MODULE}"),
        ("_CODING.search(first) and", "False and", f"# coding: unicode_escape\n# \\x0a{EVIL}\n{MODULE}"),
        ("_is_text(line[0])", "line[0][0] == tokenize.STRING", f'f"{{exit()}}"\n{MODULE}'),
        # Names that are not those of variables.
        ('before in (".", "def")', 'before == "def"', exchanged(MODULE, "sin", "cos")),
        ("a[i + 1][1] == \"=\"", "False", MODULE.replace("prepared", "other")),
        ("if text not in own[0] or other not in own[1]", "if False", MODULE.replace("torch.", "name.")),
        ("level > 0 and", "True and", MODULE.replace("_LOADED[name] = _ARRAYS", "_ARRAYS[name] = _LOADED")),
    ],
)  # fmt: skip
def test_what_is_no_name_of_a_variable(guard: str, instead: str, text: str) -> None:
    module = weakened("superopt.verify.ttir.same_source", guard, instead)
    assert text != MODULE
    assert not same_source(text, MODULE)
    if "exit" not in text or not hasattr(tokenize, "FSTRING_START"):  # tokens of their own in Python 3.12
        assert module.same_source(text, MODULE)
