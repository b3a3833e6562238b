#include "ptx/number.hpp"

#include <bit>
#include <cmath>
#include <limits>

namespace superopt::ptx {
namespace {

constexpr std::size_t kMostJoined = std::size_t{1} << 23; // that maxima remember, 8 bytes each
constexpr u32 kMostUnread = 512; // joins that a maximum is made of before it is read anyway

constexpr int signOf(Kind kind) { return kind == kPlus ? 1 : kind == kMinus ? -1 : 0; }
constexpr Kind kindOf(int sign) { return sign > 0 ? kPlus : kMinus; }

// fp16 as fp32; both hold its values exactly.
float half(u16 bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float value = exponent == 0    ? std::ldexp(static_cast<float>(fraction), -24)
                : exponent == 31 ? (fraction != 0 ? NAN : INFINITY)
                                 : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return bits >> 15 ? -value : value;
}

} // namespace

Numbers::Numbers(const Point &point)
    : p_(point.p), q_(point.q), point_(point), powers_(p_, point.root), zero_(constant32(0)),
      one_(constant32(0x3f800000)), log2e_(constant32(0x3fb8aa3b)) {}

void Numbers::clear() {
  pool_.clear();
  pairs_.fill({});
  joins_.clear();
  for (std::size_t i = 0; i < point_.joins.size(); ++i)
    joins_.emplace_back((i % 2 == 0 ? p_ : q_).value(), point_.joins[i][0], point_.joins[i][1], kMostJoined,
                        std::numeric_limits<std::size_t>::max()); // what they take is spent
}

// Few of them are read: of those that make up a row's maximum, the last one.
Handle Numbers::joined(bool largest, Handle x, Handle y) {
  if (x == y)
    return x;
  Join made{largest, std::min(x, y), std::max(x, y), 1};
  for (Handle h : {x, y})
    if (const Number part = held(h); Join::is(part)) {
      const Join join = Join::of(part);
      made.joins += join.largest == largest ? join.joins : kMostUnread;
    }
  if (made.joins > kMostUnread) {
    get(x);
    get(y);
    made.joins = 1;
  }
  const Number packed = made.packed();
  Pair &last = pairs_[(packed.a * 0x9e3779b97f4a7c15u) >> 54];
  if (last.of != packed.a)
    last = {packed.a, put(packed)};
  return last.made;
}

// What a maximum or minimum is worth, once somebody reads it.
Number Numbers::settled(Handle h) {
  const bool largest = Join::of(pool_[h]).largest;
  bool second = true;
  left_.assign(1, h);
  for (std::vector<u64> &leaves : leaves_)
    leaves.clear();
  while (!left_.empty()) {
    const Number x = held(left_.back());
    left_.pop_back();
    if (Join::is(x)) {
      const Join join = Join::of(x);
      left_.insert(left_.end(), {join.left, join.right});
      continue;
    }
    leaves_[0].push_back(x.a);
    leaves_[1].push_back(x.b);
    second = second && x.b != kNone;
  }
  std::array<u64, 2> made{0, kNone};
  for (std::size_t plane = 0; plane < (second ? 2 : 1); ++plane) {
    field::Semilattice &of = joins_[2 * largest + plane];
    try {
      made[plane] = of.join(leaves_[plane].data(), leaves_[plane].size());
    } catch (const std::length_error &error) {
      throw TooManyLeaves(error.what());
    }
    looked_ += of.looked();
  }
  return pool_[h] = {made[0], made[1]};
}

Handle Numbers::keep(Kept &kept, Handle h) const {
  if (h & kConstant)
    return h;
  kept.moved.resize(pool_.size(), kMostNumbers);
  if (kept.moved[h] != kMostNumbers)
    return kept.moved[h];
  Number x = pool_[h];
  if (Join::is(x)) {
    const Join join = Join::of(x);
    x = Join{join.largest, keep(kept, join.left), keep(kept, join.right), join.joins}.packed();
  }
  kept.numbers.push_back(x);
  return kept.moved[h] = static_cast<Handle>(kept.numbers.size() - 1);
}

void Numbers::drop(Kept kept) {
  pool_ = std::move(kept.numbers);
  pairs_.fill({});
}

u64 Numbers::residue(const Modulus &m, double value) const {
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);
  const u64 mantissa = static_cast<u64>(std::ldexp(fraction, 53));
  exponent -= 53;
  const u64 two = exponent >= 0 ? 2 : (m.value() + 1) / 2;
  const u64 x =
      m.mul(mantissa % m.value(), m.pow(two, static_cast<u64>(exponent >= 0 ? exponent : -exponent)));
  return value < 0 ? m.neg(x) : x;
}

