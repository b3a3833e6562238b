// tcgen05 (PTX ISA, "TensorCore 5th Generation Family Instructions").
#include "ptx/machine.hpp"

#include <algorithm>

namespace superopt::ptx {
namespace {

constexpr u32 kLanes = 128, kColumns = 512, kLoading = ~0u;
constexpr u64 kNoField = u64{1} << 6 | u64{1} << 23 | u64{7} << 29; // of the instruction descriptor

} // namespace

// The place that a register says, moved `further`.
Machine::TensorPlace Machine::tensorPlace(const Arg &a, u16 t, u64 further) const {
  if (a.reg < 0 || tags_[at(a.reg, t)] != Tag::Tensor) {
    bits(a, t);
    throw Illegal("out of bounds: an access to tensor memory that was not allocated");
  }
  const u32 place = static_cast<u32>(values_[at(a.reg, t)] + further);
  return {highs_[at(a.reg, t)], place >> 16, place & 0xffff};
}

TensorCell &Machine::tensorCell(const TensorPlace &place) {
  const Allocation &a = allocated_[place.allocation];
  if (place.lane >= kLanes || place.column >= a.columns)
    throw Illegal("out of bounds: an access to lane " + std::to_string(place.lane) + ", column " +
                  std::to_string(place.column) + " of " + std::to_string(a.columns) + " in tensor memory");
  if (tensor_.empty())
    tensor_.resize(kLanes * kColumns);
  return tensor_[place.lane * kColumns + a.first + place.column];
}

// An address in tensor memory that a number moves: what else it is made of, nothing says.
bool Machine::moveTensor(const Instr &in, u16 t) {
  std::size_t found = 0;
  for (std::size_t i = 1; i < in.count; ++i)
    if (const Arg &a = arg(in, i); a.reg >= 0 && tags_[at(a.reg, t)] == Tag::Tensor)
      found = found == 0 ? i : in.count;
  if (found == 0)
    return false;
  if (in.width != 32 || !((in.op == Op::add && found <= 2) || (in.op == Op::sub && found == 1)))
    throw Unknown("an address in tensor memory used as an integer");
  const Arg &d = arg(in, 0), &other = arg(in, 3 - found);
  if (other.reg >= 0 && tags_[at(other.reg, t)] == Tag::Undefined)
    return setUndefined(d, t), true;
  const std::size_t from = at(arg(in, found).reg, t);
  const u64 by = bits(other, t), moved = in.op == Op::add ? values_[from] + by : values_[from] - by;
  if (d.reg >= 0) {
    highs_[at(d.reg, t)] = highs_[from];
    values_[at(d.reg, t)] = moved & 0xffffffff;
    tags_[at(d.reg, t)] = Tag::Tensor;
  }
  return true;
}

// What is allocated is an address that nobody knows: blocks of other kernels may hold what is before it.
void Machine::tensorAlloc(const Instr &in, u16 first) {
  const u32 columns = static_cast<u32>(bits(arg(in, 2), first));
  u32 start = 0;
  for (const Allocation &a : allocated_)
    start = std::max(start, a.columns > 0 ? a.first + a.columns : 0);
  if (!mayAllocate_)
    throw Illegal("expected tensor memory to be allocated before the permit is relinquished, got it after");
  if (columns < 32 || (columns & (columns - 1)) != 0 || start + columns > kColumns)
    throw Illegal("expected tensor memory that there is, got " + std::to_string(columns) + " columns");
  const u32 word = kAllocated + 2 * static_cast<u32>(allocated_.size());
  allocated_.push_back({start, columns, first, epoch_, warpEpoch_[first / kWarp]});
  const std::size_t at = slot(sharedAddress(in, 0, first), 4);
  writeShared(at, first, word);
  writeShared(at + 1, first, word + 1);
}

void Machine::tensorFree(const Instr &in, u16 first) {
  const TensorPlace place = tensorPlace(arg(in, 0), first, 0);
  Allocation &allocation = allocated_[place.allocation];
  if (place.lane != 0 || place.column != 0 || allocation.columns == 0 ||
      allocation.columns != bits(arg(in, 1), first))
    throw Illegal("expected tensor memory that was allocated to be freed");
  const auto unordered = [&](u16 by, u32 epoch) {
    return by != kNobody && by / kWarp != first / kWarp && epoch >= epoch_;
  };
  for (u32 lane = 0; lane < kLanes; ++lane)
    for (u32 column = 0; column < allocation.columns; ++column) {
      TensorCell &held = tensorCell({place.allocation, lane, column});
      if (held.pending > completed(0, first) || held.reading > completed(0, first) || held.storing ||
          held.loading || unordered(held.reader, held.readEpoch) || unordered(held.writer, held.writeEpoch))
        throw Illegal("race: expected a wait before tensor memory is freed");
      held = {};
    }
  allocation.columns = 0;
}

void Machine::tensor(const Instr &in, std::span<const u16> lanes) {
  switch (in.op) {
  case Op::tensor_alloc:
    return warps(lanes, [&](u16 first) { tensorAlloc(in, first); });
  case Op::tensor_free:
    return warps(lanes, [&](u16 first) { tensorFree(in, first); });
  case Op::tensor_release:
    for (u16 t : lanes)
      for (const Allocation &a : allocated_)
        if (!ordered(a.thread, a.epoch, a.warpEpoch, t) && a.thread / kWarp != t / kWarp)
          throw Illegal(
              "race: expected a barrier between allocations of tensor memory and giving up the permit");
    mayAllocate_ = false;
    return;
  case Op::tensor_wait:
    for (u16 t : lanes) {
      for (u32 i : (in.mode != 0 ? loading_ : storing_)[t]) {
        TensorCell &c = tensor_[i];
        (in.mode != 0 ? c.loading : c.storing) = false;
        (in.mode != 0 ? c.readEpoch : c.writeEpoch) = epoch_;
      }
      (in.mode != 0 ? loading_ : storing_)[t].clear();
    }
    if (in.mode != 0)
      unlockLoaded();
    return;
  case Op::tensor_mma:
    for (u16 t : lanes)
      tensorMma(in, t);
    return;
  case Op::tensor_commit:
    // It is complete with the products of its own thread.
    for (u16 t : lanes) {
      if (tensorBy_ != kNobody && tensorBy_ != t)
        throw Unknown("tcgen05.commit of products that another thread started");
      Mbarrier &m = barrierAt(sharedAddress(in, 0, t), t);
      m.products = sequence_;
      arriveAt(m);
    }
    return;
  default:
    return tensorMove(in, lanes);
  }
}

// Registers that are loaded, once all threads of a warp group that load have waited.
void Machine::unlockLoaded() {
  for (std::size_t s = 0; s < kStreams; ++s) {
    bool loads = false;
    for (std::size_t t = s * kLanes; t < std::min<std::size_t>(threads_, (s + 1) * kLanes); ++t)
      loads = loads || !loading_[t].empty();
    if (!loads)
      unlock(s, kLoading);
  }
}

// tcgen05.ld and .st: a warp moves its quarter of the lanes.
void Machine::tensorMove(const Instr &in, std::span<const u16> lanes) {
  const bool isLoad = in.op == Op::tensor_load, halves = in.mode != 0;
  const std::size_t n = in.count - 3, address = isLoad ? n : 0, registers = isLoad ? 0 : 3;
  warps(lanes, [&](u16 first) {
    for (u16 i = 0; i < kWarp; ++i) {
      const u16 t = static_cast<u16>(first + i);
      TensorPlace place = tensorPlace(arg(in, address), t, arg(in, address + 1).imm);
      const u32 lane = place.lane + (halves ? i % 16 : i);
      if (place.lane % (halves ? 16 : 32) != 0 || lane / 32 != first / kWarp % 4)
        throw Illegal("expected a warp to access its quarter of tensor memory, got lane " +
                      std::to_string(lane));
      place.lane = lane;
      place.column += halves ? i / 16 * static_cast<u32>(arg(in, address + 2).imm) : 0;
      for (std::size_t r = 0; r < n; ++r) {
        TensorCell &c = tensorCell({place.allocation, place.lane, place.column + static_cast<u32>(r)});
        if (c.pending > completed(0, t))
          throw Illegal(
              "race: expected a wait first, got an access to what the tensor core may still be writing");
        if (c.storing || (!isLoad && c.loading))
          throw Illegal(
              "race: expected tcgen05.wait first, got an access to tensor memory that is being accessed");
        if (!ordered(c.writer, c.writeEpoch, ~0u, t) || (!isLoad && !ordered(c.reader, c.readEpoch, ~0u, t)))
          throw Illegal("race: expected a barrier between accesses to tensor memory");
        const u32 index = static_cast<u32>(&c - tensor_.data());
        if (isLoad) {
          const Cell held[2] = {c.low, c.high};
          setCells(arg(in, registers + r), t, 32, held);
          c.reader = c.readEpoch == epoch_ && c.reader != kNobody && c.reader != t ? kSeveral : t;
          c.readEpoch = epoch_;
          c.loading = true;
          loading_[t].push_back(index);
        } else {
          if (c.reading > completed(0, t))
            throw Illegal(
                "race: expected a wait first, got a write to what the tensor core may still be reading");
          Cell held[2];
          cells(arg(in, registers + r), t, 32, held);
          c.low = held[0];
          c.high = held[1];
          c.writer = t;
          c.writeEpoch = epoch_;
          c.storing = true;
          storing_[t].push_back(index);
        }
      }
    }
    if (isLoad)
      for (std::size_t r = 0; r < n; ++r)
        if (arg(in, r).reg >= 0) {
          if (first / kLanes >= kStreams)
            throw Unknown("tcgen05.ld by more than two warp groups");
          accumulating_[first / kLanes][static_cast<std::size_t>(arg(in, r).reg)] = kLoading;
          locked_ = true;
        }
  });
}

// D[tensor memory] = A B (+ D), by one thread. The instruction descriptor: PTX ISA, "Instruction descriptor".
void Machine::tensorMma(const Instr &in, u16 t) {
  const bool fromTensor = (in.mode & 1) != 0;
  const unsigned kind = in.mode >> 1; // f16, tf32, f8f6f4
  const u64 description = bits(arg(in, fromTensor ? 5 : 4), t);
  const auto field = [&](unsigned from, unsigned count) {
    return static_cast<u32>(description >> from & ((1u << count) - 1));
  };
  const auto type = [&](u32 number) {
    if (kind == 1 ? number == 2 : number <= 1)
      return kind == 0   ? (number == 0 ? Type::F16 : Type::BF16)
             : kind == 1 ? Type::F32
                         : (number == 0 ? Type::E4M3 : Type::E5M2);
    throw Unknown("tcgen05.mma of such elements");
  };
  const u32 rows = field(24, 5) * 16, n = field(17, 6) * 8;
  const Type aType = type(field(7, 3)), bType = type(field(10, 3));
  if (field(0, 4) != 0 || field(4, 2) != 1 || (kind != 2 && aType != bType) || field(13, 2) != 0 ||
      (rows != 64 && rows != 128) || n == 0 || n > 256 || n % (rows / 8) != 0 || (fromTensor && kind == 2) ||
      (description & kNoField) != 0)
    throw Unknown("tcgen05.mma with such an instruction descriptor");
  const unsigned size = bytesOf(aType), depth = 32 / size;
  spend(u64{rows} * n * depth);
  tensorBy_ = tensorBy_ == kNobody || tensorBy_ == t ? t : kSeveral;
  Issue issue{++sequence_, 0, t, fences_[t].empty() ? 0 : fences_[t].back().epoch};
  const TensorPlace to = tensorPlace(arg(in, 0), t, arg(in, 1).imm);
  const bool accumulate = predicate(arg(in, in.count - 1), t);
  const auto cellOf = [&](const TensorPlace &base, u32 row, u32 column) -> TensorCell & {
    const u32 lane = rows == 128 ? row : row / 16 * 32 + row % 16;
    return tensorCell({base.allocation, base.lane + lane, base.column + column});
  };
  // Products run in the order of their issue if they accumulate in the same matrix (PTX ISA, "tcgen05 memory
  // consistency model: pipelined instructions").
  const u64 product = u64{to.lane} << 48 | u64{to.column} << 32 | u64{to.allocation} << 24 | rows << 12 | n;
  const auto usable = [&](const TensorCell &c, bool write) {
    if (c.pending > completed(0, t) && !(write && c.product == product))
      throw Illegal(
          "race: expected a wait first, got an access to what the tensor core may still be writing");
    if (write && c.reading > completed(0, t))
      throw Illegal("race: expected a wait first, got a write to what the tensor core may still be reading");
    if (c.storing || (write && c.loading))
      throw Illegal("race: expected tcgen05.wait first, got the tensor core to access tensor memory");
    if (!ordered(c.writer, c.writeEpoch, ~0u, t) || (write && !ordered(c.reader, c.readEpoch, ~0u, t)))
      throw Illegal("race: expected a barrier between accesses to tensor memory");
  };
  std::vector<std::array<Number, kMostDepth>> a(rows), b(n);
  for (u32 row = 0; row < rows; ++row)
    for (u32 k = 0; k < depth; ++k)
      if (fromTensor) {
        TensorCell &c = cellOf(tensorPlace(arg(in, 2), t, arg(in, 3).imm), row, k * size / 4);
        usable(c, false);
        c.reading = issue.sequence;
        a[row][k] =
            numbers_.get(size == 4 ? number(c.low, c.high) : half(k % 2 != 0 ? c.high : c.low, aType));
      } else {
        a[row][k] = asyncRead(
            operandAddress(descriptor(arg(in, 2), t), true, field(15, 1) != 0, row, k, size), aType, issue);
      }
  const u64 right = descriptor(arg(in, fromTensor ? 4 : 3), t);
  for (u32 column = 0; column < n; ++column)
    for (u32 k = 0; k < depth; ++k)
      b[column][k] = asyncRead(operandAddress(right, true, field(16, 1) != 0, column, k, size), bType, issue);
  for (u32 row = 0; row < rows; ++row)
    for (u32 column = 0; column < n; ++column) {
      TensorCell &c = cellOf(to, row, column);
      usable(c, true);
      const Number start = accumulate ? numbers_.get(number(c.low, c.high)) : Number{0, 0};
      const Handle h = numbers_.put(dot(a[row].data(), b[column].data(), depth, start));
      c.low = cell(Part::Low, h);
      c.high = cell(Part::High, h);
      c.pending = issue.sequence;
      c.product = product;
      c.writer = kNobody;
    }
}

} // namespace superopt::ptx
