// `max` (or `min`) as the join of a free semilattice.
//
// All that is assumed about the maximum is that it is associative, commutative and idempotent. A join is
// the set of its leaves; its value is a keyed random residue of that set, and equals another join's value
// exactly when the sets are equal (up to collisions of random residues). So different expressions cannot
// agree because of one order of the residues, as they can where that order picks: clamp(x, -1,
// 6) and clamp(x, -2, 6) agree everywhere under one order in three.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <span>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "field/random.hpp"

namespace superopt::field {

class Semilattice {
public:
  // `bottom` is the neutral element (-inf of a max); `limit` bounds what is remembered, 8 bytes each, and
  // `work` the leaves of all joins that are remembered.
  Semilattice(u64 modulus, u64 key, u64 bottom, std::size_t limit, std::size_t work)
      : mod_(modulus), key_(key), bottom_(bottom), limit_(limit), work_(work) {}

  u64 join(const u64 *values, std::size_t n) {
    if (n == 2)
      return joinPair({values[0], values[1]});
    if (const std::size_t at = onlyLarge(values, n); at < n) {
      std::vector<u64> rest(values, values + n);
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(at));
      const u64 others = join(rest.data(), rest.size());
      const std::size_t looked = looked_;
      const u64 value = joinPair({values[at], others});
      looked_ += looked;
      return value;
    }
    gather(values, n);
    looked_ = leaves_.size();
    if (leaves_.empty())
      return bottom_;
    if (leaves_.size() == 1)
      return leaves_.front();
    Digest digest;
    for (const u64 leaf : leaves_)
      digest.add(key_, leaf);
    const u64 value = valueOf(digest);
    if (!joins_.contains(value)) {
      std::vector<u64> joined(values, values + n);
      std::erase(joined, bottom_);
      makeDistinct(joined);
      remember(value, digest, joined);
    }
    return value;
  }

  // How many leaves the last join looked at.
  std::size_t looked() const { return looked_; }
  // Distinct joins so far: how many random residues a collision could be among.
  std::size_t size() const { return joins_.size(); }

private:
  // Of a set: a sum over its leaves, and how many they are.
  struct Digest {
    u64 sum = 0, count = 0;
    void add(u64 key, u64 leaf) {
      sum += hash(key, leaf);
      ++count;
    }
  };
  // What is joined, from `first` in `held_`: its leaves in order, or other joins as well. `seen` is when it
  // was gathered last.
  struct Join {
    Digest digest;
    std::size_t first = 0, count = 0;
    bool leaves = false;
    u64 seen = 0;
  };
  // Leaves in order, and who owns them where that is not the lattice.
  using List = std::shared_ptr<const std::vector<u64>>;
  struct Leaves {
    std::span<const u64> all;
    List owner;
  };
  // Joins of more leaves remember what they join: those of running maxima would hold all that came before.
  static constexpr std::size_t kFew = 16;
  // Leaves in lists that are kept for the next join: a row's maximum so far, while other rows have their
  // turn.
  static constexpr std::size_t kMostListed = std::size_t{1} << 21;
  static constexpr std::size_t kCopied = 8; // leaves that take as long to copy as one to look up

  u64 valueOf(Digest digest) const { return residue(mod_, hash(key_, digest.sum), digest.count); }

  // Running maxima join few leaves with many: these are neither sorted nor hashed again.
  u64 joinPair(std::array<u64, 2> pair) {
    looked_ = 1;
    if (pair[0] == pair[1] || pair[1] == bottom_)
      return pair[0];
    if (pair[0] == bottom_)
      return pair[1];
    if (pair[1] < pair[0])
      std::swap(pair[0], pair[1]);
    const Join *const first = find(pair[0]), *const second = find(pair[1]);
    const bool large = (first && !first->leaves) || (second && !second->leaves);
    const u64 both = large ? hash(pair[0], pair[1]) : 0;
    if (large) {
      const auto known = pairs_.find(both);
      if (known != pairs_.end() && known->second.first == pair)
        return known->second.second;
    }
    Leaves many = leavesOf(pair[0], first), few = leavesOf(pair[1], second);
    const bool swapped = many.all.size() < few.all.size();
    if (swapped)
      std::swap(many, few);
    const u64 larger = pair[swapped];
    const Join *const known = swapped ? second : first;
    Digest digest;
    if (known)
      digest = known->digest;
    else
      digest.add(key_, larger);
    others_.clear();
    for (const u64 leaf : few.all)
      if (!std::ranges::binary_search(many.all, leaf)) {
        others_.push_back(leaf);
        digest.add(key_, leaf);
      }
    looked_ += few.all.size();
    const u64 value = others_.empty() ? larger : valueOf(digest);
    if (!others_.empty() && !joins_.contains(value)) {
      leaves_.resize(digest.count);
      std::ranges::merge(many.all, others_, leaves_.begin());
      looked_ += leaves_.size() / kCopied;
      remember(value, digest, pair);
    }
    if (large && pairs_.size() < limit_)
      pairs_[both] = {pair, value};
    return value;
  }

