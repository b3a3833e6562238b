// Formal exponentials: quotients of two sums f_1 [h_1] + ... + f_k [h_k], f in F_p, h in F_q.
//
// [h] stands for exp(h): [a][b] = [a + b], and distinct h are linearly independent. Keeping them formal
// instead of mapping [h] to w^h (Mirage, section 5.2) makes one random test conclusive: see
// superopt/verify/certifier.py for the bound. Elements are interned; a program's arrays hold their numbers,
// so moving data does not involve this pool.
//
// Denominators are powers of sums that are never multiplied out, and sums are taken over the least common
// one: of c_1 / S_1^2 + c_2 / S_2^2, where each S has n terms, S_1^2 S_2^2 would have n^4 / 4, the numerator
// has n^2.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "field/modular.hpp"
#include "field/random.hpp"

namespace superopt::field {

struct Term {
  u64 h, f;
  bool operator==(const Term &) const = default;
};
using Sum = std::vector<Term>; // sorted by h, no zero coefficients

struct Power {
  std::size_t factor, count;
  bool operator==(const Power &) const = default;
};
using Denominator = std::vector<Power>; // sorted by factor, no zero counts

struct DivisionByZero {};

class FormalPool {
public:
  // `cap` bounds the terms of a sum; an element that would exceed it becomes its image under the root `w`.
  // Once more than `work` terms are written in all, std::length_error is thrown.
  FormalPool(u64 p, u64 q, u64 root, std::size_t cap, std::size_t work)
      : p_(p), q_(q), powers_(p_, root), cap_(cap), work_(work) {
    constant(0);
  }

  u64 constant(u64 f) { return intern(f == 0 ? Sum{} : Sum{{0, f}}, {}); }
  u64 exponential(u64 h) { return intern({{h, 1}}, {}); }

  u64 add(u64 a, u64 b) {
    return memo(0, a, b, [&] { return combine(a, b, false); });
  }
  u64 sub(u64 a, u64 b) {
    return memo(1, a, b, [&] { return combine(a, b, true); });
  }
  u64 mul(u64 a, u64 b) {
    return memo(2, a, b, [&] {
      const Element &x = elements_[a], &y = elements_[b];
      return quotient(product(x.num, y.num), both(x.den, y.den), [&] { return p_.mul(image(a), image(b)); });
    });
  }
  u64 div(u64 a, u64 b) {
    if (elements_[b].num.empty())
      throw DivisionByZero{};
    return memo(3, a, b, [&] {
      const Element &x = elements_[a], &y = elements_[b];
      Sum num = product(x.num, expanded(without(y.den, x.den)));
      Denominator den = without(x.den, y.den);
      // A single term is a unit of the ring: the first one of a sum is divided by, what is left has one form.
      const Term first = y.num[0];
      if (!over_)
        num = scaled(num, q_.neg(first.h), p_.inverse(first.f));
      if (y.num.size() > 1)
        den = both(den, {{factor(scaled(y.num, q_.neg(first.h), p_.inverse(first.f))), 1}});
      return quotient(std::move(num), std::move(den), [&] { return ratio(image(a), image(b)); });
    });
  }

  // Sum of n elements: merges numerators over one denominator at once.
  u64 sum(const u64 *ids, std::size_t n) {
    std::vector<Group> groups;
    for (std::size_t i = 0; i < n; ++i) {
      const Element &x = elements_[ids[i]];
      append(group(groups, x.den), x.num, 0, 1);
    }
    return join(groups, [&] {
      u64 total = 0;
      for (std::size_t i = 0; i < n; ++i)
        total = p_.add(total, image(ids[i]));
      return total;
    });
  }

  // Inner product of n elements with strides.
  u64 dot(const u64 *a, std::ptrdiff_t da, const u64 *b, std::ptrdiff_t db, std::ptrdiff_t n) {
    std::vector<Group> groups;
    for (std::ptrdiff_t i = 0; i < n; ++i) {
      const Element &x = elements_[a[i * da]], &y = elements_[b[i * db]];
      Sum &target = group(groups, both(x.den, y.den));
      const bool swap = x.num.size() > y.num.size();
      const Sum &few = swap ? y.num : x.num, &many = swap ? x.num : y.num;
      for (const Term &t : few)
        append(target, many, t.h, t.f);
      if (target.size() > 4 * cap_)
        normalize(target);
    }
    return join(groups, [&] {
      u64 total = 0;
      for (std::ptrdiff_t i = 0; i < n; ++i)
        total = p_.add(total, p_.mul(image(a[i * da]), image(b[i * db])));
      return total;
    });
  }

  // By the numerators over the least common denominator.
  bool equal(u64 a, u64 b) {
    if (a == b)
      return true;
    const Element &x = elements_[a], &y = elements_[b];
    const Sum left = over(x.num, without(y.den, x.den)), right = over(y.num, without(x.den, y.den));
    widest_ = std::max(widest_, left.size() + right.size());
    return left == right;
  }

