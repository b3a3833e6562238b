// tcgen05 (PTX ISA, "TensorCore 5th Generation Family Instructions").
#include "ptx/machine.hpp"

#include <algorithm>

namespace superopt::ptx {
namespace {

constexpr u32 kLanes = 128, kColumns = 512, kLoading = ~0u;

} // namespace

TensorCell &Machine::tensorCell(u32 lane, u32 column) {
  const auto next = allocated_.upper_bound(column);
  if (lane >= kLanes || next == allocated_.begin() ||
      column >= std::prev(next)->first + std::prev(next)->second)
    throw Illegal("out of bounds: an access to lane " + std::to_string(lane) + ", column " +
                  std::to_string(column) + " of tensor memory");
  if (tensor_.empty())
    tensor_.resize(kLanes * kColumns);
  return tensor_[lane * kColumns + column];
}

void Machine::tensor(const Instr &in, std::span<const u16> lanes) {
  switch (in.op) {
  case Op::tensor_alloc:
    return warps(lanes, [&](u16 first) {
      const u32 columns = static_cast<u32>(bits(arg(in, 2), first));
      const u32 start = allocated_.empty() ? 0 : allocated_.rbegin()->first + allocated_.rbegin()->second;
      if (columns < 32 || (columns & (columns - 1)) != 0 || start + columns > kColumns)
        throw Illegal("expected tensor memory that there is, got " + std::to_string(columns) + " columns");
      allocated_[start] = columns;
      const std::size_t at = slot(sharedAddress(in, 0, first), 4);
      writeShared(at, first, cell(Part::Bits, start));
      writeShared(at + 1, first, cell(Part::Bits, 0));
    });
  case Op::tensor_free:
    return warps(lanes, [&](u16 first) {
      const auto found = allocated_.find(static_cast<u32>(bits(arg(in, 0), first)));
      if (found == allocated_.end() || found->second != bits(arg(in, 1), first))
        throw Illegal("expected tensor memory that was allocated to be freed");
      for (u32 lane = 0; lane < kLanes; ++lane)
        for (u32 c = found->first; c < found->first + found->second; ++c) {
          const TensorCell &held = tensorCell(lane, c);
          if (held.pending > completed(0, first) || held.reading > completed(0, first) || held.storing ||
              held.loading ||
              (held.reader != kNobody && held.reader / kWarp != first / kWarp && held.readEpoch >= epoch_))
            throw Illegal("race: expected a wait before tensor memory is freed");
          tensorCell(lane, c) = {};
        }
      allocated_.erase(found);
    });
  case Op::tensor_release:
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
      const u32 at = static_cast<u32>(bits(arg(in, address), t) + arg(in, address + 1).imm);
      const u32 lane = (at >> 16) + (halves ? i % 16 : i);
      if ((at >> 16) % (halves ? 16 : 32) != 0 || lane / 32 != first / kWarp % 4)
        throw Illegal("expected a warp to access its quarter of tensor memory, got lane " +
                      std::to_string(lane));
      const u32 column = (at & 0xffff) + (halves ? i / 16 * static_cast<u32>(arg(in, address + 2).imm) : 0);
      for (std::size_t r = 0; r < n; ++r) {
        TensorCell &c = tensorCell(lane, column + static_cast<u32>(r));
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
      (rows != 64 && rows != 128) || n == 0 || n > 256 || (fromTensor && kind == 2))
    throw Unknown("tcgen05.mma with such an instruction descriptor");
  const unsigned size = bytesOf(aType), depth = 32 / size;
  spend(u64{rows} * n * depth);
  tensorBy_ = tensorBy_ == kNobody || tensorBy_ == t ? t : kSeveral;
  Issue issue{++sequence_, 0, t, fences_[t].empty() ? 0 : fences_[t].back().epoch};
  const u32 to = static_cast<u32>(bits(arg(in, 0), t) + arg(in, 1).imm);
  const bool accumulate = predicate(arg(in, in.count - 1), t);
  const auto laneOf = [&](u32 base, u32 row) {
    return (base >> 16) + (rows == 128 ? row : row / 16 * 32 + row % 16);
  };
  const auto usable = [&](const TensorCell &c, bool write) {
    if (c.storing || (write && c.loading))
      throw Illegal("race: expected tcgen05.wait first, got the tensor core to access tensor memory");
    if (!ordered(c.writer, c.writeEpoch, ~0u, t) || (write && !ordered(c.reader, c.readEpoch, ~0u, t)))
      throw Illegal("race: expected a barrier between accesses to tensor memory");
  };
  std::vector<std::array<Number, kMostDepth>> a(rows), b(n);
  for (u32 row = 0; row < rows; ++row)
    for (u32 k = 0; k < depth; ++k)
      if (fromTensor) {
        const u32 from = static_cast<u32>(bits(arg(in, 2), t) + arg(in, 3).imm);
        TensorCell &c = tensorCell(laneOf(from, row), (from & 0xffff) + k * size / 4);
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
      TensorCell &c = tensorCell(laneOf(to, row), (to & 0xffff) + column);
      usable(c, true);
      const Number start = accumulate ? numbers_.get(number(c.low, c.high)) : Number{0, 0};
      const Handle h = numbers_.put(dot(a[row].data(), b[column].data(), depth, start));
      c.low = cell(Part::Low, h);
      c.high = cell(Part::High, h);
      c.pending = issue.sequence;
      c.writer = kNobody;
    }
}

} // namespace superopt::ptx
