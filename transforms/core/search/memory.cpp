#include "search/sizing.hpp"

#include <algorithm>

namespace superopt::search {
namespace {

constexpr double maximum_bytes = 4; // of a stored maximum, which rounding would change

} // namespace

void Sizing::prepare_memory() {
  const auto n = static_cast<int>(kernel_->steps.size());
  int loop_end = 0;
  for (int i = 0; i < n; ++i)
    if (step(i).how.reduced & kernel_->loops)
      loop_end = i;
  const auto first_use = [&](ValueId v) {
    int first = 0;
    while (first + 1 < n && step(first).how.a != v && step(first).how.b != v)
      ++first;
    return first;
  };
  const auto last_use = [&](ValueId v, int from) {
    for (int i = n - 1; i > from; --i)
      if (step(i).how.a == v || step(i).how.b == v)
        return i;
    return from;
  };
  const auto hold = [&](Mask mask, double bytes, int from, int to) {
    Term t = padded_tile(mask);
    t.constant *= bytes;
    held_.push_back({t, from, to});
  };
  const auto bytes = static_cast<double>(sizes_.options_.intermediate_bytes);
  bytes_of_.assign(values_.all().size(), bytes);
  std::vector<ValueId> after; // a loop
  const auto stays = [&](ValueId v) {
    return kernel_->loops && !(values_.all()[v].mask & kernel_->loops) &&
           std::find(after.begin(), after.end(), v) == after.end();
  };
  Degrees stored; // of some leaf: its maximum is stored with it in fp32, as is what is combined with it
  for (ValueId leaf : kernel_->leaves) {
    const Value &value = values_.all()[leaf];
    const int first = first_use(leaf), last = last_use(leaf, first);
    if (values_.element_bytes(leaf) > 0) // else blocks compute it, as they do what is in between
      bytes_of_[leaf] = static_cast<double>(values_.element_bytes(leaf));
    hold(value.mask, bytes_of_[leaf], first, stays(leaf) ? std::max(last, loop_end) : last);
    if (value.degrees.empty())
      continue;
    stored.insert(stored.end(), value.degrees.begin(), value.degrees.end());
    hold(value.mask, 2 * maximum_bytes, first, last);
    hold(values_.saved_mask(leaf), 2 * maximum_bytes, first, last);
    bytes_of_[leaf] = maximum_bytes;
  }
  for (int i = 0; i < n; ++i) {
    const auto &[v, how] = step(i);
    const Mask mask = values_.all()[v].mask;
    const bool accumulates = how.reduced & kernel_->loops;
    if (accumulates || std::find(after.begin(), after.end(), how.a) != after.end() ||
        std::find(after.begin(), after.end(), how.b) != after.end())
      after.push_back(v);
    bytes_of_[v] = std::max(bytes_of_[how.a], bytes_of_[how.b]);
    if (how.op == Op::Contract && !is_dot(step(i)))
      hold(values_.all()[how.a].mask | values_.all()[how.b].mask, bytes, i, i);
    // An exponential is relative to the maximum of its tile, the running maximum, and their factor; or to a
    // stored maximum.
    if (const Mask over = how.op == Op::Unary ? problem_.functions[how.function].over : 0) {
      if (std::any_of(stored.begin(), stored.end(),
                      [&](const Degree &d) { return d.function == how.function; })) {
        bytes_of_[v] = maximum_bytes;
        hold(mask, maximum_bytes, i, i);
      }
      hold(mask & ~over, 3 * bytes_of_[v], 0, std::max(i, loop_end));
    }
    const bool output =
        std::find(kernel_->outputs.begin(), kernel_->outputs.end(), v) != kernel_->outputs.end();
    const int last = output ? n - 1 : last_use(v, i);
    hold(mask, bytes_of_[v], accumulates ? 0 : i, stays(v) ? std::max(last, loop_end) : last);
  }
  change_.resize(static_cast<std::size_t>(n) + 2);
}

double Sizing::peak_bytes() {
  std::fill(change_.begin(), change_.end(), 0.0);
  for (const Held &h : held_) {
    const double bytes = padded_value(h.bytes);
    change_[static_cast<std::size_t>(h.from)] += bytes;
    change_[static_cast<std::size_t>(h.to) + 1] -= bytes;
  }
  double live = 0, peak = 0;
  for (double c : change_)
    peak = std::max(peak, live += c);
  return peak;
}

} // namespace superopt::search
