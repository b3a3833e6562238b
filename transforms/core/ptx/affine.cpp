// Which other blocks do the same: integers as affine functions of a block's coordinates.
//
// While one block runs, each integer that depends on its coordinates has slopes, and a box of blocks around
// it is kept in which these are exact and every predicate is what it is here. All blocks of that box run the
// same instructions, and their addresses are this block's, moved along the slopes. Where an integer is no
// such function, the box becomes smaller.
#include "ptx/machine.hpp"

#include <algorithm>

namespace superopt::ptx {
namespace {

constexpr i64 kMostPoints = i64{1} << 20; // at which a function of coordinates is tried
constexpr i64 kMostTried = i64{1} << 22;  // in all, for one instruction

constexpr i128 extended(u64 x, unsigned width) {
  return width >= 64 ? static_cast<i64>(x) : static_cast<i64>(x << (64 - width)) >> (64 - width);
}
constexpr i128 value(u64 x, unsigned width, bool isSigned) {
  return isSigned ? extended(x, width) : static_cast<i128>(width >= 64 ? x : x & ((u64{1} << width) - 1));
}
constexpr bool fits(i128 x, unsigned width, bool isSigned) {
  const i128 one = 1, top = one << (isSigned ? width - 1 : width);
  return x < top && x >= (isSigned ? -top : 0);
}

} // namespace

u32 Machine::slopeNumber(const Slope &s) {
  const auto [at, fresh] = slopeNumbers_.try_emplace(s, static_cast<u32>(slopes_.size()));
  if (fresh)
    slopes_.push_back(s);
  return at->second;
}

const Slope &Machine::slope(const Arg &a, u16 t) const {
  return a.reg < 0 || !sloped_[static_cast<std::size_t>(a.reg)] ? slopes_[0]
                                                                : slopes_[slopeOf_[at(a.reg, t)]];
}

bool Machine::isLive(const Arg &a, u16 t) const { return region_->live(slope(a, t)); }

void Machine::setSlope(const Arg &a, u16 t, const Slope &s, unsigned width) {
  if (a.reg < 0)
    return;
  Slope kept{};
  if (region_->live(s))
    for (std::size_t j = 0; j < region_->axes; ++j)
      kept[j] = static_cast<i64>(extended(static_cast<u64>(s[j]), width));
  const u32 number = kept == slopes_[lastSlope_] ? lastSlope_ : slopeNumber(kept);
  lastSlope_ = number;
  if (number != 0)
    sloped_[static_cast<std::size_t>(a.reg)] = true;
  slopeOf_[at(a.reg, t)] = number;
  halves_.erase(at(a.reg, t));
}

// Before an instruction runs: the slopes of its results, and what it asks of the region.
void Machine::follow(const Instr &in, std::span<const u16> lanes) {
  const std::size_t made = results(in);
  bool any = false;
  for (std::size_t i = made; i < in.count; ++i)
    any = any || (arg(in, i).reg >= 0 && sloped_[static_cast<std::size_t>(arg(in, i).reg)]);
  if (any) {
    any = false;
    for (std::size_t i = made; i < in.count && !any; ++i)
      any = std::ranges::any_of(lanes, [&](u16 t) { return isLive(arg(in, i), t); });
  }
  if (moving_)
    std::ranges::fill(addressSlope_, Slope{});
  moving_ = any;
  if (any)
    return followLive(in, lanes);
  for (std::size_t i = 0; i < made; ++i) {
    const i32 reg = arg(in, i).reg;
    if (reg < 0 || !sloped_[static_cast<std::size_t>(reg)])
      continue;
    for (u16 t : lanes) {
      slopeOf_[at(reg, t)] = 0;
      halves_.erase(at(reg, t));
    }
    if (lanes.size() == threads_)
      sloped_[static_cast<std::size_t>(reg)] = false;
  }
}

// Before they are read other than by a shift: whether high words of products are lines themselves.
void Machine::settleHalves(const Instr &in, std::span<const u16> lanes) {
  if (halves_.empty())
    return;
  for (std::size_t i = results(in); i < in.count; ++i)
    for (u16 t : lanes) {
      const Half *half = halfOf(in, i, t);
      if (half == nullptr || shifted(in, i, half->product->width))
        continue;
      const Half taken = *half;
      setSlope(arg(in, i), t, tried({taken.product}, taken.x, taken.slopes), taken.product->width);
    }
}

const Machine::Half *Machine::halfOf(const Instr &in, std::size_t i, u16 t) const {
  const Arg &a = arg(in, i);
  const auto found = a.reg < 0 ? halves_.end() : halves_.find(at(a.reg, t));
  return found == halves_.end() ? nullptr : &found->second;
}

bool Machine::shifted(const Instr &in, std::size_t i, unsigned width) const {
  return in.op == Op::shr && i == 1 && in.width == width && arg(in, 2).reg < 0;
}

void Machine::followLive(const Instr &in, std::span<const u16> lanes) {
  points_ = 0;
  lastTried_.reset();
  settleHalves(in, lanes);
  const std::size_t made = results(in);
  // Only these operands may depend on the block.
  std::size_t allowed = in.count, second = in.count;
  const bool isGlobal = static_cast<Space>(in.mode & 1) == Space::Global;
  switch (in.op) {
  case Op::load:
  case Op::store:
  case Op::atomic:
    allowed = isGlobal ? (in.op == Op::store  ? 0
                          : in.op == Op::load ? in.count - 2
                                              : (in.count - 2u) / 2)
                       : in.count;
    break;
  case Op::copy:
    allowed = 2;
    break;
  case Op::map_publish:
  case Op::map_acquire:
    allowed = 0;
    break;
  case Op::bulk_load:
    allowed = 2;
    second = in.aux != 0 ? 6 : in.count;
    break;
  case Op::bulk_store:
    allowed = 0;
    second = in.aux != 0 ? 4 : in.count;
    break;
  default:
    if (made == 0)
      for (u16 t : lanes)
        pinned(in, t);
    for (u16 t : lanes.first(made == 0 ? 0 : lanes.size())) {
      half_.reset();
      setSlope(arg(in, 0), t, made == 1 ? slopeOfResult(in, t) : pinned(in, t),
               in.op == Op::mul_wide || in.op == Op::mad_wide ? 2u * in.width
               : in.width == 0                                ? 64u
                                                              : in.width);
      if (half_ && arg(in, 0).reg >= 0)
        halves_.insert_or_assign(at(arg(in, 0).reg, t), *half_);
    }
    for (std::size_t i = 1; i < made; ++i)
      for (u16 t : lanes)
        setSlope(arg(in, i), t, {}, 64);
    return;
  }
  for (u16 t : lanes) {
    for (std::size_t i = made; i < in.count; ++i)
      if (i != allowed && i < second)
        region_->pin(slope(arg(in, i), t));
    addressSlope_[t] = allowed < in.count ? slope(arg(in, allowed), t) : Slope{};
    for (std::size_t i = 0; i < made; ++i)
      setSlope(arg(in, i), t, {}, 64);
  }
}

// The region without other values of all operands.
Slope Machine::pinned(const Instr &in, u16 t) {
  for (std::size_t i = results(in); i < in.count; ++i)
    region_->pin(slope(arg(in, i), t));
  return {};
}

Slope Machine::slopeOfResult(const Instr &in, u16 t) {
  const auto operand = [&](std::size_t i) -> const Arg & { return arg(in, i); };
  const auto isBits = [&](std::size_t i) {
    if (operand(i).reg < 0)
      return true;
    const Tag tag = tags_[at(operand(i).reg, t)];
    return tag == Tag::Bits || tag == Tag::Address;
  };
  if (in.op == Op::mov)
    return slope(operand(1), t);
  if (in.op == Op::selp) {
    if (operand(3).reg >= 0 && tags_[at(operand(3).reg, t)] != Tag::Bits)
      return pinned(in, t);
    return slope(operand(predicate(operand(3), t) ? 1 : 2), t);
  }
  bool known = in.op >= Op::add && in.op <= Op::convert && in.op != Op::fsetp && in.op != Op::fdefined &&
               in.op != Op::selp;
  for (std::size_t i = 1; i < in.count; ++i)
    known = known && isBits(i);
  if (!known)
    return pinned(in, t);
  std::array<u64, 3> x{};
  std::array<Slope, 3> s{};
  for (std::size_t i = 1; i < in.count && i <= 3; ++i) {
    x[i - 1] = operand(i).reg < 0 ? operand(i).imm : values_[at(operand(i).reg, t)];
    s[i - 1] = slope(operand(i), t);
    if (!region_->live(s[i - 1]))
      s[i - 1] = {};
  }
  const unsigned w = in.width;
  const bool isSigned = in.mode != 0;
  const auto zero = [](const Slope &v) { return v == Slope{}; };
  const auto scaled = [](const Slope &v, i128 by) {
    Slope out{};
    for (std::size_t j = 0; j < kAxes; ++j)
      out[j] = static_cast<i64>(v[j] * by);
    return out;
  };
  const auto sum = [](const Slope &a, const Slope &b) {
    Slope out{};
    for (std::size_t j = 0; j < kAxes; ++j)
      out[j] = static_cast<i64>(static_cast<u64>(a[j]) + static_cast<u64>(b[j]));
    return out;
  };
  // Whether an operand's value is exact in the region, without wrapping around.
  const auto exact = [&](std::size_t i, unsigned width, bool asSigned) {
    const auto [least, most] = region_->range(s[i]);
    const i128 v = value(x[i], width, asSigned);
    return fits(v + least, width, asSigned) && fits(v + most, width, asSigned);
  };
  switch (in.op) {
  case Op::add:
    return sum(s[0], s[1]);
  case Op::sub:
    return sum(s[0], scaled(s[1], -1));
  case Op::neg:
  case Op::not_:
    return scaled(s[0], -1);
  case Op::mul:
  case Op::mad:
    if (!zero(s[0]) && !zero(s[1]))
      return tried({&in}, x, s);
    return sum(sum(scaled(s[0], static_cast<i64>(x[1])), scaled(s[1], static_cast<i64>(x[0]))), s[2]);
  case Op::shl:
    if (!zero(s[1]) || (x[1] & 0xffffffff) >= w)
      return tried({&in}, x, s);
    return scaled(s[0], i128{1} << (x[1] & 63));
  case Op::mul_wide:
  case Op::mad_wide: {
    const std::size_t i = zero(s[0]) ? 1 : 0;
    if (!zero(s[1 - i]) || !exact(i, w, isSigned))
      return tried({&in}, x, s);
    return sum(scaled(s[i], value(x[1 - i], w, isSigned)), s[2]);
  }
  case Op::convert: {
    const unsigned from = static_cast<unsigned>(in.aux);
    return w <= from || exact(0, from, isSigned) ? s[0] : tried({&in}, x, s);
  }
  case Op::or_:
  case Op::xor_:
  case Op::and_: {
    // With bits that the other operand leaves alone: those below the lowest that changes stay as they are.
    const std::size_t i = zero(s[0]) ? 1 : 0;
    if (!zero(s[1 - i]))
      return tried({&in}, x, s);
    u64 changing = 0;
    for (std::size_t j = 0; j < region_->axes; ++j)
      changing |= static_cast<u64>(s[i][j]);
    const unsigned lowest = static_cast<unsigned>(std::countr_zero(changing));
    const u64 other = (w >= 64 ? x[1 - i] : x[1 - i] & ((u64{1} << w) - 1)) >> lowest;
    const u64 ones = (w >= 64 ? ~u64{0} : (u64{1} << w) - 1) >> lowest;
    if (in.op == Op::and_ ? other == ones : other == 0)
      return s[i];
    if (in.op == Op::and_ && other == 0)
      return {};
    return tried({&in}, x, s);
  }
  case Op::min:
  case Op::max:
  case Op::setp: {
    // Where both are exact: a comparison of unsigned numbers is one of a range, on the side of zero that they
    // are on here.
    for (std::size_t i = 0; i < 2; ++i)
      if (!exact(i, w, isSigned)) {
        const i128 v = value(x[i], w, isSigned), one = 1;
        region_->require(s[i], (isSigned ? -(one << (w - 1)) : 0) - v);
        region_->require(scaled(s[i], -1), v - (one << (isSigned ? w - 1 : w)) + 1);
      }
    // The difference keeps its sign.
    const i128 apart = value(x[0], w, isSigned) - value(x[1], w, isSigned);
    const Slope along = sum(s[0], scaled(s[1], -1));
    const auto how = in.op == Op::setp ? static_cast<Compare>(in.aux) : Compare::Lt;
    if (how == Compare::Eq || how == Compare::Ne) {
      if (apart == 0)
        region_->pin(along);
      else if (!neverZero(along, apart))
        apart > 0 ? region_->require(along, 1 - apart) : region_->require(scaled(along, -1), 1 + apart);
      return {};
    }
    // x < y and x >= y, or x <= y and x > y.
    const i128 bound = how == Compare::Le || how == Compare::Gt ? 1 : 0;
    if (apart >= bound)
      region_->require(along, bound - apart);
    else
      region_->require(scaled(along, -1), apart - bound + 1);
    if (in.op == Op::setp)
      return {};
    return s[(apart < 0) == (in.op == Op::min) ? 0 : 1];
  }
  case Op::mul_hi: {
    // Half of a division by a constant, mostly: with the shift that follows it has a period, by itself it has
    // not.
    if (const std::optional<Slope> line = lineOf({&in}, x, s))
      return *line;
    half_ = Half{&in, x, s};
    Slope moves{};
    for (std::size_t j = 0; j < region_->axes; ++j)
      moves[j] = s[0][j] != 0 || s[1][j] != 0 ? 1 : 0;
    return moves;
  }
  case Op::shr:
    if (const Half *half = halfOf(in, 1, t); half != nullptr && shifted(in, 1, half->product->width))
      return tried({half->product, &in, x[1]}, half->x, half->slopes);
    return tried({&in}, x, s);
  default:
    return tried({&in}, x, s);
  }
}

// Whether a number that changes along `s` is nowhere zero because all changes have a divisor that it lacks.
bool Machine::neverZero(const Slope &s, i128 x) const {
  i64 divisor = 0;
  for (std::size_t j = 0; j < region_->axes; ++j)
    if (region_->high[j] > region_->low[j])
      divisor = std::gcd(divisor, s[j]);
  return divisor != 0 && x % divisor != 0;
}

u64 Machine::apply(const Formula &f, const std::array<u64, 3> &x, const std::array<Slope, 3> &s,
                   const std::array<i64, kAxes> &point) const {
  std::array<u64, 3> y = x;
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < region_->axes; ++j)
      y[i] += static_cast<u64>(s[i][j]) * static_cast<u64>(point[j] - region_->at[j]);
  const u64 keep = ones(f);
  const u64 found = compute(*f.of, y[0], y[1], y[2]) & keep;
  return f.then == nullptr ? found : compute(*f.then, found, f.by, 0) & keep;
}

