// The input of a search: a program over named axes, and the search limits.
#pragma once

#include "cost/cost.hpp"
#include "search/expression.hpp"
#include "work_clock.hpp"

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace superopt::search {

// The levels of an axis's factors, outermost first. An axis that is short or never reduced has just the tile
// factor; a long reduced one also has a loop factor and, with several kernels, a split factor (partial sums).
enum class Level : std::uint8_t { Split, Loop, Tile };

struct Factor {
  std::uint32_t axis;
  Level level;
};

struct Axis {
  std::int64_t extent;
  std::vector<std::uint32_t> factors; // outermost first; the last is the tile factor
  Mask mask = 0;
};

// One use of an input tensor with its own axes. Roles of one tensor hold the same elements.
struct Role {
  std::uint32_t tensor;
  std::vector<std::vector<std::uint32_t>> dims; // per dimension its axes, outermost first
  std::int64_t element_bytes;                   // 0 where blocks compute the elements by their indices
  Mask mask = 0;
};

enum class Op : std::uint8_t { Input, Constant, Unary, Binary, Add, Sub, Mul, Div, Sum, Reduce, Contract };

// An uninterpreted operator; its table entry lives in Python.
struct Function {
  std::uint64_t key; // equal for equal operators and attributes
  bool commutative;  // of two operands
  bool ordered;      // of two operands that may not be exchanged
  bool reduction;    // max or min: with a total order they are associative and idempotent
  double flops;      // scalar operations per element
  double special;    // those of them that only the special function units do
  // Of an exponential taken relative to a maximum: the factors the maximum ranges over, and those it varies
  // along.
  Mask over = 0, along = 0;
};

struct ProgramNode {
  Op op;
  std::vector<std::uint32_t> args; // inputs first, then constants, then nodes
  std::uint32_t function;
  std::vector<std::uint32_t> reduced; // axes
  // The program's own way to something that the search reaches otherwise: used unchanged, or not at all.
  bool aside = false;
  std::optional<std::uint32_t> same; // the earlier node that this one, aside, computes in another way
};

enum class Prune : std::uint8_t { NormalForm, Smt, None };
// What is distinguished: values by their evaluation, or graphs by their operators.
enum class Canonical : std::uint8_t { Values, Graphs };

// Search limits. The caller sets every field; there are no defaults here.
struct Options {
  Prune prune;
  bool axis_test;
  Canonical canonical;
  std::uint32_t max_block_operators;
  std::uint32_t max_custom;
  std::uint32_t max_loops;
  bool branch_and_bound;
  std::uint32_t dominance; // partial kernels with the same remaining work that are continued; 0: all
  std::uint32_t threads;
  std::uint32_t max_value_operators; // operators that any graph of a value may need
  std::uint32_t max_found;
  std::uint32_t candidates;
  double margin;              // plans up to this share slower than the best are searched
  std::uint64_t max_attempts; // derivations of values tried
  std::uint64_t max_states;   // of one pass of the enumeration, a fifth for one set of outputs
  double budget_seconds;
  std::uint64_t seed;
  std::int64_t intermediate_bytes; // of an element that the search stores between kernels
  TargetNumbers target;
};

struct Problem {
  std::vector<Factor> factors;
  std::vector<Axis> axes;
  std::vector<Role> roles;
  std::vector<double> constants;
  std::vector<Function> functions;
  std::vector<ProgramNode> nodes;
  std::vector<std::uint32_t> outputs;
  std::vector<std::vector<std::vector<std::uint32_t>>> output_dims; // as those of a role; empty: any layout

  Mask axis_mask(const std::vector<std::uint32_t> &which) const {
    Mask mask = 0;
    for (std::uint32_t axis : which)
      mask |= axes[axis].mask;
    return mask;
  }
  Mask split_factors() const {
    Mask mask = 0;
    for (std::size_t f = 0; f < factors.size(); ++f)
      if (factors[f].level == Level::Split)
        mask |= Mask{1} << f;
    return mask;
  }
  // Whether a value with these free factors can be stored in device memory: axes whole, or their split factor
  // alone.
  bool storable(Mask mask) const {
    for (const Axis &axis : axes) {
      const Mask part = mask & axis.mask;
      if (part == 0 || part == axis.mask)
        continue;
      if (part != Mask{1} << axis.factors[0] || factors[axis.factors[0]].level != Level::Split)
        return false;
    }
    return true;
  }
};

// A term as derived, for the solver that answers the pruning question instead of the normal form.
struct Term {
  Op op;
  std::uint32_t symbol;
  Mask reduced;
  std::vector<std::uint32_t> args;
};

// Ends a search whose budget is spent, or whose caller wants to stop it.
class Clock {
public:
  Clock(WorkClock &work, double seconds, std::function<bool()> stop)
      : work_(work), end_(work.seconds() + seconds), slice_end_(end_), stop_(std::move(stop)) {}

  bool expired() { return expired_ || (++asked_ & 63) != 0 ? expired_ : expired_now(); }
  // The same, but reads the clock at once: for long steps.
  bool expired_now() {
    const double now = work_.seconds();
    over_ = over_ || now >= end_;
    if (const auto wall = std::chrono::steady_clock::now(); !over_ && stop_ && wall >= next_poll_) {
      next_poll_ = wall + std::chrono::milliseconds(20);
      over_ = stop_();
    }
    expired_ = expired_ || over_ || now >= slice_end_;
    return expired_;
  }
  // Limits the search to this share of the remaining work.
  void slice(double share) {
    const double now = work_.seconds();
    slice_end_ = now + (end_ - now) * share;
    expired_ = over_;
  }
  // Adds work that another thread did for this search.
  void charge(double seconds) { work_.charge(seconds); }

private:
  WorkClock &work_;
  double end_, slice_end_;
  std::chrono::steady_clock::time_point next_poll_{};
  std::function<bool()> stop_;
  std::uint64_t asked_ = 0;
  bool expired_ = false, over_ = false;
};

} // namespace superopt::search
