#include "search/values.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <numeric>

namespace superopt::search {
namespace {

constexpr int max_free_factors = 18;
// A maximum equals one of its operands at one position with probability 1/2; where a program takes one,
// values are evaluated on so many elements at least.
constexpr std::size_t chosen_elements = 16;

// For each position over `mask`, the position over its subset `part`.
std::vector<std::uint32_t> project(Mask mask, Mask part) {
  std::vector<std::uint32_t> out(std::size_t{1} << std::popcount(mask), 0);
  std::uint32_t bit = 0, part_bit = 0;
  for (Mask rest = mask; rest; rest &= rest - 1, ++bit)
    if (const Mask factor = rest & -rest; part & factor) {
      for (std::size_t i = 0; i < out.size(); ++i)
        out[i] |= static_cast<std::uint32_t>(i >> bit & 1) << part_bit;
      ++part_bit;
    }
  return out;
}

std::uint64_t fingerprint(Mask mask, const std::vector<Element> &field) {
  std::uint64_t h = mix(mask);
  for (Element e : field)
    h = mix(h ^ e);
  return h;
}

// At least so many operators are in any graph of the result: two different operands that need equally many
// cannot be part of one another.
std::uint32_t operators_of(const Derivation &d, const Value::Expression &a, const Value::Expression &b) {
  const bool apart = d.a != d.b && a.operators == b.operators && a.operators > 0;
  return 1 + std::max(a.operators, b.operators) + apart;
}

constexpr std::uint32_t weight_unit = 256; // more than there are operations aside

bool nested(Mask a, Mask b) { return (a | b) == a || (a | b) == b; }

} // namespace

Values::Values(const Problem &problem, const Options &options, Clock &clock, Oracle oracle)
    : problem_(problem), options_(options), clock_(clock), oracle_(std::move(oracle)), targets_(expressions_),
      split_factors_(problem.split_factors()) {}

std::uint32_t Values::term(Op op, std::uint32_t symbol, Mask reduced, std::vector<std::uint32_t> args) {
  terms_.push_back({op, symbol, reduced, std::move(args)});
  return static_cast<std::uint32_t>(terms_.size() - 1);
}

// Constants are symbols: those that depend on extents (1/n) would lie where every extent is 2.
Element Values::constant_element(double value) const {
  return keyed(options_.seed * 2 + 2, mix(std::bit_cast<std::uint64_t>(value)));
}

std::uint32_t Values::minus_one() const {
  const auto &all = problem_.constants;
  return static_cast<std::uint32_t>(std::find(all.begin(), all.end(), -1.0) - all.begin());
}

Mask Values::result_mask(const Derivation &d) const {
  return (values_[d.a].mask | values_[d.b].mask) & ~d.reduced;
}

// The degrees of a result; nothing where it has none.
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

bool Values::storable(ValueId v) const {
  const Value &value = values_[v];
  if (!problem_.storable(value.mask))
    return false;
  return std::all_of(value.degrees.begin(), value.degrees.end(), [&](const Degree &degree) {
    return !(value.mask & problem_.functions[degree.function].over & ~split_factors_);
  });
}

std::int64_t Values::element_bytes(ValueId v) const {
  const Value &value = values_[v];
  if (value.leaf && !value.constant)
    return problem_.roles[value.derivations[0].function].element_bytes;
  return options_.intermediate_bytes;
}

double Values::stored_bytes(ValueId v, std::int64_t split) const {
  auto bytes = static_cast<double>(element_bytes(v));
  for (const Axis &axis : problem_.axes)
    if (const Mask part = values_[v].mask & axis.mask)
      bytes *= static_cast<double>(part == axis.mask ? axis.extent : split);
  return bytes;
}

double Values::input_bytes(Mask roles) const {
  double bytes = 0;
  for (; roles; roles &= roles - 1)
    bytes += least_bytes(static_cast<ValueId>(std::countr_zero(roles))); // the inputs are the first values
  return bytes;
}

double Values::product_flops(const Derivation &d) const {
  if (d.op != Op::Contract)
    return 0;
  const Mask mask = values_[d.a].mask | values_[d.b].mask;
  double flops = 2;
  for (const Axis &axis : problem_.axes) {
    const Mask part = mask & axis.mask;
    flops *= part == axis.mask ? static_cast<double>(axis.extent) : std::exp2(std::popcount(part));
  }
  return flops;
}

Mask Values::saved_mask(ValueId v) const {
  Mask mask = values_[v].mask;
  for (const Degree &degree : values_[v].degrees) {
    const Function &function = problem_.functions[degree.function];
    mask &= function.along | (function.over & split_factors_);
  }
  return mask;
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

std::optional<std::vector<Element>> Values::evaluate(const Derivation &d) const {
  const Value &x = values_[d.a], &y = values_[d.b];
  const Mask full = x.mask | y.mask, mask = full & ~d.reduced;
  const std::vector<std::uint32_t> ix = project(full, x.mask), iy = project(full, y.mask);
  const std::vector<std::uint32_t> io = project(full, mask);
  std::vector<Element> out(elements(mask), 0);
  const std::size_t in_x = elements(x.mask), in_y = elements(y.mask), in_out = out.size();
  const std::uint64_t key = d.op == Op::Unary || d.op == Op::Binary || d.op == Op::Reduce
                                ? mix(problem_.functions[d.function].key ^ options_.seed)
                                : 0;
  for (std::size_t at = 0; at < ix.size() * samples_; ++at) {
    const std::size_t sample = at / ix.size(), i = at % ix.size();
    const Element a = x.field[sample * (in_x / samples_) + ix[i]];
    const Element b = y.field[sample * (in_y / samples_) + iy[i]];
    Element &r = out[sample * (in_out / samples_) + io[i]];
    switch (d.op) {
    case Op::Unary:
      r = keyed(key, a);
      break;
    case Op::Binary: // max and min: a keyed total order each, so that they share all their laws and differ
      r = keyed(key, a) > keyed(key, b) ? a : b;
      break;
    case Op::Add:
      r = field_add(a, b);
      break;
    case Op::Sub:
      r = field_add(a, field_mul(constant_element(-1.0), b));
      break;
    case Op::Mul:
      r = field_mul(a, b);
      break;
    case Op::Div:
      if (b == 0)
        return std::nullopt;
      r = field_mul(a, field_inverse(b));
      break;
    case Op::Sum:
      r = field_add(r, a);
      break;
    case Op::Reduce: // 0 stands for nothing yet; no element is 0 but with probability 2^-61
      r = r == 0 || keyed(key, a) > keyed(key, r) ? a : r;
      break;
    case Op::Contract:
      r = field_add(r, field_mul(a, b));
      break;
    case Op::Input:
    case Op::Constant:
      return std::nullopt;
    }
  }
  return out;
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
    // As graphs, one operator on the same operands is one, whatever else it equals; only that an output is
    // reached is told by its evaluation.
    const bool by_value = options_.canonical == Canonical::Values ||
                          std::find(outputs_.begin(), outputs_.end(), id) != outputs_.end();
    return (by_value || (!v.leaf && v.derivations[0] == d)) && v.mask == mask && v.field == field;
  });
  ValueId id = 0;
  if (same != bucket.end()) {
    id = *same;
    ++counts.duplicates;
  } else {
    // With as many operators as a value may have, only what is there already (an output) is of any use.
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

// A value of the program itself: part of the target by construction, so it is not tested.
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

// What only the program's own way to a value uses: neither tested nor combined with anything.
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
    } else if (!function.commutative) {
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
    for (std::uint32_t f = 0; f < problem_.functions.size(); ++f)
      if (problem_.functions[f].commutative && !problem_.functions[f].reduction)
        attempt({Op::Binary, f, 0, x, y, 2});
  }
  // Over equal axes it is no more than a product and a sum.
  if (muls_ && sums_ && ma != mb)
    for (Mask set : suffixes(ma | mb, ma & mb))
      attempt({Op::Contract, 0, set, std::min(a, b), std::max(a, b), 2});
}

