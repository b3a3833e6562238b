"""The page of a run: well-formed HTML that needs nothing else, with everything that it promises.

`test_browser.py` looks at it in a browser.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import pytest

import superopt
from superopt import page as page_module
from superopt.again import commands
from superopt.driver.main import run as superopt_opt
from superopt.errors import BadInput
from superopt.page import MOST_BYTES, page

DYNAMIC = """func.func @f(%x: tensor<?x64xf32>, %w: tensor<64x32xf32>) -> tensor<?x32xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %x, %c0 : tensor<?x64xf32>
  %0 = tensor.empty(%n) : tensor<?x64xf32>
  %1 = linalg.exp ins(%x : tensor<?x64xf32>) outs(%0 : tensor<?x64xf32>) -> tensor<?x64xf32>
  %2 = tensor.empty(%n) : tensor<?x32xf32>
  %3 = linalg.fill ins(%zero : f32) outs(%2 : tensor<?x32xf32>) -> tensor<?x32xf32>
  %4 = linalg.matmul ins(%1, %w : tensor<?x64xf32>, tensor<64x32xf32>) outs(%3 : tensor<?x32xf32>) -> tensor<?x32xf32>
  return %4 : tensor<?x32xf32>
}
"""
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
    assert "superopt-verify --replay norm_linear/certificate.json" in sources
    assert "against=operators" in sources
    assert "seed=" not in sources, "a default"
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


def run_again(shown: Page, folder: Path) -> list[str]:
    """Run every command of the page in a folder, as pasted; returns them."""
    commands = [c for c in shown.text["pre"] if c.startswith("superopt-")]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": path, "SUPEROPT_STORE": "none"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return commands


@pytest.mark.torch
def test_its_commands_run_as_they_are_printed(result: Any, shown: Page, tmp_path: Path) -> None:
    searched, *others = run_again(shown, tmp_path)
    first, *text, _ = searched.splitlines()
    assert first.startswith("superopt-opt - '--superoptimize=budget=6 against=operators optimizers=mugraph' ")
    assert superopt.optimize("\n".join(text), budget=1, store=None).outcome.original.name == "norm_linear"
    assert [c.split()[0] for c in others] == [
        "superopt-opt",
        "superopt-verify",
        "superopt-verify",
        "superopt-run",
    ]
    made = (tmp_path / "norm_linear" / "kernels.py").read_text()
    assert result.triton.split("@triton.jit")[1] in made


@pytest.mark.torch
def test_a_text_with_a_range_is_in_its_commands(tmp_path: Path) -> None:
    result = superopt.optimize(DYNAMIC, budget=1, store=None, dynamic="n=1..9", against="operators")
    searched, verified, _ = run_again(Page(page(result.outcome)), tmp_path)
    assert searched.startswith("superopt-opt - '--superoptimize=budget=1 against=operators dynamic=n=1..9 ")
    assert verified.startswith("superopt-verify - f <<")


@pytest.mark.torch
def test_a_range_of_a_pytorch_program_says_how_python_searches_again(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")

    def program(x: Any) -> Any:
        return torch.relu(x) * 2

    marked = ({0: torch.export.Dim("n", min=1, max=9)},)
    settings: dict[str, Any] = {"budget": 1, "store": None, "against": "operators"}
    for buckets, extents in (None, "n from 1 to 9"), ([4, 9], "n from 1 to 4; n from 5 to 9"):
        made: Any = superopt.optimize(
            program, torch.randn(5, 16), dynamic_shapes=marked, buckets=buckets, **settings
        )
        (search, what), *_ = commands(made.outcome)
        assert search == (
            "# in Python: superopt.optimize(module, inputs, dynamic_shapes=..., budget=1, against='operators')"
        )
        assert what == f"the same search, for {extents}"


@pytest.mark.torch
@pytest.mark.parametrize(("options", "extents"), [("n=1..9", ["n = 11"]), ("n=1..8..9", ["n = 9", "n = 7"])])
def test_of_a_range(
    options: str, extents: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says what extents the kernels take, and at which one it shows them; its commands run, too."""
    (tmp_path / "a file.mlir").write_text(DYNAMIC)
    monkeypatch.chdir(tmp_path)
    arguments = ["a file.mlir", f"--superoptimize=dynamic={options} budget=1 store=none against=operators"]
    assert superopt_opt([*arguments, "--report=r.html", "--emit=bundle", "-o", "out"]) == 0
    shown = Page((tmp_path / "r.html").read_text())
    said = " ".join(shown.text["p"])
    assert f"not measurements, at {extents[0]}" in said
    assert f"before and after, at {extents[0]}" in " ".join(shown.text["h2"])
    if len(extents) == 1:
        assert "The kernels take n from 1 to 9." in said
        assert "For all of n from 1 to 9: one kernel for n from 1 to 9: " in said
    else:
        cells = shown.text["td"]
        assert {"n from 1 to 8", "n = 9", *extents} <= {*cells}
    commands = run_again(shown, tmp_path)
    assert commands[0].startswith(f"superopt-opt 'a file.mlir' '{arguments[1]}' ")


def test_of_what_stays() -> None:
    result = superopt.optimize(
        """func.func @f(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "kernel.exp"(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}""",
        budget=1,
        store=None,
        optimizers="derivation",
    )
    assert not result.report.improved
    shown = Page(page(result.outcome))
    said = " ".join(shown.text["p"])
    assert "They are the same program, operator by operator" in said
    assert "probability" not in said
    assert "0.0e+00" not in said + result.summary + result.certificate.summary


def test_of_a_tuned_run() -> None:
    """One price, that of the delivered kernels, in the verdict, the candidates and the plots; and the choices."""
    file = Path(__file__).parents[2] / "examples" / "lora.mlir"
    result = superopt.optimize(file, budget=3, store=None, tune=16)
    tuning, report = result.report.tuning, result.report
    assert tuning is not None
    assert len(tuning.prices) == tuning.evaluations["kernels"]
    text = page(result.outcome)
    shown = Page(text)
    chosen = re.findall(r'<tr class="chosen">.*', text)
    whole = [row for row in chosen if "<td>whole</td>" in row]
    assert len(whole) == 1
    assert f"{report.predicted_seconds * 1e6:.1f} us" in whole[0]
    assert shown.all("svg", **{"class": "plot tuning"})
    (candidate,) = [c for c in report.candidates if c.segment is None and c.outcome == "chosen"]
    assert candidate.compiled_seconds == report.predicted_seconds
    assert (candidate.optimizer == "tuning") == bool(tuning.config)
    for sites in tuning.config.values():
        assert {*sites.values()} <= {*shown.text["td"]}


def test_results_keep_their_names(result: Any) -> None:
    """An optimizer's program may have lost the names of what it returns."""
    original = result.outcome.original
    original.outputs[0].name, result.outcome.optimized.outputs[0].name = "scores", ""
    text = page(result.outcome)
    original.outputs[0].name = ""
    assert text.count(">scores</text>") == 2
