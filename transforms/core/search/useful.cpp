// Queries on saturated values: which values and derivations a target uses, and their bounds: what memory
// holds, bytes, flops.
#include "search/values.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace superopt::search {
namespace {

constexpr std::uint32_t weight_unit = 256; // more than the number of operations aside

} // namespace

bool Values::storable(ValueId v) const {
  const Value &value = values_[v];
  if (!problem_.storable(value.mask))
    return false;
  return std::all_of(value.degrees.begin(), value.degrees.end(), [&](const Degree &degree) {
    return !(value.mask & problem_.functions[degree.function].over & ~split_factors_);
  });
}

std::int64_t Values::element_bytes(ValueId v) const {
  const Value &value = values_[v];
  if (value.leaf && !value.constant)
    return problem_.roles[value.derivations[0].function].element_bytes;
  return options_.intermediate_bytes;
}

double Values::stored_bytes(ValueId v, std::int64_t split) const {
  auto bytes = static_cast<double>(element_bytes(v));
  for (const Axis &axis : problem_.axes)
    if (const Mask part = values_[v].mask & axis.mask)
      bytes *= static_cast<double>(part == axis.mask ? axis.extent : split);
  return bytes;
}

double Values::input_bytes(Mask roles) const {
  double bytes = 0;
  for (; roles; roles &= roles - 1)
    bytes += least_bytes(static_cast<ValueId>(std::countr_zero(roles))); // the inputs are the first values
  return bytes;
}

double Values::product_flops(const Derivation &d) const {
  if (d.op != Op::Contract)
    return 0;
  const Mask mask = values_[d.a].mask | values_[d.b].mask;
  double flops = 2;
  for (const Axis &axis : problem_.axes) {
    const Mask part = mask & axis.mask;
    flops *= part == axis.mask ? static_cast<double>(axis.extent) : std::exp2(std::popcount(part));
  }
  return flops;
}

Mask Values::saved_mask(ValueId v) const {
  Mask mask = values_[v].mask;
  for (const Degree &degree : values_[v].degrees) {
    const Function &function = problem_.functions[degree.function];
    mask &= function.along | (function.over & split_factors_);
  }
  return mask;
}

void Values::keep_useful() {
  counts.values = values_.size();
  for (Value &v : values_) {
    v.weight = 0xffffffffu;
    for (const Value::Expression &e : v.expressions)
      if (e.form != Expressions::too_large)
        v.weight = std::min(v.weight, expressions_.form(e.form).weight * weight_unit);
      else // of the program: its operands come before it
        for (const Derivation &d : v.derivations)
          v.weight = std::min(v.weight, std::max(values_[d.a].weight, values_[d.b].weight) + weight_unit);
  }
  // A value aside is lighter than what uses it, and heavier than everything else.
  for (auto it = asides_.rbegin(); it != asides_.rend(); ++it)
    for (ValueId operand : {it->second.a, it->second.b})
      if (values_[operand].aside)
        values_[operand].weight = std::min(values_[operand].weight, values_[it->first].weight - 1);
  for (Value &v : values_) {
    if (v.leaf)
      continue;
    std::erase_if(v.derivations, [&](const Derivation &d) {
      const bool circular = values_[d.a].weight >= v.weight || values_[d.b].weight >= v.weight;
      counts.heavier += circular;
      return circular;
    });
  }
  std::vector<ValueId> stack = outputs_;
  while (!stack.empty()) {
    Value &v = values_[stack.back()];
    stack.pop_back();
    if (v.useful)
      continue;
    v.useful = true;
    if (v.leaf)
      continue;
    for (const Derivation &d : v.derivations) {
      stack.push_back(d.a);
      stack.push_back(d.b);
    }
  }
  find_least();
  for (const Value &v : values_)
    if (v.useful) {
      ++counts.useful;
      counts.derivations += v.derivations.size();
    }
}

void Values::find_least() {
  std::vector<ValueId> order(values_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](ValueId a, ValueId b) { return values_[a].weight < values_[b].weight; });
  for (ValueId id : order) {
    Value &v = values_[id];
    if (v.leaf) {
      v.reads = !v.constant && id < 64 ? Mask{1} << id : 0;
      continue;
    }
    v.reads = v.derivations.empty() ? 0 : ~Mask{0};
    v.products = v.derivations.empty() ? 0 : INFINITY;
    for (const Derivation &d : v.derivations) {
      const Value &a = values_[d.a], &b = values_[d.b];
      v.reads &= a.reads | b.reads;
      v.products = std::min(v.products, product_flops(d) + std::max(a.products, b.products));
    }
  }
}

} // namespace superopt::search
