"""The store under faults: damage, full disks, missing permissions, killed writers, several writers, hostile archives."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import pytest

from superopt import store as store_module
from superopt.diagnostics import Diagnostics
from superopt.store import Key, Store, StoreUnavailable, eviction

FILES = {"schedule.json": b'{"x": 1}', "sources/kernels.py": b"import triton\n" * 50}
KILLS = int(os.environ.get("SUPEROPT_TEST_KILLS", "12"))


def key(n: int = 0, **policy: int) -> Key:
    return Key(f"program {n}", "sm_90", {"superopt": "1"}, policy)


def stored_files(store: Store) -> list[Path]:
    return sorted(p for p in store.folder.rglob("*") if p.is_file() and p.stat().st_size)


def test_what_is_published_is_found(tmp_path: Path):
    store = Store(tmp_path)
    assert store.lookup(key()) is None
    store.publish(key(), FILES, seconds=2.0, effort=5.0)
    entry = store.lookup(key())
    assert entry is not None
    assert entry.files == FILES
    assert store.lookup(key(1)) is None
    assert store.lookup(key(delta=1)) is None
    assert store.lookup(key(), effort=6.0) is None


def test_the_fastest_of_a_key_is_found(tmp_path: Path):
    store = Store(tmp_path)
    for seconds in (3.0, 1.0, 2.0):
        store.publish(key(), {"s": str(seconds).encode()}, seconds=seconds)
    entry = store.lookup(key())
    assert entry is not None
    assert entry.files == {"s": b"1.0"}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("of", ["seconds", "effort"])
def test_a_time_that_is_no_number_hides_no_result(tmp_path: Path, of: str, number: float):
    """It compares with no other, or is before all."""
    store = Store(tmp_path)
    for i in range(4):
        store.publish(key(), {"s": b"%d" % i}, **{"seconds": 1.0, of: number})
    store.publish(key(), FILES, seconds=2.0, effort=1.0)
    entry = store.lookup(key())
    assert entry is not None
    assert entry.files == FILES


def test_every_bit_flip_and_truncation_is_noticed(tmp_path: Path):
    generator = random.Random(0)
    store = Store(tmp_path)
    flips = 0
    for n, trial in enumerate(range(40)):
        store.publish(key(), FILES, seconds=1.0)
        store.publish(key(1), FILES, seconds=1.0)
        path = generator.choice(stored_files(store))
        data = bytearray(path.read_bytes())
        if n % 2:
            data = data[: generator.randrange(len(data))]
        else:
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        path.write_bytes(data)
        flips += 1
        for k in (key(), key(1)):
            entry = store.lookup(k)
            assert entry is None or entry.files == FILES, (trial, path)
        store.publish(key(), FILES, seconds=1.0)
        entry = store.lookup(key())
        assert entry is not None, "a damaged store can be published to again"
    assert flips == 40


def test_damage_is_reported_by_check(tmp_path: Path):
    store = Store(tmp_path)
    store.publish(key(), FILES, seconds=1.0)
    assert store.check() == []
    (first, *_) = (p for p in stored_files(store) if "objects" in p.parts)
    first.write_bytes(b"other")
    assert len(store.check()) == 1


def test_an_index_that_is_lost_or_no_database_costs_nothing(tmp_path: Path):
    store = Store(tmp_path)
    store.publish(key(), FILES, seconds=1.0)
    (tmp_path / "index.sqlite").write_bytes(b"no database at all, but long enough to be looked at" * 50)
    assert store.lookup(key()) is not None
    store.publish(key(1), FILES, seconds=1.0)
    assert store.lookup(key(1)) is not None
    (tmp_path / "index.sqlite").unlink()
    assert store.lookup(key()) is not None


WRITER = """
import sys
from superopt.store import Key, Store
store = Store(sys.argv[1])
for n in range(int(sys.argv[2]), int(sys.argv[3])):
    files = {"a": f"{n} ".encode() * 20000, "b": b"shared" * 1000}
    store.publish(Key(f"program {n % 7}", "sm_90", {}, {}), files, seconds=1.0 + n)
    print(n, flush=True)
