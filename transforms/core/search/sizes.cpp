#include "search/sizing.hpp"

#include <algorithm>

namespace superopt::search {
namespace {

constexpr double sum_bytes = 16 << 10; // of accumulators that are sums of rows
constexpr std::ptrdiff_t grid_dimensions = 3;
constexpr double special_per_cycle = 16; // operations of a multiprocessor
// Wavefronts of shared memory for an element that is stored in a run shorter than a sector: one to write it
// and one to read it, as a layout of the tile is exchanged there. In kernels that store 24 columns of 12
// heads as 12 x 2 of them, 2.3 were counted on the PTX.
constexpr double wavefronts_per_element = 2;

} // namespace

// The split factor is separate where some value has only it, or the rest of the axis is reduced without it.
bool Sizes::splits(const Kernel &kernel, const Axis &axis) const {
  const std::uint32_t f = axis.factors[0];
  if (values_.problem().factors[f].level != Level::Split)
    return false;
  const Mask bit = Mask{1} << f;
  const auto has_it_alone = [&](ValueId v) { return (values_.all()[v].mask & axis.mask) == bit; };
  return ((axis.mask & kernel.reduced) && !(kernel.reduced & bit)) ||
         std::any_of(kernel.leaves.begin(), kernel.leaves.end(), has_it_alone) ||
         std::any_of(kernel.steps.begin(), kernel.steps.end(),
                     [&](const Step &s) { return has_it_alone(s.value); });
}

bool Sizes::splits(const Kernel &kernel) const {
  const std::vector<Axis> &axes = values_.problem().axes;
  return std::any_of(axes.begin(), axes.end(), [&](const Axis &axis) { return splits(kernel, axis); });
}
Sizing::Sizing(const Sizes &sizes, SizeCounts &counts)
    : sizes_(sizes), values_(sizes.values_), problem_(sizes.values_.problem()),
      target_(sizes.options_.target), dot_extent_(static_cast<double>(target_.matrix_side)),
      // fp32: half of the register file, plus sums of rows
      accumulator_bytes_(static_cast<double>(target_.registers) * 4 / 2 + sum_bytes), counts_(counts) {
  tile_of_.fill(1);
  padded_of_.fill(1);
  trips_of_.fill(1);
}

bool Sizing::run(const Kernel &kernel, double limit, std::int64_t split, Extents &out) {
  kernel_ = &kernel;
  units_.clear();
  leaves_.clear();
  saved_.clear();
  accumulators_.clear();
  work_.clear();
  sides_.clear();
  held_.clear();
  blocks_ = {};
  fixed_grid_ = 0;
  any_ = any_size_ = false;
  // What every choice of extents costs: a launch, and every byte once.
  double compulsory = 0;
  for (const auto *list : {&kernel_->leaves, &kernel_->outputs})
    for (ValueId v : *list)
      compulsory += values_.stored_bytes(v, split);
  if (least_seconds(target_, compulsory) > limit) {
    ++counts_.by_bound;
    return false;
  }
  if (!choose_units(split))
    return false;
  limit_ = limit;
  prepare();
  if (drop_narrow() && (!units_.empty() || fits()))
    assign(0);
  if (!any_) {
    ++(any_size_ ? counts_.by_bound : counts_.by_memory);
    return false;
  }
  ++counts_.sized;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const Unit &unit = units_[u];
    tile_[unit.tile_factor] = best_[u];
    if (unit.loop_factor >= 0) {
      full_[unit.tile_factor] = best_[u];
      full_[static_cast<std::size_t>(unit.loop_factor)] = trips(unit.extent, best_[u]);
    }
  }
  out.shared.clear();
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].leader == u)
      continue;
    if (units_[u].leader + 1 == u)
      out.shared.push_back({units_[u - 1].tile_factor});
    out.shared.back().push_back(units_[u].tile_factor);
  }
  out.tile = tile_;
  out.full = full_;
  out.seconds = best_seconds_;
  out.score = best_score_;
  return true;
}

void Sizing::choose(std::size_t at, std::int64_t extent) {
  chosen_[at] = extent;
  const std::size_t n = std::size_t{1} << at;
  const auto tile = static_cast<double>(extent);
  const auto count = static_cast<double>(trips(units_[at].extent, extent));
  for (std::size_t i = 0; i < n; ++i) {
    tile_of_[n + i] = tile_of_[i] * tile;
    padded_of_[n + i] = padded_of_[i] * padded_tile_extent(extent);
    trips_of_[n + i] = trips_of_[i] * count;
  }
}

// Every assignment of the units that are still open, from this one on. A larger tile needs at least as much
// memory, so where the smallest of the rest do not fit, nothing does, nor with a larger tile here.
void Sizing::assign(std::size_t at) {
  if (at == units_.size()) {
    if (legal())
      look();
    return;
  }
  const Unit &unit = units_[at];
  const Unit &leader = units_[unit.leader];
  for (std::int64_t extent : unit.choices) {
    if (unit.leader != at && trips(unit.extent, extent) != trips(leader.extent, chosen_[unit.leader]))
      continue;
    choose(at, extent);
    for (std::size_t later = at + 1; later < units_.size(); ++later)
      choose(later, units_[later].choices.front());
    if (!fits())
      break;
    assign(at + 1);
    if (unit.leader != at)
      break; // larger tiles are as many
  }
}