Handle Numbers::rational(double value) {
  Number x = std::isnan(value)   ? undefined()
             : std::isinf(value) ? special(kindOf(value > 0 ? 1 : -1))
                                 : Number{residue(p_, value), residue(q_, value)};
  constants_.push_back(x);
  exact_.push_back(value);
  signs_.push_back(static_cast<signed char>(value > 0 ? 1 : value < 0 ? -1 : 0));
  return static_cast<Handle>(constants_.size() - 1) | kConstant;
}

Handle Numbers::constant32(u32 bits) {
  const auto [at, fresh] = known_.try_emplace(bits, 0);
  if (fresh)
    at->second = rational(std::bit_cast<float>(bits));
  return at->second;
}

Handle Numbers::constant16(u16 bits) { return constant32(std::bit_cast<u32>(half(bits))); }

Handle Numbers::integer(i64 value) { return constant32(std::bit_cast<u32>(static_cast<float>(value))); }

Number Numbers::sum(Number x, Number y) const {
  if ((x.a | y.a) >> 62 == 0)
    return {p_.add(x.a, y.a), x.b == kNone || y.b == kNone ? kNone : q_.add(x.b, y.b)};
  if (x.kind() == kUndefinedNumber || y.kind() == kUndefinedNumber)
    return undefined();
  const int s = signOf(x.kind()), t = signOf(y.kind());
  return s * t < 0 ? undefined() : special(kindOf(s + t));
}

Number Numbers::sum(Handle x, Handle y, bool minus) {
  const Number a = get(x);
  Number b = get(y);
  if (minus) {
    if (b.kind() == kFinite)
      b = {p_.neg(b.a), b.b == kNone ? kNone : q_.neg(b.b)};
    else if (b.kind() != kUndefinedNumber)
      b = special(kindOf(-signOf(b.kind())));
  }
  return sum(a, b);
}

Handle Numbers::neg(Handle x) { return put(sum(zero_, x, true)); }

Number Numbers::product(Handle x, Handle y) {
  const Number a = get(x), b = get(y);
  if ((a.a | b.a) >> 62 == 0)
    return {p_.mul(a.a, b.a), a.b == kNone || b.b == kNone ? kNone : q_.mul(a.b, b.b)};
  if (a.kind() == kUndefinedNumber || b.kind() == kUndefinedNumber)
    return undefined();
  const int s = a.kind() == kFinite ? sign(x) : signOf(a.kind());
  const int t = b.kind() == kFinite ? sign(y) : signOf(b.kind());
  return s * t == 0 ? undefined() : special(kindOf(s * t));
}

Handle Numbers::div(Handle x, Handle y) {
  const Number a = get(x), b = get(y);
  if (a.kind() == kUndefinedNumber || b.kind() == kUndefinedNumber)
    return put(undefined());
  if (b.kind() != kFinite)
    return a.kind() != kFinite ? put(undefined()) : zero_;
  if (a.kind() != kFinite) {
    const int s = signOf(a.kind()) * sign(y);
    return put(s == 0 ? undefined() : special(kindOf(s)));
  }
  if (b.a == 0)
    return put(undefined());
  const bool second = a.b != kNone && b.b != kNone && b.b != 0;
  return put({p_.mul(a.a, inverses_[0](p_, b.a)), second ? q_.mul(a.b, inverses_[1](q_, b.b)) : kNone});
}

Handle Numbers::extreme(bool largest, Handle x, Handle y) {
  if (constants(x, y) && !std::isnan(exact(x)) && !std::isnan(exact(y)))
    return (exact(x) >= exact(y)) == largest ? x : y;
  const Number a = held(x), b = held(y);
  if (a.kind() == kUndefinedNumber || b.kind() == kUndefinedNumber)
    return put(undefined());
  const int neutral = largest ? -1 : 1;
  if (signOf(a.kind()) == neutral)
    return y;
  if (signOf(b.kind()) == neutral)
    return x;
  if (a.kind() != kFinite || b.kind() != kFinite)
    return put(special(kindOf(-neutral)));
  if (!joins_.empty())
    return joined(largest, x, y);
  const u64 r = field::residue(p_, point_.order, a.a), s = field::residue(p_, point_.order, b.a);
  Number picked = (largest ? r >= s : r <= s) ? a : b;
  if (a.b == kNone || b.b == kNone)
    picked.b = kNone;
  return put(picked);
}

