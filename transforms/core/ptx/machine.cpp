#include "ptx/machine.hpp"

#include <algorithm>

namespace superopt::ptx {

constexpr u64 kStepWork = 16; // of an instruction, however few threads execute it

// How many of the first operands are results.
std::size_t results(const Instr &in) {
  switch (in.op) {
  case Op::unpack:
    return in.count - 1;
  case Op::load:
  case Op::ldmatrix:
  case Op::fsetp:
    return in.count - 2;
  case Op::tensor_load:
    return in.count - 3;
  case Op::mma:
    return 4;
  case Op::atomic:
    return (in.count - 2) / 2;
  case Op::wgmma:
    return static_cast<std::size_t>(in.aux & 0xffff) / 2;
  case Op::elect:
    return 2;
  case Op::nop:
  case Op::trap:
  case Op::store:
  case Op::copy:
  case Op::copy_commit:
  case Op::copy_wait:
  case Op::stmatrix:
  case Op::warp_barrier:
  case Op::grid_wait:
  case Op::proxy_fence:
  case Op::wgmma_fence:
  case Op::wgmma_commit:
  case Op::wgmma_wait:
  case Op::mbarrier_init:
  case Op::mbarrier_inval:
  case Op::mbarrier_expect:
  case Op::map_replace:
  case Op::map_publish:
  case Op::map_acquire:
  case Op::bulk_load:
  case Op::bulk_store:
  case Op::bulk_commit:
  case Op::bulk_wait:
  case Op::tensor_alloc:
  case Op::tensor_release:
  case Op::tensor_free:
  case Op::tensor_store:
  case Op::tensor_wait:
  case Op::tensor_mma:
  case Op::tensor_commit:
    return 0;
  default:
    return 1;
  }
}

Machine::Machine(const Program &program, Numbers &numbers, std::vector<Buffer> buffers, std::size_t threads,
                 std::size_t sharedBytes, std::vector<std::pair<u32, u32>> pointers, i32 sharedStart)
    : program_(program), numbers_(numbers), buffers_(std::move(buffers)), threads_(threads),
      pointers_(std::move(pointers)), sharedStart_(sharedStart), shared_(sharedBytes / 2) {
  if (threads == 0 || threads % kWarp != 0 || threads > 1024)
    throw Unknown("a block of " + std::to_string(threads) + " threads");
  for (std::vector<u64> *each : {&counts_.executed, &counts_.waits, &counts_.inFlight})
    each->resize(program.code.size());
  const std::size_t count = program.registers * threads;
  tags_.resize(count);
  values_.resize(count);
  highs_.resize(count);
}

void Machine::run(const std::vector<std::pair<u32, std::vector<u64>>> &preset, const Region &region,
                  const std::vector<std::pair<u32, Slope>> &slopes) {
  region_ = region;
  slopes_.assign(1, {});
  slopeNumbers_ = {{Slope{}, 0}};
  slopeOf_.assign(program_.registers * threads_, 0);
  sloped_.assign(program_.registers, false);
  addressSlope_.assign(threads_, {});
  scratchSlope_ = {};
  scratchUsed_ = moving_ = false;
  lastSlope_ = 0;
  reached_.assign(buffers_.size(), {});
  reachedTwice_.clear();
  halves_.clear();
  for (const auto &[reg, s] : slopes)
    for (std::size_t t = 0; t < threads_; ++t)
      setSlope({static_cast<i32>(reg), 0}, static_cast<u16>(t), s, 64);
  start(preset);
}

void Machine::run(const std::vector<std::pair<u32, std::vector<u64>>> &preset) {
  region_.reset();
  start(preset);
}

std::vector<std::pair<u64, u32>> Machine::reached(std::size_t buffer) const {
  std::vector<std::pair<u64, u32>> found;
  for (const auto &[row, slopes] : reached_.at(buffer))
    for (std::size_t i = 0; i < kRow; ++i)
      if (slopes[i] != 0)
        found.emplace_back(row * kRow + i, slopes[i] - 1);
  for (const auto &[index, place, number] : reachedTwice_)
    if (index == buffer)
      found.emplace_back(place, number);
  return found;
}

void Machine::start(const std::vector<std::pair<u32, std::vector<u64>>> &preset) {
  numbers_.clear();
  compactAt_ = kCompactAt;
  std::ranges::fill(tags_, Tag::Undefined);
  for (const auto &[reg, values] : preset)
    for (std::size_t t = 0; t < threads_; ++t) {
      tags_[at(static_cast<i32>(reg), static_cast<u16>(t))] = Tag::Bits;
      values_[at(static_cast<i32>(reg), static_cast<u16>(t))] = values[values.size() == 1 ? 0 : t];
    }
  for (const auto &[reg, buffer] : pointers_)
    for (std::size_t i = reg * threads_; i < (reg + 1) * threads_; ++i) {
      tags_[i] = Tag::Address;
      values_[i] = 0;
      highs_[i] = buffer;
    }
  for (std::size_t t = 0; t < threads_; ++t)
    setPlace({sharedStart_, 0}, static_cast<u16>(t), 0, kPlaceStep);
  std::ranges::fill(shared_, Slot{});
  stored_.assign(buffers_.size(), {});
  read_.assign(buffers_.size(), {});
  waiting_.clear();
  released_.clear();
  tensorBy_ = kNobody;
  exited_ = 0;
  step_ = 0;
  epoch_ = 1;
  warpEpoch_.assign(threads_ / kWarp, 1);
  clock_.assign(threads_ / kWarp, std::vector<u32>(threads_ / kWarp, 0));
  for (std::size_t w = 0; w < clock_.size(); ++w)
    clock_[w][w] = 1;
  partial_ = false;
  gridReady_.assign(threads_, false);
  multiplies_ = std::ranges::any_of(program_.code, [](const Instr &in) { return in.op == Op::wgmma; });
  waitsForGrid_ = std::ranges::any_of(program_.code, [](const Instr &in) { return in.op == Op::grid_wait; });
  bytes_.clear();
  wholes_.clear();
  copies_.assign(threads_, {});
  copyGroup_.assign(threads_, 0);
  fences_.assign(threads_, {});
  sequence_ = 0;
  locked_ = testFailed_ = false;
  tried_.assign(threads_, ~u64{0});
  storing_.assign(threads_, {});
  loading_.assign(threads_, {});
  for (std::size_t s = 0; s < kStreams; ++s) {
    pending_[s] = {};
    accumulating_[s].assign(program_.registers, 0);
    reading_[s].assign(program_.registers, 0);
    uses_[s].assign(multiplies_ ? program_.registers : 0, {});
  }
  for (std::vector<u32> &known : completed_)
    known.assign(threads_, 0);
  mbarriers_.clear();
  known_.clear();
  tensorMaps_.clear();
  published_.clear();
  scratch_ = {0, 0};
  bulk_.clear();
  bulkReads_.assign(threads_, {});
  bulkGroup_.assign(threads_, 0);
  tensor_.clear();
  allocated_.clear();
  mayAllocate_ = true;
  Group all{0, {}};
  for (std::size_t t = 0; t < threads_; ++t)
    all.lanes.push_back(static_cast<u16>(t));
  groups_.assign(1, all);
  try {
    loop();
  } catch (const Illegal &error) {
    throw Illegal("line " + std::to_string(current_->line) + " of its PTX: " + error.what());
  } catch (const Unknown &error) {
    throw Unknown("line " + std::to_string(current_->line) + " of its PTX: " + error.what());
  }
}

void Machine::spend(u64 operations) {
  if (operations > left_)
    throw Unknown("a kernel that takes more work than its check may");
  left_ -= operations;
}

// --- control

void Machine::loop() {
  while (!groups_.empty() || !waiting_.empty()) {
    if (groups_.size() > 1)
      merge();
    auto next = groups_.end();
    for (auto g = groups_.begin(); g != groups_.end(); ++g)
      if (!g->stalled && (next == groups_.end() || g->pc < next->pc))
        next = g;
    if (next == groups_.end())
      throw Illegal("expected all threads to reach the barrier or the end, got some that wait for ever");
    // Alone, or until it reaches another's place.
    u32 until = ~0u;
    for (const Group &g : groups_)
      if (&g != &*next && g.pc > next->pc)
        until = std::min(until, g.pc);
    Group group = std::move(*next);
    groups_.erase(next);
    while (step(group))
      if (group.pc >= until) {
        groups_.push_back(std::move(group));
        break;
      }
  }
}

void Machine::merge() {
  std::ranges::sort(groups_, {}, &Group::pc);
  std::vector<Group> merged;
  for (Group &g : groups_) {
    if (!merged.empty() && merged.back().pc == g.pc && merged.back().stalled == g.stalled) {
      auto &lanes = merged.back().lanes;
      lanes.insert(lanes.end(), g.lanes.begin(), g.lanes.end());
      std::ranges::sort(lanes);
    } else {
      merged.push_back(std::move(g));
    }
  }
  groups_ = std::move(merged);
}

// Executes one instruction; whether the group goes on. Otherwise it was put elsewhere, or is gone.
bool Machine::step(Group &group) {
  if (group.pc >= program_.code.size())
    throw Illegal("expected the kernel to return, got its end");
  const Instr &in = program_.code[group.pc];
  current_ = &in;
  ++step_;
  spend(kStepWork);
  switch (in.op) {
  case Op::branch:
    branch(group, in);
    return false;
  case Op::barrier:
  case Op::arrive:
    if (region_)
      for (u16 t : group.lanes)
        for (std::size_t i = 0; i < in.count; ++i)
          region_->pin(slope(arg(in, i), t));
    arrive(group, in.op == Op::barrier);
    return in.op == Op::arrive;
  case Op::ret:
    if (in.pred >= 0)
      throw Unknown("a return of some threads");
    bulkEnd(group.lanes);
    exited_ += group.lanes.size();
    if (exited_ == threads_ && std::ranges::any_of(allocated_, [](const auto &a) { return a.columns > 0; }))
      throw Illegal("expected tensor memory to be freed before its block ends");
    return false;
  default:
    break;
  }
  const auto fault = faults_.find(group.pc);
  std::optional<Machine> faulty;
  if (fault != faults_.end())
    faulty.emplace(*this);
  const std::size_t active = perform(in, group.lanes);
  counts_.executed[group.pc] += (active + kWarp - 1) / kWarp;
  if (active > 0)
    group.stalled = testFailed_;
  if (faulty) {
    faulty->perform(fault->second, group.lanes);
    poison(*faulty);
  }
  ++group.pc;
  if (numbers_.size() > compactAt_)
    compact();
  return true;
}

// Executes an instruction that does not branch; for how many threads its predicate holds.
std::size_t Machine::perform(const Instr &in, std::span<const u16> lanes) {
  std::vector<u16> some;
  if (in.pred >= 0) {
    for (u16 t : lanes)
      if ((in.op == Op::copy && poisoned({in.pred, 0}, t)) || predicate({in.pred, 0}, t) != in.negated)
        some.push_back(t);
    lanes = some;
  }
  if (lanes.empty())
    return 0;
  spend(lanes.size());
  if (locked_ || in.op == Op::wgmma)
    touch(in, lanes);
  testFailed_ = false;
  if (region_)
    follow(in, lanes);
  execute(in, lanes);
  spend(numbers_.takeJoined());
  if (multiplies_ && in.op != Op::wgmma)
    noteUses(in, lanes);
  return lanes.size();
}

void Machine::branch(Group &group, const Instr &in) {
  Group taken{static_cast<u32>(in.aux), {}};
  if (in.pred < 0) {
    taken.lanes = std::move(group.lanes);
  } else {
    std::vector<u16> rest;
    for (u16 t : group.lanes)
      (predicate({in.pred, 0}, t) != in.negated ? taken.lanes : rest).push_back(t);
    // .uni says that threads of a warp do not part here.
    if (in.mode != 0)
      for (u16 t : taken.lanes)
        if (const auto other = std::ranges::lower_bound(rest, static_cast<u16>(t / kWarp * kWarp));
            other != rest.end() && *other / kWarp == t / kWarp)
          throw Illegal("expected a warp whose threads stay together at bra.uni, got some that branch");
    if (!rest.empty())
      groups_.push_back({group.pc + 1, std::move(rest)});
  }
  // A test of an mbarrier that failed: others must go on before it can succeed.
  taken.stalled = group.stalled;
  if (!taken.lanes.empty())
    groups_.push_back(std::move(taken));
}

void Machine::execute(const Instr &in, std::span<const u16> lanes) {
  switch (in.op) {
  case Op::nop:
    return;
  case Op::trap:
    throw Illegal("expected a kernel that ends, got a trap");
  case Op::mov:
  case Op::pack:
  case Op::unpack:
  case Op::selp:
    return move(in, lanes);
  case Op::fsetp:
  case Op::fdefined:
    return compareNumbers(in, lanes);
  case Op::fadd:
  case Op::fsub:
  case Op::fmul:
  case Op::fma:
  case Op::fdiv:
  case Op::fmax:
  case Op::fmin:
  case Op::fneg:
  case Op::ex2:
  case Op::lg2:
  case Op::sqrt:
  case Op::rsqrt:
  case Op::rcp:
  case Op::erf:
  case Op::log:
  case Op::sin:
  case Op::cos:
    return floating(in, lanes);
  case Op::to_float:
  case Op::from_integer:
  case Op::pack_halves:
  case Op::convert_pair:
    return convert(in, lanes);
  case Op::load:
    return load(in, lanes);
  case Op::store:
    return store(in, lanes);
  case Op::atomic:
    return atomic(in, lanes);
  case Op::prmt:
    return permute(in, lanes);
  case Op::copy:
    return copy(in, lanes);
  case Op::copy_commit:
    for (u16 t : lanes)
      ++copyGroup_[t];
    return;
  case Op::copy_wait:
    return copyWait(in, lanes);
  case Op::ldmatrix:
  case Op::stmatrix:
    return matrixMove(in, lanes);
  case Op::shuffle:
  case Op::elect:
  case Op::reduce:
    return shuffle(in, lanes);
  case Op::warp_barrier:
    if (arg(in, 0).reg >= 0 || static_cast<u32>(arg(in, 0).imm) != ~0u)
      throw Unknown("a barrier of some threads of a warp");
    for (std::size_t i = 0; i < lanes.size(); i += kWarp)
      joinKnowledge(lanes.subspan(i, std::min(kWarp, lanes.size() - i)),
                    lanes.subspan(i, std::min(kWarp, lanes.size() - i)));
    warps(lanes, [&](u16 first) { clock_[first / kWarp][first / kWarp] = ++warpEpoch_[first / kWarp]; });
    return;
  case Op::grid_wait:
    for (u16 t : lanes)
      gridReady_[t] = true;
    return;
  case Op::mma:
    return mma(in, lanes);
  case Op::proxy_fence:
    for (u16 t : lanes)
      fences_[t].push_back({step_, epoch_});
    return;
  case Op::wgmma:
    return wgmma(in, lanes);
  case Op::wgmma_fence:
  case Op::wgmma_commit:
  case Op::wgmma_wait:
    return wgmmaWait(in, lanes);
  case Op::mbarrier_init:
  case Op::mbarrier_inval:
  case Op::mbarrier_test:
  case Op::mbarrier_expect:
    return mbarrier(in, lanes);
  case Op::map_replace:
  case Op::map_acquire:
  case Op::bulk_load:
  case Op::bulk_store:
    for (u16 t : lanes)
      in.op == Op::map_replace   ? mapReplace(in, t)
      : in.op == Op::map_acquire ? mapAcquire(in, t)
      : in.op == Op::bulk_load   ? bulkLoad(in, t)
                                 : bulkStore(in, t);
    return;
  case Op::map_publish:
    return mapPublish(in, lanes);
  case Op::bulk_commit:
    for (u16 t : lanes)
      ++bulkGroup_[t];
    return;
  case Op::bulk_wait:
    return bulkWait(in, lanes);
  case Op::tensor_alloc:
  case Op::tensor_release:
  case Op::tensor_free:
  case Op::tensor_load:
  case Op::tensor_store:
  case Op::tensor_wait:
  case Op::tensor_mma:
  case Op::tensor_commit:
    return tensor(in, lanes);
  default:
    return integer(in, lanes);
  }
}

} // namespace superopt::ptx