  // The value with [h] = root^h.
  u64 image(u64 id) {
    const Element &x = elements_[id];
    const u64 top = evaluate(x.num);
    u64 bottom = 1;
    for (const Power &power : x.den)
      for (std::size_t i = 0; i < power.count; ++i)
        bottom = p_.mul(bottom, factors_[power.factor].image);
    return x.den.empty() ? top : ratio(top, bottom);
  }

  // A residue for each class of equal elements, their image if it is free: arguments of opaque functions are
  // told apart by it. Images alone would not do, since elements that differ may have the same one. After a
  // fallback elements are images, and so are labels.
  u64 label(u64 id) {
    const u64 value = image(id);
    if (fallbacks_ > 0)
      return value;
    std::vector<u64> &classes = classes_[value];
    std::size_t k = 0;
    while (k < classes.size() && !equal(classes[k], id))
      ++k;
    if (k == classes.size())
      classes.push_back(id);
    const u64 found = k == 0 ? value : residue(p_, hash(value, k), k);
    labelled_.emplace(found, classes[k]);
    return found;
  }

  // An element with this label; the constant where no element has it.
  u64 labelled(u64 value) {
    const auto known = labelled_.find(value);
    return known == labelled_.end() ? constant(value) : known->second;
  }

  // Whether an element is a residue: without exponentials.
  bool plain(u64 id) const {
    const Element &x = elements_[id];
    return x.den.empty() && (x.num.empty() || (x.num.size() == 1 && x.num[0].h == 0));
  }

  std::size_t size() const { return elements_.size(); }
  std::size_t widest() const { return widest_; }       // most terms of any sum so far
  std::size_t fallbacks() const { return fallbacks_; } // elements replaced by their image
  std::size_t work() const { return work_; }           // terms that may still be written

private:
  struct Element {
    Sum num;
    Denominator den;
  };
  struct Group {
    Denominator den;
    Sum num;
  };
  struct Factor {
    Sum sum;
    u64 image;
  };
  struct Key {
    u64 op, a, b;
    bool operator==(const Key &) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key &k) const { return hash(k.a * 4 + k.op, k.b); }
  };

  static Sum one() { return {{0, 1}}; }
  static bool is_one(const Sum &s) { return s.size() == 1 && s[0].h == 0 && s[0].f == 1; }

  template <class Compute> u64 memo(u64 op, u64 a, u64 b, Compute compute) {
    if (op == 0 || op == 2) { // commutative
      if (a > b)
        std::swap(a, b);
    }
    if (const auto known = memo_.find({op, a, b}); known != memo_.end())
      return known->second;
    const u64 id = compute();
    memo_.emplace(Key{op, a, b}, id);
    return id;
  }

  void append(Sum &target, const Sum &source, u64 shift, u64 scale) {
    if (source.size() > work_)
      throw std::length_error("too many terms");
    work_ -= source.size();
    for (const Term &t : source)
      target.push_back({q_.add(t.h, shift), scale == 1 ? t.f : p_.mul(t.f, scale)});
  }

  void normalize(Sum &s) const {
    std::sort(s.begin(), s.end(), [](const Term &x, const Term &y) { return x.h < y.h; });
    std::size_t out = 0;
    for (std::size_t i = 0; i < s.size();) {
      Term t = s[i++];
      while (i < s.size() && s[i].h == t.h)
        t.f = p_.add(t.f, s[i++].f);
      if (t.f != 0)
        s[out++] = t;
    }
    s.resize(out);
  }

  // The product, or an empty sum with `over_` set where it takes more work than the cap justifies.
  Sum product(const Sum &x, const Sum &y) {
    if (x.size() * y.size() > kMostWork) {
      over_ = true;
      return {};
    }
    return multiply(x, y);
  }

  Sum multiply(const Sum &x, const Sum &y) {
    if (is_one(x))
      return y;
    if (is_one(y))
      return x;
    Sum out;
    out.reserve(x.size() * y.size());
    for (const Term &t : x)
      append(out, y, t.h, t.f);
    normalize(out);
    return out;
  }

  Sum scaled(const Sum &x, u64 shift, u64 scale) const {
    Sum out;
    out.reserve(x.size());
    for (const Term &t : x)
      out.push_back({q_.add(t.h, shift), p_.mul(t.f, scale)});
    std::sort(out.begin(), out.end(), [](const Term &a, const Term &b) { return a.h < b.h; });
    return out;
  }

  // The number of a sum whose first term was 1 [0]: equal sums have one number.
  std::size_t factor(Sum sum) {
    const u64 digest = digest_of(sum);
    auto [begin, end] = factors_by_digest_.equal_range(digest);
    for (; begin != end; ++begin)
      if (factors_[begin->second].sum == sum)
        return begin->second;
    widest_ = std::max(widest_, sum.size());
    const u64 image = evaluate(sum);
    factors_.push_back({std::move(sum), image});
    factors_by_digest_.emplace(digest, factors_.size() - 1);
    return factors_.size() - 1;
  }

