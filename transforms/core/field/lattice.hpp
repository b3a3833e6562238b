// `max` (or `min`) as the join of a free semilattice.
//
// All that is assumed about the maximum is that it is associative, commutative and idempotent. A join is
// the set of its leaves; its value is a keyed random residue of that set, and equals another join's value
// exactly when the sets are equal (up to collisions of random residues). So different expressions cannot
// agree because of one order of the residues, as they can where that order picks: clamp(x, -1,
// 6) and clamp(x, -2, 6) agree everywhere under one order in three.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "field/random.hpp"

namespace superopt::field {

class Semilattice {
public:
  // `bottom` is the neutral element (-inf of a max); `limit` bounds the leaves remembered, 8 bytes each.
  Semilattice(u64 modulus, u64 key, u64 bottom, std::size_t limit)
      : mod_(modulus), key_(key), bottom_(bottom), limit_(limit) {}

  u64 join(const u64 *values, std::size_t n) {
    leaves_.clear();
    for (std::size_t i = 0; i < n; ++i)
      append(values[i]);
    std::sort(leaves_.begin(), leaves_.end());
    leaves_.erase(std::unique(leaves_.begin(), leaves_.end()), leaves_.end());
    if (leaves_.empty())
      return bottom_;
    if (leaves_.size() == 1)
      return leaves_.front();
    u64 digest = key_;
    for (const u64 leaf : leaves_)
      digest = hash(digest, leaf);
    const u64 value = residue(mod_, digest, leaves_.size());
    if (joins_.try_emplace(value, leaves_).second) {
      stored_ += leaves_.size();
      if (stored_ > limit_)
        throw std::length_error("too many leaves under max or min");
    }
    return value;
  }

  // How many leaves the last join has.
  std::size_t joined() const { return leaves_.size(); }
  // Distinct joins so far: how many random residues a collision could be among.
  std::size_t size() const { return joins_.size(); }

private:
  void append(u64 value) {
    if (value == bottom_)
      return;
    const auto known = joins_.find(value);
    if (known == joins_.end())
      leaves_.push_back(value);
    else
      leaves_.insert(leaves_.end(), known->second.begin(), known->second.end());
  }

  Modulus mod_;
  u64 key_, bottom_;
  std::size_t limit_, stored_ = 0;
  std::unordered_map<u64, std::vector<u64>> joins_;
  std::vector<u64> leaves_;
};

} // namespace superopt::field
