// `max` and `min` as the joins and meets of a vector lattice: what real numbers make equal of maxima.
//
// An element is a maximum of minima of leaves (its clauses). Distributivity, absorption and what is known of
// the order of leaves (`not_negative` holds differences that are) bring that into its only irredundant form.
// max(a + c, b + c) = max(a, b) + c, so the value is the mean of the leaves plus a function of how they lie
// around it; max(-a, -b) = -min(a, b), so a form and its opposite share that function; max(k a, k b) =
// k max(a, b) for k > 0, so forms that are multiples by a number of `scales` share it, too. Two joins have
// one value exactly where these laws make them equal (up to collisions of random residues); where a form
// would grow too large, a join is a leaf, and less is found equal. docs/verification.md argues for each law.
#pragma once

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "field/random.hpp"

namespace superopt::field {

enum class Join { Max, Min };

class VectorLattice {
public:
  // `infinity`: neutral for min, its opposite for max; `limit` bounds the leaves remembered.
  VectorLattice(u64 modulus, u64 key, u64 infinity, std::size_t limit, const std::vector<u64> &not_negative,
                const std::vector<u64> &scales)
      : mod_(modulus), key_(key), infinity_(infinity), limit_(limit),
        not_negative_(not_negative.begin(), not_negative.end()), scales_(scales) {}

  // `linear[i]` says whether values[i] is a number that may be shifted and scaled; a null pointer: all are.
  u64 join(Join kind, const u64 *values, const bool *linear, std::size_t n) {
    const u64 neutral = kind == Join::Max ? mod_.neg(infinity_) : infinity_;
    std::vector<Part> parts;
    for (std::size_t i = 0; i < n; ++i) {
      if (values[i] == neutral)
        continue;
      const auto known = forms_.find(values[i]);
      parts.push_back(
          {values[i], linear == nullptr || linear[i], known == forms_.end() ? nullptr : &known->second});
    }
    if (parts.empty())
      return neutral;
    Form form = kind == Join::Max ? united(parts) : crossed(parts);
    form.linear = std::all_of(parts.begin(), parts.end(),
                              [](const Part &p) { return p.form ? p.form->linear : p.linear; });
    simplify(form.clauses, form.linear);
    if (form.clauses.size() == 1 && form.clauses[0].size() == 1)
      return form.clauses[0][0];
    const std::size_t size = leaves(form.clauses);
    most_ = std::max(most_, size);
    const auto [value, unlike] = named(form);
    if (unlike && forms_.try_emplace(value, std::move(form)).second && (stored_ += size) > limit_)
      throw std::length_error("too many leaves under max or min");
    return value;
  }

  // The product of the maximum and the minimum of the same two numbers, which is that of the numbers.
  std::optional<u64> product(u64 a, u64 b) const {
    const auto x = forms_.find(a), y = forms_.find(b);
    if (x == forms_.end() || y == forms_.end() || !x->second.linear)
      return std::nullopt;
    const Clauses &one = x->second.clauses, &other = y->second.clauses;
    const Clauses &top = one.size() == 2 ? one : other, &low = one.size() == 2 ? other : one;
    if (low.size() != 1 || low[0].size() != 2 || top != Clauses{{low[0][0]}, {low[0][1]}})
      return std::nullopt;
    return mod_.mul(low[0][0], low[0][1]);
  }

  std::size_t most() const { return most_; }         // leaves of any form so far
  std::size_t compared() const { return compared_; } // look-ups so far: each could hit by chance
  std::size_t size() const { return atoms_.size(); }

private:
  using Clause = std::vector<u64>;          // a minimum, sorted
  using Clauses = std::vector<Clause>;      // a maximum, sorted
  static constexpr std::size_t kMixed = 32; // leaves of a form with maxima and minima
  static constexpr std::size_t kOrder = 16; // leaves that are compared with each other

  struct Form {
    bool linear = true;
    Clauses clauses;
  };
  struct Part {
    u64 value;
    bool linear;
    const Form *form;
  };

  static std::size_t leaves(const Clauses &clauses) {
    std::size_t count = 0;
    for (const Clause &c : clauses)
      count += c.size();
    return count;
  }

  // A maximum of parts; one with minima below it is a leaf where the whole would grow too large.
  static Form united(const std::vector<Part> &parts) {
    std::size_t total = 0;
    bool mixed = false;
    for (const Part &p : parts) {
      total += p.form ? leaves(p.form->clauses) : 1;
      mixed |= p.form && leaves(p.form->clauses) > p.form->clauses.size();
    }
    Form form;
    for (const Part &p : parts) {
      const bool simple = p.form && leaves(p.form->clauses) == p.form->clauses.size();
      if (p.form && (simple || !mixed || total <= kMixed))
        form.clauses.insert(form.clauses.end(), p.form->clauses.begin(), p.form->clauses.end());
      else
        form.clauses.push_back({p.value});
    }
    return form;
  }

  // A minimum of parts: minima distribute over the maxima below them.
  static Form crossed(const std::vector<Part> &parts) {
    Form form;
    form.clauses.push_back({});
    for (const Part &p : parts) {
      const Clauses own{{p.value}};
      const Clauses &given = p.form ? p.form->clauses : own;
      if (given.size() > 1 && cross(form.clauses, given))
        continue;
      const Clause &only = given.size() > 1 ? own[0] : given[0];
      for (Clause &c : form.clauses)
        c.insert(c.end(), only.begin(), only.end());
    }
    return form;
  }

  // Each clause joined with each other one; false, and unchanged, where that would grow too large.
  static bool cross(Clauses &clauses, const Clauses &others) {
    const std::size_t size = leaves(clauses) * others.size() + leaves(others) * clauses.size();
    if (size > 4 * kMixed)
      return false;
    Clauses out;
    for (const Clause &a : clauses)
      for (const Clause &b : others) {
        out.push_back(a);
        out.back().insert(out.back().end(), b.begin(), b.end());
      }
    clauses = std::move(out);
    return true;
  }