  // The powers of x and y by `count` of both counts.
  template <class Count> static Denominator merged(const Denominator &x, const Denominator &y, Count count) {
    Denominator out;
    auto i = x.begin(), j = y.begin();
    while (i != x.end() || j != y.end()) {
      const bool left = j == y.end() || (i != x.end() && i->factor <= j->factor);
      const bool right = i == x.end() || (j != y.end() && j->factor <= i->factor);
      const std::size_t which = left ? i->factor : j->factor;
      const std::size_t n = count(left ? i->count : 0, right ? j->count : 0);
      if (n > 0)
        out.push_back({which, n});
      i += left;
      j += right;
    }
    return out;
  }

  static Denominator both(const Denominator &x, const Denominator &y) {
    return merged(x, y, [](std::size_t a, std::size_t b) { return a + b; });
  }
  static Denominator without(const Denominator &x, const Denominator &y) {
    return merged(x, y, [](std::size_t a, std::size_t b) { return a > b ? a - b : 0; });
  }
  static Denominator least_common(const Denominator &x, const Denominator &y) {
    return merged(x, y, [](std::size_t a, std::size_t b) { return std::max(a, b); });
  }

  Sum expanded(const Denominator &den) {
    Sum out = one();
    for (const Power &power : den)
      for (std::size_t i = 0; i < power.count && !over_; ++i)
        out = product(out, factors_[power.factor].sum);
    return out;
  }

  // A numerator over a denominator that has `more`, whatever work that takes.
  Sum over(const Sum &num, const Denominator &more) {
    Sum out = num;
    for (const Power &power : more)
      for (std::size_t i = 0; i < power.count; ++i)
        out = multiply(out, factors_[power.factor].sum);
    return out;
  }

  Sum &group(std::vector<Group> &groups, const Denominator &den) const {
    for (Group &g : groups)
      if (g.den == den)
        return g.num;
    groups.push_back({den, {}});
    return groups.back().num;
  }

  u64 combine(u64 a, u64 b, bool subtract) {
    const Element &x = elements_[a], &y = elements_[b];
    std::vector<Group> groups;
    append(group(groups, x.den), x.num, 0, 1);
    append(group(groups, y.den), y.num, 0, subtract ? p_.neg(1) : 1);
    return join(groups, [&] { return subtract ? p_.sub(image(a), image(b)) : p_.add(image(a), image(b)); });
  }

  template <class Image> u64 join(std::vector<Group> &groups, Image fallback) {
    Sum num;
    Denominator den;
    for (Group &g : groups) {
      if (over_)
        break;
      normalize(g.num);
      if (g.num.empty())
        continue;
      num = product(num, expanded(without(g.den, den)));
      append(num, product(g.num, expanded(without(den, g.den))), 0, 1);
      normalize(num);
      den = least_common(den, g.den);
      over_ = over_ || num.size() > cap_;
    }
    return quotient(std::move(num), std::move(den), fallback);
  }

  template <class Image> u64 quotient(Sum num, Denominator den, Image fallback) {
    if (over_ || num.size() > cap_) {
      over_ = false;
      ++fallbacks_;
      return constant(fallback());
    }
    return num.empty() ? 0 : intern(std::move(num), std::move(den));
  }

  static u64 digest_of(const Sum &sum) {
    u64 digest = sum.size();
    for (const Term &t : sum)
      digest = hash(hash(digest, t.h), t.f);
    return digest;
  }

  u64 intern(Sum num, Denominator den) {
    widest_ = std::max(widest_, num.size());
    u64 digest = digest_of(num);
    for (const Power &power : den)
      digest = hash(hash(digest, power.factor), power.count);
    auto [begin, end] = index_.equal_range(digest);
    for (; begin != end; ++begin)
      if (elements_[begin->second].num == num && elements_[begin->second].den == den)
        return begin->second;
    const u64 id = elements_.size();
    elements_.push_back({std::move(num), std::move(den)});
    index_.emplace(digest, id);
    return id;
  }

  u64 ratio(u64 a, u64 b) const {
    if (b == 0)
      throw DivisionByZero{};
    return p_.mul(a, p_.inverse(b));
  }

  u64 evaluate(const Sum &s) const {
    u64 total = 0;
    for (const Term &t : s)
      total = p_.add(total, t.h == 0 ? t.f : p_.mul(t.f, powers_(t.h)));
    return total;
  }

  static constexpr std::size_t kMostWork = 1 << 20;

  Modulus p_, q_;
  Powers powers_;
  std::size_t cap_, work_, widest_ = 0, fallbacks_ = 0;
  bool over_ = false;
  std::vector<Element> elements_;
  std::unordered_multimap<u64, u64> index_;
  std::vector<Factor> factors_;
  std::unordered_multimap<u64, std::size_t> factors_by_digest_;
  std::unordered_map<Key, u64, KeyHash> memo_;
  std::unordered_map<u64, std::vector<u64>> classes_; // by image
  std::unordered_map<u64, u64> labelled_;
};

} // namespace superopt::field
