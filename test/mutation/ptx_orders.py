"""What orders the accesses of a block of PTX, found a second time: a dropped wait, fence or barrier that nothing needs.

This shares no code with `superopt.verify.ptx`: it reads the text itself, runs integers alone, by numpy, and
keeps one vector clock for each thread, and for each warp's asynchronous products. For each two bytes of shared memory it keeps
who wrote and who read them last, of every thread, so that every two accesses are compared that are not ordered by a
third one. Numbers are not computed, and what depends on them is not decided (`Undecided`), as are instructions that
are not listed here.

- Threads know what those knew that came to a barrier with them (`bar.sync`, `bar.warp.sync`).
- What `cp.async` writes may not be touched from issue until its thread has waited for its group, and is that thread's
  write from then on.
- Each warp of a warp group reads operands of `wgmma` until it has waited for the group; threads of other warps know of
  that after a barrier. Registers of a product may not be touched before, and what was written to them or to its
  operands in shared memory needs the fences that the ISA asks for. Of operands all bytes count from the first to the
  last one that a descriptor reaches.
  Accumulators of products of one shape that have a register at one place are ordered without a fence, others are not.
- A kernel that starts while the one before it runs waits for it, each thread before its first access to device memory.
- Several threads that store to one place by one instruction are taken to store the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ptx_integers import FOLLOWED, Array, Undecided, computed, width_of

WARP, GROUP = 32, 128
SHARED_START = 1024  # an address of shared memory that is as aligned as any
MOST_STEPS = 200_000


@dataclass(frozen=True)
class Line:
    """A statement: its number, predicate ("" for none, "!" in front), opcode, and operands."""

    number: int
    predicate: str
    opcode: str
    operands: tuple[str, ...]


def statements(text: str) -> tuple[list[Line], dict[str, list[int]], int, list[str]]:
    """The instructions of a kernel, the places of its labels, its threads, and its parameters."""
    threads = re.search(r"\.reqntid\s+(\d+)", text)
    if threads is None:
        raise Undecided("no number of threads")
    head, _, rest = text.partition(".reqntid")
    body = rest[rest.index("{") + 1 :].split("\n\t.file")[0]
    offset = text.count("\n", 0, len(text) - len(rest) + rest.index("{") + 1) + 1
    body = re.sub(r"//[^\n]*", "", body)
    found: list[Line] = []
    labels: dict[str, list[int]] = {}
    for piece in re.finditer(r"[^;]*;", body):
        number = offset + body.count("\n", 0, piece.end())
        part = re.sub(r"^[\s{}]*", "", re.sub(r"\.loc[^\n]*", "", piece[0]))
        while label := re.match(r"([\w$]+):[\s{}]*", part):
            labels.setdefault(label[1], []).append(len(found))
            part = part[label.end() :]
        if made := re.match(r"(?:@(!?[%\w]+)\s+)?([a-z][\w.:]*)\s*([^;]*);", part):
            operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^\s,{}\[\]|]+", made[3])
            found.append(Line(number, made[1] or "", made[2], tuple(operands)))
        elif not part.startswith((".reg", ".pragma", ";")) and part != ";":
            raise Undecided(f"line {number}: {part[:40]}")
    return found, labels, int(threads[1]), re.findall(r"\.param [^\n]* (\w+)\s*,?\n", head)


@dataclass(frozen=True)
class Issued:
    """A copy by its line, or a product by its number: where in shared memory it writes, its registers."""

    number: int
    parts: Array
    registers: tuple[str, ...] = ()


@dataclass
class Pending:
    """A thread's copies, or a warp's products, by group: what is committed, and what is not yet."""

    groups: list[list[Issued]]
    open: list[Issued]

    def commit(self) -> None:
        self.groups.append(self.open)
        self.open = []

    def wait(self, left: int) -> list[Issued]:
        """What is then known to be complete."""
        done = self.groups[: max(0, len(self.groups) - left)]
        self.groups = self.groups[len(done) :]
        return [one for group in done for one in group]


def _warps(lanes: Array) -> list[int]:
    return sorted({int(t) // WARP for t in lanes})


class Block:
    """The first block of a kernel, and the pairs of lines whose accesses to shared memory nothing orders."""

    def __init__(self, text: str, shared: int, *, early: bool = False) -> None:
        self.lines, self.labels, self.threads, params = statements(text)
        self.grain = 1 if re.search(r"shared\.(?:v\d\.)?[bu]8\b", text) else 2
        size = shared // self.grain + 1
        self.columns = self.threads + self.threads // WARP
        self.known = np.zeros((self.threads, self.columns), np.int32)
        # As `known`, of writes that a fence has shown to the asynchronous proxy.
        self.shown = np.zeros_like(self.known)
        self.segment = np.ones(self.threads, np.int32)
        self.wrote, self.read = (np.zeros((size, self.columns), np.int32) for _ in range(2))
        self.wrote_by, self.read_by = (np.zeros((size, self.columns), np.int32) for _ in range(2))
        self.in_flight = np.zeros(size, np.int32)  # the line of the copy
        self.copies = [Pending([], []) for _ in range(self.threads)]
        self.products = [Pending([], []) for _ in range(self.threads // WARP)]
        self.issued = 0
        self.locked: dict[str, int] = {}  # registers of products, and the number of the last
        # Registers that were written or read since the last wgmma.fence, and by which product as a result.
        self.unfenced, self.seen, self.chained = {"all"}, set[str](), dict[str, tuple[str, int]]()
        self.made: dict[str, tuple[str, int]] = {}  # of registers of products, the shape and the place in it
        waits = any(line.opcode == "griddepcontrol.wait" for line in self.lines)
        self.alone = np.full(
            self.threads, not (waits or early)
        )  # threads that know the kernel before to have ended
        self.races: set[tuple[int, int]] = set()
        self.registers: dict[str, tuple[Array, Array]] = {}
        self.addresses = {p: (i + 1) << 40 for i, p in enumerate(params)}
        self.stored: list[Array] = []
        self.loaded: list[Array] = []

    # --- control --------------------------------------------------------------------------------------------

    def run(self) -> set[tuple[int, int]]:
        """Run to the end; the pairs of lines that race. Raises Undecided."""
        place = np.zeros(self.threads, np.int64)
        waiting: dict[str, list[int]] = {}
        for _ in range(MOST_STEPS):
            held = np.zeros(self.threads, bool)
            for lanes in waiting.values():
                held[lanes] = True
            ready = (place >= 0) & ~held
            if not ready.any():
                if waiting:
                    raise Undecided("threads that wait for ever")
                break
            at = int(place[ready].min())
            lanes = np.flatnonzero(ready & (place == at))
            line = self.lines[at]
            taken = lanes[self.holds(line, lanes)]
            stem = line.opcode.split(".")[0]
            place[lanes] = at + 1
            if line.opcode in ("ret", "exit"):
                place[taken] = -1
            elif stem == "bra":
                place[taken] = self.target(line.operands[0], at)
            elif line.opcode in ("bar.sync", "barrier.sync"):
                self.barrier(line, taken, waiting)
            elif taken.size:
                self.perform(line, stem, taken)
        else:
            raise Undecided("too many steps")
        written = np.concatenate([np.zeros(0, np.uint64), *self.stored])
        if (
            len(np.unique(written)) < len(written)
            or np.isin(np.concatenate([written[:0], *self.loaded]), written).any()
        ):
            raise Undecided("memory of the device that is not stored once")
        return self.races

    def target(self, label: str, at: int) -> int:
        """The place of a label; of those of one name, the last one before, as these are loops of a scope."""
        places = self.labels[label]
        return places[0] if len(places) == 1 else max(p for p in places if p <= at)

    def holds(self, line: Line, lanes: Array) -> Array:
        if not line.predicate:
            return np.ones(len(lanes), bool)
        value, known = self.value(line.predicate.lstrip("!"))
        if not known[lanes].all():
            raise Undecided(f"line {line.number}: a predicate of numbers")
        return (value[lanes] != 0) != line.predicate.startswith("!")

    def barrier(self, line: Line, lanes: Array, waiting: dict[str, list[int]]) -> None:
        name = line.operands[0]
        count = int(line.operands[1]) if len(line.operands) > 1 else self.threads
        waiting.setdefault(name, []).extend(int(t) for t in lanes)
        if len(waiting[name]) == count:
            self.meet(np.array(waiting.pop(name)))

    def meet(self, lanes: Array) -> None:
        """From now on each of these threads knows what all of them knew."""
        for t in lanes:
            self.known[t, t] = self.segment[t]
        for clocks in (self.known, self.shown):
            clocks[lanes] = clocks[lanes].max(axis=0)
        self.segment[lanes] += 1

    # --- registers ------------------------------------------------------------------------------------------

    def value(self, name: str) -> tuple[Array, Array]:
        """A register or number for each thread, and where it is known."""
        everywhere = np.ones(self.threads, bool)
        if re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+", name):
            return np.full(self.threads, int(name, 0) & (1 << 64) - 1, np.uint64), everywhere
        tid = np.arange(self.threads, dtype=np.uint64)
        special = {
            "%tid.x": tid,
            "%laneid": tid % np.uint64(WARP),
            "global_smem": tid * np.uint64(0) + np.uint64(SHARED_START),
        }
        if name in special:
            return special[name], everywhere
        if name.startswith(("%ctaid", "%tid")):
            return np.zeros(self.threads, np.uint64), everywhere
        if name not in self.registers:
            self.registers[name] = np.zeros(self.threads, np.uint64), np.zeros(self.threads, bool)
        return self.registers[name]

    def put(self, name: str, lanes: Array, value: Array | None, known: Array | None = None) -> None:
        held, good = (x.copy() for x in self.value(name))
        held[lanes] = 0 if value is None else value[lanes]
        good[lanes] = False if value is None else True if known is None else known[lanes]
        self.registers[name] = held, good

    def address(self, line: Line, text: str, lanes: Array) -> Array:
        """Where a shared or global access goes, by thread."""
        made = re.fullmatch(r"\[\s*([%\w]+)\s*(?:\+\s*(-?\d+))?\s*\]", text)
        if made is None:
            raise Undecided(f"line {line.number}: {text}")
        value, known = self.value(made[1])
        if not known[lanes].all():
            raise Undecided(f"line {line.number}: an address that is not followed")
        return value[lanes] + np.uint64(int(made[2] or 0) & (1 << 64) - 1)

    def touch(self, line: Line, names: Sequence[str]) -> None:
        """Registers that are read or written, not by a product."""
        for name in names:
            for one in re.findall(r"%\w+", name):
                if one in self.locked:
                    self.races.add((self.locked[one], line.number))
                self.seen.add(one)

    # --- memory ---------------------------------------------------------------------------------------------

    def grains(self, line: Line, addresses: Array, size: int) -> Array:
        """By thread, the parts of shared memory from an address on."""
        start = (addresses.astype(np.int64) - SHARED_START) // self.grain
        parts = start[:, None] + np.arange(-(-size // self.grain))
        if (parts < 0).any() or (parts >= len(self.in_flight)).any():
            raise Undecided(f"line {line.number}: outside of shared memory")
        return parts

    def check(self, line: Line, clocks: Array, parts: Array, last: Array, by: Array, *, same: bool) -> None:
        """Races of accesses to `parts` with those before; `clocks` by row of these are what is known."""
        late = last[parts] > clocks[:, None, :]
        if late.any():
            for number in np.unique(by[parts][late]):
                if not (same and number == line.number):
                    self.races.add((int(number), line.number))

    def access(self, line: Line, lanes: Array, parts: Array, *, writes: bool) -> None:
        clocks = self.known[lanes].copy()
        clocks[np.arange(len(lanes)), lanes] = self.segment[lanes]
        self.check(line, clocks, parts, self.wrote, self.wrote_by, same=writes)
        if writes:
            self.check(line, clocks, parts, self.read, self.read_by, same=False)
        for number in np.unique(self.in_flight[parts]):
            if number:
                self.races.add((int(number), line.number))
        last, by = (self.wrote, self.wrote_by) if writes else (self.read, self.read_by)
        rows = np.broadcast_to(lanes[:, None], parts.shape)
        last[parts, rows], by[parts, rows] = (
            np.broadcast_to(self.segment[lanes][:, None], parts.shape),
            line.number,
        )

    def copy(self, line: Line, lanes: Array, parts: Array) -> None:
        self.access(line, lanes, parts, writes=True)
        self.in_flight[parts] = line.number
        for t, own in zip(lanes, parts, strict=True):
            self.copies[int(t)].open.append(Issued(line.number, own))

    def copied(self, lanes: Array, left: int) -> None:
        for t in lanes:
            for one in self.copies[int(t)].wait(left):
                self.in_flight[one.parts] = 0
                self.wrote[one.parts, t], self.wrote_by[one.parts, t] = self.segment[t], one.number

    # --- products -------------------------------------------------------------------------------------------

    def fence(self, lanes: Array) -> None:
        """What these threads know, and wrote, the asynchronous proxy sees."""
        for t in lanes:
            self.known[t, t] = self.segment[t]
        self.shown[lanes] = np.maximum(self.shown[lanes], self.known[lanes])
        self.segment[lanes] += 1

    def operand(
        self, line: Line, descriptor: str, lanes: Array, shape: tuple[int, int, int], transposed: bool
    ) -> Array:
        """Parts of shared memory that an operand may have (its rows, depth, and an element's bytes), and some more."""
        value, known = self.value(descriptor)
        if not known[lanes].all() or len(np.unique(value[lanes])) > 1:
            raise Undecided(f"line {line.number}: a descriptor that is not followed")
        bits = int(value[lanes[0]])
        start, leading, stride = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
        width = {0: 16, 1: 128, 2: 64, 3: 32}[bits >> 62]
        rows, depth, size = shape
        # Core matrices of eight rows, as wide as the swizzle: how many there are along both directions.
        if width == 16:
            steps = [(-(-rows // 8), stride), (-(-depth * size // 16), leading)]
            steps += [(-(-rows * size // 16), stride), (-(-depth // 8), leading)] if transposed else []
        elif transposed:
            steps = [(-(-rows * size // width), leading), (-(-depth // 8), stride)]
        else:
            steps = [(-(-rows // 8), stride)]
        start = start // (8 * width) * 8 * width  # swizzles stay within
        places = np.array([start])
        for count, step in steps:
            places = np.unique(places[:, None] + step * np.arange(count))
        return self.grains(line, places.astype(np.uint64), 8 * width)

    def product(self, line: Line, lanes: Array) -> None:
        if len(lanes) % GROUP or lanes[-1] - lanes[0] + 1 != len(lanes):
            raise Undecided(f"line {line.number}: part of a warp group")
        shape = re.search(r"m64n(\d+)k(\d+)\.\w+\.(\w+)\.", line.opcode + ".")
        assert shape is not None
        n, k = int(shape[1]), int(shape[2])
        size = {"tf32": 4, "f16": 2, "bf16": 2}.get(shape[3], 1)
        held, first, second, *_ = line.operands
        flags = [f for f in line.operands[4:] if re.fullmatch(r"-?\d+", f)][2:]
        transposed = [f != "0" for f in flags] or [False, False]
        registers = re.findall(r"%\w+", held + (first if first.startswith("{") else ""))
        if "all" in self.unfenced:
            self.races.add((line.number, line.number))
        places = {r: (f"{n} {k}", i) for i, r in enumerate(re.findall(r"%\w+", held))}
        for r in registers:
            if r not in places:
                wrong = r in self.unfenced or r in self.chained or r in self.made
            elif r in self.locked:
                wrong = self.made.get(r) != places[r] or r in self.seen
            else:
                wrong = r in self.unfenced | self.seen or self.chained.get(r, places[r]) != places[r]
            if wrong:
                self.races.add((line.number, line.number))
        if len(places) < n // 2:
            self.races.add((line.number, line.number))
        self.seen.update(r for r in registers if r not in places)
        self.chained |= places
        self.made |= places
        self.issued += 1
        operands = [(second, (n, k, size), transposed[-1])]
        if not first.startswith("{"):
            operands.append((first, (64, k, size), transposed[0]))
        for start in range(int(lanes[0]), int(lanes[-1]) + 1, WARP):
            warp = np.arange(start, start + WARP)
            column = self.threads + start // WARP
            for descriptor, extents, turned in operands:
                parts = np.unique(self.operand(line, descriptor, warp, extents, turned))
                clocks = self.shown[warp].min(axis=0)[None].copy()
                clocks[0, self.threads :] = self.known[warp].min(axis=0)[self.threads :]
                self.check(line, clocks, parts[None], self.wrote, self.wrote_by, same=False)
                self.races |= {(int(i), line.number) for i in np.unique(self.in_flight[parts]) if i}
                self.read[parts, column], self.read_by[parts, column] = self.issued, line.number
            self.products[start // WARP].open.append(
                Issued(self.issued, np.zeros(0, np.int64), tuple(registers))
            )
        self.locked.update(dict.fromkeys(registers, line.number))

    def produced(self, lanes: Array, left: int) -> None:
        for w in _warps(lanes):
            done = self.products[w].wait(left)
            own = lanes[lanes // WARP == w]
            for one in done:
                self.known[own, self.threads + w] = one.number
        still = {
            r for p in self.products for group in [*p.groups, p.open] for one in group for r in one.registers
        }
        self.locked = {r: n for r, n in self.locked.items() if r in still}
        self.made = {r: place for r, place in self.made.items() if r in still}

    # --- instructions ---------------------------------------------------------------------------------------

    def perform(self, line: Line, stem: str, lanes: Array) -> None:
        op, operands = line.opcode, line.operands
        if op.startswith("wgmma.mma_async"):
            self.product(line, lanes)
            return
        self.touch(line, operands)
        if ".global" in op and stem in ("ld", "st", "cp") and not self.alone[lanes].all():
            self.races.add((line.number, line.number))
        if op == "griddepcontrol.wait":
            self.alone[lanes] = True
        elif op == "griddepcontrol.launch_dependents":
            pass  # the next kernel waits for the end of this one, wherever it may start
        elif op.startswith("wgmma.fence"):
            self.unfenced.clear()
            self.seen.clear()
            self.chained.clear()
        elif op.startswith(("wgmma.commit_group", "cp.async.commit_group")):
            some = (
                [self.products[w] for w in _warps(lanes)]
                if op[0] == "w"
                else [self.copies[int(t)] for t in lanes]
            )
            for pending in some:
                pending.commit()
        elif op.startswith("wgmma.wait_group"):
            self.produced(lanes, int(operands[0]))
        elif op.startswith("cp.async.wait_"):
            if op.endswith("all"):
                raise Undecided(f"line {line.number}: {op}")
            self.copied(lanes, int(operands[0]))
        elif op.startswith("cp.async.") and "bulk" not in op and "shared.global" in op:
            size = int(operands[2], 0)
            self.copy(line, lanes, self.grains(line, self.address(line, operands[0], lanes), size))
        elif op.startswith("bar.warp.sync"):
            for w in _warps(lanes):
                self.meet(lanes[lanes // WARP == w])
        elif op.startswith("fence.proxy.async"):
            self.fence(lanes)
        elif stem in ("ld", "st"):
            self.move(line, lanes)
        elif stem in ("ldmatrix", "stmatrix"):
            self.matrix(line, lanes)
        elif stem in FOLLOWED:
            self.compute(line, stem, lanes)
        elif stem in _NUMBERS or ".f" in op:
            for name in re.findall(r"%\w+", operands[0]):
                self.set(name, lanes, None)
        else:
            raise Undecided(f"line {line.number}: {op}")

    def set(self, name: str, lanes: Array, value: Array | None, known: Array | None = None) -> None:
        if name != "_":
            self.unfenced.add(name)
            self.put(name, lanes, value, known)

    def move(self, line: Line, lanes: Array) -> None:
        op, operands, loads = line.opcode, line.operands, line.opcode.startswith("ld")
        place, held = (operands[-1], operands[0]) if loads else (operands[0], operands[-1])
        if ".param" in op:
            start = self.addresses[place.strip("[] ")]
            self.set(held, lanes, np.full(self.threads, start, np.uint64))
            return
        names = re.findall(r"%\w+", held) or [held]
        size = width_of(op) // 8 * len(names)
        addresses = self.address(line, place, lanes)
        if ".shared" in op:
            self.access(line, lanes, self.grains(line, addresses, size), writes=not loads)
        elif ".global" in op:
            (self.loaded if loads else self.stored).append(
                (addresses[:, None] + np.arange(size, dtype=np.uint64)).reshape(-1)
            )
        else:
            raise Undecided(f"line {line.number}: {op}")
        if loads:
            for name in names:
                self.set(name, lanes, None)

    def matrix(self, line: Line, lanes: Array) -> None:
        """Eight threads give the addresses of eight rows; all threads of the warp access them."""
        loads = line.opcode.startswith("ld")
        held, place = line.operands if loads else line.operands[::-1]
        names = re.findall(r"%\w+", held)
        for w in _warps(lanes):
            own = np.arange(w * WARP, (w + 1) * WARP)
            rows = self.grains(line, self.address(line, place, own), 16)[: 8 * len(names)]
            parts = np.unique(rows) if loads else None
            if parts is not None:  # whichever thread reads which of them
                self.access(line, own, np.broadcast_to(parts, (WARP, len(parts))), writes=False)
                continue
            # A thread writes two elements of each matrix: of row t / 4, or of column t / 4 where transposed.
            if self.grain != 2:
                raise Undecided(f"line {line.number}: {line.opcode}")
            major, minor = np.arange(WARP) // 4, 2 * (np.arange(WARP) % 4)
            for m in rows.reshape(len(names), 8, -1):
                both = [
                    m[minor + i, major] if ".trans" in line.opcode else m[major, minor + i] for i in (0, 1)
                ]
                self.access(line, own, np.stack(both, 1), writes=True)
        if loads:
            for name in names:
                self.set(name, lanes, None)

    def compute(self, line: Line, stem: str, lanes: Array) -> None:
        op, operands = line.opcode, line.operands
        if stem == "shfl":
            self.shuffle(line, lanes)
        elif stem == "elect":
            first = np.arange(self.threads) % WARP == 0
            self.set(operands[1], lanes, first.astype(np.uint64))
        elif any("{" in o for o in operands) or (".f" in op and stem not in ("mov", "selp")):
            for name in re.findall(r"%\w+", operands[0]):
                self.set(name, lanes, None)
        else:
            given = [self.value(o) for o in operands[1:]]
            known = np.logical_and.reduce([k for _, k in given])
            self.set(operands[0], lanes, computed(stem, op, width_of(op), [v for v, _ in given]), known)

    def shuffle(self, line: Line, lanes: Array) -> None:
        to, of, by, *_ = [o for o in line.operands if o != "|"]
        value, known = self.value(of)
        lane, _ = self.value(by)
        t = np.arange(self.threads)
        source = lane.astype(np.int64) % WARP if ".idx" in line.opcode else (t ^ lane.astype(np.int64)) % WARP
        source = t // WARP * WARP + source
        self.set(to, lanes, value[source], known[source])


# What computes numbers only: the result is not known.
_NUMBERS = frozenset(
    ["fma", "div", "ex2", "lg2", "rsqrt", "sqrt", "max", "min", "mma", "prmt", "rcp", "abs", "tanh"]
)


def races(text: str, shared: int, *, early: bool = False) -> set[tuple[int, int]]:
    """Pairs of lines of a kernel whose accesses are not ordered; `early` if the kernel before may still run.

    Raises Undecided.
    """
    with np.errstate(over="ignore"):
        return Block(text, shared, early=early).run()
