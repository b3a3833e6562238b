#include "search/plan.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <set>
#include <thread>

namespace superopt::search {
namespace {

// How many ways to make the same outputs from the same leaves are kept, cheapest first.
constexpr std::size_t kernels_per_leaves = 4;
// Plans up to this factor above the program's own cost are still listed: the model errs by more than that.
constexpr double slack = 1.25;
// What sums of seconds may lose by rounding, as a share of them: a plan as cheap as the best is within the
// limit.
constexpr double rounding = 1e-9;
// Kernels whose extents are chosen together, by all threads.
constexpr std::size_t batch_kernels = 1024;
// Plans of up to this many kernels are searched before longer ones.
constexpr std::uint32_t few_kernels = 4;
constexpr std::uint32_t any_number = 1000;

// Most parts of a split axis.
constexpr std::int64_t most_parts = 64;

// Whether some axis can be split into this many parts: the divisors of a power of two are powers of two.
bool splits_some(const Problem &problem, std::int64_t parts) {
  return std::any_of(problem.axes.begin(), problem.axes.end(), [&](const Axis &axis) {
    return problem.factors[axis.factors[0]].level == Level::Split && axis.extent % parts == 0 &&
           axis.extent / parts >= 2;
  });
}

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <typename T> bool cheaper(const T &a, const T &b) {
  return a.seconds != b.seconds ? a.seconds < b.seconds : a.score < b.score;
}

// Keep the cheapest `most`, in order; whatever came first goes first among equals.
template <typename T> void keep(std::vector<T> &kept, T &&fresh, std::size_t most) {
  if (kept.size() == most && !cheaper(fresh, kept.back()))
    return;
  kept.insert(std::upper_bound(kept.begin(), kept.end(), fresh, cheaper<T>), std::move(fresh));
  if (kept.size() > most)
    kept.pop_back();
}

// Call `work(i, thread)` for every i below n; the calling thread does its share, the others charge theirs.
template <typename F> void in_parallel(std::size_t n, std::size_t threads, Clock &clock, const F &work) {
  std::atomic<std::size_t> next{0};
  const auto run = [&](std::size_t thread) {
    for (std::size_t i = next++; i < n; i = next++)
      work(i, thread);
  };
  std::vector<std::thread> others;
  for (std::size_t t = 1; t < threads && t < n; ++t)
    others.emplace_back([&run, &clock, t] {
      run(t);
      clock.charge(thread_seconds());
    });
  run(0);
  for (std::thread &other : others)
    other.join();
}

} // namespace

Planner::Planner(const Values &values, const Options &options, Clock &clock)
    : values_(values), options_(options), clock_(clock), kernels_(values, options, clock),
      sizes_(values, options), start_(std::chrono::steady_clock::now()) {
  for (std::uint32_t t = 0; t < std::max<std::uint32_t>(options.threads, 1); ++t)
    sizers_.emplace_back(sizes_);
  // Without partial sums between kernels, any extent will do.
  if (options_.max_custom > 1)
    for (std::int64_t split = 2; split <= most_parts; ++split)
      if (splits_some(values.problem(), split))
        splits_.push_back(split);
  if (splits_.empty())
    splits_.push_back(1);
}

// Where device memory holds only the program's own values, it holds no partial sums.
std::span<const std::int64_t> Planner::splits_now() const {
  return std::span(splits_).first(kernels_.own_only() ? 1 : splits_.size());
}

Planner::Needed Planner::without_leaves(Needed needed) const {
  std::erase_if(needed, [&](ValueId v) { return values_.all()[v].leaf; });
  std::sort(needed.begin(), needed.end(),
            [&](ValueId a, ValueId b) { return kernels_.rank(a) < kernels_.rank(b); });
  needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
  return needed;
}

Planner::Made Planner::store(std::vector<Kernel> kernels) {
  Made out;
  for (Kernel &kernel : kernels) {
    out.push_back(static_cast<std::int32_t>(made_.size()));
    made_.push_back(std::move(kernel));
  }
  return out;
}

// Each derivation of `v` as one library kernel, where its operands can be stored in device memory.
const Planner::Made &Planner::library_for(ValueId v) {
  auto [it, fresh] = library_.try_emplace(v);
  if (!fresh)
    return it->second;
  const Problem &problem = values_.problem();
  std::vector<Kernel> found;
  for (const Derivation &how : values_.all()[v].derivations) {
    Kernel kernel;
    kernel.custom = false;
    kernel.outputs = {v};
    kernel.steps = {{v, how}};
    kernel.reduced = how.reduced;
    bool storable = values_.all()[v].degrees.empty();
    for (std::uint32_t i = 0; i < how.arity; ++i) {
      const ValueId operand = i == 0 ? how.a : how.b;
      const Value &value = values_.all()[operand];
      storable &= values_.storable(operand) && value.degrees.empty() && !(value.constant && !value.leaf);
      if (!value.constant && (i == 0 || how.b != how.a))
        kernel.leaves.push_back(operand);
    }
    if (!storable)
      continue;
    std::sort(kernel.leaves.begin(), kernel.leaves.end());
    for (std::size_t f = 0; f < problem.factors.size() && !kernel.loops; ++f)
      if (problem.factors[f].level == Level::Loop && (how.reduced >> f & 1))
        kernel.loops = Mask{1} << f; // how a library reduces a long axis
    const bool splits = sizes_.splits(kernel);
    for (std::int64_t split : splits_) {
      Kernel sized = kernel;
      sized.split = splits ? split : 0;
      if (sizers_[0].optimize(kernel, INFINITY, split, sized))
        found.push_back(std::move(sized));
      if (!splits)
        break;
    }
  }
  return library_[v] = store(std::move(found));
}

// A lower bound for making these values: a launch, plus writing them and reading what every way to them
// reads, or the products of every way to one of them.
double Planner::least_seconds(const Needed &needed) const {
  if (needed.empty() || !options_.branch_and_bound)
    return 0;
  double bytes = 0, products = 0;
  Mask reads = 0;
  for (ValueId v : needed) {
    bytes += values_.least_bytes(v);
    reads |= values_.all()[v].reads;
    products = std::max(products, values_.all()[v].products);
  }
  return superopt::least_seconds(options_.target, std::max(bytes + values_.input_bytes(reads),
                                                           product_bytes(options_.target, products)));
}

// Choose the extents of a batch of kernels with the same outputs and keep the cheapest, by what they load and
// the extent of split factors; `alone`: the limit also covers making what they load. Which kernels
// pass does not depend on the number of threads.
void Planner::size(std::vector<Kernel> &batch, double limit, bool alone,
                   std::map<std::pair<std::vector<ValueId>, std::int64_t>, std::vector<Kernel>> &kept) {
  struct Item {
    const Kernel *kernel;
    bool splits;
    std::int64_t split;
    double limit;
    bool found = false;
    Extents extents;
  };
  std::vector<Item> items;
  for (const Kernel &kernel : batch) {
    const bool splits = sizes_.splits(kernel);
    const double own = limit - (alone ? least_seconds(without_leaves(kernel.leaves)) : 0);
    for (std::int64_t split : splits_now()) {
      Item item{&kernel, splits, split, own, false, {}};
      const auto known = kept.find({kernel.leaves, splits ? split : 0});
      if (options_.branch_and_bound && known != kept.end() && known->second.size() == kernels_per_leaves)
        item.limit = std::min(own, known->second.back().seconds);
      items.push_back(std::move(item));
      if (!splits)
        break;
    }
  }
  in_parallel(items.size(), sizers_.size(), clock_, [&](std::size_t i, std::size_t thread) {
    Item &item = items[i];
    item.found = sizers_[thread].optimize(*item.kernel, item.limit, item.split, item.extents);
  });
  for (Item &item : items)
    if (item.found) {
      if (first_ == 0)
        first_ = since(start_);
      std::vector<Kernel> &same = kept[{item.kernel->leaves, item.splits ? item.split : 0}];
      if (same.size() == kernels_per_leaves && !cheaper<Extents>(item.extents, same.back()))
        continue;
      Kernel kernel = *item.kernel;
      static_cast<Extents &>(kernel) = std::move(item.extents);
      kernel.split = item.splits ? item.split : 0;
      keep(same, std::move(kernel), kernels_per_leaves);
    }
  batch.clear();
}

const Planner::Made &Planner::customs_for(const Needed &outputs, double allowance, bool alone) {
  Within<Made> &known = customs_[{outputs, alone}];
  // A search that used up its states would end at the same place unless bounds are tighter.
  const bool again = known.cut != 0 && known.cut != pass_ && (known.starved || allowance < known.allowance);
  if (known.allowance >= allowance && !again) {
    cut_ |= known.cut != 0;
    return known.found;
  }
  const std::uint64_t cut = kernels_.counts.by_states;
  std::map<std::pair<std::vector<ValueId>, std::int64_t>, std::vector<Kernel>> kept;
  std::vector<Kernel> batch;
  kernels_.most_bytes = options_.branch_and_bound ? most_bytes(options_.target, allowance) : INFINITY;
  kernels_.launch_bytes = alone ? launch_bytes(options_.target) : 0;
  kernels_.enumerate(outputs, [&](Kernel &&kernel) {
    batch.push_back(std::move(kernel));
    if (batch.size() == batch_kernels)
      size(batch, allowance, alone, kept);
  });
  size(batch, allowance, alone, kept);
  Made found;
  for (auto &[key, kernels] : kept)
    for (std::int32_t id : store(std::move(kernels)))
      found.push_back(id);
  const bool whole = kernels_.counts.by_states == cut && !clock_.expired();
  cut_ |= !whole;
  known = {allowance, std::move(found), whole ? 0 : pass_, kernels_.starved()};
  return known.found;
}

const std::vector<Planner::Part> &Planner::best(const Needed &needed, Left left, double allowance) {
  const std::pair<Needed, Left> key{needed, left};
  if (const auto known = best_.find(key); known != best_.end() && known->second.allowance >= allowance)
    return known->second.found;
  std::vector<Part> out;
  if (clock_.expired())
    left.customs = 0; // finish what was begun, with library operators
  if (needed.empty()) {
    out.push_back({0, 0, -1, -1});
  } else if (left.kernels > 0) {
    const bool whole = needed == outputs_;
    // Anything slower than all the ways that are kept is useless.
    const auto kept = [&] {
      const bool full = options_.branch_and_bound && out.size() == parts_kept();
      return full ? std::min(allowance, out.back().seconds) : allowance;
    };
    // Plans much slower than the best are not searched.
    const auto allowed = [&] {
      return whole && options_.branch_and_bound ? std::min(kept(), limit_) : kept();
    };
    struct Choice { // a kernel and what is needed after it
      std::int32_t kernel;
      Left left;
      double seconds, least;
      Needed next;
    };
    std::vector<Choice> choices;
    const auto choose = [&](std::int32_t id, const Needed &made, Left after) {
      const Kernel &kernel = made_[static_cast<std::size_t>(id)];
      if (kernel.split != 0 && kernel.split != split_)
        return;
      Needed next;
      for (ValueId v : needed)
        if (std::find(made.begin(), made.end(), v) == made.end())
          next.push_back(v);
      next.insert(next.end(), kernel.leaves.begin(), kernel.leaves.end());
      next = without_leaves(std::move(next));
      const double least = kernel.seconds + least_seconds(next);
      if (least <= allowance && (next.empty() || after.kernels > 0))
        choices.push_back({id, after, kernel.seconds, least, std::move(next)});
    };
    const ValueId top = needed.back();
    if (left.customs > 0) {
      // The outputs of a custom kernel: the highest needed value, and any subset of the others.
      Needed sorted = needed;
      std::sort(sorted.begin(), sorted.end());
      const std::size_t others = std::min<std::size_t>(needed.size() - 1, 4);
      for (std::size_t subset = 0; subset < (std::size_t{1} << others); ++subset) {
        Needed outputs(1, top);
        for (std::size_t i = 0; i < others; ++i)
          if (subset >> i & 1)
            outputs.push_back(needed[needed.size() - 2 - i]);
        std::sort(outputs.begin(), outputs.end());
        if (left.kernels == 1 && outputs.size() < needed.size())
          continue;
        // The remaining needed values take another kernel.
        Needed others_needed;
        std::set_difference(sorted.begin(), sorted.end(), outputs.begin(), outputs.end(),
                            std::back_inserter(others_needed));
        const Made found =
            customs_for(outputs, allowed() - least_seconds(others_needed), others_needed.empty());
        for (std::int32_t id : found)
          choose(id, outputs, {left.customs - 1, left.kernels - 1});
      }
    }
    // Library operators last: the recursion is deep. Once no custom kernel is left, the program's values are
    // computed as the program does; another search is responsible for reassociation there.
    const Made library = library_for(top);
    const bool own = (left.customs == 0 || kernels_.own_only()) && values_.all()[top].program;
    const Needed only(1, top);
    for (std::size_t i = 0; i < (own ? std::min<std::size_t>(library.size(), 1) : library.size()); ++i)
      choose(library[i], only, {left.customs, left.kernels - 1});
    // First the choices that leave nothing to be made, then the most promising: their results bound the
    // others.
    if (options_.branch_and_bound)
      std::stable_sort(choices.begin(), choices.end(), [](const Choice &a, const Choice &b) {
        return std::pair(!a.next.empty(), a.least) < std::pair(!b.next.empty(), b.least);
      });
    for (const Choice &choice : choices) {
      // In the first pass, what a custom kernel leaves to the library costs no search, so that other plans
      // remain if better ones are refused later.
      const bool reserve = kernels_.own_only() && left.customs == 1 && choice.left.customs == 0;
      const double most = reserve ? kept() : allowed();
      if (choice.least > most)
        continue;
      const double score = made_[static_cast<std::size_t>(choice.kernel)].score;
      for (const Part &rest : best(choice.next, choice.left, most - choice.seconds)) {
        Part part{choice.seconds + rest.seconds, score + rest.score, choice.kernel, -1};
        if (part.seconds > most)
          break;
        if (out.size() == parts_kept() && !cheaper(part, out.back()))
          continue;
        part.rest = static_cast<std::int32_t>(pool_.size());
        pool_.push_back(rest);
        keep(out, std::move(part), parts_kept());
        if (whole)
          limit_ = std::min({limit_, allowed(), out.front().seconds * (1 + options_.margin + rounding)});
      }
    }
  }
  Within<std::vector<Part>> &known = best_[key];
  known = {allowance, std::move(out), 0, false};
  return known.found;
}

// The program as given: for every value its first derivation, which is the program's own.
double Planner::program_seconds() {
  double total = 0;
  std::set<ValueId> seen;
  std::vector<ValueId> stack = values_.outputs();
  while (!stack.empty()) {
    const ValueId v = stack.back();
    stack.pop_back();
    if (values_.all()[v].leaf || !seen.insert(v).second || values_.all()[v].derivations.empty())
      continue;
    const Made library = library_for(v);
    const Derivation own = values_.all()[v].derivations[0];
    for (std::int32_t id : library)
      if (made_[static_cast<std::size_t>(id)].steps[0].how == own) {
        total += made_[static_cast<std::size_t>(id)].seconds;
        break;
      }
    stack.push_back(own.a);
    stack.push_back(own.b);
  }
  return total;
}

// Add the plans of one pass that are new.
void Planner::collect(Result &result, const std::vector<Part> &parts) const {
  for (Part part : parts) {
    Plan plan{part.seconds, part.score, 0, {}};
    bool custom = false;
    while (part.kernel >= 0) {
      const Kernel &kernel = made_[static_cast<std::size_t>(part.kernel)];
      custom |= kernel.custom;
      plan.split = std::max(plan.split, kernel.split);
      plan.kernels.insert(plan.kernels.begin(), kernel);
      part = pool_[static_cast<std::size_t>(part.rest)];
    }
    const bool known = std::any_of(result.plans.begin(), result.plans.end(), [&](const Plan &other) {
      return other.split == plan.split &&
             std::equal(plan.kernels.begin(), plan.kernels.end(), other.kernels.begin(), other.kernels.end(),
                        [](const Kernel &a, const Kernel &b) {
                          return a.custom == b.custom && a.outputs == b.outputs && a.steps == b.steps;
                        });
    });
    if (custom && !known)
      result.plans.push_back(std::move(plan));
  }
}

// The program's own values in device memory and few kernels come first: the plans found with them bound the
// gain of more, and every part of the program has been searched if time runs short.
std::vector<Planner::Pass> Planner::passes() const {
  if (!options_.branch_and_bound)
    return {{{options_.max_custom, any_number}, false}};
  std::vector<Pass> out;
  for (std::uint32_t customs = 1; customs <= options_.max_custom; ++customs)
    out.push_back({{customs, any_number}, true});
  if (options_.max_custom > 1) {
    out.push_back({{1, any_number}, false});
    for (std::uint32_t kernels = 2; kernels <= few_kernels; ++kernels)
      out.push_back({{options_.max_custom, kernels}, false});
  }
  out.push_back({{options_.max_custom, any_number}, false});
  return out;
}

Result Planner::run() {
  Result result;
  limit_ = INFINITY;
  result.program_seconds = program_seconds();
  limit_ = result.program_seconds * slack;
  outputs_ = without_leaves(values_.outputs());
  const std::vector<Pass> passes = this->passes();
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const Pass &pass = passes[i];
    const bool last = i + 1 == passes.size();
    if (kernels_.own_only() != pass.own_only) {
      kernels_.load_only_own(pass.own_only);
      customs_.clear();
    }
    // One pass leaves part of the budget to the others.
    cut_ = false;
    kernels_.states_end = kernels_.counts.states + options_.max_states;
    pass_ = i + 1;
    clock_.slice(last ? 1.0 : 0.25);
    for (std::int64_t split :
         pass.left.customs > 1 ? splits_now() : std::span<const std::int64_t>(splits_).first(1)) {
      split_ = split;
      best_.clear();
      collect(result, best(outputs_, pass.left, limit_));
    }
    result.complete = !clock_.expired() && !cut_;
  }
  std::stable_sort(result.plans.begin(), result.plans.end(), cheaper<Plan>);
  if (result.plans.size() > options_.candidates)
    result.plans.resize(options_.candidates);
  result.first_seconds = first_;
  result.plan_seconds = since(start_);
  counts = kernels_.counts;
  for (const Sizer &sizer : sizers_)
    sizes.add(sizer.counts());
  return result;
}

} // namespace superopt::search
