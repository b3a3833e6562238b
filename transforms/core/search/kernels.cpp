#include "search/kernels.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>

namespace superopt::search {

std::optional<std::vector<std::uint32_t>> nesting(const Values &values, const Kernel &kernel) {
  std::map<std::uint32_t, Mask> around; // by loop, the loops that must enclose it
  for (Mask rest = kernel.loops; rest; rest &= rest - 1)
    around[static_cast<std::uint32_t>(std::countr_zero(rest))] = 0;
  for (const Step &step : kernel.steps)
    if (const Mask ends = step.how.reduced & kernel.loops)
      for (auto &[loop, others] : around)
        if (ends >> loop & 1)
          others |= values.all()[step.how.a].mask & kernel.loops & ~ends;
  std::vector<std::uint32_t> order;
  Mask placed = 0;
  while (placed != kernel.loops) {
    const auto next = std::find_if(around.begin(), around.end(), [&](const auto &entry) {
      return !(placed >> entry.first & 1) && (entry.second & ~placed) == 0;
    });
    if (next == around.end())
      return std::nullopt;
    order.push_back(next->first);
    placed |= Mask{1} << next->first;
  }
  return order;
}

Mask enclosing(const Kernel &kernel, Mask loops) {
  loops &= kernel.loops;
  if (kernel.loop_order.empty())
    return loops;
  Mask around = 0, out = 0;
  for (std::uint32_t loop : kernel.loop_order) {
    around |= Mask{1} << loop;
    if (loops >> loop & 1)
      out = around;
  }
  return out;
}

// The needed values by rank, highest last, and the decisions so far. The highest is decided next: it is
// loaded, or one of its derivations is chosen. A value is decided after everything that uses it, so every
// graph is built in exactly one way.
struct Kernels::State {
  std::vector<std::uint32_t> needed;
  std::vector<Step> steps;
  std::vector<ValueId> leaves;
  const std::vector<ValueId> *outputs;
  Labels labels;
  double bytes = 0;    // that the kernel must read and write
  double products = 0; // that can be moved while its products are computed
  double work = 0;     // of the steps
  struct Made {        // of values that other kernels make only for it
    bool any = false;
    Mask reads = 0;           // inputs
    double bytes = 0;         // read and written
    double product_bytes = 0; // moved in the time of its products
  } made;
  std::vector<std::pair<Mask, Mask>> nested; // loops that a step ends, and those that must enclose them
};

Kernels::Kernels(const Values &values, const Options &options, Clock &clock)
    : values_(values), options_(options), clock_(clock), rank_(values.all().size()), order_(rank_.size()),
      effects_(rank_.size()), inside_(rank_.size(), 0) {
  states_end = options.max_states;
  const Problem &problem = values.problem();
  for (std::size_t f = 0; f < problem.factors.size(); ++f)
    if (problem.factors[f].level == Level::Loop)
      loop_factors_ |= Mask{1} << f;
  std::iota(order_.begin(), order_.end(), 0u);
  std::stable_sort(order_.begin(), order_.end(),
                   [&](ValueId a, ValueId b) { return values_.all()[a].weight < values_.all()[b].weight; });
  for (std::uint32_t i = 0; i < order_.size(); ++i) {
    const Value &value = values_.all()[order_[i]];
    rank_[order_[i]] = i;
    bytes_.push_back(values_.least_bytes(order_[i]));
    made_products_.push_back(product_bytes(options.target, value.products));
    if (value.useful)
      for (const Derivation &how : value.derivations) {
        const Labels labels = labels_of(how.reduced);
        Mask ends = 0;
        for (std::size_t a = 0; a < problem.axes.size(); ++a)
          if (labels.looped >> a & 1)
            ends |= problem.axes[a].mask & loop_factors_;
        const Mask varies = (values_.all()[how.a].mask | values_.all()[how.b].mask) & loop_factors_;
        effects_[i].push_back(
            {labels, ends, varies, work_of(how), product_bytes(options.target, values_.product_flops(how))});
      }
  }
  load_only_own(false);
}

void Kernels::load_only_own(bool only) {
  own_only_ = only;
  loadable_.assign(order_.size(), false);
  operators_.assign(order_.size(), 0);
  for (std::uint32_t i = 0; i < order_.size(); ++i) {
    const Value &value = values_.all()[order_[i]];
    loadable_[i] = value.leaf || (!value.constant && (value.program || !only) && values_.storable(order_[i]));
    std::uint32_t least = value.leaf ? 0 : options_.max_block_operators + 1;
    for (std::size_t d = value.own_aside ? 1 : 0; d < value.derivations.size() && !value.leaf; ++d) {
      std::uint32_t below = 0;
      for (ValueId operand : {value.derivations[d].a, value.derivations[d].b})
        below = std::max(below, loadable_[rank_[operand]] ? 0 : operators_[rank_[operand]]);
      least = std::min(least, below + 1);
    }
    operators_[i] = least;
  }
}

void Kernels::enumerate(const std::vector<ValueId> &outputs, const Sink &sink) {
  sink_ = &sink;
  seen_.clear();
  saved_ = 0;
  std::fill(inside_.begin(), inside_.end(), Mask{0});
  // One set of outputs must not starve the others.
  last_state_ = std::min(counts.states + options_.max_states / 5 + 1, states_end);
  State state;
  for (ValueId output : outputs) {
    state.needed.push_back(rank_[output]);
    state.bytes += bytes_[rank_[output]];
    saved_ |= values_.all()[output].mask & loop_factors_;
  }
  state.outputs = &outputs;
  std::sort(state.needed.begin(), state.needed.end());
  expand(state);
}

// What a step that reduces these factors implies about its kernel:
//   {tile}                        inside a loop or one part of it; the loop sum follows
//   {loop}, {split, loop}         the accumulator of a loop over the axis
//   {loop, tile}, {split, loop, tile}, {tile} of an axis without a loop factor     whole, in one step
//   {split}                       the end of a sum whose other parts another kernel did
// A kernel does one of: loop (with or without the split factor, always the same), whole (likewise), split
// alone.
Kernels::Labels Kernels::labels_of(Mask reduced) const {
  const Problem &problem = values_.problem();
  Labels s;
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
  return s;
}

// A loop sum follows a tile sum of the same axis, so `inner` covers both.
bool Kernels::consistent(const Labels &s) const {
  if ((s.whole & s.inner) || (s.joined & s.apart) || (s.split_only & (s.looped | s.whole | s.inner)))
    return false;
  return std::popcount(s.looped) <= static_cast<int>(options_.max_loops);
}

// The bytes that the kernel and the makers of what it loads must move, or that could be moved while they
// compute.
double Kernels::least_bytes(const State &state) const {
  const double own = std::max(state.bytes, state.products);
  return state.made.any ? own + launch_bytes + std::max(state.made.bytes, state.made.product_bytes) : own;
}

void Kernels::expand(State &state) {
  if (clock_.expired())
    return;
  if (counts.states >= last_state_) {
    ++counts.by_states;
    return;
  }
  ++counts.states;
  if (options_.dominance > 0 && dominated(state)) {
    ++counts.by_dominance;
    return;
  }
  if (state.needed.empty()) {
    complete(state);
    return;
  }
  const std::uint32_t top = state.needed.back();
  const ValueId id = order_[top];
  const Value &value = values_.all()[id];
  const bool output = std::find(state.outputs->begin(), state.outputs->end(), id) != state.outputs->end();
  state.needed.pop_back();
  if (!value.leaf)
    derive(state, top);
  // An input is loaded; any other value may be, if it can be stored in device memory and is not an output
  // here.
  if (loadable_[top] && !output) {
    // The bytes of an input are counted when it is needed. Another kernel first writes anything else.
    const double bytes = value.leaf ? 0 : bytes_[top];
    const State::Made before = state.made;
    state.bytes += bytes;
    if (!value.leaf && launch_bytes > 0) {
      state.made.any = true;
      state.made.bytes += bytes + values_.input_bytes(value.reads & ~before.reads);
      state.made.reads |= value.reads;
      state.made.product_bytes = std::max(before.product_bytes, made_products_[top]);
    }
    if (least_bytes(state) <= most_bytes) {
      state.leaves.push_back(id);
      expand(state);
      state.leaves.pop_back();
    } else {
      ++counts.by_traffic;
    }
    state.bytes -= bytes;
    state.made = before;
  }
  state.needed.push_back(top);
}

// Choose each derivation of `top`, the highest value needed.
void Kernels::derive(State &state, std::uint32_t top) {
  // Each value that cannot be loaded costs an operator, and the deepest one a chain of them.
  std::size_t least = operators_[top], others = 1;
  for (std::uint32_t other : state.needed)
    if (!loadable_[other]) {
      ++others;
      least = std::max<std::size_t>(least, operators_[other]);
    }
  if (state.steps.size() + std::max(least, others) > options_.max_block_operators) {
    ++counts.by_operators;
    return;
  }
  const ValueId id = order_[top];
  const Value &value = values_.all()[id];
  const Labels before = state.labels;
  const double bytes_before = state.bytes, products_before = state.products;
  // Operations aside are for libraries: the other derivations do the same here, and safely.
  for (std::size_t i = value.own_aside ? 1 : 0; i < value.derivations.size(); ++i) {
    const Derivation &how = value.derivations[i];
    const auto &[effect, ends, varies, work, product_bytes] = effects_[top][i];
    // Only a plain sum or maximum accumulates: a contraction would have to hold its operands across
    // iterations. A value inside a loop does not meet one after it, and what is saved is after every loop it
    // varied over.
    if (ends & (inside_[top] | saved_) || (ends && how.op == Op::Contract)) {
      ++counts.by_place;
      continue;
    }
    Labels &s = state.labels;
    s = {before.looped | effect.looped,         before.whole | effect.whole,   before.inner | effect.inner,
         before.split_only | effect.split_only, before.joined | effect.joined, before.apart | effect.apart};
    if (how.reduced && !consistent(s)) {
      ++counts.by_labels;
      continue;
    }
    std::uint32_t added[2];
    std::pair<std::uint32_t, Mask> were[2];
    std::size_t n = 0, m = 0;
    for (std::uint32_t j = 0; j < how.arity; ++j) {
      const std::uint32_t operand = rank_[j == 0 ? how.a : how.b];
      const Value &v = values_.all()[order_[operand]];
      if (v.leaf && v.constant)
        continue; // it becomes a literal of the kernel
      were[m++] = {operand, inside_[operand]};
      inside_[operand] |= inside_[top] | varies;
      const auto at = std::lower_bound(state.needed.begin(), state.needed.end(), operand);
      if (at != state.needed.end() && *at == operand)
        continue;
      state.needed.insert(at, operand);
      added[n++] = operand;
      if (v.leaf)
        state.bytes += bytes_[operand];
    }
    state.products += product_bytes;
    if (least_bytes(state) <= most_bytes) {
      state.steps.push_back({id, how});
      state.work += work;
      const bool inner = ends && (varies & ~ends);
      if (inner)
        state.nested.emplace_back(ends, varies & ~ends);
      expand(state);
      if (inner)
        state.nested.pop_back();
      state.work -= work;
      state.steps.pop_back();
    } else {
      ++counts.by_traffic;
    }
    while (m > 0) {
      --m;
      inside_[were[m].first] = were[m].second;
    }
    for (std::size_t j = 0; j < n; ++j)
      state.needed.erase(std::lower_bound(state.needed.begin(), state.needed.end(), added[j]));
    state.bytes = bytes_before;
    state.products = products_before;
  }
  state.labels = before;
}

void Kernels::complete(const State &state) {
  ++counts.graphs;
  if (state.steps.empty())
    return;
  if (state.labels.inner &
      ~state.labels.looped) { // a tile sum without its loop sum could only be saved, but is not storable
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
    if (state.labels.looped >> a & 1)
      for (std::uint32_t f : problem.axes[a].factors)
        if (problem.factors[f].level == Level::Loop)
          kernel.loops |= Mask{1} << f;
  if (std::popcount(kernel.loops) > 1) {
    auto order = nesting(values_, kernel);
    if (!order) {
      ++counts.by_place;
      return;
    }
    kernel.loop_order = std::move(*order);
  }
  ++counts.labelled;
  (*sink_)(std::move(kernel));
}

// Seconds that a step takes at nominal extents, on the whole GPU.
double Kernels::work_of(const Derivation &how) const {
  const Problem &problem = values_.problem();
  const Mask mask = values_.all()[how.a].mask | values_.all()[how.b].mask;
  double elements = 1;
  for (const Axis &axis : problem.axes) {
    const Mask part = mask & axis.mask;
    if (part == axis.mask)
      elements *= static_cast<double>(axis.extent);
    else if (part)
      elements *= std::sqrt(static_cast<double>(axis.extent));
  }
  if (how.op == Op::Contract)
    return 2 * elements / options_.target.tensor_flops;
  const bool function = how.op == Op::Unary || how.op == Op::Binary;
  return elements * (function ? problem.functions[how.function].flops : 1) / options_.target.vector_flops;
}

// Whether as many states as are kept have already reached the same remaining work with no more steps and
// work. What may follow depends only on the key.
bool Kernels::dominated(const State &state) {
  const Labels &l = state.labels;
  Key key;
  key.reserve(state.needed.size() * 2 + state.leaves.size() + 14);
  const auto add = [&](Mask mask) {
    key.push_back(static_cast<std::uint32_t>(mask));
    key.push_back(static_cast<std::uint32_t>(mask >> 32));
  };
  for (Mask mask : {l.looped, l.whole, l.inner, l.split_only, l.joined, l.apart})
    add(mask);
  key.push_back(static_cast<std::uint32_t>(state.leaves.size()));
  key.push_back(static_cast<std::uint32_t>(state.nested.size()));
  key.insert(key.end(), state.leaves.begin(), state.leaves.end());
  for (const auto &[ends, around] : state.nested) {
    add(ends);
    add(around);
  }
  for (std::uint32_t rank : state.needed) {
    key.push_back(rank);
    if (inside_[rank])
      add(inside_[rank]);
  }
  std::vector<Trace> &traces = seen_[std::move(key)];
  const auto steps = static_cast<std::uint32_t>(state.steps.size());
  const auto work = static_cast<float>(state.work);
  const auto better = std::count_if(traces.begin(), traces.end(),
                                    [&](const Trace &t) { return t.steps <= steps && t.work <= work; });
  if (better >= static_cast<std::ptrdiff_t>(options_.dominance))
    return true;
  traces.push_back({steps, work});
  return false;
}

} // namespace superopt::search
