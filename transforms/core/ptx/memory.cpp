// Shared and global memory: bounds, initialisation, and the order of accesses.
#include "ptx/machine.hpp"

#include <algorithm>
#include <set>

namespace superopt::ptx {

void race(const char *what, const char *with) {
  throw Illegal(std::string("race: expected a barrier between a ") + what + " and " + with +
                " another thread");
}

bool Machine::sameCell(Cell a, Cell b) const {
  if (a == b || partOf(a) != partOf(b))
    return a == b;
  const auto same = [&](u32 x, u32 y) { return numbers_.get(x) == numbers_.get(y); };
  if (isNumber(partOf(a)))
    return same(valueOf(a), valueOf(b));
  if (partOf(a) != Part::Bytes)
    return false;
  for (std::size_t i = 0; i < 2; ++i) {
    const Cell x = bytes_[valueOf(a)][i], y = bytes_[valueOf(b)][i];
    if (x == y)
      continue;
    if (tagOf(x) != tagOf(y) || tagOf(x) < Byte::E4M3)
      return false;
    if (tagOf(x) != Byte::Whole) {
      if (!same(valueOf(x), valueOf(y)))
        return false;
      continue;
    }
    const Whole &u = wholes_[valueOf(x)], &v = wholes_[valueOf(y)];
    if (u.at != v.at || u.size != v.size || !same(u.of, v.of))
      return false;
  }
  return true;
}

// Whether an access by one thread is ordered before what thread `t` does now.
bool Machine::ordered(u16 by, u32 epoch, u32 warpEpoch, u16 t) const {
  if (by == kNobody || by == t || epoch < epoch_)
    return true;
  return by != kSeveral && warpEpoch < clock_[t / kWarp][by < kSomeOfWarp ? by / kWarp : by - kSomeOfWarp];
}

// Who wrote something that thread `t` writes, too, by the same instruction.
u16 Machine::joined(u16 by, u16 t) const {
  if (by == t || by == kNobody)
    return t;
  const u16 some = static_cast<u16>(kSomeOfWarp + t / kWarp);
  return by == some || (by < threads_ && by / kWarp == t / kWarp) ? some : kSeveral;
}

// Where barriers of some warps order others, what several threads did is not followed.
void Machine::disordered(const char *what, const char *with, bool certain) const {
  if (!certain && partial_)
    throw Unknown("an order that barriers of some warps may give");
  race(what, with);
}

// --- shared

void Machine::readable(Slot &s, u16 t) {
  if (s.inFlight)
    throw Illegal("race: expected a wait for cp.async first, got a read of what is still being copied");
  if (s.barrier)
    throw Illegal("expected an access to an mbarrier by its own instructions, got a load");
  if (!written(s, t))
    disordered("read", "a write of", s.writer != kSeveral);
  if (s.bulkWrite != 0 && !complete(s.bulkWrite, t))
    throw Illegal("race: expected a wait for its mbarrier first, got a read of what is still being copied");
  noteRead(s, t);
}

// Whether all writes of a slot are ordered before what thread `t` does now.
bool Machine::written(const Slot &s, u16 t) const {
  return ordered(s.writer, s.writeEpoch, s.writeWarpEpoch, t) &&
         (!s.split || ordered(s.upper.writer, s.upper.epoch, s.upper.warpEpoch, t));
}

void Machine::noteRead(Slot &s, u16 t) const {
  const u16 warp = t / kWarp;
  const bool before = s.readEpoch != epoch_ || s.reader == kNobody || s.reader == t ||
                      (s.readWarp != kSeveral && s.readWarpEpoch < clock_[warp][s.readWarp]);
  if (before) {
    s.reader = t;
    s.readWarp = warp;
  } else {
    s.reader = kSeveral;
    if (s.readWarp != warp)
      s.readWarp = kSeveral;
  }
  s.readEpoch = epoch_;
  s.readWarpEpoch = warpEpoch_[warp];
}

Cell Machine::readShared(std::size_t i, u16 t) {
  readable(shared_[i], t);
  return shared_[i].held;
}

void Machine::writable(const Slot &s, u16 t, const Cell *value) const {
  if (s.inFlight)
    throw Illegal("race: expected a wait for cp.async first, got a write to what is still being copied");
  if (s.barrier)
    throw Illegal("expected an access to an mbarrier by its own instructions, got a store");
  if ((s.bulkWrite != 0 && !complete(s.bulkWrite, t)) || s.bulkReads != 0)
    throw Illegal("race: expected a wait for a bulk copy first, got a write to what it may still be moving");
  for (std::size_t stream = 0; stream < kStreams; ++stream)
    if (s.asyncRead[stream] != 0 && s.asyncRead[stream] > completed(stream, t))
      throw Illegal("race: expected a wait first, got a write to what the tensor core may still be reading");
  if (!written(s, t) && !(value != nullptr && !s.split && s.writeStep == step_ && sameCell(s.held, *value)))
    disordered("write", "a write of", s.writer != kSeveral);
  notRead(s, t);
}

// Whether no read is under way that a write by thread `t` could disturb.
void Machine::notRead(const Slot &s, u16 t) const {
  if (s.readEpoch != epoch_ || s.reader == t || s.reader == kNobody)
    return;
  if (s.readWarp == kSeveral || s.readWarpEpoch >= clock_[t / kWarp][s.readWarp])
    disordered("write", "a read of", s.readWarp != kSeveral);
}

void Machine::writeShared(std::size_t i, u16 t, Cell value) {
  Slot &s = shared_[i];
  writable(s, t, &value);
  s.held = value;
  s.bulkWrite = 0;
  s.split = false;
  s.atomic = 0;
  s.writer = s.writeStep == step_ ? joined(s.writer, t) : t;
  s.writeEpoch = epoch_;
  s.writeWarpEpoch = warpEpoch_[t / kWarp];
  s.writeStep = step_;
}

// One byte: the other one keeps its writer.
void Machine::writeByte(u64 address, u16 t, Cell value) {
  Slot &s = shared_[slot(address & ~u64{1}, 2)];
  const bool upper = address % 2 != 0;
  std::array<Cell, 2> held = split(s.held);
  held[upper] = value;
  if (s.bulkWrite != 0 || s.atomic != 0) // of the whole slot
    return writeShared(static_cast<std::size_t>(&s - shared_.data()), t, join(held[0], held[1]));
  if (!s.split)
    s.upper = {s.writeEpoch, s.writeWarpEpoch, s.writeStep, s.writer};
  Slot mine = s; // as if this byte's writer were that of all
  mine.split = false;
  if (upper) {
    mine.writer = s.upper.writer;
    mine.writeEpoch = s.upper.epoch;
    mine.writeWarpEpoch = s.upper.warpEpoch;
  }
  writable(mine, t, nullptr);
  s.split = true;
  s.held = join(held[0], held[1]);
  if (upper) {
    s.upper = {epoch_, warpEpoch_[t / kWarp], step_, t};
  } else {
    s.writer = t;
    s.writeEpoch = epoch_;
    s.writeWarpEpoch = warpEpoch_[t / kWarp];
    s.writeStep = step_;
  }
}

// --- global

std::pair<std::size_t, u64> Machine::locate(u64 address, unsigned bytes, const char *what) const {
  const std::size_t index = address >> kBufferBits;
  if (index == 0 || index > buffers_.size())
    throw Illegal(std::string("out of bounds: a ") + what + " outside every buffer");
  const Buffer &b = buffers_[index - 1];
  const u64 offset = address & ((u64{1} << kBufferBits) - 1), size = bytesOf(b.type);
  if (bytes > kAligned || offset % bytes != 0)
    throw Illegal(std::string("expected a ") + what + " at a multiple of " + std::to_string(bytes) +
                  " bytes, in memory at multiples of " + std::to_string(kAligned));
  if (offset + bytes > b.elements * size)
    throw Illegal(std::string("out of bounds: a ") + what + " of element " + std::to_string(offset / size) +
                  " of argument " + std::to_string(index - 1) + ", which has " + std::to_string(b.elements));
  if (bytes < size || bytes % size != 0)
    throw Unknown("an access to part of an element");
  return {index - 1, offset / size};
}

// What an element is before the launch; nullopt where nothing is.
std::optional<Number> Machine::contents(const Buffer &b, std::size_t place) const {
  if (!b.keys.empty())
    return Number{field::residue(numbers_.p(), b.keys[0], place),
                  b.keys.size() > 1 ? field::residue(numbers_.q(), b.keys[1], place) : kNone};
  if (b.p == nullptr)
    return std::nullopt;
  const std::size_t at = place < b.period ? place : place % b.period;
  return Number{b.p[at], b.q != nullptr ? b.q[at] : kNone};
}

// Until a thread has waited for the grid before, that one may still write and read any device memory.
void Machine::afterGrid(u16 t) const {
  if (waitsForGrid_ && !gridReady_[t])
    throw Illegal("race: an access to device memory before griddepcontrol.wait");
}

void Machine::readGlobal(u64 address, unsigned bytes, u16 t, Cell *out) {
  auto [index, place] = locate(address, bytes, "load");
  const Buffer &b = buffers_[index];
  const unsigned size = bytesOf(b.type);
  if (region_)
    reach(index, place, bytes / size, addressSlope_[t]);
  afterGrid(t);
  for (unsigned i = 0; i < bytes / size; ++i, ++place) {
    Number x;
    const auto found = b.writable ? stored_[index].find(place) : stored_[index].end();
    if (b.writable && found != stored_[index].end()) {
      const Stored &s = found->second;
      if (s.bulk)
        throw Unknown("a load of what a bulk copy stores");
      if (s.atomic != 0)
        throw Unknown("a load of what atomics change, which depends on the order of threads");
      if (!ordered(s.thread, s.epoch, s.warpEpoch, t))
        race("load", "a store by");
      x = s.value;
    } else if (const auto held = contents(b, place)) {
      x = *held;
    } else {
      throw Illegal("expected a load of what was stored, got element " + std::to_string(place) +
                    " of argument " + std::to_string(index) + ", which nothing stores");
    }
    if (b.writable) {
      const u32 now = warpEpoch_[t / kWarp];
      Read &r = read_[index].try_emplace(place, Read{epoch_, now, t}).first->second;
      r = {epoch_, now, ordered(r.thread, r.epoch, r.warpEpoch, t) ? t : kSeveral};
    }
    const Handle h = numbers_.put(x);
    if (isWhole(b.type)) {
      readWhole(h, b.type, i * size, out);
    } else if (size == 4) {
      out[2 * i] = cell(Part::Low, h);
      out[2 * i + 1] = cell(Part::High, h);
    } else if (size == 2) {
      out[i] = cellOf(h, b.type);
    } else {
      const Cell low = i % 2 == 0 ? byte(Byte::Bits, 0) : split(out[i / 2])[0], mine = cellOf(h, b.type);
      out[i / 2] = i % 2 == 0 ? join(mine, low) : join(low, mine);
    }
  }
}

void Machine::writeGlobal(u64 address, unsigned bytes, u16 t, const Cell *in) {
  auto [index, place] = locate(address, bytes, "store");
  const Buffer &b = buffers_[index];
  if (!b.writable)
    throw Illegal("expected stores to outputs or scratch, got one to input " + std::to_string(index));
  if (isWhole(b.type))
    throw Unknown("a store of integers");
  afterGrid(t);
  if (region_)
    reach(index, place, bytes / bytesOf(b.type), addressSlope_[t]);
  const u32 now = warpEpoch_[t / kWarp];
  for (unsigned i = 0; i < bytes / bytesOf(b.type); ++i, ++place) {
    const Number x = elementOf(in, i, b.type);
    const Stored made{x, epoch_, step_, t, now};
    const auto [at, fresh] = stored_[index].try_emplace(place, made);
    Stored &s = at->second;
    if (!fresh) {
      if (s.bulk)
        race("store", "a bulk copy by");
      if (s.atomic != 0)
        throw Unknown("a store to what atomics change, which depends on the order of threads");
      if (!ordered(s.thread, s.epoch, s.warpEpoch, t) && !(s.step == step_ && s.value == x))
        race("store", "a store by");
      const u16 by = s.step == step_ ? joined(s.thread, t) : t;
      s = made;
      s.thread = by;
    }
    unread(index, place, t);
  }
}

// Element `i` of the cells that are to be stored.
Number Machine::elementOf(const Cell *in, unsigned i, Type type) {
  const Handle h = type == Type::F32    ? number(in[2 * i], in[2 * i + 1])
                   : bytesOf(type) == 1 ? eighth(split(in[i / 2])[i % 2], type)
                                        : half(in[i], type);
  const Number x = numbers_.get(h);
  if (x.kind() == kUndefinedNumber)
    throw Illegal("expected a number to be stored, got one that is undefined");
  return x;
}

void Machine::unread(std::size_t index, u64 place, u16 t) const {
  const auto r = read_[index].find(place);
  if (r != read_[index].end() && !ordered(r->second.thread, r->second.epoch, r->second.warpEpoch, t))
    disordered("store", "a load by", r->second.thread != kSeveral);
}

// --- instructions

void Machine::load(const Instr &in, std::span<const u16> lanes) {
  const bool isShared = static_cast<Space>(in.mode) == Space::Shared;
  const unsigned each = in.width / 16u, n = in.count - 2, bytes = in.width / 8u * n;
  std::array<Cell, 16> held{};
  std::vector<std::pair<u16, u64>> accesses;
  for (u16 t : lanes) {
    if (poisoned(arg(in, n), t)) {
      for (unsigned i = 0; i < n; ++i)
        setUndefined(arg(in, i), t);
      continue;
    }
    const u64 address = isShared ? sharedAddress(in, n, t) : globalAddress(in, n, t);
    accesses.emplace_back(t, address);
    if (!isShared) {
      const std::size_t index = address >> kBufferBits;
      if (in.aux != 0 && index > 0 && index <= buffers_.size() && buffers_[index - 1].writable)
        throw Unknown("a load through the read-only cache of what the kernel may store");
      readGlobal(address, bytes, t, held.data());
    } else if (bytes == 1) {
      held[0] = readShared(slot(address & ~u64{1}, 2), t);
      held[0] = join(split(held[0])[address % 2], byte(Byte::Bits, 0));
    } else {
      const std::size_t first = slot(address, bytes);
      for (unsigned i = 0; i < bytes / 2; ++i)
        held[i] = readShared(first + i, t);
    }
    for (unsigned i = 0; i < n; ++i)
      if (each > 0) {
        setCells(arg(in, i), t, in.width, held.data() + i * each);
      } else {
        const Cell wide[2] = {join(split(held[i / 2])[i % 2], byte(Byte::Bits, 0)), cell(Part::Bits, 0)};
        setCells(arg(in, i), t, 32, wide);
      }
  }
  isShared ? countShared(0, accesses, bytes) : countGlobal(0, accesses, bytes);
}

void Machine::store(const Instr &in, std::span<const u16> lanes) {
  const bool isShared = static_cast<Space>(in.mode) == Space::Shared;
  const unsigned each = in.width / 16u, n = in.count - 2, bytes = in.width / 8u * n;
  std::array<Cell, 16> held{};
  std::vector<std::pair<u16, u64>> accesses;
  for (u16 t : lanes) {
    const u64 address = isShared ? sharedAddress(in, 0, t) : globalAddress(in, 0, t);
    accesses.emplace_back(t, address);
    for (unsigned i = 0; i < n; ++i)
      if (each > 0) {
        cells(arg(in, i + 2), t, in.width, held.data() + i * each);
      } else {
        Cell low[1];
        cells(arg(in, i + 2), t, 16, low);
        const Cell mine = split(low[0])[0];
        held[i / 2] = i % 2 == 0 ? join(mine, byte(Byte::Bits, 0)) : join(split(held[i / 2])[0], mine);
      }
    if (!isShared) {
      writeGlobal(address, bytes, t, held.data());
      continue;
    }
    if (bytes == 1) {
      writeByte(address, t, split(held[0])[0]);
      continue;
    }
    const std::size_t first = slot(address, bytes);
    for (unsigned i = 0; i < bytes / 2; ++i)
      writeShared(first + i, t, held[i]);
  }
  isShared ? countShared(1, accesses, bytes) : countGlobal(1, accesses, bytes);
}

// cp.async: written from now until its thread waits, so that nobody may look before.
void Machine::copy(const Instr &in, std::span<const u16> lanes) {
  const unsigned bytes = static_cast<unsigned>(in.aux);
  std::array<Cell, 8> held{};
  std::vector<std::pair<u16, u64>> to, from;
  for (u16 t : lanes) {
    const u64 address = sharedAddress(in, 0, t);
    const bool unknown = poisoned(arg(in, 2), t) || (in.count > 4 && poisoned(arg(in, 4), t)) ||
                         (in.pred >= 0 && poisoned({in.pred, 0}, t));
    const u64 used = unknown ? 0 : in.count > 4 ? bits(arg(in, 4), t) & 0xffffffff : bytes;
    if (used > bytes || used % 4 != 0)
      throw Illegal("expected at most " + std::to_string(bytes) + " bytes to be copied, got " +
                    std::to_string(used));
    held.fill(unknown ? 0 : cell(Part::Bits, 0));
    const u64 source = used == 0 ? 0 : globalAddress(in, 2, t); // of no bytes, it may be anywhere
    // What is stored there meanwhile may be copied, or not.
    if (const std::size_t index = source >> kBufferBits;
        index > 0 && index <= buffers_.size() && buffers_[index - 1].writable)
      throw Unknown("an asynchronous copy of what the kernel may store");
    for (unsigned done = 0; done < used; done += 4)
      readGlobal(source + done, 4, t, held.data() + done / 2);
    if (used > 0) {
      if (source % bytes != 0)
        throw Illegal("expected a copy from a multiple of " + std::to_string(bytes) + " bytes");
      from.emplace_back(t, source);
    }
    to.emplace_back(t, address);
    const std::size_t first = slot(address, bytes);
    for (unsigned i = 0; i < bytes / 2; ++i) {
      Slot &s = shared_[first + i];
      writable(s, t, nullptr);
      s.held = held[i];
      s.bulkWrite = 0;
      s.inFlight = true;
    }
    copies_[t].push_back({static_cast<u32>(first), bytes / 2, copyGroup_[t]});
  }
  countShared(2, to, bytes);
  countGlobal(2, from, bytes);
}

// From here on the copies are writes of the thread that waited for them.
void Machine::copyWait(const Instr &in, std::span<const u16> lanes) {
  const u64 left = arg(in, 0).imm;
  u64 bytes = 0;
  for (u16 t : lanes)
    for (const Copy &c : copies_[t])
      bytes += u64{2} * c.count;
  countWait(bytes);
  for (u16 t : lanes) {
    const u64 open = copyGroup_[t]; // groups committed so far
    std::erase_if(copies_[t], [&](const Copy &c) {
      if (c.group >= open || c.group + left >= open)
        return false;
      for (u32 i = 0; i < c.count; ++i) {
        Slot &s = shared_[c.slot + i];
        s.inFlight = false;
        s.split = false;
        s.atomic = 0;
        s.writer = t;
        s.writeEpoch = epoch_;
        s.writeWarpEpoch = warpEpoch_[t / kWarp];
        s.writeStep = step_;
      }
      return true;
    });
  }
}

void Machine::matrixMove(const Instr &in, std::span<const u16> lanes) {
  const bool isLoad = in.op == Op::ldmatrix, transposed = in.mode != 0;
  const std::size_t n = in.count - 2, registers = isLoad ? 0 : 2, address = isLoad ? n : 0;
  warps(lanes, [&](u16 first) {
    for (std::size_t m = 0; m < n; ++m) {
      std::array<std::size_t, 8> rows{};
      std::vector<std::pair<u16, u64>> accesses;
      for (std::size_t r = 0; r < 8; ++r) {
        const u16 t = static_cast<u16>(first + 8 * m + r);
        const u64 at = sharedAddress(in, address, t);
        rows[r] = slot(at, 16);
        accesses.emplace_back(static_cast<u16>(first + r), at);
      }
      for (std::size_t lane = 0; lane < kWarp; ++lane) {
        const u16 t = static_cast<u16>(first + lane);
        const std::size_t major = lane / 4, minor = 2 * (lane % 4);
        const std::size_t at0 = transposed ? rows[minor] + major : rows[major] + minor;
        const std::size_t at1 = transposed ? rows[minor + 1] + major : rows[major] + minor + 1;
        Cell held[2];
        if (isLoad) {
          held[0] = readShared(at0, t);
          held[1] = readShared(at1, t);
          setCells(arg(in, registers + m), t, 32, held);
        } else {
          cells(arg(in, registers + m), t, 32, held);
          writeShared(at0, t, held[0]);
          writeShared(at1, t, held[1]);
        }
      }
      countShared(3, accesses, 16);
    }
  });
}

} // namespace superopt::ptx