// So many independent evaluations that no maximum of the program is taken at few elements only.
std::size_t Values::samples_needed() const {
  std::vector<Mask> masks;
  for (const Role &role : problem_.roles)
    masks.push_back(role.mask);
  masks.resize(masks.size() + problem_.constants.size(), 0);
  std::size_t samples = 1;
  for (const ProgramNode &node : problem_.nodes) {
    masks.push_back((masks[node.args.front()] | masks[node.args.back()]) & ~problem_.axis_mask(node.reduced));
    const std::size_t positions = std::size_t{1} << std::min(std::popcount(masks.back()), max_free_factors);
    if (node.op == Op::Binary || node.op == Op::Reduce)
      samples = std::max(samples, chosen_elements / positions);
  }
  return samples;
}

void Values::run() {
  samples_ = samples_needed();
  for (const Role &role : problem_.roles) {
    // Element = keyed by tensor and position, the position told by the tensor's dimensions, so that two roles
    // of one tensor hold the same elements.
    const auto index = static_cast<std::uint32_t>(&role - problem_.roles.data());
    std::vector<Element> field(elements(role.mask));
    for (std::size_t i = 0; i < field.size(); ++i) { // the sample is above the position's bits
      std::uint64_t position = mix(role.tensor + 1 + (std::uint64_t{i >> std::popcount(role.mask)} << 32));
      for (const auto &dim : role.dims) {
        std::uint64_t at = 1;
        for (std::uint32_t axis : dim)
          for (std::uint32_t factor : problem_.axes[axis].factors) {
            const int place = std::popcount(role.mask & ((Mask{1} << factor) - 1));
            at = at * 2 + (i >> place & 1);
          }
        position = mix(position ^ at);
      }
      field[i] = keyed(options_.seed * 2 + 1, position);
    }
    add_leaf({Op::Input, index, 0, index, index, 0}, role.mask, std::move(field),
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
    const bool ordered = node.op == Op::Sub || node.op == Op::Div;
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
    targets_.add(values_[id].expressions[0].form, values_[id].mask);
    target_terms_.push_back(values_[id].expressions[0].term);
  }
  // Each value is combined with all before it, and again when it gains a normal form.
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
  limited_ = limited_ || counts.attempted >= options_.max_attempts || values_.size() > options_.max_values;
  return limited_ || clock_.expired();
}

void Values::keep_useful() {
  counts.values = values_.size();
  for (Value &v : values_) {
    v.weight = 0xffffffffu;
    for (const Value::Expression &e : v.expressions)
      v.weight = std::min(v.weight, expressions_.form(e.form).weight * weight_unit);
  }
  // What stands aside is lighter than what uses it, and heavier than anything else that does not.
  for (auto it = asides_.rbegin(); it != asides_.rend(); ++it)
    for (ValueId operand : {it->second.a, it->second.b})
      if (values_[operand].aside)
        values_[operand].weight = std::min(values_[operand].weight, values_[it->first].weight - 1);
  for (Value &v : values_) {
    if (v.leaf)
      continue;
    std::erase_if(v.derivations, [&](const Derivation &d) {
      const bool circular = values_[d.a].weight >= v.weight || values_[d.b].weight >= v.weight;
      counts.heavier += circular;
      return circular;
    });
  }
  std::vector<ValueId> stack = outputs_;
  while (!stack.empty()) {
    Value &v = values_[stack.back()];
    stack.pop_back();
    if (v.useful)
      continue;
    v.useful = true;
    if (v.leaf)
      continue;
    for (const Derivation &d : v.derivations) {
      stack.push_back(d.a);
      stack.push_back(d.b);
    }
  }
  find_least();
  for (const Value &v : values_)
    if (v.useful) {
      ++counts.useful;
      counts.derivations += v.derivations.size();
    }
}

void Values::find_least() {
  std::vector<ValueId> order(values_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](ValueId a, ValueId b) { return values_[a].weight < values_[b].weight; });
  for (ValueId id : order) {
    Value &v = values_[id];
    if (v.leaf) {
      v.reads = !v.constant && id < 64 ? Mask{1} << id : 0;
      continue;
    }
    v.reads = v.derivations.empty() ? 0 : ~Mask{0};
    v.products = v.derivations.empty() ? 0 : INFINITY;
    for (const Derivation &d : v.derivations) {
      const Value &a = values_[d.a], &b = values_[d.b];
      v.reads &= a.reads | b.reads;
      v.products = std::min(v.products, product_flops(d) + std::max(a.products, b.products));
    }
  }
}

} // namespace superopt::search
