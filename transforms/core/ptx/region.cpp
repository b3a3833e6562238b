// Boxes of blocks, and how they become smaller.
#include "ptx/machine.hpp"

#include <algorithm>
#include <stdexcept>

namespace superopt::ptx {

bool Region::live(const Slope &s) const {
  for (std::size_t j = 0; j < axes; ++j)
    if (s[j] != 0 && high[j] > low[j])
      return true;
  return false;
}

std::pair<i128, i128> Region::range(const Slope &s) const {
  i128 least = 0, most = 0;
  for (std::size_t j = 0; j < axes; ++j) {
    const i128 a = static_cast<i128>(s[j]) * (low[j] - at[j]),
               b = static_cast<i128>(s[j]) * (high[j] - at[j]);
    least += std::min(a, b);
    most += std::max(a, b);
  }
  return {least, most};
}

void Region::pin(const Slope &s) {
  for (std::size_t j = 0; j < axes; ++j)
    if (s[j] != 0)
      low[j] = high[j] = at[j];
}

// Cuts off blocks where the offset along `s` is less than `least`: first along the axis that loses the
// smallest share, or along that with the largest steps, whichever leaves more blocks.
void Region::require(const Slope &s, i128 least) {
  Region other = *this;
  cut(s, least, false);
  other.cut(s, least, true);
  if (other.blocks() > blocks())
    *this = other;
}

double Region::blocks() const {
  double count = 1;
  for (std::size_t j = 0; j < axes; ++j)
    count *= static_cast<double>(high[j] - low[j] + 1);
  return count;
}

void Region::cut(const Slope &s, i128 least, bool largestSteps) {
  for (;;) {
    const i128 missing = least - range(s).first;
    if (missing <= 0)
      return;
    std::size_t best = axes;
    i64 steps = 0;
    double rank = 0;
    for (std::size_t j = 0; j < axes; ++j) {
      const i128 size = s[j] < 0 ? -static_cast<i128>(s[j]) : s[j];
      const i64 room = s[j] > 0 ? at[j] - low[j] : s[j] < 0 ? high[j] - at[j] : 0;
      if (room == 0)
        continue;
      const i64 mine = static_cast<i64>(std::min<i128>((missing + size - 1) / size, room));
      const double mineRank = largestSteps
                                  ? -static_cast<double>(size)
                                  : static_cast<double>(mine) / static_cast<double>(high[j] - low[j] + 1);
      if (best == axes || mineRank < rank) {
        best = j;
        steps = mine;
        rank = mineRank;
      }
    }
    if (best == axes)
      throw std::logic_error("expected the block that runs within its region");
    (s[best] > 0 ? low[best] : high[best]) += s[best] > 0 ? steps : -steps;
  }
}

} // namespace superopt::ptx
