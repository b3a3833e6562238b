// The screening field: Z_p with p = 2^61 - 1, and keyed random functions for what is not rational.
//
// One test here errs with probability about degree / 2^61; the search's results are certified elsewhere, by
// code that shares nothing with this.
#pragma once

#include <bit>
#include <cstdint>

namespace superopt::search {

using Element = std::uint64_t;
constexpr Element prime = (std::uint64_t{1} << 61) - 1;

inline Element reduce(Element x) {
  x = (x & prime) + (x >> 61);
  return x >= prime ? x - prime : x;
}
inline Element field_add(Element a, Element b) { return reduce(a + b); }
inline Element field_neg(Element a) { return a == 0 ? 0 : prime - a; }
inline Element field_mul(Element a, Element b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return reduce(static_cast<Element>(product & prime) + static_cast<Element>(product >> 61));
}
// a^(p-2); 0 for 0, which the caller must exclude.
inline Element field_inverse(Element a) {
  Element result = 1;
  for (Element exponent = prime - 2; exponent; exponent >>= 1) {
    if (exponent & 1)
      result = field_mul(result, a);
    a = field_mul(a, a);
  }
  return result;
}

inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
// A random function of (key, x), the same for the same arguments. SplitMix alone is a bijection that an
// adversary could invert; the two rounds suffice for inputs that come from a program.
inline Element keyed(std::uint64_t key, std::uint64_t x) {
  return reduce(mix(mix(key) ^ std::rotl(mix(x ^ 0xd6e8feb86659fd93ull), 23)) >> 3);
}

} // namespace superopt::search
