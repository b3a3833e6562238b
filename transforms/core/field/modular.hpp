// Arithmetic modulo a prime of 61 or 62 bits, the base of every certificate.
//
// Elements are plain residues in [0, m). Products are reduced by Barrett's method (Handbook of Applied
// Cryptography, algorithm 14.42), so hot paths avoid hardware division.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace superopt::field {

using u64 = std::uint64_t;
using u128 = unsigned __int128;

class Modulus {
public:
  // `m` must be odd, with 2^60 < m < 2^62.
  explicit constexpr Modulus(u64 m)
      : m_(m), bits_(64 - std::countl_zero(m)),
        mu_(static_cast<u64>((static_cast<u128>(1) << (2 * bits_)) / m)),
        fold_(static_cast<u64>((static_cast<u128>(1) << 64) % m)) {}

  constexpr u64 value() const { return m_; }
  // The leading bits of a random word, as many as the modulus has.
  constexpr u64 truncate(u64 word) const { return word >> (64 - bits_); }

  constexpr u64 add(u64 a, u64 b) const {
    const u64 sum = a + b; // below 2^63
    return sum >= m_ ? sum - m_ : sum;
  }
  constexpr u64 sub(u64 a, u64 b) const { return a >= b ? a - b : a + m_ - b; }
  constexpr u64 neg(u64 a) const { return a == 0 ? 0 : m_ - a; }
  constexpr u64 mul(u64 a, u64 b) const { return reduce(static_cast<u128>(a) * b); }

  // x mod m for x < 2^(2 bits), as every product of two residues is.
  constexpr u64 reduce(u128 x) const {
    const u64 top = static_cast<u64>(x >> (bits_ - 1));
    const u64 quotient = static_cast<u64>((static_cast<u128>(top) * mu_) >> (bits_ + 1));
    u64 rest = static_cast<u64>(x) - quotient * m_;
    while (rest >= m_)
      rest -= m_;
    return rest;
  }

  // A number congruent to x and below 2^126 + 2^64, for any x: keeps sums of products within 128 bits.
  constexpr u128 fold(u128 x) const {
    return static_cast<u128>(static_cast<u64>(x >> 64)) * fold_ + static_cast<u64>(x);
  }

  // x mod m for any x.
  constexpr u64 reduce_any(u128 x) const {
    const u64 high = reduce(static_cast<u64>(x >> 64));
    return add(reduce(static_cast<u128>(high) * fold_), reduce(static_cast<u64>(x)));
  }

  constexpr u64 pow(u64 base, u64 exponent) const {
    u64 result = 1;
    for (; exponent != 0; exponent >>= 1) {
      if ((exponent & 1) != 0)
        result = mul(result, base);
      base = mul(base, base);
    }
    return result;
  }
  // The inverse of a non-zero residue (Fermat).
  constexpr u64 inverse(u64 a) const { return pow(a, m_ - 2); }

private:
  u64 m_;
  int bits_;
  u64 mu_;
  u64 fold_;
};

// Inverses of n residues with one exponentiation (Montgomery's trick); false where one of them is zero.
inline bool invert(const Modulus &m, const u64 *in, u64 *out, std::size_t n) {
  u64 product = 1;
  for (std::size_t i = 0; i < n; ++i) {
    if (in[i] == 0)
      return false;
    out[i] = product;
    product = m.mul(product, in[i]);
  }
  u64 inverse = m.inverse(product);
  for (std::size_t i = n; i-- > 0;) {
    out[i] = m.mul(out[i], inverse);
    inverse = m.mul(inverse, in[i]);
  }
  return true;
}

// Powers of one base: a table for each byte of the exponent, so that a power is seven products.
class Powers {
public:
  Powers(const Modulus &m, u64 base) : mod_(m), table_(kBytes * kEntries) {
    for (std::size_t byte = 0; byte < kBytes; ++byte) {
      u64 *row = table_.data() + byte * kEntries;
      row[0] = 1;
      for (std::size_t i = 1; i < kEntries; ++i)
        row[i] = m.mul(row[i - 1], base);
      base = m.mul(row[kEntries - 1], base);
    }
  }

  u64 operator()(u64 exponent) const {
    u64 result = 1;
    for (std::size_t byte = 0; exponent != 0; ++byte, exponent >>= 8)
      result = mod_.mul(result, table_[byte * kEntries + (exponent & 255)]);
    return result;
  }

private:
  static constexpr std::size_t kBytes = 8, kEntries = 256;
  Modulus mod_;
  std::vector<u64> table_;
};

} // namespace superopt::field
