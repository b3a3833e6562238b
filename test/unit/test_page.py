"""The page of a run: well-formed HTML that needs nothing else, with everything that it promises.

`test_browser.py` looks at it in a browser.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import pytest

import superopt
from superopt import page as page_module
from superopt.driver.main import run as superopt_opt
from superopt.errors import BadInput
from superopt.page import MOST_BYTES, page

PROGRAM = """func.func @norm_linear(%x: tensor<16x64xf16>, %w: tensor<64x128xf16>) -> tensor<16x128xf16> {
  %0 = "kernel.square"(%x) : (tensor<16x64xf16>) -> tensor<16x64xf16>
  %1 = "kernel.reduce_sum"(%0) {dims = array<i64: 1>, keepdims = true} : (tensor<16x64xf16>) -> tensor<16x1xf16>
  %2 = "kernel.rsqrt"(%1) : (tensor<16x1xf16>) -> tensor<16x1xf16>
  %3 = "kernel.mul"(%x, %2) : (tensor<16x64xf16>, tensor<16x1xf16>) -> tensor<16x64xf16>
  %4 = "kernel.matmul"(%3, %w) : (tensor<16x64xf16>, tensor<64x128xf16>) -> tensor<16x128xf16>
  return %4 : tensor<16x128xf16>
}
"""


class Page(HTMLParser):
    """Checks that tags nest, and collects what a test asks for."""

    VOID: ClassVar[set[str]] = {"meta", "br", "img", "link", "input", "hr"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another"

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [a for t, a in self.tags if t == tag and all(a.get(k) == v for k, v in wanted.items())]


@pytest.fixture(scope="module")
def result() -> Any:
    return superopt.optimize(
        PROGRAM, target="h100", budget=6, store=None, against="operators", optimizers=("mugraph",)
    )


@pytest.fixture(scope="module")
def shown(result: Any) -> Page:
    return Page(page(result.outcome))


def test_it_needs_nothing_else(result: Any, shown: Page) -> None:
    text = page(result.outcome)
    assert len(text.encode()) < MOST_BYTES
    assert not re.search(r"https?://|<script [^>]*src|@import|url\((?!#)", text)
    assert not any(a.get("src") or a.get("href") for _, a in shown.tags)


def test_every_part_is_there(result: Any, shown: Page) -> None:
    assert {a.get("id") for _, a in shown.tags} >= {
        "verdict",
        "graphs",
        "kernels",
        "funnel",
        "certificate",
        "again",
    }
    assert len(shown.all("section")) == len(result.report.kernels)
    graphs = len(shown.all("svg", **{"class": "graph"}))
    assert graphs >= 3, "before, after, and inside a kernel"
    for kind in [f"roofline r{i}" for i in range(len(result.report.kernels))] + ["best"]:
        assert len(shown.all("svg", **{"class": f"plot {kind}"})) == 1
    said = " ".join(shown.text["td"])
    for kernel in result.report.kernels:
        assert kernel.name in shown.text["h3"]
        assert f"{kernel.shared_bytes} bytes" in said
    for reason in result.report.funnel.rejected:
        assert reason in said
    for candidate in result.report.candidates[:200]:
        assert candidate.outcome in said
    listed = "".join(shown.text["span"])
    assert result.triton.split("@triton.jit")[1].strip() in listed
    compiled = result.outcome.compiled[0]
    instructions = [
        line for line in compiled.ptx.splitlines() if line.endswith(";") and ".section" not in line
    ]
    assert [line for line in instructions if line not in listed] == []
    assert "tt.func public @norm_linear_0" in listed
    assert "EXIT ;" in listed
    sources = "".join(shown.text["pre"])
    assert "superopt-verify --replay" in sources
    assert "target=sm_90" in sources
    assert f"{result.certificate.delta:.1e}" in " ".join(shown.text["p"])


def test_graphs_show_each_operator_once(result: Any, shown: Page) -> None:
    labels = shown.text["text"]
    assert [n.op for n in result.outcome.original.nodes if n.op not in labels] == []
    assert any("imap {" in label for label in labels)
    assert any("omap {" in label for label in labels)
    assert "f16[64, 128]" in labels


def test_names_are_escaped() -> None:
    graph = superopt.optimize(PROGRAM.replace("@norm_linear", '@"a<b>&c"'), budget=1, store=None)
    text = page(graph.outcome)
    assert "a<b>" not in text
    assert "a&lt;b&gt;&amp;c" in text


def test_a_large_program_is_cut(result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = len(page(result.outcome).encode())
    monkeypatch.setattr(page_module, "MOST_BYTES", whole - 1)
    text = page(result.outcome)
    assert len(text.encode()) < whole
    assert "more lines: see the bundle" in text
    Page(text)
    monkeypatch.setattr(page_module, "MOST_BYTES", 1000)
    with pytest.raises(BadInput, match="expected a program whose page has at most 1000 bytes, got"):
        page(result.outcome)


def test_every_entrance_writes_it(result: Any, tmp_path: Path) -> None:
    assert result.save_report(tmp_path / "a.html").read_text() == page(result.outcome)
    assert result.save_report(tmp_path / "a.json").read_text() == result.report.model_dump_json()
    assert 'srcdoc="&lt;!DOCTYPE html&gt;' in result._repr_html_()
    (tmp_path / "x.mlir").write_text(PROGRAM)
    arguments = [str(tmp_path / "x.mlir"), "--superoptimize=target=H100 budget=1 store=none", "--report"]
    assert superopt_opt([*arguments, str(tmp_path / "b.html"), "-o", str(tmp_path / "b.ptx")]) == 0
    Page((tmp_path / "b.html").read_text())
    assert ".entry" in (tmp_path / "b.ptx").read_text()
