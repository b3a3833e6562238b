#include "search/subexpression.hpp"

#include <span>

namespace superopt::search {

void Targets::add(FormId form, Mask free) {
  if (form == Expressions::unit || !roots_.emplace(form, free).second)
    return;
  const std::vector<MonomialId> monomials = expressions_.form(form).monomials;
  for (MonomialId id : monomials) {
    const Monomial monomial = expressions_.monomial(id);
    const Mask allowed = free | monomial.summed;
    add(monomial.denominator, expressions_.form(monomial.denominator).most & allowed);
    for (AtomId atom_id : monomial.atoms) {
      const Atom atom = expressions_.atom(atom_id);
      for (FormId arg : atom.args)
        add(arg, expressions_.form(arg).most & (allowed | atom.reduced));
      // A maximum over some factors is part of the maximum over more.
      for (Mask part = (atom.reduced - 1) & atom.reduced; part; part = (part - 1) & atom.reduced) {
        const FormId partial = expressions_.with_reduced(atom, part);
        const Mask most = expressions_.form(partial).most;
        roots_.emplace(partial, most & (allowed | atom.reduced));
      }
    }
  }
}

bool Targets::reachable(FormId form, Mask free, bool axis_test) {
  ++queries;
  auto [it, fresh] = cache_.try_emplace({form, axis_test ? free : 0}, false);
  if (!fresh)
    return it->second;
  ++misses;
  for (const auto &[root, root_free] : roots_)
    if (matches(form, free, root, root_free, axis_test))
      return it->second = true;
  return false;
}

bool Targets::matches(FormId form, Mask free, FormId root, Mask root_free, bool axis_test) {
  const MonomialId first = expressions_.form(form).monomials[0];
  if (expressions_.form(form).monomials.size() > expressions_.form(root).monomials.size())
    return false;
  // Interning below moves forms, but not the monomials that they hold.
  const std::span<const MonomialId> candidates = expressions_.form(root).monomials;
  MonomialId previous = 0xffffffffu;
  for (MonomialId t : candidates) {
    if (t == previous)
      continue;
    previous = t;
    const auto r = expressions_.quotient(t, first);
    if (!r)
      continue;
    if (axis_test) {
      const Monomial &rest = expressions_.monomial(*r);
      const Mask allowed = root_free | rest.summed;
      // `least` leaves out what the monomial sums itself; the atoms of r must be bound by r or the root.
      if ((free & ~allowed) != 0 || (rest.least & ~allowed) != 0)
        continue;
    }
    const FormId product = expressions_.scale(form, *r);
    if (product != Expressions::too_large && expressions_.contains(root, product))
      return true;
  }
  return false;
}

} // namespace superopt::search
