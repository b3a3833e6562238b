// Atomics whose outcome does not depend on the order of threads: sums, extremes, and bits of integers. What
// they return does, so nobody may read it.
#include "ptx/machine.hpp"

#include <algorithm>

namespace superopt::ptx {

// Operands: results, the address, its offset, values.
void Machine::atomic(const Instr &in, std::span<const u16> lanes) {
  const bool isShared = static_cast<Space>(in.mode & 1) == Space::Shared;
  const auto how = static_cast<Atomic>(in.mode >> 1);
  const std::size_t n = (in.count - 2) / 2;
  const unsigned each = in.width / 16u;
  std::array<Cell, 16> held{};
  std::vector<std::pair<u16, u64>> accesses;
  for (u16 t : lanes) {
    const u64 address = isShared ? sharedAddress(in, n, t) : globalAddress(in, n, t);
    accesses.emplace_back(t, address);
    if (isShared) {
      atomicShared(in, address, t);
    } else {
      if (static_cast<Type>(in.aux) == Type::F32x2)
        throw Unknown("an atomic of integers in device memory");
      for (std::size_t i = 0; i < n; ++i)
        cells(arg(in, n + 2 + i), t, in.width, held.data() + i * each);
      const auto found = locate(address, in.width / 8u * static_cast<unsigned>(n), "store");
      const Type type = static_cast<Type>(in.aux), plain = type == Type::F16x2    ? Type::F16
                                                           : type == Type::BF16x2 ? Type::BF16
                                                                                  : type;
      if (buffers_[found.first].type != plain)
        throw Illegal("expected an atomic of the elements' type, got one of another");
      accumulate(address, in.width / 8u * static_cast<unsigned>(n), t, held.data(), how, false);
    }
    const Cell old[2] = {kOld, kOld};
    for (std::size_t i = 0; i < n; ++i)
      setCells(arg(in, i), t, in.width, old);
  }
  const unsigned bytes = in.width / 8u * static_cast<unsigned>(n);
  isShared ? countShared(1, accesses, bytes) : countGlobal(1, accesses, bytes);
}

// Contributions to elements in device memory: what the block adds, whatever was there.
void Machine::accumulate(u64 address, unsigned bytes, u16 t, const Cell *in, Atomic how, bool bulk) {
  auto [index, place] = locate(address, bytes, "store");
  const Buffer &b = buffers_[index];
  if (!b.writable)
    throw Illegal("expected stores to outputs or scratch, got one to input " + std::to_string(index));
  if (how > Atomic::Min)
    throw Unknown("an atomic of a number's bits");
  afterGrid(t);
  if (region_)
    reach(index, place, bytes / bytesOf(b.type), addressSlope_[t]);
  const u8 mine = static_cast<u8>(1 + static_cast<u8>(how));
  for (unsigned i = 0; i < bytes / bytesOf(b.type); ++i, ++place) {
    const Number x = elementOf(in, i, b.type);
    if (read_[index].contains(place))
      throw Unknown("an atomic on what the kernel loads, which depends on the order of threads");
    const auto [at, fresh] =
        stored_[index].try_emplace(place, Stored{x, epoch_, step_, t, warpEpoch_[t / kWarp], bulk, mine});
    if (fresh)
      continue;
    Stored &s = at->second;
    if (s.atomic != mine)
      throw Unknown(
          "an atomic on what the kernel stores in other ways, which depends on the order of threads");
    s.value =
        how == Atomic::Add
            ? numbers_.added(s.value, x)
            : numbers_.get(numbers_.extreme(how == Atomic::Max, numbers_.put(s.value), numbers_.put(x)));
  }
}

// In shared memory, between barriers: the same operation by any threads, and nothing else.
void Machine::atomicShared(const Instr &in, u64 address, u16 t) {
  const auto how = static_cast<Atomic>(in.mode >> 1);
  const u8 mine = static_cast<u8>(1 + static_cast<u8>(how));
  const bool integers = static_cast<Type>(in.aux) == Type::F32x2;
  if (in.width != 32 || in.count != 4)
    throw Unknown("an atomic of other than 32 bits in shared memory");
  const std::size_t first = slot(address, 4);
  Cell value[2], out[2];
  cells(arg(in, 3), t, 32, value);
  for (std::size_t i = 0; i < 2; ++i) {
    Slot &s = shared_[first + i];
    if (!s.inFlight && !s.barrier && s.bulkReads == 0 && s.atomic == mine && s.writeEpoch == epoch_) {
      // What was written before the first of them comes before all.
      if (!ordered(s.upper.writer, s.upper.epoch, s.upper.warpEpoch, t))
        disordered("write", "a write of");
      notRead(s, t);
    } else {
      writable(s, t, nullptr);
      s.upper = {s.writeEpoch, s.writeWarpEpoch, s.writeStep, s.writer};
      s.split = true;
      s.atomic = 0;
    }
  }
  const Cell low = shared_[first].held, high = shared_[first + 1].held;
  if (integers) {
    for (Cell c : {low, high, value[0], value[1]})
      if (partOf(c) != Part::Bits)
        throw Unknown("an atomic of integers on something else");
    const u32 a = valueOf(low) | valueOf(high) << 16, b = valueOf(value[0]) | valueOf(value[1]) << 16;
    const bool isSigned = (in.aux >> 8) != 0;
    const bool less = isSigned ? static_cast<i32>(a) < static_cast<i32>(b) : a < b;
    const u32 x = how == Atomic::Add   ? a + b
                  : how == Atomic::Max ? (less ? b : a)
                  : how == Atomic::Min ? (less ? a : b)
                  : how == Atomic::And ? a & b
                  : how == Atomic::Or  ? a | b
                                       : a ^ b;
    out[0] = cell(Part::Bits, x & 0xffff);
    out[1] = cell(Part::Bits, x >> 16);
  } else {
    if (how > Atomic::Min || static_cast<Type>(in.aux) != Type::F32)
      throw Unknown("such an atomic in shared memory");
    const Handle a = number(low, high), b = number(value[0], value[1]);
    const Handle h = how == Atomic::Add ? numbers_.add(a, b) : numbers_.extreme(how == Atomic::Max, a, b);
    out[0] = cell(Part::Low, h);
    out[1] = cell(Part::High, h);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    Slot &s = shared_[first + i];
    const bool again = s.atomic == mine && s.writeEpoch == epoch_;
    s.held = out[i];
    s.bulkWrite = 0;
    s.writer = again && s.writer != t ? kSeveral : t;
    s.atomic = mine;
    s.writeEpoch = epoch_;
    s.writeWarpEpoch = warpEpoch_[t / kWarp];
    s.writeStep = step_;
  }
}

} // namespace superopt::ptx
