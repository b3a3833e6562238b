// Every useful value over named axes, with all its derivations: saturation is in values.cpp, the evaluations
// that distinguish values in evaluation.cpp, later queries on values in useful.cpp.
#pragma once

#include "search/field.hpp"
#include "search/problem.hpp"
#include "search/subexpression.hpp"

#include <bit>
#include <optional>
#include <unordered_map>
#include <vector>

namespace superopt::search {

using ValueId = std::uint32_t;
constexpr ValueId no_value = 0xffffffffu;

struct Derivation {
  Op op;
  std::uint32_t function; // of Unary, Binary, Reduce; role or constant of Input, Constant
  Mask reduced;           // of Sum, Reduce, Contract
  ValueId a, b;           // equal where there is one operand
  std::uint32_t arity;

  bool operator==(const Derivation &) const = default;
};

// The power of exp(-m) that a value gains under `exp(x) -> exp(x) exp(-m)`, for each exponential taken
// relative to a maximum m; powers of 0 are omitted.
struct Degree {
  std::uint32_t function;
  std::int32_t power;
  bool operator==(const Degree &) const = default;
};
using Degrees = std::vector<Degree>; // by function

struct Value {
  Mask mask = 0; // free factors
  // Its screening evaluation: extent 2 for each free factor, lowest bit fastest, once for each sample.
  std::vector<Element> field;
  struct Expression {
    FormId form;
    std::uint32_t term;
    std::uint32_t operators; // the least in any graph with this expression
  };
  std::vector<Expression> expressions;
  std::vector<Derivation> derivations;
  std::uint32_t weight =
      0; // of its lightest normal form; strictly above those of the operands it is derived from
  bool constant = false;  // depends on no input
  bool leaf = false;      // an input or a constant
  bool program = false;   // the program computes it; its own derivation is the first
  bool aside = false;     // used only by the program's own operations aside
  bool own_aside = false; // its first derivation, the program's own, uses such values
  Degrees degrees;
  bool useful = false; // a target reaches it
  Mask reads = 0;      // the inputs that every way to it reads; bit: role (of the first 64)
  double products = 0; // flops of matrix products that every way to it does, one after the other
};

struct ValueCounts {
  std::uint64_t attempted = 0;      // derivations tried
  std::uint64_t by_expression = 0;  // pruned: not a subexpression of a target
  std::uint64_t by_size = 0;        // pruned: expression or field too large, or more operators than allowed
  std::uint64_t by_degree = 0;      // without a degree in exp(-m), so that no maximum could be restored
  std::uint64_t undefined = 0;      // a division by zero in the field
  std::uint64_t by_fingerprint = 0; // the target's expression, but another value
  std::uint64_t duplicates = 0;     // equal to an existing value
  std::uint64_t heavier = 0;        // derivations dropped since they lead around in a circle
  std::uint64_t values = 0, useful = 0, derivations = 0;
};

class Values {
public:
  // Answers whether a term may be part of a target, instead of the normal form (Prune::Smt).
  using Oracle = std::function<bool(std::uint32_t term)>;

  Values(const Problem &problem, const Options &options, Clock &clock, Oracle oracle);

  // Saturate; afterwards `all()` are in an order in which operands come before results.
  void run();

  // Whether a limit ended it before saturation.
  bool limited() const { return limited_; }

  const std::vector<Value> &all() const { return values_; }
  const std::vector<ValueId> &outputs() const { return outputs_; }
  const std::vector<Term> &terms() const { return terms_; }
  const std::vector<std::uint32_t> &target_terms() const { return target_terms_; }
  const Problem &problem() const { return problem_; }
  // Whether a value can be stored in device memory: a sum of exponentials only once it is summed (except
  // over split factors), so that its maximum can be stored with it.
  bool storable(ValueId v) const;
  // Bytes of the value in device memory, split factors having this extent.
  double stored_bytes(ValueId v, std::int64_t split) const;
  double least_bytes(ValueId v) const { return stored_bytes(v, 2); }
  // Bytes of these inputs, given as in `Value::reads`.
  double input_bytes(Mask roles) const;
  // Flops of a derivation that is a matrix product, counting each factor of a partial axis as at least 2; 0
  // for others.
  double product_flops(const Derivation &d) const;
  std::int64_t element_bytes(ValueId v) const;
  // The free factors that a grid may cut where a kernel saves the value: its maxima must have them too.
  Mask saved_mask(ValueId v) const;
  ValueCounts counts;

private:
  static constexpr int max_free_factors = 18;

  std::vector<Element> input_field(const Role &role) const;
  std::optional<std::vector<Element>> evaluate(const Derivation &d) const;
  Element constant_element(double value) const;
  std::size_t elements(Mask mask) const { return samples_ << std::popcount(mask); }
  std::size_t samples_needed() const;
  std::uint32_t minus_one() const;
  Mask result_mask(const Derivation &d) const;
  FormId form_of(const Derivation &d, FormId a, FormId b);
  ValueId add_leaf(const Derivation &d, Mask mask, std::vector<Element> field, FormId form);
  ValueId program_value(const Derivation &d);
  ValueId aside_value(const Derivation &d);
  std::optional<Degrees> degrees_of(const Derivation &d) const;
  void attempt(const Derivation &d);
  ValueId insert(const Derivation &d, std::vector<Element> field, const std::vector<Value::Expression> &found,
                 bool program);
  void combine(ValueId a, ValueId b);
  void extend(ValueId a);
  std::vector<Mask> suffixes(Mask present, Mask allowed) const;
  bool ended();
  void keep_useful();
  void find_least();
  std::uint32_t term(Op op, std::uint32_t symbol, Mask reduced, std::vector<std::uint32_t> args);

  const Problem &problem_;
  const Options &options_;
  Clock &clock_;
  Oracle oracle_;
  Expressions expressions_;
  Targets targets_;
  Mask split_factors_;
  std::size_t samples_ = 1; // independent evaluations of each value
  std::vector<Value> values_;
  std::vector<ValueId> outputs_;
  std::vector<std::uint32_t> target_terms_;
  std::vector<Term> terms_;
  std::unordered_map<std::uint64_t, std::vector<ValueId>> by_fingerprint_;
  std::unordered_map<std::uint32_t, bool> oracle_answers_; // by form
  std::vector<ValueId> work_;
  std::vector<std::pair<ValueId, Derivation>> asides_; // in the program's order
  std::vector<Mask> reduced_sets_;                     // the axes that a node of the program reduces at once
  Mask reducible_ = 0;
  bool limited_ = false;
  bool adds_ = false, subs_ = false, muls_ = false, divs_ = false, sums_ = false;
};

} // namespace superopt::search