  // Whether a <= b is known.
  bool below(u64 a, u64 b) {
    if (a == b)
      return true;
    ++compared_;
    return not_negative_.contains(mod_.sub(b, a));
  }

  void simplify(Clauses &clauses, bool linear) {
    const std::size_t count = leaves(clauses);
    const bool few = count <= 8 * kMixed, ordered = linear && count <= kOrder;
    const auto less = [&](u64 a, u64 b) { return ordered ? below(a, b) : a == b; };
    for (Clause &c : clauses) {
      std::sort(c.begin(), c.end());
      c.erase(std::unique(c.begin(), c.end()), c.end());
      if (ordered) // in a minimum, what is larger than another leaf does not count
        drop(c, [&](u64 x, u64 y) { return below(y, x); });
    }
    std::sort(clauses.begin(), clauses.end());
    clauses.erase(std::unique(clauses.begin(), clauses.end()), clauses.end());
    const bool simple = leaves(clauses) == clauses.size();
    if (few && (ordered || !simple)) // in a maximum, what is smaller than another clause does not count
      drop(clauses, [&](const Clause &x, const Clause &y) {
        return std::all_of(y.begin(), y.end(), [&](u64 b) {
          return std::any_of(x.begin(), x.end(), [&](u64 a) { return less(a, b); });
        });
      });
  }

  // Removes what `loses` to another that is kept; of two that lose to each other, the first stays.
  template <class Items, class Loses> static void drop(Items &items, Loses loses) {
    for (std::size_t i = items.size(); i-- > 0;)
      for (std::size_t j = 0; j < items.size(); ++j)
        if (i != j && loses(items[i], items[j])) {
          items.erase(items.begin() + static_cast<std::ptrdiff_t>(i));
          break;
        }
  }

  // The value of a form, and whether it is another one than the mean of its leaves.
  std::pair<u64, bool> named(const Form &form) {
    if (!form.linear)
      return {residue(mod_, digest(form.clauses, 1, 0), 0), true};
    Clause all;
    for (const Clause &c : form.clauses)
      all.insert(all.end(), c.begin(), c.end());
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    u64 mean = 0;
    for (const u64 x : all)
      mean = mod_.add(mean, x);
    mean = mod_.mul(mean, inverse(all.size()));
    Clauses centred = form.clauses;
    for (Clause &c : centred)
      for (u64 &x : c)
        x = mod_.sub(x, mean);
    const u64 rest = around(centred);
    return {mod_.add(mean, rest), rest != 0};
  }

  // What a form is worth whose leaves have the mean 0.
  u64 around(const Clauses &clauses) {
    Clauses opposite{{}}; // its negative: maxima become minima; empty where that is too large
    for (const Clause &c : clauses) {
      Clauses singles;
      for (const u64 x : c)
        singles.push_back({x});
      if (singles.size() == 1) {
        for (Clause &o : opposite)
          o.push_back(c[0]);
      } else if (clauses.size() == 1) {
        opposite = std::move(singles);
      } else if (!cross(opposite, singles)) {
        opposite.clear();
        break;
      }
    }
    if (!opposite.empty()) {
      for (Clause &c : opposite)
        for (u64 &x : c)
          x = mod_.neg(x);
      simplify(opposite, true);
    }
    const auto [name, turned, self] = oriented(clauses, opposite, 1);
    if (self) // equals its own negative
      return 0;
    auto atom = atoms_.find(name);
    if (atom == atoms_.end()) {
      u64 value = residue(mod_, name, 1);
      for (const u64 scale : scales_) {
        ++compared_;
        const auto [scaled, other, none] = oriented(clauses, opposite, scale);
        if (const auto known = atoms_.find(scaled); known != atoms_.end()) {
          value = mod_.mul(known->second, mod_.inverse(scale));
          value = other == turned ? value : mod_.neg(value);
          break;
        }
      }
      atom = atoms_.emplace(name, value).first;
    }
    return turned ? mod_.neg(atom->second) : atom->second;
  }

  struct Oriented {
    u64 name;
    bool turned, self;
  };
  // The name that a form and its opposite share, times `factor`; `turned`: it is that of the opposite.
  Oriented oriented(const Clauses &clauses, const Clauses &opposite, u64 factor) const {
    const u64 mine = digest(clauses, factor, 1);
    if (opposite.empty())
      return {mine, false, false};
    const u64 other = digest(opposite, factor, 1);
    return {std::min(mine, other), other < mine, other == mine};
  }

  // Does not depend on the order of clauses and leaves.
  u64 digest(const Clauses &clauses, u64 factor, u64 purpose) const {
    u64 total = purpose;
    for (const Clause &c : clauses) {
      u64 sum = 0;
      for (const u64 x : c)
        sum += hash(key_, factor == 1 ? x : mod_.mul(x, factor));
      total += hash(key_ + 1, sum);
    }
    return hash(key_ + 2, total);
  }

  u64 inverse(std::size_t n) {
    if (const auto known = inverses_.find(n); known != inverses_.end())
      return known->second;
    return inverses_[n] = mod_.inverse(n);
  }

  Modulus mod_;
  u64 key_, infinity_;
  std::size_t limit_, stored_ = 0, most_ = 1, compared_ = 0;
  std::unordered_set<u64> not_negative_;
  std::vector<u64> scales_;
  std::unordered_map<u64, Form> forms_; // by value
  std::unordered_map<u64, u64> atoms_;  // by name
  std::unordered_map<std::size_t, u64> inverses_;
};

} // namespace superopt::field