u64 Machine::ones(const Formula &f) {
  const unsigned w = f.of->op == Op::mul_wide || f.of->op == Op::mad_wide ? 2u * f.of->width : f.of->width;
  return w >= 64 ? ~u64{0} : (u64{1} << w) - 1;
}

// The slope of a function that is tried at all points of the region, where it has one.
std::optional<Slope> Machine::lineOf(const Formula &f, const std::array<u64, 3> &x,
                                     const std::array<Slope, 3> &s) {
  std::vector<std::size_t> axes;
  i64 points = 1;
  for (std::size_t j = 0; j < region_->axes; ++j)
    if (region_->high[j] > region_->low[j] && (s[0][j] != 0 || s[1][j] != 0 || s[2][j] != 0)) {
      axes.push_back(j);
      points = std::min(kMostPoints + 1, points * (region_->high[j] - region_->low[j] + 1));
    }
  points_ += points;
  if (points > kMostPoints || points_ > kMostTried)
    return std::nullopt;
  spend(static_cast<u64>(points));
  const u64 keep = ones(f);
  std::array<i64, kAxes> point = region_->at;
  const u64 here = apply(f, x, s, point);
  Slope found{};
  for (std::size_t j : axes) {
    const i64 step = region_->at[j] < region_->high[j] ? 1 : -1;
    point[j] += step;
    found[j] = static_cast<i64>(extended((apply(f, x, s, point) - here) * static_cast<u64>(step),
                                         static_cast<unsigned>(std::popcount(keep))));
    point[j] -= step;
  }
  for (std::size_t j : axes)
    point[j] = region_->low[j];
  for (bool more = true; more;) {
    u64 expected = here;
    for (std::size_t j : axes)
      expected += static_cast<u64>(found[j]) * static_cast<u64>(point[j] - region_->at[j]);
    if (apply(f, x, s, point) != (expected & keep))
      return std::nullopt;
    more = false;
    for (std::size_t j : axes) {
      if (point[j] < region_->high[j]) {
        ++point[j];
        more = true;
        break;
      }
      point[j] = region_->low[j];
    }
  }
  return found;
}

