// Residues as three digits, small enough that float64 products of matrices of digits are exact: a BLAS
// multiplies them several times as fast as 128-bit arithmetic (with Karatsuba's six products in place of
// nine).
#pragma once

#include <array>
#include <cstdint>

#include "field/modular.hpp"

namespace superopt::field {

constexpr int kLimb = 21;
// Products of sums of two digits are at most 2^42, so this many of them sum to at most 2^53.
constexpr std::size_t kDepth = 1 << 11;

// x = d0 + d1 2^21 + d2 2^42 for x below 2^62, every |d| at most 2^20.
inline std::array<double, 3> digits(u64 x) {
  constexpr std::int64_t half = 1 << (kLimb - 1), mask = (1 << kLimb) - 1;
  std::int64_t rest = static_cast<std::int64_t>(x);
  const std::int64_t low = ((rest + half) & mask) - half;
  rest = (rest - low) >> kLimb;
  const std::int64_t middle = ((rest + half) & mask) - half;
  rest = (rest - middle) >> kLimb;
  return {static_cast<double>(low), static_cast<double>(middle), static_cast<double>(rest)};
}

// Combines sums of products: `p` are those of d0, d1, d2, d0 + d1, d0 + d2, d1 + d2 of both operands.
class Joiner {
public:
  explicit Joiner(const Modulus &mod) : mod_(mod) {
    for (std::size_t i = 0; i < powers_.size(); ++i)
      powers_[i] = mod.pow(u64{1} << kLimb, i);
  }

  u64 operator()(const std::array<double, 6> &p) const {
    std::array<std::int64_t, 6> x;
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<std::int64_t>(p[i]);
    const std::array<std::int64_t, 5> terms{x[0], x[3] - x[0] - x[1], x[4] - x[0] - x[2] + x[1],
                                            x[5] - x[1] - x[2], x[2]};
    u128 total = 0; // five products below 2^124
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const u64 residue =
          terms[i] < 0 ? mod_.value() - static_cast<u64>(-terms[i]) : static_cast<u64>(terms[i]);
      total += static_cast<u128>(residue) * powers_[i];
    }
    return mod_.reduce_any(total);
  }

private:
  Modulus mod_;
  std::array<u64, 5> powers_;
};

} // namespace superopt::field