"""


def writer(folder: Path, start: int, stop: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), str(start), str(stop)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_write_one_store(tmp_path: Path):
    processes = [writer(tmp_path, 0, 40), writer(tmp_path, 20, 60)]
    assert [p.wait(60) for p in processes] == [0, 0]
    store = Store(tmp_path)
    assert store.check() == []
    assert len(store.keys()) == 60
    for n in range(7):
        entry = store.lookup(Key(f"program {n}", "sm_90", {}, {}))
        assert entry is not None
        assert entry.seconds == 1.0 + n, "the fastest of the key, whoever wrote it"


READER = """
import sys
from superopt.store import Key, Store
store = Store(sys.argv[1])
for n in range(400):
    entry = store.lookup(Key(f"program {n % 7}", "sm_90", {}, {}))
    assert entry is None or set(entry.files) == {"a", "b"}
"""


def test_two_writers_and_a_reader_while_old_entries_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    limit = 1 << 20
    monkeypatch.setenv("SUPEROPT_STORE_LIMIT", str(limit))
    reader = subprocess.Popen([sys.executable, "-c", READER, str(tmp_path)])
    processes = [writer(tmp_path, 0, 40), writer(tmp_path, 40, 80)]
    assert [p.wait(120) for p in (*processes, reader)] == [0, 0, 0]
    store = Store(tmp_path)
    assert store.check() == []
    assert 0 < len(store.keys()) < 80
    eviction.keep_below(tmp_path, limit)  # the last writers may have found each other in the way
    assert sum(p.stat().st_size for p in (tmp_path / "objects").glob("*/*")) <= limit


def test_a_writer_killed_at_any_moment_leaves_whole_entries(tmp_path: Path):
    """SUPEROPT_TEST_KILLS says how many; what was acknowledged before the kill is still there."""
    generator = random.Random(1)
    store = Store(tmp_path)
    acknowledged = 0
    for kill in range(KILLS):
        process = writer(tmp_path, 1000 * kill, 1000 * kill + 1000)
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        time.sleep(generator.random() * 0.05)
        process.send_signal(generator.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        lines += process.stdout.readlines()
        process.wait(30)
        acknowledged += sum(line.endswith("\n") for line in lines if line)
        assert store.check() == []
        assert len(store.keys()) >= acknowledged
    assert acknowledged >= KILLS


FULL = """
import resource, signal, sys
from superopt.diagnostics import Diagnostics
from superopt import store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1))
diagnostics = Diagnostics()
from pathlib import Path
done = store.publish("p", "sm_90", {}, {"big": b"x" * 100000}, diagnostics, seconds=1.0, folder=Path(sys.argv[1]))
print(done, [d.message for d in diagnostics.messages])
"""


@pytest.mark.parametrize("limit", [0, 1000, 50000])
def test_a_full_disk_ends_in_a_warning_and_a_whole_store(tmp_path: Path, limit: int):
    Store(tmp_path).publish(key(), FILES, seconds=1.0)
    command = [sys.executable, "-c", FULL, str(tmp_path), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False ['the result was not stored: expected a usable store")
    assert Store(tmp_path).check() == []
    assert Store(tmp_path).lookup(key()) is not None
    assert not list((tmp_path / "tmp").iterdir())


READ_ONLY = """
import os, sys
from superopt.diagnostics import Diagnostics
from superopt.store import Key, Store, StoreUnavailable, eviction
if os.getuid() == 0:
    os.setuid(65534)
store = Store(sys.argv[1])
entry = store.lookup(Key("program 0", "sm_90", {"superopt": "1"}, {}))
print(entry is not None)
try:
    store.publish(Key("q", "", {}, {}), {"a": b"b"}, seconds=1.0)
except StoreUnavailable as error:
    print("refused:", error.message)
