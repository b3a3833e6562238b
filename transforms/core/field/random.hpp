// Seeded randomness: uniform residues, and keyed random functions for operators that stay uninterpreted.
//
// Counter based, so that a value depends only on (key, position) and a certificate replays on any machine.
#pragma once

#include "field/modular.hpp"

namespace superopt::field {

// David Stafford's variant 13 of the 64-bit finalizer of MurmurHash3.
constexpr u64 scramble(u64 x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr u64 hash(u64 key, u64 x) {
  return scramble(scramble(x + 0x9e3779b97f4a7c15ULL * (key | 1)) ^ scramble(key));
}

// A residue drawn uniformly, by rejection: a modulus just below a power of two rarely needs more than one
// draw.
constexpr u64 residue(const Modulus &m, u64 key, u64 x) {
  u64 word = hash(key, x);
  while (m.truncate(word) >= m.value())
    word = scramble(word + 0x9e3779b97f4a7c15ULL);
  return m.truncate(word);
}

} // namespace superopt::field