  // The place of a join of many leaves among values that are few; n where there is none, or another one.
  std::size_t onlyLarge(const u64 *values, std::size_t n) {
    std::size_t found = n;
    for (std::size_t i = 0; i < n; ++i)
      if (const Join *const known = find(values[i]); known && !known->leaves && std::exchange(found, i) < n)
        return n;
    return found;
  }

  Join *find(u64 value) {
    const auto known = joins_.find(value);
    return known == joins_.end() ? nullptr : &known->second;
  }

  // Of what stays where it is until something is remembered.
  Leaves leavesOf(const u64 &value, const Join *known) {
    if (!known)
      return {{&value, 1}, nullptr};
    if (known->leaves)
      return {held(*known), nullptr};
    const auto listed = lists_.find(value);
    if (listed != lists_.end())
      return {*listed->second, listed->second};
    gather(&value, 1);
    looked_ += leaves_.size();
    List made = std::make_shared<const std::vector<u64>>(leaves_);
    keep(value, made);
    return {*made, made};
  }

  std::span<const u64> held(const Join &join) const { return {held_.data() + join.first, join.count}; }

  static void makeDistinct(std::vector<u64> &values) {
    std::ranges::sort(values);
    values.erase(std::unique(values.begin(), values.end()), values.end());
  }

  // Puts the leaves of values into `leaves_`, in order.
  void gather(const u64 *values, std::size_t n) {
    ++now_;
    leaves_.clear();
    std::vector<u64> left(values, values + n);
    while (!left.empty()) {
      const u64 value = left.back();
      left.pop_back();
      if (value == bottom_)
        continue;
      Join *const known = find(value);
      if (!known)
        leaves_.push_back(value);
      else if (std::exchange(known->seen, now_) != now_) {
        const auto listed = known->leaves ? lists_.end() : lists_.find(value);
        const auto from = listed == lists_.end() ? held(*known) : std::span<const u64>(*listed->second);
        auto &to = known->leaves || listed != lists_.end() ? leaves_ : left;
        to.insert(to.end(), from.begin(), from.end());
      }
    }
    makeDistinct(leaves_);
  }

  // A new join of distinct values, whose leaves are in `leaves_`.
  void remember(u64 value, Digest digest, std::span<const u64> joined) {
    const bool few = leaves_.size() <= std::max(kFew, joined.size());
    const std::span<const u64> kept = few ? leaves_ : joined;
    leavesOfAll_ += leaves_.size();
    if (held_.size() + kept.size() > limit_ || leavesOfAll_ > work_)
      throw std::length_error("too many leaves under max or min");
    joins_.emplace(value, Join{digest, held_.size(), kept.size(), few});
    held_.insert(held_.end(), kept.begin(), kept.end());
    if (!few)
      keep(value, std::make_shared<const std::vector<u64>>(leaves_));
  }

  void keep(u64 value, const List &list) {
    listed_ += list->size();
    lists_.emplace(value, list);
    oldest_.push_back(value);
    while (listed_ > kMostListed) {
      const auto last = lists_.find(oldest_.front());
      listed_ -= last->second->size();
      lists_.erase(last);
      oldest_.pop_front();
    }
  }

  Modulus mod_;
  u64 key_, bottom_;
  std::size_t limit_, work_, leavesOfAll_ = 0, looked_ = 0, listed_ = 0;
  std::unordered_map<u64, Join> joins_;
  std::vector<u64> held_, leaves_, others_;
  // Of what was joined: the threads of a row do the same, and so does who checks them.
  std::unordered_map<u64, std::pair<std::array<u64, 2>, u64>> pairs_;
  std::unordered_map<u64, List> lists_; // some, by value
  std::deque<u64> oldest_;              // first
  u64 now_ = 0;
};

} // namespace superopt::field