// How blocks get an axis that ends with a period of another one. A period that is no divisor of an axis from
// which another one carries on would give some blocks two numbers and others none: then the blocks of the
// region begin to be counted anew, if they are fewer.
std::optional<Split> Machine::splitOf(std::size_t axis, i64 period, bool again) const {
  const Region &r = *region_;
  if (r.next[axis] == kAxes || (again && r.extent[axis] % period == 0))
    return Split{axis, period};
  std::size_t from = axis;
  std::optional<std::size_t> shared; // from here on, all blocks of the region have the same coordinates
  bool fewer = false;
  for (std::size_t k = r.next[axis]; k != kAxes; k = r.next[k]) {
    from = k;
    if (r.high[k] > r.low[k])
      shared.reset();
    else if (!shared)
      shared = k;
    fewer = fewer || r.high[k] - r.low[k] + 1 < r.extent[k];
  }
  from = shared.value_or(from);
  return fewer ? std::optional(Split{from, 0, r.low[from], r.high[from]}) : std::nullopt;
}

// The slope of a function that is tried at all points of the region; where it has none, an axis is asked to
// be split, or the region made smaller.
Slope Machine::tried(const Formula &f, const std::array<u64, 3> &x, const std::array<Slope, 3> &s) {
  if (lastTried_ && lastTried_->f == f && lastTried_->x == x && lastTried_->slopes == s)
    return lastTried_->found;
  if (const std::optional<Slope> line = lineOf(f, x, s)) {
    lastTried_ = {f, x, s, *line};
    return *line;
  }
  const Op op = f.then == nullptr ? f.of->op : f.then->op;
  const bool periodic =
      op == Op::shr || op == Op::div || op == Op::rem || op == Op::mul_hi || op == Op::and_ || op == Op::bfe;
  // Along one axis from its start, wherever the region begins: where the function first leaves its line, a
  // period ends.
  for (std::size_t j = 0; j < region_->axes; ++j) {
    if (!periodic || points_ > kMostTried || region_->axes == kAxes || region_->high[j] == 0 ||
        region_->high[j] >= kMostPoints || (s[0][j] == 0 && s[1][j] == 0 && s[2][j] == 0))
      continue;
    const auto along = [&](i64 i) {
      std::array<i64, kAxes> point = region_->at;
      point[j] = i;
      return apply(f, x, s, point);
    };
    // Whether it goes on from a coordinate as it begins.
    const u64 step = along(1) - along(0);
    const auto straight = [&](i64 from, i64 i) {
      return along(from + i) == ((along(from) + step * static_cast<u64>(i)) & ones(f));
    };
    i64 period = 2;
    while (period <= region_->high[j] && straight(0, period))
      ++period;
    spend(static_cast<u64>(period));
    if (period > region_->high[j])
      continue;
    bool again = !straight(period, period);
    for (i64 i = 1; i < period && again; ++i)
      again = straight(period, i);
    if (const std::optional<Split> split = splitOf(j, period, again))
      throw *split;
  }
  for (const Slope &one : s)
    region_->pin(one);
  return {};
}

