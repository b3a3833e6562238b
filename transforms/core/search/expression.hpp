// Abstract expressions in normal form, interned.
//
// Mirage's axioms (OSDI'25, Table 2, A_eq) have a normal form: a multiset of monomials
// `[sums] * atoms / denominator`. Atoms are inputs, constants and uninterpreted functions of normal forms;
// `sums` collects the factors that were summed over and commutes with everything; `add` is multiset union,
// `mul` distributes, denominators of quotients of quotients multiply. Two expressions are equal under A_eq
// exactly when they are the same FormId.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace superopt::search {

// A set of factors (of axes); factor i is bit i.
using Mask = std::uint64_t;
using AtomId = std::uint32_t;
using MonomialId = std::uint32_t;
using FormId = std::uint32_t;
using Key = std::vector<std::uint32_t>;

struct KeyHash {
  std::size_t operator()(const Key &key) const {
    std::uint64_t h = 0x9e3779b97f4a7c15ull ^ key.size();
    for (std::uint32_t word : key) {
      h = (h ^ word) * 0xff51afd7ed558ccdull;
      h ^= h >> 32;
    }
    return static_cast<std::size_t>(h);
  }
};

struct Atom {
  enum class Kind : std::uint32_t { Input, Constant, Apply };
  Kind kind = Kind::Input;
  std::uint32_t symbol = 0; // which input, constant or function
  Mask reduced = 0;         // of a reduction other than a sum (max, min): the factors it ranges over
  std::vector<FormId> args; // of a function
  Mask least = 0, most = 0; // bounds of the free factors of any value with this expression
  std::uint32_t weight = 1;
};

struct Monomial {
  std::vector<std::uint8_t> sums; // sorted factors, with repetition
  std::vector<AtomId> atoms;      // sorted, with repetition
  FormId denominator = 0;         // `Expressions::unit` by default
  Mask least = 0, most = 0, summed = 0;
  std::uint32_t weight = 0;
  std::uint64_t marks = 0; // one bit per atom: the bits of a factor are among those of the product
};

struct Form {
  std::vector<MonomialId> monomials; // sorted, with repetition
  Mask least = 0, most = 0;
  std::uint32_t weight = 0;
};

class Expressions {
public:
  static constexpr FormId unit = 0;                // the empty product
  static constexpr FormId too_large = 0xffffffffu; // the result does not fit: not an expression
  static constexpr std::size_t max_monomials = 512;

  Expressions();

  FormId input(std::uint32_t symbol, Mask mask);
  FormId constant(std::uint32_t symbol);
  FormId apply(std::uint32_t function, const std::vector<FormId> &args, Mask reduced = 0);
  FormId add(FormId a, FormId b);
  FormId mul(FormId a, FormId b);
  FormId div(FormId a, FormId b);
  FormId sum(Mask factors, FormId a);

  // t / e where it is a monomial: the r with e * r == t.
  std::optional<MonomialId> quotient(MonomialId t, MonomialId e);
  // An expressible r (its monomials have atoms) with e * r == t, or `unit` where t == e.
  std::optional<FormId> divide(FormId t, FormId e);
  // e * r as a form.
  FormId scale(FormId e, MonomialId r);
  bool contains(FormId whole, FormId part) const; // multiset inclusion

  const Atom &atom(AtomId id) const { return atoms_[id]; }
  const Monomial &monomial(MonomialId id) const { return monomials_[id]; }
  const Form &form(FormId id) const { return forms_[id]; }
  // The form that consists of one atom, with another reduced set (partial maxima).
  FormId with_reduced(const Atom &atom, Mask reduced);

private:
  AtomId intern_atom(Atom atom);
  MonomialId intern_monomial(std::vector<std::uint8_t> sums, std::vector<AtomId> atoms, FormId denominator);
  FormId intern_form(std::vector<MonomialId> monomials);
  FormId of_atom(AtomId atom);
  std::optional<MonomialId> multiply(MonomialId a, MonomialId b);
  bool divide_rest(std::vector<MonomialId> rest, FormId e, std::vector<MonomialId> &out);

  std::vector<Atom> atoms_;
  std::vector<Monomial> monomials_;
  std::vector<Form> forms_;
  std::unordered_map<Key, std::uint32_t, KeyHash> atom_ids_, monomial_ids_, form_ids_;
  std::unordered_map<std::uint64_t, FormId> products_, quotients_;
  std::unordered_map<std::uint64_t, std::optional<FormId>> divisions_;
};

} // namespace superopt::search
