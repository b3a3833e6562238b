// Bulk copies by the copy engine (PTX ISA, "cp.async.bulk" and "cp.async.bulk.tensor"), and the tensor maps
// that tensormap.replace makes for them: in shared memory first, then published to scratch in global memory.
#include "ptx/machine.hpp"

#include <algorithm>

namespace superopt::ptx {
namespace {

constexpr u64 kMapBytes = 128, kMostBox = 256, kMapCells = kMapBytes / 2;

// By the numbers that tensormap.replace knows for `elemtype`; 0 for those that are not read.
constexpr std::array<u8, 11> kElementBytes{0, 2, 0, 0, 0, 0, 2, 4, 4, 0, 2};

// The number of the type whose elements a buffer has; 0 for those that are not added.
u32 numberOf(Type type) {
  return type == Type::F16 ? 6 : type == Type::F32 ? 7 : type == Type::BF16 ? 10 : 0;
}

} // namespace

// The number of the tensor map that lies in shared memory from a slot on.
u16 Machine::mapAt(std::size_t first) const {
  const u32 map = valueOf(shared_[first].held) / kMapCells;
  for (u32 i = 0; i < kMapCells; ++i)
    if (map >= tensorMaps_.size() || shared_[first + i].held != cell(Part::Map, map * kMapCells + i))
      throw Illegal("expected a tensor map, got other memory");
  return static_cast<u16>(map);
}

// A change makes another map: what was published stays as it was.
void Machine::mapReplace(const Instr &in, u16 t) {
  const u64 address = sharedAddress(in, 0, t);
  const std::size_t first = slot(address, kMapBytes);
  bool empty = true;
  for (u32 i = 0; i < kMapCells; ++i) {
    const Cell held = readShared(first + i, t);
    empty = empty && held == cell(Part::Bits, 0);
  }
  TensorMap map;
  if (!empty)
    map = tensorMaps_[mapAt(first)];
  const bool where = static_cast<MapField>(in.aux) == MapField::Address;
  const u64 value = where ? globalAddress(arg(in, 3), t, 0) : bits(arg(in, 3), t), at = arg(in, 2).imm;
  const u32 word = static_cast<u32>(value);
  if (at >= map.box.size())
    throw Illegal("expected a dimension of a tensor map below 5, got " + std::to_string(at));
  switch (static_cast<MapField>(in.aux)) {
  case MapField::Address:
    map.address = value;
    break;
  case MapField::Rank:
    map.rank = word;
    break;
  case MapField::Box:
    map.box[at] = word;
    break;
  case MapField::Extent:
    map.extent[at] = word;
    break;
  case MapField::Stride:
    if (at + 1 >= map.stride.size())
      throw Illegal("expected a stride of a tensor map below 4, got " + std::to_string(at));
    map.stride[at + 1] = value;
    break;
  case MapField::ElementStride:
    map.elementStride[at] = word;
    break;
  case MapField::Type:
    map.type = word;
    break;
  case MapField::Interleave:
    map.interleave = word;
    break;
  case MapField::Swizzle:
    map.swizzle = word;
    break;
  case MapField::Fill:
    map.fill = word;
    break;
  }
  if (tensorMaps_.size() >= 1u << 16)
    throw Unknown("a block that makes that many tensor maps");
  const u32 number = static_cast<u32>(tensorMaps_.size());
  tensorMaps_.push_back(map);
  for (u32 i = 0; i < kMapCells; ++i)
    writeShared(first + i, t, cell(Part::Map, number * kMapCells + i));
}

// tensormap.cp_fenceproxy: a warp copies a map to scratch. That all its threads execute it together (.sync)
// is taken as a barrier of the warp, as Triton and the ISA's example do.
void Machine::mapPublish(const Instr &in, std::span<const u16> lanes) {
  warps(lanes, [&](u16 first) {
    clock_[first / kWarp][first / kWarp] = ++warpEpoch_[first / kWarp];
    const u64 to = globalAddress(in, 0, first), from = sharedAddress(in, 2, first);
    for (u16 t = first; t < first + kWarp; ++t) {
      if (globalAddress(in, 0, t) != to || sharedAddress(in, 2, t) != from)
        throw Illegal("expected threads of a warp that copy the same tensor map, got others");
      afterGrid(t);
    }
    const u64 base = (buffers_.size() + 1) << kBufferBits;
    if (to >> kBufferBits != buffers_.size() + 1 || to % kMapBytes != 0)
      throw Illegal("out of bounds: a tensor map that is copied elsewhere than to scratch");
    const std::size_t at = slot(from, kMapBytes);
    for (u32 i = 0; i < kMapCells; ++i)
      readShared(at + i, first);
    // What others still read there may not change.
    const auto held = published_.find(to);
    if (held != published_.end())
      for (const Access &a : held->second.acquired)
        if (!ordered(a.thread, a.epoch, a.warpEpoch, first))
          throw Illegal("race: expected a barrier before a tensor map is replaced");
    scratchAt(addressSlope_[first]);
    published_[to] = {mapAt(at), {first, epoch_, warpEpoch_[first / kWarp]}, {}};
    const u64 offset = to - base;
    scratch_ = scratch_.second == 0 ? std::pair{offset, offset + kMapBytes}
                                    : std::pair{std::min(scratch_.first, offset),
                                                std::max(scratch_.second, offset + kMapBytes)};
  });
}

// fence.proxy.tensormap::generic.acquire
void Machine::mapAcquire(const Instr &in, u16 t) {
  const auto found = published_.find(globalAddress(in, 0, t));
  if (found == published_.end())
    throw Illegal("expected a tensor map to acquire, got other memory");
  Published &map = found->second;
  afterGrid(t);
  scratchAt(addressSlope_[t]);
  if (!ordered(map.by.thread, map.by.epoch, map.by.warpEpoch, t) && map.by.thread / kWarp != t / kWarp)
    throw Illegal("race: expected a barrier between the copy of a tensor map and its fence");
  map.acquired.push_back({t, epoch_, warpEpoch_[t / kWarp]});
}

const TensorMap &Machine::acquiredMap(u64 address, u16 t) const {
  const auto found = published_.find(address);
  if (found == published_.end())
    throw Illegal("expected a tensor map, got other memory");
  if (std::ranges::none_of(found->second.acquired,
                           [&](const Access &a) { return ordered(a.thread, a.epoch, a.warpEpoch, t); }))
    throw Illegal("race: expected fence.proxy.tensormap between the copy of a tensor map and its use");
  return tensorMaps_[found->second.map];
}

// Tensor maps of all blocks are in scratch, apart in the same way.
void Machine::scratchAt(const Slope &slope) {
  if (!region_)
    return;
  if (!scratchUsed_)
    scratchSlope_ = slope;
  scratchUsed_ = true;
  Slope other{};
  for (std::size_t j = 0; j < region_->axes; ++j)
    other[j] = slope[j] - scratchSlope_[j];
  region_->pin(other);
}

// How the bytes of a box move from block to block. Its elements stay inside of the tensor, or outside: a box
// that is partly outside along a dimension stays where it is.
Slope Machine::slopeOfBox(const Instr &in, u16 t, const TensorMap &map, const std::array<i64, 5> &start,
                          std::size_t first) {
  Slope found{};
  for (std::size_t d = 0; d <= map.rank; ++d) {
    Slope s = slope(arg(in, first + d), t);
    const i64 last = start[d] + static_cast<i64>(map.box[d]), extent = static_cast<i64>(map.extent[d]);
    if (start[d] < 0 || last > extent) {
      region_->pin(s);
    } else {
      region_->require(s, -start[d]);
      Slope back{};
      for (std::size_t j = 0; j < kAxes; ++j)
        back[j] = -s[j];
      region_->require(back, last - extent);
    }
    const i64 stride = d == 0 ? kElementBytes[map.type] : static_cast<i64>(map.stride[d]);
    for (std::size_t j = 0; j < kAxes; ++j)
      found[j] += s[j] * stride;
  }
  return found;
}

bool Machine::complete(u32 bulk, u16 t) const {
  const Bulk &b = bulk_[bulk - 1];
  return known_[b.barrier][t] > b.phase;
}

// The elements that a copy moves; their bytes into `size`. Operands: the place in shared memory and what says
// where in global memory, in the order of the copy, then the mbarrier of a load, then coordinates or a size.
std::vector<Machine::Piece> Machine::pieces(const Instr &in, u16 t, bool isLoad, unsigned &size) {
  const std::size_t shared = isLoad ? 0 : 2, global = isLoad ? 2 : 0, after = isLoad ? 6 : 4;
  const u64 at = sharedAddress(in, shared, t), from = globalAddress(in, global, t);
  std::vector<Piece> found;
  const auto fits = [&](u64 bytes) {
    if (bytes > 2 * shared_.size())
      throw Illegal("out of bounds: a bulk copy of " + std::to_string(bytes) + " bytes of " +
                    std::to_string(2 * shared_.size()) + " in shared memory");
  };
  if (in.aux == 0) {
    const u64 bytes = bits(arg(in, after), t) & 0xffffffff;
    size = 2;
    fits(bytes);
    if ((bytes | at | from) % 16 != 0)
      throw Illegal("expected a bulk copy of multiples of 16 bytes");
    const std::size_t index = from >> kBufferBits;
    if (index > 0 && index <= buffers_.size() && buffers_[index - 1].type == Type::F32)
      size = 4;
    spend(bytes / size);
    for (u64 i = 0; i < bytes; i += size)
      found.push_back({at + i, from + i, true});
    return found;
  }
  const TensorMap &map = acquiredMap(from, t);
  scratchAt(addressSlope_[t]);
  const std::size_t rank = static_cast<std::size_t>(in.aux);
  if (map.rank + 1 != rank)
    throw Illegal("expected a tensor map of " + std::to_string(rank) + " dimensions, got one of " +
                  std::to_string(map.rank + 1));
  size = map.type < kElementBytes.size() ? kElementBytes[map.type] : 0;
  if (size == 0 || map.interleave != 0 || map.fill != 0 || map.swizzle > 3)
    throw Unknown("a tensor map of such elements, interleaved, or with another fill");
  const u64 width = map.box[0] * size, span = u64{1} << map.swizzle; // of 16 bytes
  std::array<i64, 5> start{};
  u64 total = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    if (map.elementStride[i] != 1)
      throw Unknown("a tensor map with steps between elements");
    if (map.box[i] == 0 || map.box[i] > kMostBox || (i > 0 && map.stride[i] % 16 != 0))
      throw Illegal("expected boxes of 1 to 256 elements and strides of multiples of 16 bytes, got others");
    start[i] = static_cast<i32>(bits(arg(in, after + i), t));
    total *= map.box[i];
    fits(total * size);
  }
  if (region_)
    addressSlope_[t] = slopeOfBox(in, t, map, start, after);
  if (map.address % 16 != 0 || width % 16 != 0 || at % kMapBytes != 0 ||
      (map.swizzle != 0 && width > span * 16))
    throw Illegal("expected a box whose rows fit its swizzle, at multiples of 16 bytes, got another");
  spend(total);
  for (u64 i = 0; i < total; ++i) {
    u64 rest = i, place = map.address;
    bool inside = true;
    for (std::size_t d = 0; d < rank; ++d) {
      const i64 x = start[d] + static_cast<i64>(rest % map.box[d]);
      rest /= map.box[d];
      inside = inside && x >= 0 && x < static_cast<i64>(map.extent[d]);
      const i128 further = static_cast<i128>(x) * (d == 0 ? size : map.stride[d]) + place;
      if (inside && further >> kBufferBits != map.address >> kBufferBits)
        throw Illegal("out of bounds: a box that leaves its argument");
      place = static_cast<u64>(further);
    }
    const u64 linear = at + i * size;
    found.push_back({linear ^ ((linear >> 7 & (span - 1)) << 4), place, inside});
  }
  return found;
}

