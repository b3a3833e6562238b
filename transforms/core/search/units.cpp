#include "search/sizing.hpp"

#include <algorithm>
#include <bit>

namespace superopt::search {
namespace {

constexpr std::int64_t largest_tile = 512; // of a partitioned axis
constexpr std::int64_t many_ways = 64;     // an axis that this power of two divides has enough tiles
constexpr std::int64_t least_ragged = 16;  // tile that reaches past the end of its axis
constexpr std::size_t most_outputs = 8;    // of a kernel whose outputs have unlike axes
// The least depth of one trip of a library's matrix product, by the operands' bytes.
constexpr std::int64_t library_depth(std::int64_t bytes) { return bytes > 2 ? 32 : 64; }

// The divisors of `extent` up to the largest tile, and `extent` itself where it is not a power of two. The
// divisors of a power of two are powers of two; other tiles are padded to one.
// Padding costs little except on a side of a matrix product, which takes only powers of two.
// Where few of these divide, others reach past the end of the axis.
std::vector<std::int64_t> tiles(std::int64_t extent, bool side) {
  const auto is_power = [](std::int64_t t) { return std::has_single_bit(static_cast<std::uint64_t>(t)); };
  const bool may_reach_past = extent > many_ways && (extent & -extent) < many_ways;
  std::vector<std::int64_t> out;
  for (std::int64_t t = 1; t <= std::min(extent, largest_tile); ++t)
    if ((extent % t == 0 && (!side || is_power(t))) || (may_reach_past && t >= least_ragged && is_power(t)))
      out.push_back(t);
  if (out.back() != extent && !is_power(extent) && extent <= 2 * largest_tile)
    out.push_back(extent);
  return out;
}

} // namespace

const std::vector<std::int64_t> &Sizing::tiles_of(std::int64_t extent, bool side) {
  std::vector<std::int64_t> &known = tiles_[{extent, side}];
  if (known.empty())
    known = tiles(extent, side);
  return known;
}

bool Sizing::choose_units(std::int64_t split) {
  tile_.assign(problem_.factors.size(), 1);
  full_.assign(problem_.factors.size(), 1);
  Mask present = 0, sides = 0; // of matrix products
  std::int64_t least_depth = 0;
  outer_ = ~Mask{0};
  for (ValueId leaf : kernel_->leaves)
    present |= values_.all()[leaf].mask;
  for (const Step &step : kernel_->steps) {
    present |= values_.all()[step.value].mask;
    if (is_dot(step)) {
      sides |= (values_.all()[step.how.a].mask ^ values_.all()[step.how.b].mask) | step.how.reduced;
      if (!kernel_->custom)
        least_depth = library_depth(operand_bytes(step));
    }
  }
  for (ValueId output : kernel_->outputs)
    outer_ &= values_.saved_mask(output);
  outer_ &= ~kernel_->reduced;
  const auto shared = shared_dimensions();
  Mask unlike = 0;
  for (const std::vector<std::size_t> &axes : shared)
    for (std::size_t a : axes)
      unlike |= problem_.axes[a].mask;
  for (const Axis &axis : problem_.axes) {
    if (!(axis.mask & present & ~unlike))
      continue;
    const std::uint32_t tile_factor = axis.factors.back();
    std::int64_t extent = axis.extent;
    if (sizes_.splits(*kernel_, axis)) {
      const std::uint32_t f = axis.factors[0];
      const Mask bit = Mask{1} << f;
      if (extent % split != 0 || extent / split < 2)
        return false;
      extent /= split;
      full_[f] = split;
      tile_[f] = outer_ & bit ? 1 : split;
      if ((axis.mask & present) == bit)
        continue;
    }
    std::int64_t loop_factor = -1;
    for (std::uint32_t f : axis.factors)
      if (problem_.factors[f].level == Level::Loop && (kernel_->loops >> f & 1))
        loop_factor = f;
    if (loop_factor < 0 && !(outer_ >> tile_factor & 1)) {
      full_[tile_factor] = tile_[tile_factor] = extent;
      continue;
    }
    Unit unit{tile_factor, loop_factor, extent, tiles_of(extent, sides >> tile_factor & 1), units_.size()};
    if (loop_factor >= 0)
      std::erase_if(unit.choices, [&](std::int64_t t) {
        return t == extent || (t < target_.matrix_side && extent >= 128) ||
               (t < least_depth && extent > least_depth);
      });
    else
      full_[tile_factor] = extent;
    if (unit.choices.empty())
      return false;
    if (units_.size() < most_units)
      units_.push_back(std::move(unit));
    else if (loop_factor < 0) // uncut: bounds the tables below
      tile_[tile_factor] = extent;
    else
      return false;
  }
  for (const std::vector<std::size_t> &axes : shared)
    share(axes, sides);
  return true;
}

std::vector<std::vector<std::size_t>> Sizing::shared_dimensions() const {
  std::vector<std::vector<std::size_t>> found;
  const std::vector<ValueId> &outputs = kernel_->outputs;
  if (!kernel_->custom || outputs.size() < 2 || outputs.size() > most_outputs)
    return found;
  const auto all = (std::uint64_t{1} << outputs.size()) - 1;
  std::vector<std::pair<std::size_t, std::uint64_t>> unlike; // axes, and the outputs that have them
  for (std::size_t a = 0; a < problem_.axes.size(); ++a) {
    const Axis &axis = problem_.axes[a];
    const Mask bit = Mask{1} << axis.factors.back();
    if ((kernel_->reduced & bit) || sizes_.splits(*kernel_, axis))
      continue;
    std::uint64_t in = 0;
    bool cut = true;
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (values_.saved_mask(outputs[i]) & bit)
        in |= std::uint64_t{1} << i;
      else
        cut = cut && !(values_.all()[outputs[i]].mask & bit);
    if (cut && in != 0 && in != all)
      unlike.emplace_back(a, in);
  }
  // The first that fit together, in the order of the axes: heads with heads, and columns with columns.
  while (!unlike.empty()) {
    std::vector<std::size_t> axes;
    std::uint64_t covered = 0;
    std::erase_if(unlike, [&](const auto &entry) {
      if (covered & entry.second)
        return false;
      covered |= entry.second;
      axes.push_back(entry.first);
      return true;
    });
    if (covered == all)
      found.push_back(std::move(axes));
  }
  return found;
}

void Sizing::share(const std::vector<std::size_t> &axes, Mask sides) {
  const std::size_t leader = units_.size();
  const bool open = leader + axes.size() <= most_units;
  for (std::size_t a : axes) {
    const std::int64_t extent = problem_.axes[a].extent;
    const std::uint32_t factor = problem_.axes[a].factors.back();
    full_[factor] = extent;
    if (!open) {
      tile_[factor] = extent;
      continue;
    }
    units_.push_back({factor, -1, extent, tiles_of(extent, sides >> factor & 1), leader});
    std::vector<std::int64_t> &choices = units_.back().choices;
    if (choices.back() != extent) // whole, as where the dimension is not shared
      choices.push_back(extent);
  }
}

} // namespace superopt::search
