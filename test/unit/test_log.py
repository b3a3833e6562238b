"""`$SUPEROPT_LOG`: what a run does as JSON lines; and `superopt-store`, which moves what runs keep."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

import superopt
from superopt.errors import BadInput
from superopt.run.check import BUILT, DRAFTED, LOWERED, PROVED
from superopt.store import Key, Store
from superopt.tools import superopt_store

PROGRAM = """func.func @f(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = "kernel.exp"(%x) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = "kernel.mul"(%0, %x) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %1 : tensor<64x64xf32>
}
"""


def run(store: Path | None) -> Any:
    kept = str(store) if store else None
    return superopt.optimize(PROGRAM, budget=2, store=kept, against="operators")


def test_a_run_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"event": "of another run"}\n')
    monkeypatch.setenv("SUPEROPT_LOG", str(log))
    report = run(None).report
    first, *events = [json.loads(line) for line in log.read_text().splitlines()]
    assert first == {"event": "of another run"}
    assert {e["event"] for e in events} == {"stage", "gate", "result"}
    stages = {e["stage"] for e in events if e["event"] == "stage"}
    assert stages == set(report.seconds)
    passed = [e["gate"] for e in events if e["event"] == "gate" and e["passed"]]
    assert set(passed) == {g.__name__ for g in (*LOWERED, *DRAFTED, *BUILT, *PROVED)}
    assert all(e["seconds"] >= 0 and e["time"].endswith("Z") for e in events if e["event"] != "result")
    assert events[-1]["event"] == "result"
    assert events[-1]["predicted_seconds"] == report.predicted_seconds


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_LOG", str(tmp_path))
    with pytest.raises(BadInput, match="expected to write"):
        run(None)


def test_standard_error_takes_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SUPEROPT_LOG", "-")
    run(None)
    assert json.loads(capsys.readouterr().err.splitlines()[-1])["event"] == "result"


def test_results_are_listed_checked_and_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, other, file = tmp_path / "store", tmp_path / "other", tmp_path / "results.zip"
    run(store)

    def said(folder: Path, *command: str) -> tuple[int, str]:
        code = superopt_store.main(["--store", str(folder), *command])
        return code, capsys.readouterr().out

    code, listed = said(store, "list")
    assert code == 0
    header, row = listed.splitlines()
    assert header.split() == [
        "LAST",
        "USED",
        "TARGET",
        "PREDICTED",
        "BEST",
        "OF",
        "A",
        "USER",
        "PROOF",
        "SIZE",
        "PROGRAM",
    ]
    assert re.fullmatch(
        r"\d+ s ago +sm_90 +[\d.]+ us +.* us \(\w+\) +\w+, delta .* kB +f\(.*xf32.*\)", row
    ), row
    code, lines = said(store, "list", "--json")
    keys = [json.loads(line) for line in lines.splitlines()]
    count = len(keys)
    assert [key["target"] for key in keys] == ["sm_90"] * count
    assert {key["what"] for key in keys} == {"result", "search"}
    assert len(said(store, "list", "--all")[1].splitlines()) == 1 + count
    assert said(tmp_path / "nothing", "list") == (0, "")
    assert superopt_store.main(["check", "--store", str(store)]) == 0
    assert capsys.readouterr().out == "0 damaged\n"
    assert said(store, "export", str(file)) == (0, f"{count} results written to {file}\n")
    assert said(other, "merge", str(file)) == (0, f"{count} results merged into {other}, 0 damaged\n")
    moved = [json.loads(line) for line in said(other, "list", "--json")[1].splitlines()]
    assert sorted(k["program"] + k["name"] for k in moved) == sorted(k["program"] + k["name"] for k in keys)
    assert "from the store" in " ".join(run(other).report.remarks)
    victim = next(p for p in (other / "objects").rglob("*") if p.is_file())
    victim.write_bytes(b"damaged")
    code, damaged = said(other, "check")
    assert code == 1
    assert "damaged: " in damaged
    assert superopt_store.main(["--store", str(other), "merge", str(tmp_path / "none.zip")]) == 2
    expected = "error: expected a zip that superopt-store export wrote, got"
    assert capsys.readouterr().err.endswith(f"none.zip: {expected} no such file or directory\n")
    (tmp_path / "f.mlir").write_text("a program")
    assert superopt_store.main(["--store", str(other), "merge", str(tmp_path / "f.mlir")]) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'f.mlir'}: {expected} a file of another kind\n"
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("x", "y")
    assert superopt_store.main(["--store", str(other), "merge", str(tmp_path / "other.zip")]) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'other.zip'}: {expected} a zip of other files\n"
    assert superopt_store.main(["--store", "none", "list"]) == 2


def test_a_listing_shows_foreign_text_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report: dict[str, Any] = {
        "program": "\x1b[2J\nf" * 99,
        "predicted_seconds": "soon",
        "baseline_seconds": [],
        "guarantee": 3,
    }
    for number, text in enumerate((json.dumps(report), "[" * 100_000, "7", "")):
        key = Key(str(number), "sm_90", {}, {"what": "result"})
        Store(tmp_path).publish(key, {"report.json": text.encode()}, seconds=1.0)
    assert superopt_store.main(["--store", str(tmp_path), "list"]) == 0
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 5
    assert "\x1b" not in said
    assert max(map(len, said.splitlines())) < 200


@pytest.mark.torch
def test_a_log_says_which_part_of_a_model_each_event_is_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self.first = torch.nn.Sequential(torch.nn.RMSNorm(64), torch.nn.Linear(64, 64, bias=False))
            self.last = torch.nn.Identity()

        def forward(self, x: Any) -> Any:
            return self.last(x + self.first(x))

    def logged(name: str, called: Any) -> list[dict[str, Any]]:
        monkeypatch.setenv("SUPEROPT_LOG", str(tmp_path / name))
        with torch.no_grad():
            called()
        return [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]

    model, x = Model().eval(), torch.randn(16, 64)
    few: dict[str, Any] = {"budget": 1, "store": "none"}
    *events, whole = logged("explained", lambda: superopt.explain(model, (x,), **few))
    assert {e["part"] for e in events} == {"the whole graph"}
    assert (whole["event"], whole["part"], whole["replaced"]) == ("part", "the whole graph", False)
    assert whole["kernels"] >= 1
    [kept] = logged("compiled", lambda: torch.compile(model, backend="superopt")(x))
    assert "CPU" in kept["reason"]
    *events, first, last = logged("replaced", lambda: superopt.replace(model, "*", (x,), **few))
    assert {e["part"] for e in events} == {"first", "last"}
    assert (first["part"], first["replaced"], last["part"], last["replaced"]) == (
        "first",
        True,
        "last",
        False,
    )
    assert last["reason"]