// An access to device memory of all blocks of the region, at a place that moves along the slope of an
// address.
void Machine::reach(std::size_t index, u64 place, unsigned count, const Slope &slope) {
  const Buffer &b = buffers_[index];
  const i64 size = bytesOf(b.type);
  Slope elements{};
  for (std::size_t j = 0; j < region_->axes; ++j) {
    if (region_->high[j] == region_->low[j])
      continue;
    if (slope[j] % (size * static_cast<i64>(count)) != 0) {
      region_->low[j] = region_->high[j] = region_->at[j];
      continue;
    }
    elements[j] = slope[j] / size;
  }
  const auto [least, most] = region_->range(elements);
  if (static_cast<i128>(place) + least < 0 || static_cast<i128>(place) + most + count > b.elements)
    throw Illegal("out of bounds: an access to argument " + std::to_string(index) + " of " +
                  std::to_string(b.elements) + " elements in another block that runs the same instructions");
  const u32 number = slopeNumber(elements);
  for (unsigned i = 0; i < count; ++i, ++place) {
    auto &row = reached_[index][place / kRow];
    u32 &held = row[place % kRow];
    if (held == 0)
      held = number + 1;
    else if (held != number + 1)
      reachedTwice_.insert({static_cast<u32>(index), place, number});
  }
}

} // namespace superopt::ptx
