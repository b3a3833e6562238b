#include "search/plan.hpp"

#include <algorithm>
#include <bit>
#include <set>

namespace superopt::search {
namespace {

// Ways to make the same outputs from the same leaves that are kept, cheapest first.
constexpr std::size_t kernels_per_leaves = 4;
// Plans this much above the program's own cost are still listed: the model errs by more than that.
constexpr double slack = 1.25;

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace

Planner::Planner(const Values &values, const Options &options, Clock &clock)
    : values_(values), options_(options), clock_(clock), kernels_(values, options, clock),
      sizes_(values, options, kernels_.counts), start_(std::chrono::steady_clock::now()) {}

Planner::Needed Planner::without_leaves(Needed needed) const {
  std::erase_if(needed, [&](ValueId v) { return values_.all()[v].leaf; });
  std::sort(needed.begin(), needed.end(),
            [&](ValueId a, ValueId b) { return kernels_.rank(a) < kernels_.rank(b); });
  needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
  return needed;
}

bool Planner::cheaper(const Part &a, const Part &b) {
  return a.seconds != b.seconds ? a.seconds < b.seconds : a.score < b.score;
}

// Each derivation of `v` as one kernel of a library, where its operands can stand in device memory.
const std::vector<std::int32_t> &Planner::library_for(ValueId v) {
  auto [it, fresh] = library_.try_emplace(v);
  if (!fresh)
    return it->second;
  const Problem &problem = values_.problem();
  std::vector<std::int32_t> found;
  for (const Derivation &how : values_.all()[v].derivations) {
    Kernel kernel;
    kernel.custom = false;
    kernel.outputs = {v};
    kernel.steps = {{v, how}};
    kernel.reduced = how.reduced;
    bool storable = true;
    for (std::uint32_t i = 0; i < how.arity; ++i) {
      const ValueId operand = i == 0 ? how.a : how.b;
      const Value &value = values_.all()[operand];
      storable &= values_.storable(operand) && value.degrees.empty() && !(value.constant && !value.leaf);
      if (!value.constant && (i == 0 || how.b != how.a))
        kernel.leaves.push_back(operand);
    }
    if (!storable || !values_.all()[v].degrees.empty())
      continue;
    std::sort(kernel.leaves.begin(), kernel.leaves.end());
    for (std::size_t f = 0; f < problem.factors.size() && !kernel.loops; ++f)
      if (problem.factors[f].level == Level::Loop && (how.reduced >> f & 1))
        kernel.loops = Mask{1} << f; // how a library reduces a long axis
    if (!sizes_.optimize(kernel, INFINITY, split_))
      continue;
    found.push_back(static_cast<std::int32_t>(made_.size()));
    made_.push_back(std::move(kernel));
  }
  return library_[v] = std::move(found);
}

const std::vector<std::int32_t> &Planner::customs_for(const Needed &outputs) {
  auto [it, fresh] = customs_.try_emplace(outputs);
  if (!fresh)
    return it->second;
  std::map<std::vector<ValueId>, std::vector<Kernel>> by_leaves;
  const auto cheaper = [](const Kernel &a, const Kernel &b) {
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.score < b.score;
  };
  kernels_.enumerate(outputs, [&](Kernel &&kernel) {
    if (!sizes_.optimize(kernel, limit_, split_))
      return;
    if (first_ == 0)
      first_ = since(start_);
    std::vector<Kernel> &kept = by_leaves[kernel.leaves];
    kept.insert(std::upper_bound(kept.begin(), kept.end(), kernel, cheaper), kernel);
    if (kept.size() > kernels_per_leaves)
      kept.pop_back();
  });
  std::vector<std::int32_t> found;
  for (auto &[leaves, kernels] : by_leaves)
    for (Kernel &kernel : kernels) {
      found.push_back(static_cast<std::int32_t>(made_.size()));
      made_.push_back(std::move(kernel));
    }
  return customs_[outputs] = std::move(found);
}

const std::vector<Planner::Part> &Planner::best(const Needed &needed, std::uint32_t customs) {
  const std::pair<Needed, std::uint32_t> key{needed, customs};
  const auto [it, fresh] = best_.try_emplace(key);
  if (!fresh)
    return it->second;
  std::vector<Part> out;
  if (clock_.expired())
    customs = 0; // finish what was begun, with library operators
  if (needed.empty()) {
    out.push_back({0, 0, -1, -1});
  } else {
    const ValueId top = needed.back();
    const auto consider = [&](std::int32_t id, const Needed &made, std::uint32_t customs_left) {
      const double seconds = made_[static_cast<std::size_t>(id)].seconds;
      const double score = made_[static_cast<std::size_t>(id)].score;
      if (seconds > limit_)
        return;
      Needed next;
      for (ValueId v : needed)
        if (std::find(made.begin(), made.end(), v) == made.end())
          next.push_back(v);
      const std::vector<ValueId> leaves = made_[static_cast<std::size_t>(id)].leaves;
      next.insert(next.end(), leaves.begin(), leaves.end());
      for (const Part &rest : best(without_leaves(std::move(next)), customs_left)) {
        if (seconds + rest.seconds > limit_)
          break;
        Part part{seconds + rest.seconds, score + rest.score, id, -1};
        if (out.size() == options_.candidates && !cheaper(part, out.back()))
          continue;
        part.rest = static_cast<std::int32_t>(pool_.size());
        pool_.push_back(rest);
        out.insert(std::upper_bound(out.begin(), out.end(), part, cheaper), part);
        if (out.size() > options_.candidates)
          out.pop_back();
      }
    };
    if (customs > 0) {
      // The outputs of a custom kernel: the highest needed value, with any of the others.
      const std::size_t others = std::min<std::size_t>(needed.size() - 1, 4);
      for (std::size_t subset = 0; subset < (std::size_t{1} << others); ++subset) {
        Needed outputs(1, top);
        for (std::size_t i = 0; i < others; ++i)
          if (subset >> i & 1)
            outputs.push_back(needed[needed.size() - 2 - i]);
        std::sort(outputs.begin(), outputs.end());
        const std::vector<std::int32_t> found = customs_for(outputs);
        for (std::int32_t id : found)
          consider(id, outputs, customs - 1);
      }
    }
    // Library operators last: the recursion is deep. Once no custom kernel is left, what the program computes
    // is computed as the program does it; to reassociate there is another search's business.
    const std::vector<std::int32_t> library = library_for(top);
    const bool own = customs == 0 && values_.all()[top].program;
    const Needed only(1, top);
    for (std::size_t i = 0; i < (own ? std::min<std::size_t>(library.size(), 1) : library.size()); ++i)
      consider(library[i], only, customs);
  }
  return best_[key] = std::move(out);
}

// The program as it came: for every value its first derivation, the program's own.
double Planner::program_seconds() {
  double total = 0;
  std::set<ValueId> seen;
  std::vector<ValueId> stack = values_.outputs();
  while (!stack.empty()) {
    const ValueId v = stack.back();
    stack.pop_back();
    if (values_.all()[v].leaf || !seen.insert(v).second || values_.all()[v].derivations.empty())
      continue;
    const std::vector<std::int32_t> library = library_for(v);
    const Derivation own = values_.all()[v].derivations[0];
    for (std::int32_t id : library)
      if (made_[static_cast<std::size_t>(id)].steps[0].how == own)
        total += made_[static_cast<std::size_t>(id)].seconds;
    stack.push_back(own.a);
    stack.push_back(own.b);
  }
  return total;
}

Result Planner::run() {
  Result result;
  limit_ = INFINITY;
  // The extents that split factors may take; one pass for each where there are such factors.
  const bool splits = std::any_of(values_.problem().factors.begin(), values_.problem().factors.end(),
                                  [](const Factor &f) { return f.level == Level::Split; });
  std::vector<std::int64_t> extents{1};
  if (splits)
    extents = {2, 4, 8, 16, 32, 64};
  result.program_seconds = program_seconds();
  for (std::int64_t extent : extents) {
    split_ = extent;
    made_.clear();
    pool_.clear();
    customs_.clear();
    library_.clear();
    best_.clear();
    limit_ = result.program_seconds * slack;
    const std::vector<Part> parts = best(without_leaves(values_.outputs()), options_.max_custom);
    for (Part part : parts) {
      Plan plan{part.seconds, part.score, 0, {}};
      bool custom = false, split = false;
      while (part.kernel >= 0) {
        const Kernel &kernel = made_[static_cast<std::size_t>(part.kernel)];
        custom |= kernel.custom;
        for (ValueId leaf : kernel.leaves)
          for (const Axis &axis : values_.problem().axes)
            split |= (values_.all()[leaf].mask & axis.mask) != 0 &&
                     (values_.all()[leaf].mask & axis.mask) != axis.mask;
        plan.kernels.insert(plan.kernels.begin(), kernel);
        part = pool_[static_cast<std::size_t>(part.rest)];
      }
      plan.split = split ? extent : 0;
      // A plan without split values is the same for every extent.
      if (custom && (split || extent == extents[0]))
        result.plans.push_back(std::move(plan));
    }
    if (clock_.expired())
      break;
  }
  std::stable_sort(result.plans.begin(), result.plans.end(), [](const Plan &a, const Plan &b) {
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.score < b.score;
  });
  if (result.plans.size() > options_.candidates)
    result.plans.resize(options_.candidates);
  result.complete = !clock_.expired();
  result.first_seconds = first_;
  result.plan_seconds = since(start_);
  counts = kernels_.counts;
  return result;
}

} // namespace superopt::search
