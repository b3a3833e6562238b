// Numbers that PTX computes with, over two prime fields: what `superopt.verify.infinities` describes, element
// by element, written from that description rather than from its code.
//
// A number is a residue modulo p, with two bits that say whether it is finite, and one modulo q as long as no
// exponential was applied. Registers and memory hold handles to numbers.
#pragma once

#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "field/lattice.hpp"
#include "field/modular.hpp"
#include "field/random.hpp"

namespace superopt::ptx {

using field::Modulus;
using field::u128;
using field::u64;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

// The program breaks a rule: a race, an access out of bounds, an undefined address.
struct Illegal : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// What this interpreter does not decide.
struct Unknown : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Maxima join more numbers than are remembered.
struct TooManyLeaves : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum Kind : u8 { kFinite = 0, kMinus = 1, kPlus = 2, kUndefinedNumber = 3 };
constexpr u64 kNone = ~u64{0}; // no residue modulo q

struct Number {
  u64 a; // kind << 62 | residue modulo p
  u64 b; // residue modulo q, or kNone
  Kind kind() const { return static_cast<Kind>(a >> 62); }
  friend bool operator==(const Number &, const Number &) = default;
};

using Handle = u32;
constexpr Handle kConstant = 1u << 28; // marks handles of constants
constexpr std::size_t kMostNumbers = kConstant;

// A maximum or minimum of finite numbers that nobody has read yet: what it joins. It stands in a number's
// place, with `kNone` but for one bit, which no residue has, over how many joins it is made of.
struct Join {
  bool largest;
  Handle left, right;
  u32 joins;

  static constexpr unsigned kHandleBits = 29;
  static bool is(Number x) { return x.b >> 62 == 2; }
  static Join of(Number x) {
    constexpr u64 mask = (u64{1} << kHandleBits) - 1;
    return {(x.a >> 2 * kHandleBits) != 0, static_cast<Handle>(x.a >> kHandleBits & mask),
            static_cast<Handle>(x.a & mask), static_cast<u32>(x.b)};
  }
  Number packed() const {
    return {(u64{largest} << kHandleBits | left) << kHandleBits | right, u64{2} << 62 | joins};
  }
};

enum class Function : u8 { Sqrt, Log, Exp, Erf, Sin, Cos, Where, Count };

// What is drawn for a point: the root that exponentials are powers of, keys of the order and the functions.
struct Point {
  u64 p, q, root, order;
  // By function: for each plane, the key of its argument and of its result.
  std::array<std::array<u64, 4>, static_cast<std::size_t>(Function::Count)> functions;
  // The key and the neutral element of joins: of minima and maxima, for each plane. Empty where the order
  // picks.
  std::vector<std::array<u64, 2>> joins{};
};

class Numbers {
public:
  explicit Numbers(const Point &point);

  Number get(Handle h) {
    const Number x = held(h);
    return Join::is(x) ? settled(h) : x;
  }
  Handle put(Number x) {
    if (pool_.size() >= kMostNumbers)
      throw Unknown("a block that computes more numbers than fit");
    pool_.push_back(x);
    return static_cast<Handle>(pool_.size() - 1);
  }
  // The constants that fp32, fp16 and bfloat16 bits stand for.
  Handle constant32(u32 bits);
  Handle constant16(u16 bits);
  Handle constantBrain(u16 bits) { return constant32(static_cast<u32>(bits) << 16); }
  Handle integer(i64 value);

  Handle add(Handle x, Handle y) {
    const auto folded = constants(x, y) ? integral(exact(x) + exact(y)) : std::nullopt;
    return folded ? *folded : put(sum(x, y, false));
  }
  Handle sub(Handle x, Handle y) {
    const auto folded = constants(x, y) ? integral(exact(x) - exact(y)) : std::nullopt;
    return folded ? *folded : put(sum(x, y, true));
  }
  Handle mul(Handle x, Handle y) {
    const auto folded = constants(x, y) ? integral(exact(x) * exact(y)) : std::nullopt;
    return folded ? *folded : put(product(x, y));
  }
  // x > y as 1 or 0: known of integers that are constants, else a random function s of the difference, which
  // is itself where it is such an s or 1 - s.
  Handle larger(Handle x, Handle y);
  // y + s (x - y): x where s is 1, y where it is 0.
  Handle chosen(Handle s, Handle x, Handle y);
  // Notes that a number is a truth value: 1 or 0, whatever stands for it.
  void truthGiven(Handle h) {
    const u64 s = get(h).a;
    truths_.insert({s, p_.sub(1, s)});
  }
  // Whether a number is 1 or 0; nullopt for others.
  std::optional<bool> truth(Handle h);
  Handle fma(Handle x, Handle y, Handle z) { return add(put(product(x, y)), z); }
  Handle neg(Handle x);
  Handle div(Handle x, Handle y);
  Handle extreme(bool largest, Handle x, Handle y);
  Handle exp2(Handle x);
  Handle log2(Handle x) { return mul(apply(Function::Log, x), log2e_); }
  Handle rsqrt(Handle x) { return div(one_, apply(Function::Sqrt, x)); }
  Handle reciprocal(Handle x) { return div(one_, x); }
  Handle apply(Function f, Handle x);

