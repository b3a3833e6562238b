// Formal exponentials: quotients of two sums f_1 [h_1] + ... + f_k [h_k], f in F_p, h in F_q.
//
// [h] stands for exp(h): [a][b] = [a + b], and distinct h are linearly independent. Keeping them formal
// instead of mapping [h] to w^h (Mirage, section 5.2) makes one random test conclusive: see
// superopt/verify/certifier.py for the bound. Elements are interned; a program's arrays hold their numbers,
// so moving data does not involve this pool.
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

struct DivisionByZero {};

class FormalPool {
public:
  // `cap` bounds the terms of a sum; an element that would exceed it becomes its image under the root `w`.
  // Once more than `work` terms are written in all, std::length_error is thrown.
  FormalPool(u64 p, u64 q, u64 root, std::size_t cap, std::size_t work)
      : p_(p), q_(q), powers_(p_, root), cap_(cap), work_(work) {
    constant(0);
  }

  u64 constant(u64 f) { return intern(f == 0 ? Sum{} : Sum{{0, f}}, one()); }
  u64 exponential(u64 h) { return intern({{h, 1}}, one()); }

  u64 add(u64 a, u64 b) {
    return memo(0, a, b, [&] { return combine(a, b, false); });
  }
  u64 sub(u64 a, u64 b) {
    return memo(1, a, b, [&] { return combine(a, b, true); });
  }
  u64 mul(u64 a, u64 b) {
    return memo(2, a, b, [&] {
      const Element &x = elements_[a], &y = elements_[b];
      return quotient(product(x.num, y.num), product(x.den, y.den),
                      [&] { return p_.mul(image(a), image(b)); });
    });
  }
  u64 div(u64 a, u64 b) {
    if (elements_[b].num.empty())
      throw DivisionByZero{};
    return memo(3, a, b, [&] {
      const Element &x = elements_[a], &y = elements_[b];
      return quotient(product(x.num, y.den), product(x.den, y.num),
                      [&] { return ratio(image(a), image(b)); });
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
      Sum &target = group(groups, product(x.den, y.den));
      if (over_)
        break;
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

  // By cross multiplication.
  bool equal(u64 a, u64 b) {
    if (a == b)
      return true;
    const Element &x = elements_[a], &y = elements_[b];
    const Sum left = multiply(x.num, y.den), right = multiply(y.num, x.den);
    widest_ = std::max(widest_, left.size() + right.size());
    return left == right;
  }

  // The value with [h] = root^h.
  u64 image(u64 id) {
    const Element &x = elements_[id];
    const u64 bottom = evaluate(x.den);
    if (bottom == 0)
      throw DivisionByZero{};
    const u64 top = evaluate(x.num);
    return is_one(x.den) ? top : p_.mul(top, p_.inverse(bottom));
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
    return is_one(x.den) && (x.num.empty() || (x.num.size() == 1 && x.num[0].h == 0));
  }

  std::size_t size() const { return elements_.size(); }
  std::size_t widest() const { return widest_; }       // most terms of any sum so far
  std::size_t fallbacks() const { return fallbacks_; } // elements replaced by their image
  std::size_t work() const { return work_; }           // terms that may still be written

private:
  struct Element {
    Sum num, den;
  };
  struct Group {
    Sum den, num;
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

  Sum &group(std::vector<Group> &groups, const Sum &den) const {
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
    Sum num, den = one();
    for (Group &g : groups) {
      if (over_)
        break;
      normalize(g.num);
      if (g.num.empty())
        continue;
      num = product(num, g.den);
      append(num, product(g.num, den), 0, 1);
      normalize(num);
      den = product(den, g.den);
      over_ = over_ || num.size() > cap_ || den.size() > cap_;
    }
    return quotient(std::move(num), std::move(den), fallback);
  }

  template <class Image> u64 quotient(Sum num, Sum den, Image fallback) {
    if (over_ || num.size() > cap_ || den.size() > cap_) {
      over_ = false;
      ++fallbacks_;
      return constant(fallback());
    }
    if (num.empty())
      return 0;
    // A single term is a unit of the ring: dividing both sums by the denominator's first term removes
    // denominators of one term, and keeps numerators over one denominator together.
    const u64 shift = q_.neg(den[0].h), scale = p_.inverse(den[0].f);
    if (shift != 0 || scale != 1) {
      for (Sum *s : {&num, &den}) {
        for (Term &t : *s)
          t = {q_.add(t.h, shift), p_.mul(t.f, scale)};
        std::sort(s->begin(), s->end(), [](const Term &x, const Term &y) { return x.h < y.h; });
      }
    }
    return intern(std::move(num), std::move(den));
  }

  u64 intern(Sum num, Sum den) {
    widest_ = std::max({widest_, num.size(), den.size()});
    u64 digest = num.size();
    for (const Sum *s : {&num, &den})
      for (const Term &t : *s)
        digest = hash(hash(digest, t.h), t.f);
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
  std::unordered_map<Key, u64, KeyHash> memo_;
  std::unordered_map<u64, std::vector<u64>> classes_; // by image
  std::unordered_map<u64, u64> labelled_;
};

} // namespace superopt::field