"""


def test_a_read_only_store_is_read_and_refuses_writes():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        Store(folder / "store").publish(key(), FILES, seconds=1.0)
        paths = [folder / "store", *(folder / "store").rglob("*")]
        for path in paths:
            path.chmod(0o555 if path.is_dir() else 0o444)
        command = [sys.executable, "-c", READ_ONLY, str(folder / "store")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for path in paths:
            path.chmod(0o755)
    assert done.stdout.splitlines()[0] == "True", done.stderr
    assert "refused: expected a usable store, got: Permission denied" in done.stdout


def test_a_folder_that_is_a_file_is_unavailable(tmp_path: Path):
    (tmp_path / "file").write_text("not a store")
    diagnostics = Diagnostics()
    folder = tmp_path / "file"
    assert store_module.lookup("p", "sm_90", {}, diagnostics, folder=folder) is None
    assert not store_module.publish("p", "sm_90", {}, {"a": b"b"}, diagnostics, seconds=1.0, folder=folder)
    assert len(diagnostics.messages) == 1


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "a\\b", "", ".hidden", "a//b", "a/.", "x\0"]
)
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str):
    with pytest.raises(ValueError, match="expected a relative name"):
        Store(tmp_path).publish(key(), {name: b"x"}, seconds=1.0)


def test_export_and_merge(tmp_path: Path):
    first, second = Store(tmp_path / "a"), Store(tmp_path / "b")
    first.publish(key(0), FILES, seconds=1.0, effort=3.0)
    first.publish(key(1), {"x": b"1"}, seconds=2.0)
    assert first.export(tmp_path / "one.zip") == 2
    assert second.merge(tmp_path / "one.zip") == (2, 0)
    assert second.lookup(key(0), effort=3.0) == first.lookup(key(0))
    assert second.export(tmp_path / "two.zip") == 2
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_hostile_archives_are_dropped(tmp_path: Path):
    good = Store(tmp_path / "a")
    good.publish(key(0), FILES, seconds=1.0)
    good.export(tmp_path / "good.zip")
    with zipfile.ZipFile(tmp_path / "good.zip") as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    (entry,) = (n for n in members if n.startswith("entries/"))

    def rewritten(**changes: object) -> dict[str, bytes]:
        record = json.loads(members[entry]) | changes
        text = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
        from hashlib import sha256

        return {n: d for n, d in members.items() if n != entry} | {
            f"entries/x/{sha256(text).hexdigest()}": text
        }

    sha = "0" * 64
    attacks = [
        {**members, entry: members[entry][:-3]},
        {n: d for n, d in members.items() if not n.startswith("objects/")},
        {n: (b"evil" if n.startswith("objects/") else d) for n, d in members.items()},
        rewritten(files={"../../escape": [sha, 4]}),
        rewritten(files={"a": ["../../../etc/passwd", 4]}),
        rewritten(files={"a": [sha, 1 << 60]}),
        rewritten(files=[1, 2]),
        rewritten(version=99),
        rewritten(key={"program": 1}),
        {entry: b"[" * 100_000},
    ]
    for n, attack in enumerate(attacks):
        path = tmp_path / f"{n}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in attack.items():
                archive.writestr(name, data)
        target = Store(tmp_path / "target" / str(n))
        assert target.merge(path) == (0, 1), n
        assert target.keys() == []
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["a"], "nothing was written"
    (tmp_path / "no.zip").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(StoreUnavailable):
        good.merge(tmp_path / "no.zip")


def published(store: Store, n: int, *, shared: bytes = b"shared") -> Key:
    key = Key(f"{n:064x}", "sm_90", {}, {})
    store.publish(key, {"own": bytes([n]) * 4000, "shared": shared}, seconds=1.0)
    return key


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = Store(tmp_path)
    keys = [published(store, n) for n in range(4)]
    for n, key in enumerate(keys):
        for manifest in (tmp_path / "entries" / key.digest).iterdir():
            os.utime(manifest, (n, n))
    assert store.lookup(keys[0]) is not None  # used now: the oldest is number 1
    monkeypatch.setenv("SUPEROPT_STORE_LIMIT", "20K")
    keys.append(published(store, 4))
    assert [store.lookup(key) is not None for key in keys] == [True, False, False, True, True]
    assert store.check() == []
    own = [p for p in (tmp_path / "objects").glob("*/*") if p.stat().st_size == 4000]
    assert len(own) == 3  # the files of those that went are gone, and what they shared is not
    assert len(store.keys()) == 3


def test_the_entry_used_last_stays_whatever_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SUPEROPT_STORE_LIMIT", "1")
    store = Store(tmp_path)
    keys = [published(store, n) for n in range(3)]
    assert [store.lookup(key) is not None for key in keys] == [False, False, True]


def test_files_that_no_entry_names_go_only_when_nobody_writes(tmp_path: Path):
    store = Store(tmp_path)
    key = published(store, 0)
    orphan = tmp_path / "objects" / "ab" / ("ab" * 32)
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"x" * 100_000)
    with eviction.writing(tmp_path):
        eviction.keep_below(tmp_path, 50_000)
        assert orphan.exists()
    eviction.keep_below(tmp_path, 50_000)
    assert not orphan.exists()
    assert store.lookup(key) is not None


@pytest.mark.parametrize("text", ["much", "-1", "1.5G", "9" * 40])
def test_a_limit_that_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("SUPEROPT_STORE_LIMIT", text)
    with pytest.raises(ValueError, match=r"SUPEROPT_STORE_LIMIT.*got"):
        published(Store(tmp_path), 0)
    assert Store(tmp_path).keys() == []
