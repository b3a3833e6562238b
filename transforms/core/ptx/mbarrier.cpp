// mbarriers (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier"): what tcgen05 and
// bulk copies complete. A phase is complete when as many threads have arrived as it was made for, and as many
// bytes were copied as they expected.
#include "ptx/machine.hpp"

#include <algorithm>

namespace superopt::ptx {

// The mbarrier at an address, for thread `t` to use.
Machine::Mbarrier &Machine::barrierAt(u64 address, u16 t) {
  const Slot &s = shared_[slot(address, 8)];
  const auto found = mbarriers_.find(address);
  if (found == mbarriers_.end())
    throw Illegal("expected an mbarrier, got memory that is none");
  if (!ordered(s.writer, s.writeEpoch, s.writeWarpEpoch, t))
    throw Illegal("race: expected a barrier between mbarrier.init and its use by another thread");
  return found->second;
}

void Machine::arriveAt(Mbarrier &m) {
  if (++m.arrived > m.count)
    throw Illegal("expected " + std::to_string(m.count) + " arrivals at an mbarrier, got another one");
  if (m.arrived < m.count || m.bytes != 0)
    return;
  m.arrived = 0;
  m.sequences.push_back(m.products);
  for (Group &g : groups_)
    g.stalled = false;
}

void Machine::mbarrier(const Instr &in, std::span<const u16> lanes) {
  const bool test = in.op == Op::mbarrier_test;
  for (u16 t : lanes) {
    const u64 address = sharedAddress(in, test, t);
    const std::size_t first = slot(address, 8);
    if (in.op == Op::mbarrier_init) {
      if (mbarriers_.contains(address))
        throw Illegal("expected memory for an mbarrier, got another mbarrier");
      for (std::size_t i = first; i < first + 4; ++i) {
        writeShared(i, t, 0);
        shared_[i].barrier = true;
      }
      mbarriers_[address] = {static_cast<u32>(bits(arg(in, 2), t)), static_cast<u32>(known_.size())};
      known_.emplace_back(threads_, 0);
      continue;
    }
    Mbarrier &m = barrierAt(address, t);
    if (in.op == Op::mbarrier_expect) {
      m.bytes += static_cast<i64>(bits(arg(in, 2), t) & 0xffffffff);
      m.by = t;
      m.epoch = epoch_;
      m.warpEpoch = warpEpoch_[t / kWarp];
      arriveAt(m);
      continue;
    }
    for (std::size_t i = first; i < first + 4; ++i) {
      shared_[i].barrier = false;
      if (test) {
        readable(shared_[i], t);
        shared_[i].barrier = true;
      } else {
        writeShared(i, t, 0);
      }
    }
    if (test) {
      testBarrier(in, m, address, t);
    } else {
      if (m.bytes != 0 || (m.by != kNobody && known_[m.id][t] < m.phase()))
        throw Illegal("race: expected a wait for its bulk copies before an mbarrier ends");
      mbarriers_.erase(address);
    }
  }
}

// Whether the phase of a parity is complete. A thread that sees so knows of the first such phase that it did
// not know of, and of none after.
void Machine::testBarrier(const Instr &in, Mbarrier &m, u64 address, u16 t) {
  const u32 parity = bits(arg(in, 3), t) & 1;
  u32 &known = known_[m.id][t];
  const u32 least = known + (known % 2 == parity);
  bool done = m.phase() % 2 != parity;
  if (done != (least <= m.phase()))
    throw Illegal(
        "race: expected a test of an mbarrier whose outcome is the same under every schedule, got one "
        "of a phase that may be over");
  testFailed_ = testFailed_ || !done;
  // A test may fail even so: the first one of each thread does, so that what does not repeat it knows
  // nothing.
  const u64 tried = address << 32 | m.phase();
  if (done && tried_[t] != tried) {
    tried_[t] = tried;
    done = false;
  }
  // By the first thread that sees a phase end.
  if (done && std::ranges::all_of(known_[m.id], [&](u32 phases) { return phases < least; })) {
    u64 bytes = 0;
    for (const Bulk &b : bulk_)
      bytes += known_[b.barrier][t] > b.phase ? 0 : b.bytes;
    if (bytes > 0)
      countWait(bytes);
  }
  if (done) {
    known = least;
    if (least > 0)
      for (std::size_t part = 0; part < kParts; ++part) // the tensor core's products are whole
        completed_[part][t] = std::max(completed_[part][t], m.sequences[least - 1]);
  }
  setBits(arg(in, 0), t, done);
}

} // namespace superopt::ptx
