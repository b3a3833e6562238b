// Screening evaluations of values, in Z_p, with extent 2 for each factor.
#include "search/values.hpp"

#include <algorithm>
#include <bit>

namespace superopt::search {
namespace {

// A maximum equals one of its operands at one position with probability 1/2, so programs that take one are
// evaluated on at least this many elements.
constexpr std::size_t chosen_elements = 16;

// For each position over `mask`, the position over its subset `part`.
std::vector<std::uint32_t> project(Mask mask, Mask part) {
  std::vector<std::uint32_t> out(std::size_t{1} << std::popcount(mask), 0);
  std::uint32_t bit = 0, part_bit = 0;
  for (Mask rest = mask; rest; rest &= rest - 1, ++bit)
    if (const Mask factor = rest & -rest; part & factor) {
      for (std::size_t i = 0; i < out.size(); ++i)
        out[i] |= static_cast<std::uint32_t>(i >> bit & 1) << part_bit;
      ++part_bit;
    }
  return out;
}

} // namespace

// Constants are symbols: those that depend on extents (1/n) would be wrong where every extent is 2.
Element Values::constant_element(double value) const {
  return keyed(options_.seed * 2 + 2, mix(std::bit_cast<std::uint64_t>(value)));
}

// An element is keyed by tensor and position. The position is expressed over the tensor's dimensions, so that
// two roles of one tensor hold the same elements.
std::vector<Element> Values::input_field(const Role &role) const {
  std::vector<Element> field(elements(role.mask));
  for (std::size_t i = 0; i < field.size(); ++i) { // the sample is above the position's bits
    std::uint64_t position = mix(role.tensor + 1 + (std::uint64_t{i >> std::popcount(role.mask)} << 32));
    for (const auto &dim : role.dims) {
      std::uint64_t at = 1;
      for (std::uint32_t axis : dim)
        for (std::uint32_t factor : problem_.axes[axis].factors) {
          const int place = std::popcount(role.mask & ((Mask{1} << factor) - 1));
          at = at * 2 + (i >> place & 1);
        }
      position = mix(position ^ at);
    }
    field[i] = keyed(options_.seed * 2 + 1, position);
  }
  return field;
}

std::optional<std::vector<Element>> Values::evaluate(const Derivation &d) const {
  const Value &x = values_[d.a], &y = values_[d.b];
  const Mask full = x.mask | y.mask, mask = full & ~d.reduced;
  const std::vector<std::uint32_t> ix = project(full, x.mask), iy = project(full, y.mask);
  const std::vector<std::uint32_t> io = project(full, mask);
  std::vector<Element> out(elements(mask), 0);
  const std::size_t in_x = elements(x.mask), in_y = elements(y.mask), in_out = out.size();
  const std::uint64_t key = d.op == Op::Unary || d.op == Op::Binary || d.op == Op::Reduce
                                ? mix(problem_.functions[d.function].key ^ options_.seed)
                                : 0;
  for (std::size_t at = 0; at < ix.size() * samples_; ++at) {
    const std::size_t sample = at / ix.size(), i = at % ix.size();
    const Element a = x.field[sample * (in_x / samples_) + ix[i]];
    const Element b = y.field[sample * (in_y / samples_) + iy[i]];
    Element &r = out[sample * (in_out / samples_) + io[i]];
    switch (d.op) {
    case Op::Unary:
      r = keyed(key, a);
      break;
    case Op::Binary: // max and min: a keyed total order each, so that they obey the same laws but differ
      r = problem_.functions[d.function].ordered ? keyed(key, a ^ mix(keyed(key, b)))
          : keyed(key, a) > keyed(key, b)        ? a
                                                 : b;
      break;
    case Op::Add:
      r = field_add(a, b);
      break;
    case Op::Sub:
      r = field_add(a, field_mul(constant_element(-1.0), b));
      break;
    case Op::Mul:
      r = field_mul(a, b);
      break;
    case Op::Div:
      if (b == 0)
        return std::nullopt;
      r = field_mul(a, field_inverse(b));
      break;
    case Op::Sum:
      r = field_add(r, a);
      break;
    case Op::Reduce: // 0 means nothing yet; an element is 0 only with probability 2^-61
      r = r == 0 || keyed(key, a) > keyed(key, r) ? a : r;
      break;
    case Op::Contract:
      r = field_add(r, field_mul(a, b));
      break;
    case Op::Input:
    case Op::Constant:
      return std::nullopt;
    }
  }
  return out;
}

// Enough independent evaluations that every maximum of the program is taken at many elements.
std::size_t Values::samples_needed() const {
  std::vector<Mask> masks;
  for (const Role &role : problem_.roles)
    masks.push_back(role.mask);
  masks.resize(masks.size() + problem_.constants.size(), 0);
  std::size_t samples = 1;
  for (const ProgramNode &node : problem_.nodes) {
    masks.push_back((masks[node.args.front()] | masks[node.args.back()]) & ~problem_.axis_mask(node.reduced));
    const std::size_t positions = std::size_t{1} << std::min(std::popcount(masks.back()), max_free_factors);
    if (node.op == Op::Binary || node.op == Op::Reduce)
      samples = std::max(samples, chosen_elements / positions);
  }
  return samples;
}

} // namespace superopt::search
