// wgmma (PTX ISA, "Asynchronous warpgroup level matrix instructions"): products of tiles in shared memory,
// asynchronous until their group is waited for.
#include "ptx/machine.hpp"

#include <algorithm>

namespace superopt::ptx {
namespace {

constexpr u16 kWarpGroup = 128;
constexpr std::size_t kRows = 64;

} // namespace

// Where element (row, k) of a matrix in shared memory lies. `row` counts rows of A or columns of B;
// `transposed` if these are contiguous, not k. Canonical layouts: PTX ISA, "Shared memory matrix layout" and
// "Swizzling modes".
u64 Machine::operandAddress(u64 descriptor, bool tensor, bool transposed, unsigned row, unsigned k,
                            unsigned bytes) const {
  if (transposed && bytes != 2)
    throw Unknown("a transposed matrix of other than 16-bit elements");
  const unsigned each = 16 / bytes; // elements in 16 bytes
  const u64 start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4,
            stride = (descriptor >> 32 & 0x3fff) << 4;
  if ((descriptor >> 49 & 7) != 0)
    throw Unknown("a matrix descriptor with a base offset");
  // What the fields of neither kind have, and what they have alone.
  constexpr u64 fields = 0x3fff | u64{0x3fff} << 16 | u64{0x3fff} << 32;
  if ((descriptor & ~(fields | u64{7} << (tensor ? 61 : 62) | (tensor ? u64{1} << 52 | u64{7} << 46 : 0))) !=
      0)
    throw Unknown("a matrix descriptor with bits that belong to no field");
  unsigned swizzled = 0; // bits of the address
  if (tensor) {
    if ((descriptor >> 46 & 7) != 1 || (descriptor >> 52 & 1) != 0)
      throw Unknown("a matrix descriptor of another version");
    switch (descriptor >> 61) {
    case 0:
      break;
    case 2:
      swizzled = 3;
      break;
    case 4:
      swizzled = 2;
      break;
    case 6:
      swizzled = 1;
      break;
    default:
      throw Unknown("a matrix descriptor with that swizzle");
    }
  } else {
    swizzled = (4 - static_cast<unsigned>(descriptor >> 62)) % 4;
  }
  const unsigned span = 1u << swizzled; // of 16 bytes
  u64 linear = start;
  if (!transposed)
    linear +=
        row % 8 * span * 16 + row / 8 * stride + k / each * (swizzled == 0 ? leading : 16) + k % each * bytes;
  else if (swizzled == 0)
    linear += row / 8 * stride + k % 8 * 16 + k / 8 * leading + row % 8 * 2;
  else
    linear +=
        row / 8 % span * 16 + row / 8 / span * leading + k % 8 * span * 16 + k / 8 * stride + row % 8 * 2;
  return linear ^ ((linear >> 7 & (span - 1)) << 4);
}

// Whether an ordinary write is visible to the tensor core: a proxy fence by the writer before the barrier
// between them, or by the issuers after it (PTX ISA, "Async proxy").
bool Machine::fenced(const Slot &s, const Issue &issue) const {
  if (issue.fenceEpoch > s.writeEpoch && (!s.split || issue.fenceEpoch > s.upper.epoch))
    return true;
  // Of several writers every thread that may be one.
  const auto by = [&](u16 writer, u32 step) {
    const std::size_t warp = writer < kSomeOfWarp ? 0 : (writer - kSomeOfWarp) * kWarp;
    const std::size_t first = writer < kSomeOfWarp ? writer
                              : writer < kSeveral  ? warp
                                                   : 0,
                      last = writer < kSomeOfWarp ? first + 1
                             : writer < kSeveral  ? warp + kWarp
                                                  : threads_;
    for (std::size_t t = first; t < last; ++t)
      if (std::ranges::none_of(fences_[t], [&](const Fence &f) {
            return f.step > step && (f.epoch < epoch_ || issue.thread == t);
          }))
        return false;
    return writer != kNobody;
  };
  return by(s.writer, s.writeStep) && (!s.split || by(s.upper.writer, s.upper.step));
}

// Whether the tensor core or a bulk copy may read a slot.
void Machine::asyncReadable(const Slot &s, Issue &issue) const {
  if (s.inFlight)
    throw Illegal(
        "race: expected a wait for cp.async first, got the tensor core to read what is still being copied");
  if (s.barrier)
    throw Illegal("expected numbers for the tensor core, got an mbarrier");
  if (s.writer != kNobody) {
    const bool after = issue.thread == kNobody ? s.writeEpoch < epoch_ && (!s.split || s.upper.epoch < epoch_)
                                               : written(s, issue.thread);
    if (!after && partial_)
      throw Unknown("an order that barriers of some warps may give");
    if (!after)
      throw Illegal("race: expected a barrier between a write and the tensor core's read");
    if (!fenced(s, issue))
      throw Illegal("race: expected fence.proxy.async between a write and the tensor core's read");
  }
  if (s.bulkWrite != 0 && s.bulkWrite != issue.bulkRead) {
    const u16 from = issue.thread == kNobody ? static_cast<u16>(issue.stream * kWarpGroup) : issue.thread;
    for (u16 t = from; t < (issue.thread == kNobody ? from + kWarpGroup : from + 1); ++t)
      if (!complete(s.bulkWrite, t))
        throw Illegal(
            "race: expected a wait for its mbarrier first, got the tensor core to read what is still being "
            "copied");
    issue.bulkRead = s.bulkWrite;
  }
}

Number Machine::asyncRead(u64 address, Type type, Issue &issue) {
  const unsigned bytes = bytesOf(type);
  const std::size_t first = slot(bytes == 1 ? address & ~u64{1} : address, std::max(bytes, 2u));
  for (std::size_t i = first; i <= first + (bytes == 4); ++i) {
    asyncReadable(shared_[i], issue);
    shared_[i].asyncRead[issue.stream] = issue.sequence;
  }
  const Cell held = shared_[first].held;
  if (bytes == 4)
    return numbers_.get(number(held, shared_[first + 1].held));
  return numbers_.get(bytes == 2 ? half(held, type) : eighth(split(held)[address % 2], type));
}

// Notes that threads used the registers of an instruction other than wgmma.
void Machine::noteUses(const Instr &in, std::span<const u16> lanes) {
  for (std::size_t s = 0; s < kStreams; ++s) {
    const std::size_t first = s * kWarpGroup, last = first + kWarpGroup;
    if (std::ranges::none_of(lanes, [&](u16 t) { return t >= first && t < last; }))
      continue;
    for (std::size_t i = 0; i < in.count; ++i)
      if (const i32 reg = arg(in, i).reg; reg >= 0) {
        Use &use = uses_[s][static_cast<std::size_t>(reg)];
        (i < results(in) ? use.written : use.read) = step_;
      }
  }
}

// Whether wgmma may use its register `r`, and that it does. What used one before is ordered by wgmma.fence
// or, of results, by both products having the same shape (PTX ISA, "wgmma.fence"), and the register the same
// place in both: a product of another shape finishes its elements in another order. While a product is in
// flight, a fence is not enough ("wgmma.wait_group").
void Machine::useInProduct(const Instr &in, std::size_t stream, std::size_t r) {
  const i32 named = arg(in, r).reg;
  if (named < 0)
    return;
  const std::size_t reg = static_cast<std::size_t>(named);
  Use &use = uses_[stream][reg];
  const auto unfenced = [&](u32 step) { return step >= std::max(pending_[stream].fenceStep, 1u); };
  if (unfenced(use.written))
    throw Illegal("expected wgmma.fence between a write to a register and wgmma");
  const bool inFlight = accumulating_[stream][reg] != 0;
  if (r >= results(in)) {
    if (inFlight)
      throw Illegal("expected a wait for wgmma first, got its result as an operand");
    if (unfenced(use.accumulated))
      throw Illegal("expected wgmma.fence between a product and one that reads its result");
    use.multiplied = step_;
    return;
  }
  if (reading_[stream][reg] != 0)
    throw Illegal("expected a wait for wgmma first, got its operand as a result");
  if (unfenced(use.read) || unfenced(use.multiplied))
    throw Illegal("expected wgmma.fence between a read of a register and wgmma that writes to it");
  const u32 depth = 32 / bytesOf(static_cast<Type>(in.mode & 15));
  const u32 place = static_cast<u32>(((in.aux & 0xffff) * 64 + depth) * 128 + r);
  if (use.place != place && inFlight)
    throw Illegal("expected a wait for wgmma first, got its result at another place of a product, or in one "
                  "of another shape");
  if (use.place != place && unfenced(use.accumulated))
    throw Illegal(
        "expected wgmma.fence between products that have a register at another place, or another shape");
  use.accumulated = step_;
  use.place = place;
}

void Machine::wgmma(const Instr &in, std::span<const u16> lanes) {
  const Type type = static_cast<Type>(in.mode & 15), bType = static_cast<Type>(in.aux >> 16);
  const bool fromRegisters = (in.mode & 16) != 0, aTransposed = (in.mode & 32) != 0,
             bTransposed = (in.mode & 64) != 0;
  const unsigned size = bytesOf(type), depth = 32 / size, each = 4 / size; // elements in a register
  const std::size_t n = static_cast<std::size_t>(in.aux & 0xffff), results = n / 2,
                    after = results + (fromRegisters ? 4 : 1);
  for (std::size_t i = 0; i < lanes.size(); i += kWarpGroup) {
    const u16 first = lanes[i];
    if (first % kWarpGroup != 0 || i + kWarpGroup > lanes.size() ||
        lanes[i + kWarpGroup - 1] != first + kWarpGroup - 1)
      throw Illegal("expected whole warp groups, got some of their threads");
    const std::size_t stream = first / kWarpGroup;
    if (stream >= kStreams)
      throw Unknown("wgmma of more than two warp groups");
    Pending &pending = pending_[stream];
    if (pending.fenceStep == 0)
      throw Illegal("expected wgmma.fence before the first wgmma");
    for (std::size_t r = 0; r < (fromRegisters ? after : results); ++r)
      useInProduct(in, stream, r);
    spend(kRows * n * depth);
    Issue issue{++sequence_, stream, kNobody, ~0u};
    for (std::size_t t = first; t < first + std::size_t{kWarpGroup}; ++t)
      issue.fenceEpoch = std::min(issue.fenceEpoch, fences_[t].empty() ? 0 : fences_[t].back().epoch);
    pending.open = issue.sequence;
    pending.used = true;
    std::vector<std::array<Number, kMostDepth>> a(kRows), b(n);
    if (fromRegisters) {
      for (std::size_t lane = 0; lane < kWarpGroup; ++lane)
        for (std::size_t r = 0; r < 4; ++r)
          elements(arg(in, results + r), static_cast<u16>(first + lane), type,
                   a[lane / 32 * 16 + lane % 32 / 4 + 8 * (r % 2)].data() + each * (lane % 4 + 4 * (r / 2)));
    } else {
      const u64 left = descriptor(arg(in, results), first);
      for (unsigned row = 0; row < kRows; ++row)
        for (unsigned k = 0; k < depth; ++k)
          a[row][k] = asyncRead(operandAddress(left, false, aTransposed, row, k, size), type, issue);
    }
    const u64 right = descriptor(arg(in, after), first);
    for (unsigned column = 0; column < n; ++column)
      for (unsigned k = 0; k < depth; ++k)
        b[column][k] = asyncRead(operandAddress(right, false, bTransposed, column, k, size), bType, issue);
    for (u16 t = first; t - first < kWarpGroup; ++t)
      for (std::size_t j = fromRegisters ? after : results; j < in.count; ++j)
        if (!sameBits(arg(in, j), t, first))
          throw Illegal("expected operands of wgmma that are the same for all threads, got others");
    const bool accumulate = predicate(arg(in, after + 1), first);
    for (std::size_t lane = 0; lane < kWarpGroup; ++lane) {
      const u16 t = static_cast<u16>(first + lane);
      for (std::size_t r = 0; r < results; ++r) {
        const std::size_t row = lane / 32 * 16 + lane % 32 / 4 + 8 * (r / 2 % 2);
        const std::size_t column = 8 * (r / 4) + 2 * (lane % 4) + r % 2;
        const Number c = accumulate ? numbers_.get(number(arg(in, r), t)) : Number{0, 0};
        setNumber(arg(in, r), t, numbers_.put(dot(a[row].data(), b[column].data(), depth, c)));
      }
    }
    for (std::size_t r = 0; r < (fromRegisters ? after : results); ++r)
      if (arg(in, r).reg >= 0)
        (r < results ? accumulating_ : reading_)[stream][static_cast<std::size_t>(arg(in, r).reg)] =
            issue.sequence;
    locked_ = true;
  }
}

void Machine::wgmmaWait(const Instr &in, std::span<const u16> lanes) {
  for (std::size_t stream = 0; stream < kStreams; ++stream) {
    const u16 first = static_cast<u16>(stream * kWarpGroup);
    const auto there =
        std::ranges::count_if(lanes, [&](u16 t) { return t >= first && t - first < kWarpGroup; });
    if (there == 0)
      continue;
    if (there != kWarpGroup)
      throw Illegal("expected whole warp groups, got some of their threads");
    Pending &pending = pending_[stream];
    if (in.op == Op::wgmma_fence) {
      pending.fenceStep = step_;
    } else if (in.op == Op::wgmma_commit) {
      pending.groups.push_back(pending.open);
    } else {
      const std::size_t left = static_cast<std::size_t>(arg(in, 0).imm);
      if (pending.groups.size() <= left)
        continue;
      const u32 done = pending.groups[pending.groups.size() - 1 - left];
      for (u16 t = first; t - first < kWarpGroup; ++t)
        if (u32 &own = completed_[stream * kParts + (t - first) / kWarp][t]; own < done)
          own = done;
      unlock(stream, done);
    }
  }
}

// The last operation of a stream up to which a thread knows all warps' parts to be complete.
u32 Machine::completed(std::size_t stream, u16 t) const {
  u32 least = completed_[stream * kParts][t];
  for (std::size_t part = 1; part < kParts; ++part)
    least = std::min(least, completed_[stream * kParts + part][t]);
  return least;
}

void Machine::unlock(std::size_t stream, u32 upTo) {
  locked_ = false;
  for (std::size_t s = 0; s < kStreams; ++s)
    for (auto *table : {&accumulating_[s], &reading_[s]})
      for (u32 &operation : *table) {
        if (s == stream && operation <= upTo)
          operation = 0;
        locked_ = locked_ || operation != 0;
      }
}

} // namespace superopt::ptx
