"""Both pages in a browser: no script errors, what opens and closes, and pictures of the structure that docs/ shows.

Run as a program, it writes the pictures into docs/images.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from browser import browser, complaints, likeness, screenshot, structure
from test_bench_model import results
from test_page import PROGRAM

import superopt
from superopt.measure import report
from superopt.page import page

IMAGES = Path(__file__).parents[2] / "docs" / "images"
ALIKE = 0.7


def run_page() -> str:
    return page(
        superopt.optimize(
            PROGRAM, target="h100", budget=6, store=None, against="operators", optimizers=("mugraph",)
        ).outcome
    )


def bench_page(folder: Path) -> str:
    """The page of measured results, here of simulated clocks."""
    path, _ = results(folder)
    data = report.load(path)
    for row in data.record["rows"]:
        if row["kind"] == "superopt":  # as `superopt-bench prepare` calls them
            row["label"] = f"superopt, {row['label']}"
        row["predicted_seconds"] = 8e-4 if row["kind"] == "superopt" else 1e-3
        row["features"] = {"log_tensor": math.log(4e10), "log_vector": 0.0, "log_dram": math.log(2e8)}
    return report.html(data)


@pytest.fixture(scope="module")
def driver() -> Generator[Any]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def run_file(driver: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("run") / "run.html"
    file.write_text(run_page())
    return file


def boxes(driver: Any, selector: str) -> list[dict[str, float]]:
    """Places of all such elements, in pixels; those that are not shown are empty."""
    return driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((e) => e.getBoundingClientRect().toJSON())",
        selector,
    )


def shown(driver: Any, selector: str) -> list[bool]:
    """Which of them are seen: neither empty nor in something closed."""
    return driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((e) => {"
        "const box = e.getBoundingClientRect(); return e.checkVisibility() && box.width > 20 && box.height > 10})",
        selector,
    )


def test_levels_open_and_close(driver: Any, run_file: Path) -> None:
    driver.get(run_file.as_uri())
    graphs = shown(driver, "details svg.graph")
    assert graphs == [True, True, *[False] * (len(graphs) - 2)], "kernel level is open, the others are closed"
    assert len(graphs) >= 3
    summaries = driver.find_elements(
        "css selector", "h2#graphs ~ details > summary, h2#graphs ~ .flex > details > summary"
    )
    for summary in summaries[: len(graphs)]:
        summary.click()
    assert shown(driver, "details svg.graph") == [not was for was in graphs]
    for summary in summaries[: len(graphs)]:
        summary.click()
    assert shown(driver, "details svg.graph") == graphs
    assert complaints(driver) == []


def test_a_line_of_the_source_marks_those_that_it_became(driver: Any, run_file: Path) -> None:
    driver.get(run_file.as_uri())
    driver.find_element("css selector", "#kernel-0 details > summary").click()
    for text, becomes in (
        ("tl.dot(", {"ttir": "tt.dot", "ptx": "mma", "sass": "MMA"}),
        ("tl.store(", {"ttir": "tt.store", "ptx": "st.global", "sass": "STG"}),
    ):
        spans = driver.find_elements("css selector", "#kernel-0 pre.triton span")
        (line,) = [s for s in spans if text in s.text]
        line.click()
        marked = driver.execute_script(
            "return [...document.querySelectorAll('#kernel-0 .linked')]"
            ".map((e) => [e.parentElement.className, e.textContent])"
        )
        assert [t for name, t in marked if name == "triton"] == [line.get_property("textContent")]
        for listing, instruction in becomes.items():
            lines = [t for name, t in marked if name == listing]
            assert any(instruction in t for t in lines), (listing, lines)
            assert len(lines) < len(driver.find_elements("css selector", f"#kernel-0 pre.{listing} span")) / 2
    instruction = driver.find_element("css selector", "#kernel-0 pre.sass span.linked")
    instruction.click()
    assert (
        driver.find_elements("css selector", "#kernel-0 pre.triton span.linked")[0]
        .text.strip()
        .startswith("tl.st")
    )
    assert complaints(driver) == []


def test_parts_stand_below_each_other(driver: Any, run_file: Path, tmp_path: Path) -> None:
    driver.get(run_file.as_uri())
    heads = boxes(driver, "h2")
    assert len(heads) == 5
    assert [b["y"] for b in heads] == sorted(b["y"] for b in heads)
    for kind in ("svg.roofline", "svg.best", "#verdict", "#again + pre"):
        assert all(shown(driver, kind)[:1]), kind
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 1280
    screenshot(driver, tmp_path / "run.png")
    assert likeness(structure(tmp_path / "run.png"), structure(IMAGES / "run.png")) > ALIKE
    assert complaints(driver) == []


def test_the_page_of_measurements(driver: Any, tmp_path: Path) -> None:
    (tmp_path / "bench.html").write_text(bench_page(tmp_path))
    driver.get((tmp_path / "bench.html").as_uri())
    assert all(shown(driver, "table, figure svg, figcaption"))
    assert len(boxes(driver, "figure svg")) >= 3
    legends = driver.execute_script(
        "return [...document.querySelectorAll('figure svg')].map((e) => e.querySelector('[id^=legend]') !== null)"
    )
    assert all(legends)
    over = driver.execute_script(
        "return [...document.querySelectorAll('figure svg')].filter((e) => {"
        "const at = (name) => e.querySelector(name).getBoundingClientRect();"
        "return at('[id^=legend]').bottom > at('[id=patch_2]').top + 2; }).length"
    )
    assert over == 0  # legends stand above the plots
    assert driver.find_elements("css selector", "tr.ours td.number")
    screenshot(driver, tmp_path / "bench.png")
    assert likeness(structure(tmp_path / "bench.png"), structure(IMAGES / "bench.png")) > ALIKE
    assert complaints(driver) == []


def test_what_is_missing_is_seen(driver: Any, run_file: Path, tmp_path: Path) -> None:
    """A page without its graphs is not alike, and a broken script complains."""
    text = run_file.read_text()
    (tmp_path / "bare.html").write_text(text.replace("svg.graph", "x").replace("<details open>", "<details>"))
    driver.get((tmp_path / "bare.html").as_uri())
    screenshot(driver, tmp_path / "bare.png")
    assert likeness(structure(tmp_path / "bare.png"), structure(IMAGES / "run.png")) < ALIKE
    (tmp_path / "broken.html").write_text(text.replace("for (const card of", "for (const card fo"))
    driver.get((tmp_path / "broken.html").as_uri())
    assert complaints(driver) != []


def write() -> None:
    """Make the pictures anew."""
    import tempfile

    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, browser() as driver:
        folder = Path(name)
        for kind, text in (("run", run_page()), ("bench", bench_page(folder))):
            (folder / f"{kind}.html").write_text(text)
            driver.get((folder / f"{kind}.html").as_uri())
            screenshot(driver, IMAGES / f"{kind}.png")


if __name__ == "__main__":
    write()
