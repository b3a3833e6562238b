// Barriers of a block: who waits, and what they order.
#include "ptx/machine.hpp"

#include <algorithm>

namespace superopt::ptx {

// At a barrier with a number, of so many threads: 0 for all.
void Machine::arrive(Group &group, bool waits) {
  const Instr &in = program_.code[group.pc];
  if (in.pred >= 0)
    throw Unknown("a barrier under a predicate");
  warps(group.lanes, [](u16) {});
  const u64 id = bits(arg(in, 0), group.lanes[0]), given = bits(arg(in, 1), group.lanes[0]);
  for (u16 t : group.lanes)
    if (bits(arg(in, 0), t) != id || bits(arg(in, 1), t) != given)
      throw Unknown("a barrier whose number differs from thread to thread");
  const u64 expected = given == 0 ? threads_ : given;
  NamedBarrier &b = waiting_[id];
  if (id > 15 || expected % kWarp != 0 || expected > threads_ || (b.expected != 0 && b.expected != expected))
    throw Illegal("expected a barrier from 0 to 15 that all give the same whole warps, got another");
  if (given == 0 && exited_ > 0)
    throw Illegal("expected a barrier that all threads reach, got one after some have returned");
  // Who comes to a barrier again comes after its last release, or may have taken part in that one.
  if (const auto last = released_.find(id); last != released_.end() && last->second.epoch == epoch_)
    for (u16 t : group.lanes)
      if (clock_[t / kWarp][last->second.warp] < last->second.warpEpoch)
        throw Illegal(
            "race: expected a barrier whose threads come after those that it let go before, got some that "
            "may take their place");
  b.expected = expected;
  b.clock.resize(clock_.size(), 0);
  counts_.executed[group.pc] += group.lanes.size() / kWarp;
  for (u16 t : group.lanes)
    if (waits)
      b.waiting.emplace_back(group.pc + 1, t);
    else
      b.arrived.push_back(t);
  if (!waits)
    // What follows is another epoch of these warps, which the barrier does not order before others'. That of
    // their own threads stays as it was.
    for (std::size_t i = 0; i < group.lanes.size(); i += kWarp) {
      const std::size_t w = group.lanes[i] / kWarp;
      for (std::size_t v = 0; v < clock_.size(); ++v)
        b.clock[v] = std::max(b.clock[v], clock_[w][v]);
      b.clock[w] = std::max(b.clock[w], ++warpEpoch_[w]);
    }
  const std::size_t there = b.waiting.size() + b.arrived.size();
  if (there > expected)
    throw Illegal("expected " + std::to_string(expected) + " threads at a barrier, got more");
  if (!waits)
    ++group.pc;
  if (there == expected)
    release(id);
}

void Machine::release(u64 id) {
  NamedBarrier b = std::move(waiting_[id]);
  waiting_.erase(id);
  std::ranges::sort(b.waiting);
  std::vector<u16> to, from = b.arrived;
  for (const auto &[pc, t] : b.waiting)
    to.push_back(t);
  from.insert(from.end(), to.begin(), to.end());
  std::ranges::sort(to);
  if (to.size() == threads_) {
    ++epoch_;
    for (std::size_t w = 0; w < clock_.size(); ++w)
      clock_[w][w] = ++warpEpoch_[w];
  } else {
    partial_ = true;
    for (std::size_t i = 0; i < to.size(); i += kWarp) {
      const std::size_t w = to[i] / kWarp;
      ++warpEpoch_[w];
      for (std::size_t v = 0; v < clock_.size(); ++v)
        b.clock[v] = std::max(b.clock[v], v == w ? warpEpoch_[w] : clock_[w][v]);
    }
    for (std::size_t i = 0; i < to.size(); i += kWarp)
      clock_[to[i] / kWarp] = b.clock;
    const std::size_t warp = to.empty() ? 0 : to[0] / kWarp;
    released_[id] = {epoch_, to.empty() ? ~0u : warpEpoch_[warp], warp};
  }
  joinKnowledge(from, to);
  for (const auto &[pc, t] : b.waiting) {
    if (groups_.empty() || groups_.back().pc != pc || groups_.back().stalled)
      groups_.push_back({pc, {}});
    groups_.back().lanes.push_back(t);
  }
}

// What one of `from` knows to be complete, all of `to` know.
void Machine::joinKnowledge(std::span<const u16> from, std::span<const u16> to) {
  const auto join = [&](std::vector<u32> &known) {
    u32 most = 0;
    for (u16 t : from)
      most = std::max(most, known[t]);
    for (u16 t : to)
      known[t] = std::max(known[t], most);
  };
  std::ranges::for_each(completed_, join);
  std::ranges::for_each(known_, join);
}

} // namespace superopt::ptx
