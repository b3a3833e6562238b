#include "search/kernels.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

namespace superopt::search {

// The needed values, highest rank last, and what was decided so far. The highest is decided next: it is
// loaded or one of its derivations is chosen. A value is decided after everything that uses it, so every
// graph is built in exactly one way.
struct Kernels::State {
  std::vector<ValueId> needed;
  std::vector<Step> steps;
  std::vector<ValueId> leaves;
  const std::vector<ValueId> *outputs;
  // How each axis is reduced: see `label`.
  Mask looped = 0, whole = 0, inner = 0, split_only = 0, joined = 0, apart = 0; // bit: axis
};

Kernels::Kernels(const Values &values, const Options &options, Clock &clock)
    : values_(values), options_(options), clock_(clock), rank_(values.all().size()) {
  std::vector<ValueId> order(rank_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](ValueId a, ValueId b) { return values_.all()[a].weight < values_.all()[b].weight; });
  for (std::uint32_t i = 0; i < order.size(); ++i)
    rank_[order[i]] = i;
}

void Kernels::enumerate(const std::vector<ValueId> &outputs, const Sink &sink) {
  sink_ = &sink;
  // No set of outputs may starve the others.
  last_state_ = std::min(counts.states + options_.max_states / 5 + 1, options_.max_states);
  State state;
  state.needed = outputs;
  state.outputs = &outputs;
  std::sort(state.needed.begin(), state.needed.end(),
            [&](ValueId a, ValueId b) { return rank_[a] < rank_[b]; });
  expand(state);
}

// Record that a step reduces these factors; false where that contradicts how the axis is reduced elsewhere.
//   {tile}                        inside a loop or one part of it; the loop sum follows
//   {loop}, {split, loop}         the accumulator of a loop over the axis
//   {loop, tile}, {split, loop, tile}, {tile} of an axis without a loop factor     whole, in one step
//   {split}                       the end of a sum whose other parts another kernel did
// A kernel does one of: loop (with or without the split factor, always the same), whole (likewise), split
// alone.
bool Kernels::label(State &s, Mask reduced) const {
  const Problem &problem = values_.problem();
  for (std::size_t a = 0; a < problem.axes.size(); ++a) {
    const Axis &axis = problem.axes[a];
    if (!(axis.mask & reduced))
      continue;
    const Mask bit = Mask{1} << a;
    bool split = false, loop = false, tile = false, has_loop = false, has_split = false;
    for (std::uint32_t f : axis.factors) {
      const bool taken = reduced >> f & 1;
      switch (problem.factors[f].level) {
      case Level::Split:
        split = taken;
        has_split = true;
        break;
      case Level::Loop:
        loop = taken;
        has_loop = true;
        break;
      case Level::Tile:
        tile = taken;
        break;
      }
    }
    if (split && !loop && !tile) {
      s.split_only |= bit;
    } else if (tile && !loop && has_loop) {
      s.inner |= bit;
    } else {
      (loop && !tile ? s.looped : s.whole) |= bit;
      if (has_split)
        (split ? s.joined : s.apart) |= bit;
    }
  }
  // A loop sum follows a tile sum of the same axis, so `inner` stands for both.
  if ((s.whole & s.inner) || (s.joined & s.apart) || (s.split_only & (s.looped | s.whole | s.inner)))
    return false;
  return std::popcount(s.looped) <= static_cast<int>(options_.max_loops);
}

void Kernels::expand(State &state) {
  if (clock_.expired())
    return;
  if (counts.states >= last_state_) {
    ++counts.by_states;
    return;
  }
  ++counts.states;
  while (!state.needed.empty() && values_.all()[state.needed.back()].constant &&
         values_.all()[state.needed.back()].leaf)
    state.needed.pop_back(); // constants are written into the kernel
  if (state.needed.empty()) {
    complete(state);
    return;
  }
  const ValueId top = state.needed.back();
  const Value &value = values_.all()[top];
  const bool output = std::find(state.outputs->begin(), state.outputs->end(), top) != state.outputs->end();
  if (!value.leaf)
    derive(state, top);
  // An input is loaded; any other value may be, if it can stand in device memory and is no output here.
  if (value.leaf || (!output && values_.storable(top) && !value.constant)) {
    State next = state;
    next.needed.pop_back();
    next.leaves.push_back(top);
    expand(next);
  }
}

// Choose each derivation of `top`, the highest value needed.
void Kernels::derive(const State &state, ValueId top) {
  if (state.steps.size() >= options_.max_block_operators) {
    ++counts.by_operators;
    return;
  }
  const Value &value = values_.all()[top];
  for (const Derivation &how : value.derivations) {
    // What stands aside is for libraries: here the other derivations do the same, and safely.
    if (value.own_aside && &how == &value.derivations[0])
      continue;
    State next = state;
    if (how.reduced && !label(next, how.reduced)) {
      ++counts.by_labels;
      continue;
    }
    next.needed.pop_back();
    next.steps.push_back({top, how});
    for (std::uint32_t i = 0; i < how.arity; ++i) {
      const ValueId operand = i == 0 ? how.a : how.b;
      const auto at = std::lower_bound(next.needed.begin(), next.needed.end(), operand,
                                       [&](ValueId x, ValueId y) { return rank_[x] < rank_[y]; });
      if (at == next.needed.end() || *at != operand)
        next.needed.insert(at, operand);
    }
    expand(next);
  }
}

void Kernels::complete(const State &state) {
  ++counts.graphs;
  if (state.steps.empty())
    return;
  if (state.inner & ~state.looped) { // a tile sum whose loop sum is missing can only be saved: not storable
    ++counts.by_labels;
    return;
  }
  Kernel kernel;
  kernel.outputs = *state.outputs;
  kernel.leaves = state.leaves;
  std::sort(kernel.leaves.begin(), kernel.leaves.end());
  kernel.steps.assign(state.steps.rbegin(), state.steps.rend());
  const Problem &problem = values_.problem();
  for (const Step &step : kernel.steps)
    kernel.reduced |= step.how.reduced;
  for (std::size_t a = 0; a < problem.axes.size(); ++a)
    if (state.looped >> a & 1)
      for (std::uint32_t f : problem.axes[a].factors)
        if (problem.factors[f].level == Level::Loop)
          kernel.loops |= Mask{1} << f;
  if (!place(kernel)) {
    ++counts.by_place;
    return;
  }
  ++counts.labelled;
  (*sink_)(std::move(kernel));
}

// Whether every step has its operands in one place: a value inside a loop does not meet one after it, and
// what is saved is after every loop it varied over.
bool Kernels::place(Kernel &kernel) const {
  std::map<ValueId, Mask> after; // the loops that a value comes after
  for (const Step &step : kernel.steps) {
    Mask varies = 0, behind = 0;
    for (std::uint32_t i = 0; i < step.how.arity; ++i) {
      const ValueId operand = i == 0 ? step.how.a : step.how.b;
      varies |= values_.all()[operand].mask & kernel.loops;
      if (auto it = after.find(operand); it != after.end())
        behind |= it->second;
    }
    const Mask ends = step.how.reduced & kernel.loops;
    // Only a plain sum or maximum accumulates; a contraction would have to hold its operands across
    // iterations.
    if ((varies & behind) || (ends && step.how.op == Op::Contract))
      return false;
    after[step.value] = behind | ends;
  }
  return std::none_of(kernel.outputs.begin(), kernel.outputs.end(),
                      [&](ValueId output) { return (values_.all()[output].mask & kernel.loops) != 0; });
}

} // namespace superopt::search
