#include "search/sizing.hpp"

#include <algorithm>
#include <bit>

namespace superopt::search {
namespace {

constexpr double long_run = 128; // bytes in a row that no layout of a stored value has to fall below

} // namespace

template <typename Extent> Sizing::Term Sizing::tile(Mask mask, Extent extent) const {
  Term t;
  for (std::size_t u = 0; u < units_.size(); ++u)
    if (mask >> units_[u].tile_factor & 1) {
      t.tiles |= static_cast<std::uint8_t>(1u << u);
      mask &= ~(Mask{1} << units_[u].tile_factor);
    }
  for (; mask; mask &= mask - 1)
    t.constant *= extent(tile_[static_cast<std::size_t>(std::countr_zero(mask))]);
  return t;
}

Sizing::Term Sizing::tile(Mask mask) const {
  return tile(mask, [](std::int64_t extent) { return static_cast<double>(extent); });
}

Sizing::Term Sizing::padded_tile(Mask mask) const { return tile(mask, padded_tile_extent); }

Sizing::Term Sizing::full(Mask mask) const {
  Term t;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const Unit &unit = units_[u];
    const bool whole = mask >> unit.tile_factor & 1;
    const bool loop = unit.loop_factor >= 0 && (mask >> unit.loop_factor & 1);
    mask &= ~(Mask{1} << unit.tile_factor);
    if (unit.loop_factor >= 0)
      mask &= ~(Mask{1} << unit.loop_factor);
    if (unit.loop_factor < 0 ? whole : whole && loop)
      t.constant *= static_cast<double>(unit.extent);
    else if (whole)
      t.tiles |= static_cast<std::uint8_t>(1u << u);
    else if (loop)
      t.trips |= static_cast<std::uint8_t>(1u << u);
  }
  for (; mask; mask &= mask - 1)
    t.constant *= static_cast<double>(full_[static_cast<std::size_t>(std::countr_zero(mask))]);
  return t;
}

const std::vector<std::vector<std::uint32_t>> *Sizing::dims_of(ValueId v) const {
  const Value &value = values_.all()[v];
  if (value.leaf)
    return value.constant ? nullptr : &problem_.roles[value.derivations[0].function].dims;
  const auto at = std::find(values_.outputs().begin(), values_.outputs().end(), v);
  if (at == values_.outputs().end() || problem_.output_dims.empty())
    return nullptr;
  return &problem_.output_dims[static_cast<std::size_t>(at - values_.outputs().begin())];
}

std::vector<Sizing::Part> Sizing::run_of(ValueId v) const {
  std::vector<Part> run;
  const auto *dims = dims_of(v);
  if (dims == nullptr)
    return run;
  for (std::size_t d = dims->size(); d-- > 0;)
    for (std::size_t i = (*dims)[d].size(); i-- > 0;) {
      const Axis &axis = problem_.axes[(*dims)[d][i]];
      if (!(values_.all()[v].mask & axis.mask)) // an output that is repeated along it
        continue;
      const std::uint32_t factor = axis.factors.back();
      for (std::size_t u = 0; u < units_.size(); ++u)
        if (units_[u].tile_factor == factor) {
          run.push_back({static_cast<std::int64_t>(u), axis.extent, false});
          goto next;
        }
      run.push_back({-1, tile_[factor], tile_[factor] == axis.extent});
      if (!run.back().whole)
        return run;
    next:;
    }
  return run;
}

double Sizing::run_bytes(const std::vector<Part> &run, double bytes) const {
  if (run.empty())
    return long_run;
  double elements = 1;
  for (const Part &part : run) {
    const std::int64_t held = part.unit < 0 ? part.extent : chosen_[static_cast<std::size_t>(part.unit)];
    elements *= static_cast<double>(held);
    if (part.unit < 0 ? !part.whole : held != part.extent)
      break;
  }
  return elements * bytes;
}

std::int64_t Sizing::operand_bytes(const Step &step) const {
  return std::min(values_.element_bytes(step.how.a), values_.element_bytes(step.how.b));
}

void Sizing::prepare() {
  for (std::size_t f = 0; f < tile_.size(); ++f) {
    const bool open =
        std::any_of(units_.begin(), units_.end(), [&](const Unit &u) { return u.tile_factor == f; });
    if ((outer_ >> f & 1) && !open) {
      blocks_.constant *= static_cast<double>(full_[f] / tile_[f]);
      fixed_grid_ += full_[f] > tile_[f];
    }
  }
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const auto bit = static_cast<std::uint8_t>(1u << u);
    if (units_[u].loop_factor < 0 && units_[u].leader == u)
      blocks_.trips |= bit;
  }
  trips_ = full(kernel_->loops);
  for (ValueId leaf : kernel_->leaves) {
    if (values_.element_bytes(leaf) == 0)
      continue;
    const Mask mask = values_.all()[leaf].mask;
    leaves_.push_back({full(mask), times(tile(mask), iterations(mask)),
                       static_cast<double>(values_.element_bytes(leaf)), run_of(leaf)});
  }
  const auto stored = static_cast<double>(sizes_.options_.intermediate_bytes);
  for (ValueId output : kernel_->outputs) {
    Term t = full(values_.all()[output].mask);
    saved_.push_back({t, stored, run_of(output)});
  }
  for (const Step &step : kernel_->steps) {
    const Mask a = values_.all()[step.how.a].mask, b = values_.all()[step.how.b].mask;
    Work work{iterations(a | b), {}, is_dot(step), 1, step.how.op == Op::Div ? 1.0 : 0.0, {}, 0};
    if (work.dot) {
      work.elements = padded_tile(a & b & ~step.how.reduced);
      work.operand_bytes = operand_bytes(step);
      std::size_t i = 0;
      // The operand whose axis comes first has the rows, as in the kernel that is built.
      Mask rows = a & ~b, columns = b & ~a;
      if (columns && std::countr_zero(columns) < std::countr_zero(rows)) // none: 64
        std::swap(rows, columns);
      for (Mask side : {step.how.reduced, rows, columns}) {
        work.sides[i++] = tile(side);
        side &= ~kernel_->loops;
        Term whole = full(side);
        if (step.how.reduced & side) // a looped axis can extend to all of it
          whole = times(whole, full(kernel_->loops & ~side));
        sides_.push_back({tile(side), whole});
      }
    } else if (step.how.op == Op::Contract) {
      work.elements = padded_tile(a | b);
      work.each = 2;
    } else {
      // What a loop adds up is counted where it is made, but for what it rescales on the way.
      if ((step.how.reduced & kernel_->loops) && kernel_->custom && values_.all()[step.value].degrees.empty())
        work.each = 0;
      work.elements = padded_tile(a | b);
      if (step.how.op == Op::Unary || step.how.op == Op::Binary) {
        work.each = problem_.functions[step.how.function].flops;
        work.special = problem_.functions[step.how.function].special;
      }
    }
    work_.push_back(work);
    if (step.how.reduced & kernel_->loops)
      accumulators_.push_back(padded_tile(values_.all()[step.value].mask));
  }
  if (kernel_->custom)
    prepare_memory();
}

} // namespace superopt::search