// To shared memory: written from now until its mbarrier's phase is over, and seen by those who know that it
// is.
void Machine::bulkLoad(const Instr &in, u16 t) {
  unsigned size = 0;
  const std::vector<Piece> moved = pieces(in, t, true, size);
  Mbarrier &m = barrierAt(sharedAddress(in, 4, t), t);
  if (m.by == kNobody || !ordered(m.by, m.epoch, m.warpEpoch, t))
    throw Illegal("race: expected a barrier between mbarrier.arrive.expect_tx and its bulk copy");
  bulk_.push_back({m.id, m.phase(), moved.size() * size});
  const Issue issue{0, 0, t, fences_[t].empty() ? 0 : fences_[t].back().epoch};
  for (const Piece &piece : moved) {
    std::array<Cell, 2> held{cell(Part::Bits, 0), cell(Part::Bits, 0)};
    if (piece.inside) {
      const auto [index, place] = locate(piece.global, size, "bulk copy");
      if (buffers_[index].writable)
        throw Unknown("a bulk copy from memory that the kernel may store to");
      readGlobal(piece.global, size, t, held.data());
    }
    const std::size_t first = slot(piece.shared, size);
    for (unsigned i = 0; i < size / 2; ++i) {
      Slot &s = shared_[first + i];
      writable(s, t, nullptr);
      if (s.writer != kNobody && !fenced(s, issue))
        throw Illegal("race: expected fence.proxy.async between a write and a bulk copy to the same place");
      s.held = held[i];
      s.writer = kNobody;
      s.split = false;
      s.atomic = 0;
      s.bulkWrite = static_cast<u32>(bulk_.size());
    }
  }
  m.bytes -= static_cast<i64>(moved.size() * size);
  if (m.bytes < 0)
    throw Illegal("expected a bulk copy of no more bytes than its mbarrier expects, got " +
                  std::to_string(-m.bytes) + " more");
  if (m.bytes == 0 && m.arrived == m.count) {
    --m.arrived;
    arriveAt(m);
  }
  countBulk(moved, size, 0);
}

