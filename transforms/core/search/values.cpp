// Saturation: the program's values first, then everything that the operators derive from them and pruning
// keeps.
#include "search/values.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <numeric>

namespace superopt::search {
namespace {

std::uint64_t fingerprint(Mask mask, const std::vector<Element> &field) {
  std::uint64_t h = mix(mask);
  for (Element e : field)
    h = mix(h ^ e);
  return h;
}

// A lower bound on the operators in any graph of the result: two different operands that need equally many
// cannot be part of one another.
std::uint32_t operators_of(const Derivation &d, const Value::Expression &a, const Value::Expression &b) {
  const bool apart = d.a != d.b && a.operators == b.operators && a.operators > 0;
  return 1 + std::max(a.operators, b.operators) + apart;
}

bool nested(Mask a, Mask b) { return (a | b) == a || (a | b) == b; }

} // namespace

Values::Values(const Problem &problem, const Options &options, Clock &clock, Oracle oracle)
    : problem_(problem), options_(options), clock_(clock), oracle_(std::move(oracle)), targets_(expressions_),
      split_factors_(problem.split_factors()) {}

std::uint32_t Values::term(Op op, std::uint32_t symbol, Mask reduced, std::vector<std::uint32_t> args) {
  terms_.push_back({op, symbol, reduced, std::move(args)});
  return static_cast<std::uint32_t>(terms_.size() - 1);
}

std::uint32_t Values::minus_one() const {
  const auto &all = problem_.constants;
  return static_cast<std::uint32_t>(std::find(all.begin(), all.end(), -1.0) - all.begin());
}

Mask Values::result_mask(const Derivation &d) const {
  return (values_[d.a].mask | values_[d.b].mask) & ~d.reduced;
}

// The degrees of a result; empty where they are undefined.
std::optional<Degrees> Values::degrees_of(const Derivation &d) const {
  const Degrees &a = values_[d.a].degrees, &b = values_[d.b].degrees;
  const bool mixes = d.op == Op::Mul || d.op == Op::Div || d.op == Op::Contract;
  if (d.op == Op::Unary && problem_.functions[d.function].over)
    return a.empty() ? std::optional(Degrees{{d.function, 1}}) : std::nullopt;
  if (a.empty() && (d.arity == 1 || b.empty()))
    return Degrees{};
  if (d.op == Op::Unary || d.op == Op::Binary || d.op == Op::Reduce ||
      ((d.op == Op::Add || d.op == Op::Sub) && a != b))
    return std::nullopt;
  Degrees out = a;
  if (mixes)
    for (const Degree &other : b) {
      const std::int32_t power = d.op == Op::Div ? -other.power : other.power;
      auto at = std::lower_bound(out.begin(), out.end(), other.function,
                                 [](const Degree &x, std::uint32_t f) { return x.function < f; });
      if (at == out.end() || at->function != other.function)
        out.insert(at, {other.function, power});
      else if ((at->power += power) == 0)
        out.erase(at);
    }
  for (const Degree &degree : out)
    if (std::abs(degree.power) > 1)
      return std::nullopt;
  return out;
}

FormId Values::form_of(const Derivation &d, FormId a, FormId b) {
  switch (d.op) {
  case Op::Unary:
    return expressions_.apply(d.function, {a});
  case Op::Binary: {
    std::vector<FormId> args{a, b};
    if (problem_.functions[d.function].commutative)
      std::sort(args.begin(), args.end());
    return expressions_.apply(d.function, args);
  }
  case Op::Add:
    return expressions_.add(a, b);
  case Op::Sub: // a + (-1) * b, the sign being a constant like any other
    return expressions_.add(a, expressions_.mul(expressions_.constant(minus_one()), b));
  case Op::Mul:
    return expressions_.mul(a, b);
  case Op::Div:
    return expressions_.div(a, b);
  case Op::Sum:
    return expressions_.sum(d.reduced, a);
  case Op::Reduce:
    return expressions_.apply(d.function, {a}, d.reduced);
  case Op::Contract:
    return expressions_.sum(d.reduced, expressions_.mul(a, b));
  case Op::Input:
  case Op::Constant:
    break;
  }
  return Expressions::too_large;
}

ValueId Values::add_leaf(const Derivation &d, Mask mask, std::vector<Element> field, FormId form) {
  const auto id = static_cast<ValueId>(values_.size());
  by_fingerprint_[fingerprint(mask, field)].push_back(id);
  Value v;
  v.mask = mask;
  v.field = std::move(field);
  v.expressions = {{form, term(d.op, d.function, 0, {}), 0}};
  v.derivations = {d};
  v.leaf = true;
  v.constant = d.op == Op::Constant;
  values_.push_back(std::move(v));
  work_.push_back(id);
  return id;
}

ValueId Values::insert(const Derivation &d, std::vector<Element> field,
                       const std::vector<Value::Expression> &found, bool program) {
  const Mask mask = result_mask(d);
  const std::uint64_t key = fingerprint(mask, field);
  std::vector<ValueId> &bucket = by_fingerprint_[key];
  auto same = std::find_if(bucket.begin(), bucket.end(), [&](ValueId id) {
    const Value &v = values_[id];
    // As graphs, equal operators on the same operands are one value, whatever else it equals; only whether an
    // output is reached is decided by evaluation.
    const bool by_value = options_.canonical == Canonical::Values ||
                          std::find(outputs_.begin(), outputs_.end(), id) != outputs_.end();
    return (by_value || (!v.leaf && v.derivations[0] == d)) && v.mask == mask && v.field == field;
  });
  ValueId id = 0;
  if (same != bucket.end()) {
    id = *same;
    ++counts.duplicates;
  } else {
    // With as many operators as a value may have, only an existing value (an output) is of use.
    const bool last = std::all_of(found.begin(), found.end(), [&](const Value::Expression &e) {
      return e.operators >= options_.max_value_operators;
    });
    if (last && !program) {
      if (bucket.empty())
        by_fingerprint_.erase(key);
      return no_value;
    }
    id = static_cast<ValueId>(values_.size());
    bucket.push_back(id);
    Value v;
    v.mask = mask;
    v.field = std::move(field);
    v.constant = values_[d.a].constant && values_[d.b].constant;
    v.degrees = degrees_of(d).value_or(Degrees{});
    values_.push_back(std::move(v));
  }
  Value &v = values_[id];
  v.program |= program;
  bool fresh = false;
  for (const Value::Expression &e : found) {
    const auto known = std::find_if(v.expressions.begin(), v.expressions.end(),
                                    [&](const Value::Expression &k) { return k.form == e.form; });
    if (known == v.expressions.end()) {
      v.expressions.push_back(e);
      fresh = true;
    } else if (e.operators < known->operators) {
      known->operators = e.operators;
      fresh = true;
    }
  }
  if (std::find(v.derivations.begin(), v.derivations.end(), d) == v.derivations.end() && !v.leaf)
    v.derivations.push_back(d);
  if (fresh)
    work_.push_back(id);
  return id;
}

// A value of the program itself is part of the target by construction, so it is not tested.
ValueId Values::program_value(const Derivation &d) {
  auto field = evaluate(d);
  if (!field)
    field = std::vector<Element>(elements(result_mask(d)), 1);
  std::vector<std::uint32_t> args{values_[d.a].expressions[0].term};
  if (d.arity == 2)
    args.push_back(values_[d.b].expressions[0].term);
  const Value::Expression a = values_[d.a].expressions[0], b = values_[d.b].expressions[0];
  const std::uint32_t t = term(d.op, d.function, d.reduced, std::move(args));
  return insert(d, std::move(*field), {{form_of(d, a.form, b.form), t, operators_of(d, a, b)}}, true);
}

// A value used only by the program's own way to a value: neither tested nor combined with anything.
ValueId Values::aside_value(const Derivation &d) {
  auto field = evaluate(d);
  if (!field)
    field = std::vector<Element>(elements(result_mask(d)), 1);
  const std::size_t before = values_.size();
  const ValueId id = insert(d, std::move(*field), {}, true);
  if (id == before)
    values_[id].aside = true;
  asides_.emplace_back(id, d);
  return id;
}

void Values::attempt(const Derivation &d) {
  ++counts.attempted;
  const Mask mask = result_mask(d);
  if (values_[d.a].constant && values_[d.b].constant)
    return;
  if (std::popcount(mask | d.reduced) > max_free_factors) {
    ++counts.by_size;
    return;
  }
  if (!degrees_of(d)) {
    ++counts.by_degree;
    return;
  }
  std::vector<Value::Expression> found;
  bool too_large = true;
  // Copies: interning terms does not touch values, but the loops below must not depend on that.
  const std::vector<Value::Expression> as = values_[d.a].expressions;
  const std::vector<Value::Expression> bs =
      d.arity == 2 ? values_[d.b].expressions : std::vector<Value::Expression>{as[0]};
  for (const Value::Expression &a : as)
    for (const Value::Expression &b : bs) {
      if (clock_.expired())
        return;
      const std::uint32_t operators = operators_of(d, a, b);
      const FormId form =
          operators > options_.max_value_operators ? Expressions::too_large : form_of(d, a.form, b.form);
      if (form == Expressions::too_large)
        continue;
      too_large = false;
      if (options_.prune == Prune::NormalForm && !targets_.reachable(form, mask, options_.axis_test))
        continue;
      std::vector<std::uint32_t> args{a.term};
      if (d.arity == 2)
        args.push_back(b.term);
      const std::uint32_t t = term(d.op, d.function, d.reduced, std::move(args));
      if (options_.prune == Prune::Smt) {
        auto [it, fresh] = oracle_answers_.try_emplace(form, false);
        if (fresh)
          it->second = !clock_.expired_now() && oracle_(t);
        if (!it->second || (options_.axis_test && !targets_.reachable(form, mask, true)))
          continue;
      }
      found.push_back({form, t, operators});
    }
  if (found.empty()) {
    ++(too_large ? counts.by_size : counts.by_expression);
    return;
  }
  auto field = evaluate(d);
  if (!field) {
    ++counts.undefined;
    return;
  }
  const std::size_t before = values_.size();
  const ValueId id = insert(d, std::move(*field), found, false);
  if (id == before)
    for (ValueId output : outputs_)
      for (const Value::Expression &e : found)
        if (values_[output].mask == mask && values_[output].expressions[0].form == e.form)
          ++counts.by_fingerprint;
}

// The sets of factors that one reduction may take: of each axis, innermost first, no gap; several axes only
// where the program reduces them together.
std::vector<Mask> Values::suffixes(Mask present, Mask allowed) const {
  std::vector<Mask> out{0};
  for (const Axis &axis : problem_.axes) {
    if (!(axis.mask & allowed & reducible_))
      continue;
    const std::size_t n = out.size();
    Mask taken = 0;
    for (auto it = axis.factors.rbegin(); it != axis.factors.rend(); ++it) {
      const Mask factor = Mask{1} << *it;
      if (!(present & factor))
        continue;
      if (!(allowed & factor))
        break;
      taken |= factor;
      for (std::size_t i = 0; i < n; ++i)
        out.push_back(out[i] | taken);
    }
  }
  std::vector<Mask> kept;
  for (Mask set : out) {
    if (set == 0)
      continue;
    const bool one_axis = std::any_of(problem_.axes.begin(), problem_.axes.end(),
                                      [&](const Axis &axis) { return (set & ~axis.mask) == 0; });
    const bool together = std::any_of(reduced_sets_.begin(), reduced_sets_.end(),
                                      [&](Mask reduced) { return (set & ~reduced) == 0; });
    if (one_axis || together)
      kept.push_back(set);
  }
  return kept;
}

void Values::extend(ValueId a) {
  if (values_[a].constant)
    return;
  for (std::uint32_t f = 0; f < problem_.functions.size(); ++f) {
    const Function &function = problem_.functions[f];
    if (function.reduction) {
      for (Mask set : suffixes(values_[a].mask, values_[a].mask))
        attempt({Op::Reduce, f, set, a, a, 1});
    } else if (!function.commutative && !function.ordered) {
      attempt({Op::Unary, f, 0, a, a, 1});
    }
  }
  if (sums_)
    for (Mask set : suffixes(values_[a].mask, values_[a].mask))
      attempt({Op::Sum, 0, set, a, a, 1});
}

void Values::combine(ValueId a, ValueId b) {
  const Mask ma = values_[a].mask, mb = values_[b].mask;
  if (nested(ma, mb)) {
    const ValueId x = std::min(a, b), y = std::max(a, b);
    if (adds_)
      attempt({Op::Add, 0, 0, x, y, 2});
    if (muls_)
      attempt({Op::Mul, 0, 0, x, y, 2});
    for (auto [p, q] : {std::pair{a, b}, std::pair{b, a}}) {
      if (subs_)
        attempt({Op::Sub, 0, 0, p, q, 2});
      if (divs_)
        attempt({Op::Div, 0, 0, p, q, 2});
      if (a == b)
        break;
    }
    for (std::uint32_t f = 0; f < problem_.functions.size(); ++f) {
      const Function &function = problem_.functions[f];
      if (function.commutative && !function.reduction)
        attempt({Op::Binary, f, 0, x, y, 2});
      if (function.ordered) {
        attempt({Op::Binary, f, 0, a, b, 2});
        if (a != b)
          attempt({Op::Binary, f, 0, b, a, 2});
      }
    }
  }
  // Over equal axes it is just a product and a sum.
  if (muls_ && sums_ && ma != mb)
    for (Mask set : suffixes(ma | mb, ma & mb))
      attempt({Op::Contract, 0, set, std::min(a, b), std::max(a, b), 2});
}

void Values::run() {
  samples_ = samples_needed();
  for (const Role &role : problem_.roles) {
    const auto index = static_cast<std::uint32_t>(&role - problem_.roles.data());
    add_leaf({Op::Input, index, 0, index, index, 0}, role.mask, input_field(role),
             expressions_.input(index, role.mask));
  }
  for (std::size_t c = 0; c < problem_.constants.size(); ++c) {
    const auto id = static_cast<std::uint32_t>(values_.size());
    const auto symbol = static_cast<std::uint32_t>(c);
    add_leaf({Op::Constant, symbol, 0, id, id, 0}, 0,
             std::vector<Element>(samples_, constant_element(problem_.constants[c])),
             expressions_.constant(symbol));
  }
  std::vector<ValueId> of_ref(values_.size());
  std::iota(of_ref.begin(), of_ref.end(), 0u);
  for (const ProgramNode &node : problem_.nodes) {
    const Mask reduced = problem_.axis_mask(node.reduced);
    ValueId a = of_ref[node.args.front()], b = of_ref[node.args.back()];
    const bool ordered = node.op == Op::Sub || node.op == Op::Div ||
                         (node.op == Op::Binary && problem_.functions[node.function].ordered);
    if (!ordered && a > b)
      std::swap(a, b);
    const Derivation own{node.op, node.function, reduced, a, b, static_cast<std::uint32_t>(node.args.size())};
    if (node.same) {
      Value &v = values_[of_ref[*node.same]];
      v.derivations.insert(v.derivations.begin(), own);
      v.own_aside = true;
      asides_.emplace_back(of_ref[*node.same], own);
      of_ref.push_back(of_ref[*node.same]);
      continue;
    }
    if (node.aside) {
      of_ref.push_back(aside_value(own));
      continue;
    }
    adds_ |= node.op == Op::Add;
    subs_ |= node.op == Op::Sub;
    divs_ |= node.op == Op::Div;
    muls_ |= node.op == Op::Mul || node.op == Op::Contract;
    sums_ |= node.op == Op::Sum || node.op == Op::Contract;
    reducible_ |= reduced;
    if (reduced)
      reduced_sets_.push_back(reduced);
    of_ref.push_back(program_value(own));
  }
  for (std::uint32_t output : problem_.outputs) {
    const ValueId id = of_ref[output];
    outputs_.push_back(id);
    if (values_[id].expressions[0].form != Expressions::too_large)
      targets_.add(values_[id].expressions[0].form, values_[id].mask);
    else // what leads to it and can be expressed: its own expression cannot
      for (const Value &part : std::vector<Value>(values_))
        if (!part.expressions.empty() && part.expressions[0].form != Expressions::too_large)
          targets_.add(part.expressions[0].form, part.mask);
    target_terms_.push_back(values_[id].expressions[0].term);
  }
  // Each value is combined with all earlier ones, and again when it gains a normal form.
  std::vector<ValueId> done;
  std::vector<bool> is_done;
  for (std::size_t next = 0; next < work_.size() && !ended(); ++next) {
    const ValueId v = work_[next];
    is_done.resize(values_.size(), false);
    if (!is_done[v]) {
      is_done[v] = true;
      done.push_back(v);
    }
    extend(v);
    for (std::size_t i = 0; i < done.size() && !ended(); ++i)
      combine(v, done[i]);
  }
  keep_useful();
}

bool Values::ended() {
  limited_ = limited_ || counts.attempted >= options_.max_attempts || values_.size() > options_.max_found;
  return limited_ || clock_.expired();
}

} // namespace superopt::search