  // c + sum a[i] b[i], over at most 16 terms; undefined where an a or b is not finite.
  Number dot(const Number *a, const Number *b, std::size_t n, Number c) const;
  Number added(Number x, Number y) const { return sum(x, y); }
  static Number undefined() { return {u64{kUndefinedNumber} << 62 | 1, kNone}; }

  const Modulus &p() const { return p_; }
  const Modulus &q() const { return q_; }
  std::size_t size() const { return pool_.size(); }
  // Numbers that stay, and their handles from then on; what stays for a maximum stays as well.
  struct Kept {
    std::vector<Number> numbers{};
    std::vector<Handle> moved{}; // by handle; `kMostNumbers` for those that are dropped
  };
  Handle keep(Kept &kept, Handle h) const;
  void drop(Kept kept);
  void clear();
  // Leaves that joins looked at since this was asked last.
  u64 takeJoined() { return std::exchange(looked_, 0); }

private:
  // As `get`, where maxima may be what they join.
  Number held(Handle h) const { return h & kConstant ? constants_[h ^ kConstant] : pool_[h]; }
  Number settled(Handle h);
  Handle joined(bool largest, Handle x, Handle y);
  Number sum(Handle x, Handle y, bool minus);
  Number sum(Number x, Number y) const;
  Number product(Handle x, Handle y);
  static bool constants(Handle x, Handle y) { return (x & y & kConstant) != 0; }
  double exact(Handle h) const { return exact_[h ^ kConstant]; }
  // The constant, if it is an integer that fp32 holds.
  std::optional<Handle> integral(double value) {
    if (value != std::floor(value) || std::fabs(value) >= 1 << 24) // also NaN and infinities
      return std::nullopt;
    return integer(static_cast<i64>(value));
  }
  int sign(Handle h) const { return h & kConstant ? signs_[h ^ kConstant] : 0; }
  Handle rational(double value);
  u64 residue(const Modulus &m, double value) const;
  // Inverses of the last residues that were divided by: whole rows are divided by one number.
  struct Inverses {
    std::array<std::array<u64, 2>, 256> held{}; // by low bits: a residue and its inverse; 0 for none
    u64 operator()(const Modulus &m, u64 x) {
      auto &[of, inverse] = held[x % held.size()];
      if (of != x) {
        of = x;
        inverse = m.inverse(x);
      }
      return inverse;
    }
  };
  u64 uninterpreted(const Modulus &m, Function f, int plane, u64 x) const;
  static Number special(Kind kind) { return {u64{kind} << 62 | 1, kNone}; }

  Modulus p_, q_;
  Point point_;
  field::Powers powers_;
  std::vector<field::Semilattice> joins_; // as `Point::joins`
  u64 looked_ = 0;
  // The last joins of two numbers: the threads of a row do the same.
  struct Pair {
    u64 of = 0; // `Number::a` of what is joined; 0 for none, as two handles differ
    Handle made = 0;
  };
  std::array<Pair, 1024> pairs_{};
  std::vector<Handle> left_;               // of a join that is being read
  std::array<std::vector<u64>, 2> leaves_; // modulo p, modulo q
  std::array<Inverses, 2> inverses_;       // modulo p, modulo q
  std::unordered_set<u64> truths_;         // residues of what is 1 or 0
  std::vector<Number> pool_, constants_;
  std::vector<signed char> signs_;
  std::vector<double> exact_;
  std::unordered_map<u32, Handle> known_;
  Handle zero_, one_, log2e_;
};

} // namespace superopt::ptx