// From shared memory: read until its thread waits for its group.
void Machine::bulkStore(const Instr &in, u16 t) {
  unsigned size = 0;
  const std::vector<Piece> moved = pieces(in, t, false, size);
  Issue issue{0, 0, t, fences_[t].empty() ? 0 : fences_[t].back().epoch};
  BulkRead reading{{}, bulkGroup_[t]};
  for (const Piece &piece : moved) {
    const std::size_t first = slot(piece.shared, size);
    std::array<Cell, 2> held{};
    for (unsigned i = 0; i < size / 2; ++i) {
      Slot &s = shared_[first + i];
      asyncReadable(s, issue);
      held[i] = s.held;
      ++s.bulkReads;
      reading.slots.push_back(static_cast<u32>(first + i));
    }
    if (!piece.inside)
      continue;
    const auto [index, place] = locate(piece.global, size, "bulk copy");
    if (in.mode == 0 && stored_[index].contains(place))
      race("store", "a store by");
    if (in.mode != 0) {
      if (acquiredMap(globalAddress(in, 0, t), t).type != numberOf(buffers_[index].type))
        throw Illegal("expected sums of the elements' type, got a tensor map of another");
      accumulate(piece.global, size, t, held.data(), static_cast<Atomic>(in.mode - 1), true);
    } else {
      writeGlobal(piece.global, size, t, held.data());
      stored_[index].at(place).bulk = true;
    }
  }
  bulkReads_[t].push_back(std::move(reading));
  countBulk(moved, size, 1);
}

