#include "search/expression.hpp"

#include <algorithm>

namespace superopt::search {
namespace {

std::uint64_t pair_key(std::uint32_t a, std::uint32_t b) { return (std::uint64_t{a} << 32) | b; }

void push_mask(Key &key, Mask mask) {
  key.push_back(static_cast<std::uint32_t>(mask));
  key.push_back(static_cast<std::uint32_t>(mask >> 32));
}

template <typename T> std::vector<T> merged(const std::vector<T> &a, const std::vector<T> &b) {
  std::vector<T> out(a.size() + b.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), out.begin());
  return out;
}

// a \ b as multisets, where b is contained in a.
template <typename T> std::optional<std::vector<T>> minus(const std::vector<T> &a, const std::vector<T> &b) {
  if (!std::includes(a.begin(), a.end(), b.begin(), b.end()))
    return std::nullopt;
  std::vector<T> out;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

} // namespace

Expressions::Expressions() {
  forms_.emplace_back(); // a placeholder, so that the empty monomial may name `unit` as its denominator
  monomials_.emplace_back();
  monomial_ids_[Key{0, unit}] = 0;
  forms_[unit].monomials = {0};
  form_ids_[Key{0}] = unit;
}

AtomId Expressions::intern_atom(Atom atom) {
  Key key{static_cast<std::uint32_t>(atom.kind), atom.symbol};
  push_mask(key, atom.reduced);
  key.insert(key.end(), atom.args.begin(), atom.args.end());
  auto [it, fresh] = atom_ids_.try_emplace(std::move(key), static_cast<AtomId>(atoms_.size()));
  if (fresh)
    atoms_.push_back(std::move(atom));
  return it->second;
}

MonomialId Expressions::intern_monomial(std::vector<std::uint8_t> sums, std::vector<AtomId> atoms,
                                        FormId denominator) {
  Key key{static_cast<std::uint32_t>(sums.size()), denominator};
  key.insert(key.end(), sums.begin(), sums.end());
  key.insert(key.end(), atoms.begin(), atoms.end());
  auto [it, fresh] = monomial_ids_.try_emplace(std::move(key), static_cast<MonomialId>(monomials_.size()));
  if (!fresh)
    return it->second;
  Monomial m{std::move(sums), std::move(atoms), denominator, 0, 0, 0, 0, 0};
  for (AtomId id : m.atoms) {
    m.least |= atoms_[id].least;
    m.most |= atoms_[id].most;
    m.weight += atoms_[id].weight;
    m.marks |= std::uint64_t{1} << (id & 63);
  }
  m.least |= forms_[denominator].least;
  m.most |= forms_[denominator].most;
  m.weight += forms_[denominator].weight + static_cast<std::uint32_t>(m.sums.size());
  for (std::uint8_t factor : m.sums)
    m.summed |= Mask{1} << factor;
  m.least &= ~m.summed;
  monomials_.push_back(std::move(m));
  return it->second;
}

FormId Expressions::intern_form(std::vector<MonomialId> monomials) {
  std::sort(monomials.begin(), monomials.end());
  auto [it, fresh] =
      form_ids_.try_emplace(Key(monomials.begin(), monomials.end()), static_cast<FormId>(forms_.size()));
  if (!fresh)
    return it->second;
  Form f{std::move(monomials), 0, 0, 0};
  for (MonomialId id : f.monomials) {
    f.least |= monomials_[id].least;
    f.most |= monomials_[id].most;
    f.weight += monomials_[id].weight;
  }
  forms_.push_back(std::move(f));
  return it->second;
}

FormId Expressions::of_atom(AtomId atom) { return intern_form({intern_monomial({}, {atom}, unit)}); }

FormId Expressions::input(std::uint32_t symbol, Mask mask) {
  Atom atom{Atom::Kind::Input, symbol, 0, {}, mask, mask, 1};
  return of_atom(intern_atom(std::move(atom)));
}

FormId Expressions::constant(std::uint32_t symbol) {
  return of_atom(intern_atom({Atom::Kind::Constant, symbol, 0, {}, 0, 0, 1}));
}

FormId Expressions::apply(std::uint32_t function, const std::vector<FormId> &args, Mask reduced) {
  Atom atom{Atom::Kind::Apply, function, reduced, args, 0, 0, 1};
  for (FormId arg : args)
    if (arg == too_large)
      return too_large;
  // A reduction of a reduction of the same kind reduces both sets at once.
  if (reduced != 0 && forms_[args[0]].monomials.size() == 1) {
    const Monomial &only = monomials_[forms_[args[0]].monomials[0]];
    if (only.sums.empty() && only.denominator == unit && only.atoms.size() == 1) {
      const Atom &inner = atoms_[only.atoms[0]];
      if (inner.kind == Atom::Kind::Apply && inner.symbol == function && inner.reduced != 0) {
        atom.reduced |= inner.reduced;
        atom.args = inner.args;
      }
    }
  }
  for (FormId arg : atom.args) {
    atom.least |= forms_[arg].least;
    atom.most |= forms_[arg].most;
    atom.weight += forms_[arg].weight;
  }
  for (Mask rest = atom.reduced; rest; rest &= rest - 1)
    ++atom.weight;
  atom.least &= ~atom.reduced;
  atom.most &= ~atom.reduced;
  return of_atom(intern_atom(std::move(atom)));
}

FormId Expressions::with_reduced(const Atom &atom, Mask reduced) {
  const std::vector<FormId> args = atom.args; // `apply` may move the atoms
  return apply(atom.symbol, args, reduced);
}

FormId Expressions::add(FormId a, FormId b) {
  if (a == too_large || b == too_large)
    return too_large;
  std::vector<MonomialId> all = merged(forms_[a].monomials, forms_[b].monomials);
  return all.size() > max_monomials ? too_large : intern_form(std::move(all));
}

std::optional<MonomialId> Expressions::multiply(MonomialId a, MonomialId b) {
  const FormId denominator = mul(monomials_[a].denominator, monomials_[b].denominator);
  if (denominator == too_large)
    return std::nullopt;
  const Monomial &x = monomials_[a], &y = monomials_[b];
  return intern_monomial(merged(x.sums, y.sums), merged(x.atoms, y.atoms), denominator);
}

FormId Expressions::mul(FormId a, FormId b) {
  if (a == too_large || b == too_large)
    return too_large;
  if (a == unit)
    return b;
  if (b == unit)
    return a;
  if (a > b)
    std::swap(a, b);
  if (auto it = products_.find(pair_key(a, b)); it != products_.end())
    return it->second;
  const std::vector<MonomialId> xs = forms_[a].monomials, ys = forms_[b].monomials;
  FormId result = too_large;
  if (xs.size() * ys.size() <= max_monomials) {
    std::vector<MonomialId> out;
    bool fits = true;
    for (MonomialId x : xs)
      for (MonomialId y : ys) {
        const auto product = multiply(x, y);
        if (product)
          out.push_back(*product);
        else
          fits = false;
      }
    if (fits)
      result = intern_form(std::move(out));
  }
  products_[pair_key(a, b)] = result;
  return result;
}

FormId Expressions::div(FormId a, FormId b) {
  if (a == too_large || b == too_large)
    return too_large;
  if (auto it = quotients_.find(pair_key(a, b)); it != quotients_.end())
    return it->second;
  const std::vector<MonomialId> xs = forms_[a].monomials;
  std::vector<MonomialId> out;
  FormId result = 0;
  for (MonomialId x : xs) {
    const FormId denominator = mul(monomials_[x].denominator, b);
    if (denominator == too_large)
      result = too_large;
    else
      out.push_back(intern_monomial(monomials_[x].sums, monomials_[x].atoms, denominator));
  }
  if (result != too_large)
    result = intern_form(std::move(out));
  quotients_[pair_key(a, b)] = result;
  return result;
}

FormId Expressions::sum(Mask factors, FormId a) {
  if (a == too_large)
    return too_large;
  std::vector<std::uint8_t> more;
  for (std::uint8_t i = 0; i < 64; ++i)
    if (factors >> i & 1)
      more.push_back(i);
  const std::vector<MonomialId> xs = forms_[a].monomials;
  std::vector<MonomialId> out;
  for (MonomialId x : xs)
    out.push_back(
        intern_monomial(merged(monomials_[x].sums, more), monomials_[x].atoms, monomials_[x].denominator));
  return intern_form(std::move(out));
}

std::optional<MonomialId> Expressions::quotient(MonomialId t, MonomialId e) {
  if ((monomials_[e].marks & ~monomials_[t].marks) || (monomials_[e].summed & ~monomials_[t].summed))
    return std::nullopt;
  auto sums = minus(monomials_[t].sums, monomials_[e].sums);
  if (!sums)
    return std::nullopt;
  auto atoms = minus(monomials_[t].atoms, monomials_[e].atoms);
  if (!atoms)
    return std::nullopt;
  const auto denominator = divide(monomials_[t].denominator, monomials_[e].denominator);
  if (!denominator)
    return std::nullopt;
  return intern_monomial(std::move(*sums), std::move(*atoms), *denominator);
}

std::optional<FormId> Expressions::divide(FormId t, FormId e) {
  if (t == e)
    return unit;
  if (e == unit)
    return t;
  if (t == unit)
    return std::nullopt;
  if (auto it = divisions_.find(pair_key(t, e)); it != divisions_.end())
    return it->second;
  std::optional<FormId> result;
  if (forms_[t].monomials.size() % forms_[e].monomials.size() == 0) {
    std::vector<MonomialId> out;
    if (divide_rest(forms_[t].monomials, e, out))
      result = intern_form(std::move(out));
  }
  divisions_[pair_key(t, e)] = result;
  return result;
}

// Long division with backtracking: the first remaining monomial is a product of some monomial of `e`.
bool Expressions::divide_rest(std::vector<MonomialId> rest, FormId e, std::vector<MonomialId> &out) {
  if (rest.empty())
    return true;
  const std::vector<MonomialId> divisors = forms_[e].monomials;
  for (MonomialId divisor : divisors) {
    const auto r = quotient(rest[0], divisor);
    if (!r || monomials_[*r].atoms.empty())
      continue;
    const FormId product = scale(e, *r);
    if (product == too_large)
      continue;
    auto left = minus(rest, forms_[product].monomials);
    if (!left)
      continue;
    out.push_back(*r);
    if (divide_rest(std::move(*left), e, out))
      return true;
    out.pop_back();
  }
  return false;
}

FormId Expressions::scale(FormId e, MonomialId r) { return mul(e, intern_form({r})); }

bool Expressions::contains(FormId whole, FormId part) const {
  const auto &a = forms_[whole].monomials, &b = forms_[part].monomials;
  return std::includes(a.begin(), a.end(), b.begin(), b.end());
}

} // namespace superopt::search