u64 Numbers::uninterpreted(const Modulus &m, Function f, int plane, u64 x) const {
  const auto &keys = point_.functions[static_cast<std::size_t>(f)];
  const bool vanishes =
      f == Function::Sqrt || f == Function::Where || f == Function::Erf || f == Function::Sin;
  if (x == 0 && f != Function::Log)
    return vanishes ? 0 : 1;
  if (x == 1 && (f == Function::Sqrt || f == Function::Where))
    return 1;
  if (x == 1 && f == Function::Log)
    return 0;
  return field::residue(m, keys[2 * plane + 1], field::residue(m, keys[2 * plane], x));
}

Handle Numbers::apply(Function f, Handle h) {
  const Number x = get(h);
  const int s = signOf(x.kind());
  if (x.kind() == kUndefinedNumber)
    return put(undefined());
  if (s != 0) {
    if (f == Function::Exp)
      return s < 0 ? put({0, kNone}) : put(special(kPlus));
    if (f == Function::Erf)
      return constant32(s < 0 ? 0xbf800000 : 0x3f800000);
    if (f == Function::Sqrt || f == Function::Log)
      return put(s < 0 ? undefined() : special(kPlus));
    return put(undefined());
  }
  if ((f == Function::Sqrt || f == Function::Log) && sign(h) < 0)
    return put(undefined());
  if (f == Function::Log && x.a == 0)
    return put(special(kMinus));
  if (f == Function::Exp && x.b != kNone)
    return put({powers_(x.b), kNone});
  return put({uninterpreted(p_, f, 0, x.a),
              x.b == kNone || f == Function::Exp ? kNone : uninterpreted(q_, f, 1, x.b)});
}

Handle Numbers::larger(Handle x, Handle y) {
  const Handle difference = sub(x, y);
  const Number t = get(difference);
  const u32 one = 0x3f800000;
  if (t.kind() == kUndefinedNumber)
    return put(undefined());
  if (t.kind() != kFinite)
    return constant32(t.kind() == kPlus ? one : 0);
  if ((difference & kConstant) != 0 && exact(difference) == std::floor(exact(difference)))
    return constant32(exact(difference) > 0 ? one : 0);
  if (truths_.contains(t.a))
    return difference;
  const u64 s = uninterpreted(p_, Function::Where, 0, t.a);
  truths_.insert({s, p_.sub(1, s)});
  return put({s, t.b == kNone ? kNone : uninterpreted(q_, Function::Where, 1, t.b)});
}

std::optional<bool> Numbers::truth(Handle h) {
  const Number s = get(h);
  return s.kind() == kFinite && s.a <= 1 ? std::optional(s.a == 1) : std::nullopt;
}

Handle Numbers::chosen(Handle s, Handle x, Handle y) {
  if (const auto known = truth(s))
    return *known ? x : y;
  const Number a = get(x), b = get(y);
  if (a.kind() == b.kind() && (a.kind() == kPlus || a.kind() == kMinus))
    return x;
  if (get(s).kind() != kFinite || a.kind() != kFinite || b.kind() != kFinite)
    return put(undefined());
  return add(y, mul(s, sub(x, y)));
}

Handle Numbers::exp2(Handle x) { return apply(Function::Exp, div(x, log2e_)); }

Number Numbers::dot(const Number *a, const Number *b, std::size_t n, Number c) const {
  u64 odd = 0;
  bool second = true;
  u128 total = 0;
  for (std::size_t i = 0; i < n; ++i) {
    odd |= a[i].a | b[i].a;
    second = second && a[i].b != kNone && b[i].b != kNone;
    total += static_cast<u128>(a[i].a) * b[i].a; // 16 products of residues below 2^62
  }
  if (odd >> 62 != 0)
    return undefined();
  Number x{p_.reduce_any(total), kNone};
  if (second) {
    total = 0;
    for (std::size_t i = 0; i < n; ++i)
      total += static_cast<u128>(a[i].b) * b[i].b;
    x.b = q_.reduce_any(total);
  }
  return sum(x, c);
}

} // namespace superopt::ptx
