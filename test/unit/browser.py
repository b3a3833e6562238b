"""A headless Chromium for tests of pages, and what a screenshot shows, coarsely."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_FLAGS = (
    "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
    "disable-component-update disable-sync hide-scrollbars force-device-scale-factor=1"
)
WIDTH = 1280


@contextmanager
def browser() -> Generator[Any]:
    """A driver with a profile of its own; skips the test where Chromium or its driver is missing."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    with tempfile.TemporaryDirectory(prefix="superopt-browser-") as profile:
        for flag in (*_FLAGS.split(), f"user-data-dir={profile}", f"window-size={WIDTH},900"):
            options.add_argument(f"--{flag}")
        made: Any = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        try:
            yield made
        finally:
            made.quit()


def complaints(driver: Any) -> list[str]:
    """What the page's scripts and resources put into the browser's log."""
    return [entry["message"] for entry in driver.get_log("browser")]


def screenshot(driver: Any, path: Path) -> None:
    """The whole page, in 32 colours."""
    from PIL import Image

    driver.set_window_size(WIDTH, 600)
    border = driver.execute_script("return outerHeight - innerHeight")
    height = driver.execute_script("return document.documentElement.scrollHeight")
    driver.set_window_size(WIDTH, height + border)
    driver.save_screenshot(str(path))
    Image.open(path).convert("RGB").quantize(32).save(path, optimize=True)


def structure(path: Path, columns: int = 32, rows: int = 64) -> Any:
    """Which cells of a grid over the picture have something in them that is not the background."""
    from PIL import Image

    pixels = np.asarray(Image.open(path).convert("L"))
    down = [pixels.shape[0] * i // rows for i in range(rows + 1)]
    across = [pixels.shape[1] * i // columns for i in range(columns + 1)]
    inked = [
        [pixels[y1:y2, x1:x2].min(initial=255) < 200 for x1, x2 in itertools.pairwise(across)]
        for y1, y2 in itertools.pairwise(down)
    ]
    return np.array(inked)


def likeness(a: Any, b: Any) -> float:
    """Cells that have something in both, as a share of those that have in either (Jaccard)."""
    return float((a & b).sum() / max((a | b).sum(), 1))