// Matrix instructions want 16 rows, columns and depth: tiles go below only where the program does.
bool Sizing::wide_enough(const Side &side) const {
  return value(side.tile) >= std::min(dot_extent_, value(side.whole));
}

bool Sizing::is_dot(const Step &step) const {
  const Mask a = values_.all()[step.how.a].mask, b = values_.all()[step.how.b].mask;
  return step.how.op == Op::Contract && (!kernel_->custom || ((a & ~b) && (b & ~a)));
}

// Drop the extents that are too small for a matrix product whatever the others are.
bool Sizing::drop_narrow() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    std::erase_if(units_[u].choices, [&](std::int64_t extent) {
      choose(u, extent);
      return std::any_of(sides_.begin(), sides_.end(), [&](const Side &side) {
        const auto alone = [&](std::uint8_t set) { return (set & ~(1u << u)) == 0; };
        return alone(side.tile.tiles) && alone(side.whole.tiles) && alone(side.whole.trips) &&
               !wide_enough(side);
      });
    });
    if (units_[u].choices.empty())
      return false;
  }
  return true;
}

// Whether the current tiles fit the registers and the shared memory.
bool Sizing::fits() {
  double accumulators = 0;
  for (const Term &t : accumulators_)
    accumulators += 4 * padded_value(t);
  peak_ = kernel_->custom ? static_cast<std::int64_t>(peak_bytes()) : 0;
  return accumulators <= accumulator_bytes_ && peak_ <= target_.shared_per_block;
}

bool Sizing::legal() const {
  std::ptrdiff_t grid = fixed_grid_;
  for (std::size_t u = 0; u < units_.size(); ++u)
    grid += units_[u].loop_factor < 0 && units_[u].leader == u && chosen_[u] < units_[u].extent;
  return grid <= grid_dimensions &&
         std::all_of(sides_.begin(), sides_.end(), [&](const Side &s) { return wide_enough(s); });
}

// Cost of the current assignment.
void Sizing::look() {
  ++counts_.size_points;
  KernelTraffic t;
  const double blocks = value(blocks_);
  t.blocks = static_cast<std::int64_t>(blocks);
  t.loop_trips = kernel_->loops ? static_cast<std::int64_t>(value(trips_)) : 0;
  t.shared_bytes = peak_;
  any_size_ = true;
  for (const Leaf &leaf : leaves_)
    t.move(target_, leaf.bytes * value(leaf.once), leaf.bytes * value(leaf.loaded) * blocks,
           run_bytes(leaf.run, leaf.bytes));
  double scattered = 0; // elements that lie apart in memory, but not on chip
  for (const Saved &saved : saved_) {
    const double elements = value(saved.once), bytes = saved.bytes * elements;
    const double run = run_bytes(saved.run, saved.bytes);
    t.move(target_, bytes, bytes, run);
    scattered += run < sector_bytes ? elements : 0;
  }
  // The kernel without its computation is a lower bound.
  const double least = kernel_seconds(target_, t);
  if (least > limit_ || (any_ && least * 1000 + t.l2_bytes / target_.l2_bytes_per_second >= best_score_))
    return;
  for (const Work &work : work_) {
    const double times = value(work.times) * blocks;
    if (!work.dot) {
      t.vector_flops += times * work.each * padded_value(work.elements);
      t.special_operations += times * work.special * padded_value(work.elements);
      continue;
    }
    const auto side = [&](std::size_t i) { return value(work.sides[i]); };
    t.product(target_, side(1), side(2), side(0), times * padded_value(work.elements), work.operand_bytes);
  }
  const double seconds = kernel_seconds(target_, t);
  // Among equals, prefer the one that moves and computes less.
  const double work = t.tensor_flops / target_.tensor_flops + t.vector_flops / target_.vector_flops +
                      t.special_operations / target_.special_operations;
  const double wavefronts = target_.special_operations / special_per_cycle; // a second, of shared memory
  const double moved = scattered * wavefronts_per_element / wavefronts / busy_share(target_, t.blocks);
  const double score = (seconds + moved) * 1000 + t.l2_bytes / target_.l2_bytes_per_second + work;
  if (seconds <= limit_ && (!any_ || score < best_score_)) {
    best_seconds_ = seconds;
    best_score_ = score;
    best_ = chosen_;
    any_ = true;
  }
}

Sizer::Sizer(const Sizes &sizes) : work_(std::make_unique<Sizing>(sizes, *counts_)) {}
Sizer::Sizer(Sizer &&) noexcept = default;
Sizer::~Sizer() = default;

bool Sizer::optimize(const Kernel &kernel, double limit, std::int64_t split, Extents &out) {
  return work_->run(kernel, limit, split, out);
}

} // namespace superopt::search