// From here on the copies' reads are those of the thread that waited for them.
void Machine::bulkWait(const Instr &in, std::span<const u16> lanes) {
  const u64 left = arg(in, 0).imm;
  for (u16 t : lanes)
    std::erase_if(bulkReads_[t], [&](const BulkRead &r) {
      if (r.group + left >= bulkGroup_[t])
        return false;
      for (u32 i : r.slots) {
        --shared_[i].bulkReads;
        noteRead(shared_[i], t);
      }
      return true;
    });
}

// A block that ends gives its shared memory back.
void Machine::bulkEnd(std::span<const u16> lanes) const {
  for (u16 t : lanes)
    if (!bulkReads_[t].empty())
      throw Illegal("race: expected a wait for a bulk copy before its block ends");
  if (exited_ + lanes.size() < threads_)
    return;
  for (const Bulk &b : bulk_)
    if (std::ranges::none_of(known_[b.barrier], [&](u32 known) { return known > b.phase; }))
      throw Illegal("race: expected a wait for a bulk copy before its block ends");
}

void Machine::countBulk(const std::vector<Piece> &moved, unsigned size, std::size_t kind) {
  std::vector<std::pair<u16, u64>> accesses; // a row of 32 sectors at a time
  u64 bytes = 0;
  for (const Piece &piece : moved)
    if (piece.inside)
      accesses.emplace_back(static_cast<u16>(bytes / (kWarp * 32) * kWarp % 1024), piece.global),
          bytes += size;
  countGlobal(kind == 0 ? 2 : 1, accesses, size);
  const u64 wavefronts = (moved.size() * size + 127) / 128;
  counts_.wavefronts[kind == 0 ? 2 : 0] += wavefronts;
  counts_.idealWavefronts[kind == 0 ? 2 : 0] += wavefronts;
}

} // namespace superopt::ptx
