#include "search/bind_search.hpp"

#include "search/plan.hpp"

#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <memory>

namespace nb = nanobind;
using namespace nb::literals;

namespace superopt::search {
namespace {

constexpr const char *op_names[] = {"input", "constant", "unary", "binary", "add",     "sub",
                                    "mul",   "div",      "sum",   "reduce", "contract"};

const char *name_of(Op op) { return op_names[static_cast<std::size_t>(op)]; }

Op op_of(const std::string &name) {
  for (std::size_t i = 0; i < std::size(op_names); ++i)
    if (name == op_names[i])
      return static_cast<Op>(i);
  throw nb::value_error(("unknown operation '" + name + "'").c_str());
}

std::vector<std::uint32_t> factors_in(Mask mask) {
  std::vector<std::uint32_t> out;
  for (; mask; mask &= mask - 1)
    out.push_back(static_cast<std::uint32_t>(std::countr_zero(mask)));
  return out;
}

// What Python sees of a search: plain lists and numbers.
struct StepView {
  ValueId value;
  std::string op;
  std::uint32_t function;
  std::vector<std::uint32_t> reduced;
  std::vector<ValueId> args;
};
struct KernelView {
  bool custom;
  std::vector<ValueId> outputs, leaves;
  std::vector<StepView> steps;
  std::vector<std::uint32_t> loops;
  std::vector<std::int64_t> tile, full;
  std::vector<std::vector<std::uint32_t>> shared;
  double seconds;
};
struct PlanView {
  double seconds;
  std::int64_t split;
  std::vector<KernelView> kernels;
};
struct ValueView {
  std::vector<std::uint32_t> factors;
  std::map<std::uint32_t, std::int32_t> degrees; // of exponentials relative to a maximum, by function
  std::string leaf;                              // "input", "constant" or empty
  std::uint32_t symbol;
  std::uint32_t derivations;
};
struct ResultView {
  std::vector<PlanView> plans;
  std::map<ValueId, ValueView> values;
  std::vector<ValueId> outputs;
  std::map<std::string, double> funnel;
  double program_seconds;
  bool complete;
};

StepView view(const Step &step) {
  StepView s{step.value, name_of(step.how.op), step.how.function, factors_in(step.how.reduced), {step.how.a}};
  if (step.how.arity == 2)
    s.args.push_back(step.how.b);
  return s;
}

KernelView view(const Kernel &kernel) {
  KernelView k{kernel.custom, kernel.outputs, kernel.leaves, {}, factors_in(kernel.loops), kernel.tile,
               kernel.full,   kernel.shared,  kernel.seconds};
  if (!kernel.loop_order.empty())
    k.loops = kernel.loop_order;
  for (const Step &step : kernel.steps)
    k.steps.push_back(view(step));
  return k;
}

void view_values(const Values &values, std::map<ValueId, ValueView> &out) {
  for (ValueId id = 0; id < values.all().size(); ++id) {
    const Value &v = values.all()[id];
    if (!v.useful)
      continue;
    const std::string leaf = !v.leaf ? "" : name_of(v.derivations[0].op);
    std::map<std::uint32_t, std::int32_t> degrees;
    for (const Degree &degree : v.degrees)
      degrees[degree.function] = degree.power;
    out[id] = {factors_in(v.mask), degrees, leaf, v.leaf ? v.derivations[0].function : 0,
               static_cast<std::uint32_t>(v.derivations.size())};
  }
}

nb::object term_object(const std::vector<Term> &terms, std::uint32_t id) {
  const Term &t = terms[id];
  nb::list args;
  for (std::uint32_t arg : t.args)
    args.append(term_object(terms, arg));
  return nb::make_tuple(name_of(t.op), t.symbol, factors_in(t.reduced), nb::tuple(args));
}

// The Python callbacks of a search. An exception in one (including KeyboardInterrupt) ends the search, and is
// raised again once the search has ended.
class Callbacks {
public:
  Callbacks(nb::object stop, nb::object oracle) : stop_(std::move(stop)), oracle_(std::move(oracle)) {}

  bool stop() {
    if (stop_.is_none())
      return false;
    return guarded([&] { return nb::cast<bool>(stop_()); }, true);
  }
  bool ask(const Values &values, std::uint32_t term) {
    return guarded(
        [&] { return nb::cast<bool>(oracle_(term_object(values.terms(), term), targets(values))); }, true);
  }
  void raise() {
    if (failed_)
      throw nb::python_error(std::move(*failed_));
  }

private:
  nb::object targets(const Values &values) {
    nb::list list;
    for (std::uint32_t t : values.target_terms())
      list.append(term_object(values.terms(), t));
    return nb::tuple(list);
  }
  template <typename F> bool guarded(F &&call, bool on_failure) {
    if (failed_)
      return on_failure;
    const nb::gil_scoped_acquire gil;
    try {
      return call();
    } catch (nb::python_error &error) {
      failed_ = std::make_unique<nb::python_error>(std::move(error));
      return on_failure;
    }
  }

  nb::object stop_, oracle_;
  std::unique_ptr<nb::python_error> failed_;
};

void check(const Problem &p) {
  const std::size_t refs = p.roles.size() + p.constants.size() + p.nodes.size();
  const auto expect = [](bool good, const char *what) {
    if (!good)
      throw nb::value_error(what);
  };
  expect(p.factors.size() <= 60, "expected at most 60 axis factors");
  expect(!p.outputs.empty(), "expected at least one output");
  for (std::size_t i = 0; i < p.nodes.size(); ++i) {
    const ProgramNode &node = p.nodes[i];
    expect(node.args.size() == 1 || node.args.size() == 2, "expected nodes of one or two operands");
    for (std::uint32_t arg : node.args)
      expect(arg < p.roles.size() + p.constants.size() + i, "expected operands defined before");
    for (std::uint32_t axis : node.reduced)
      expect(axis < p.axes.size(), "expected known axes");
    const bool function = node.op == Op::Unary || node.op == Op::Binary || node.op == Op::Reduce;
    expect(!function || node.function < p.functions.size(), "expected a known function");
    expect(!node.same || (node.aside && *node.same < p.roles.size() + p.constants.size() + i),
           "expected an operation aside to name an earlier one");
  }
  for (std::uint32_t output : p.outputs)
    expect(output < refs, "expected known outputs");
  expect(p.output_dims.empty() || p.output_dims.size() == p.outputs.size(),
         "expected the dimensions of every output, or of none");
  for (const auto &dims : p.output_dims)
    for (const auto &axes : dims)
      for (std::uint32_t axis : axes)
        expect(axis < p.axes.size(), "expected known axes of outputs");
}

ResultView search(const Problem &problem, const Options &options, nb::object stop, nb::object oracle) {
  check(problem);
  Callbacks callbacks(std::move(stop), std::move(oracle));
  ResultView out;
  {
    const nb::gil_scoped_release release;
    // Values may take half of the time, which leaves some to build kernels from them.
    WorkClock work;
    Clock values_clock(work, options.budget_seconds / 2, [&] { return callbacks.stop(); });
    Clock clock(work, options.budget_seconds, [&] { return callbacks.stop(); });
    Values *self = nullptr;
    Values values(problem, options, values_clock,
                  [&](std::uint32_t term) { return callbacks.ask(*self, term); });
    self = &values;
    const auto start = std::chrono::steady_clock::now();
    values.run();
    const double values_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    Planner planner(values, options, clock);
    Result result = planner.run();
    for (const Plan &plan : result.plans) {
      PlanView p{plan.seconds, plan.split, {}};
      for (const Kernel &kernel : plan.kernels)
        p.kernels.push_back(view(kernel));
      out.plans.push_back(std::move(p));
    }
    view_values(values, out.values);
    out.outputs = values.outputs();
    out.program_seconds = result.program_seconds;
    out.complete = result.complete && !values.limited() && !values_clock.expired_now();
    const ValueCounts &v = values.counts;
    const KernelCounts &k = planner.counts;
    const auto number = [](std::uint64_t n) { return static_cast<double>(n); };
    out.funnel = {{"values.attempted", number(v.attempted)},
                  {"values.pruned.expression", number(v.by_expression)},
                  {"values.pruned.size", number(v.by_size)},
                  {"values.pruned.degree", number(v.by_degree)},
                  {"values.rejected.undefined", number(v.undefined)},
                  {"values.rejected.fingerprint", number(v.by_fingerprint)},
                  {"values.duplicates", number(v.duplicates)},
                  {"values.derivations_dropped", number(v.heavier)},
                  {"values.found", number(v.values)},
                  {"values.useful", number(v.useful)},
                  {"values.derivations", number(v.derivations)},
                  {"kernels.states", number(k.states)},
                  {"kernels.graphs", number(k.graphs)},
                  {"kernels.pruned.operators", number(k.by_operators)},
                  {"kernels.pruned.states", number(k.by_states)},
                  {"kernels.pruned.labels", number(k.by_labels)},
                  {"kernels.pruned.place", number(k.by_place)},
                  {"kernels.pruned.dominance", number(k.by_dominance)},
                  {"kernels.labelled", number(k.labelled)},
                  {"kernels.pruned.traffic", number(k.by_traffic)},
                  {"kernels.pruned.bound", number(planner.sizes.by_bound)},
                  {"kernels.pruned.memory", number(planner.sizes.by_memory)},
                  {"kernels.sized", number(planner.sizes.sized)},
                  {"kernels.size_points", number(planner.sizes.size_points)},
                  {"plans.ranked", number(out.plans.size())},
                  {"seconds.helpers", work.helped()},
                  {"seconds.values", values_seconds},
                  {"seconds.first", values_seconds + result.first_seconds},
                  {"seconds.all", values_seconds + result.plan_seconds}};
  }
  callbacks.raise();
  return out;
}

// Every graph of one custom kernel with the program's outputs, or with any one value that can be stored, as a
// plan each, without sizes.
ResultView enumerate_kernels(const Problem &problem, const Options &options, nb::object oracle, bool every) {
  check(problem);
  Callbacks callbacks(nb::none(), std::move(oracle));
  WorkClock work;
  Clock clock(work, options.budget_seconds, {});
  Values *self = nullptr;
  Values values(problem, options, clock, [&](std::uint32_t term) { return callbacks.ask(*self, term); });
  self = &values;
  values.run();
  Kernels kernels(values, options, clock);
  ResultView out;
  std::vector<std::vector<ValueId>> wanted{values.outputs()};
  if (every) {
    wanted.clear();
    for (ValueId v = 0; v < values.all().size(); ++v)
      if (values.all()[v].useful && !values.all()[v].leaf && values.storable(v))
        wanted.push_back({v});
  }
  for (const std::vector<ValueId> &outputs : wanted)
    kernels.enumerate(outputs, [&](Kernel &&kernel) { out.plans.push_back({0, 0, {view(kernel)}}); });
  view_values(values, out.values);
  out.outputs = values.outputs();
  out.program_seconds = 0;
  out.complete = !clock.expired_now() && !values.limited() && kernels.counts.by_states == 0;
  callbacks.raise();
  return out;
}

} // namespace

// Normal forms by themselves: tests compare them with the axioms' closure and with a solver.
class Algebra {
public:
  FormId input(std::uint32_t symbol, std::uint64_t mask) { return e_.input(symbol, mask); }
  FormId apply(std::uint32_t f, const std::vector<FormId> &args) { return e_.apply(f, args); }
  FormId add(FormId a, FormId b) { return e_.add(a, b); }
  FormId mul(FormId a, FormId b) { return e_.mul(a, b); }
  FormId div(FormId a, FormId b) { return e_.div(a, b); }
  FormId sum(std::uint32_t factor, FormId a) { return e_.sum(Mask{1} << factor, a); }
  bool subexpression(FormId part, FormId whole) {
    Targets targets(e_);
    targets.add(whole, ~Mask{0});
    return targets.reachable(part, 0, false);
  }

private:
  Expressions e_;
};

void bind_search(nb::module_ &module) {
  nb::class_<Algebra>(module, "Algebra",
                      "Abstract expressions in normal form; equal ones have equal numbers.")
      .def(nb::init<>())
      .def("input", &Algebra::input, "symbol"_a, "mask"_a = 0)
      .def("apply", &Algebra::apply, "function"_a, "args"_a)
      .def("add", &Algebra::add, "a"_a, "b"_a)
      .def("mul", &Algebra::mul, "a"_a, "b"_a)
      .def("div", &Algebra::div, "a"_a, "b"_a)
      .def("sum", &Algebra::sum, "factor"_a, "a"_a)
      .def("subexpression", &Algebra::subexpression, "part"_a, "whole"_a,
           "Whether `part` is an abstract subexpression of `whole`.");

  nb::class_<Problem>(module, "Problem", "A program over named axes.")
      .def(nb::init<>())
      .def(
          "add_axis",
          [](Problem &p, std::int64_t extent, bool split, bool loop) {
            Axis axis{extent, {}, 0};
            const auto index = static_cast<std::uint32_t>(p.axes.size());
            for (auto [wanted, level] :
                 {std::pair{split, Level::Split}, std::pair{loop, Level::Loop}, std::pair{true, Level::Tile}})
              if (wanted) {
                axis.mask |= Mask{1} << p.factors.size();
                axis.factors.push_back(static_cast<std::uint32_t>(p.factors.size()));
                p.factors.push_back({index, level});
              }
            p.axes.push_back(std::move(axis));
            return index;
          },
          "extent"_a, "split"_a, "loop"_a,
          "Add an axis with a tile factor and, where wanted, a split and a loop factor; its number.")
      .def(
          "add_input",
          [](Problem &p, std::uint32_t tensor, std::vector<std::vector<std::uint32_t>> dims,
             std::int64_t element_bytes) {
            Role role{tensor, std::move(dims), element_bytes, 0};
            for (const auto &dim : role.dims)
              role.mask |= p.axis_mask(dim);
            p.roles.push_back(std::move(role));
          },
          "tensor"_a, "dims"_a, "element_bytes"_a, "Add one use of input `tensor` with the axes of its dims.")
      .def(
          "add_constant", [](Problem &p, double value) { p.constants.push_back(value); }, "value"_a)
      .def(
          "add_function",
          [](Problem &p, std::uint64_t key, bool commutative, bool ordered, bool reduction, double flops,
             double special, const std::vector<std::uint32_t> &over,
             const std::vector<std::uint32_t> &along) {
            p.functions.push_back({key, commutative, ordered, reduction, flops, special, p.axis_mask(over),
                                   p.axis_mask(along)});
          },
          "key"_a, "commutative"_a, "ordered"_a, "reduction"_a, "flops"_a, "special"_a,
          "over"_a = std::vector<std::uint32_t>{}, "along"_a = std::vector<std::uint32_t>{},
          "Add an uninterpreted function; of an exponential taken relative to a maximum, `over` are the axes "
          "that the maximum ranges over, `along` those it varies along.")
      .def(
          "add_node",
          [](Problem &p, const std::string &op, std::vector<std::uint32_t> args, std::uint32_t function,
             std::vector<std::uint32_t> reduced, bool aside, std::optional<std::uint32_t> same) {
            p.nodes.push_back({op_of(op), std::move(args), function, std::move(reduced), aside, same});
            return static_cast<std::uint32_t>(p.roles.size() + p.constants.size() + p.nodes.size() - 1);
          },
          "op"_a, "args"_a, "function"_a, "reduced"_a, "aside"_a = false, "same"_a.none() = nb::none(),
          "Add an operation (all inputs and constants are there already); its number. What stands aside is "
          "computed as it is or not at all; `same` is the operation that it computes in another way.")
      .def(
          "set_outputs",
          [](Problem &p, std::vector<std::uint32_t> refs,
             std::vector<std::vector<std::vector<std::uint32_t>>> dims) {
            p.outputs = std::move(refs), p.output_dims = std::move(dims);
          },
          "refs"_a, "dims"_a = std::vector<std::vector<std::vector<std::uint32_t>>>{},
          "The outputs, and the axes of each of their dimensions, by which memory holds them; without these, "
          "any layout will do.")
      .def_prop_ro(
          "factors",
          [](const Problem &p) {
            std::vector<std::tuple<std::uint32_t, std::uint32_t>> out;
            for (const Factor &f : p.factors)
              out.emplace_back(f.axis, static_cast<std::uint32_t>(f.level));
            return out;
          },
          "Per factor its axis and level (0 split, 1 loop, 2 tile).");

  nb::class_<Options>(module, "Options", "How far to look.")
      .def(nb::init<>())
      .def_prop_rw(
          "prune", [](const Options &o) { return static_cast<int>(o.prune); },
          [](Options &o, int p) { o.prune = static_cast<Prune>(std::clamp(p, 0, 2)); },
          "0 normal form, 1 smt, 2 none")
      .def_rw("axis_test", &Options::axis_test)
      .def_prop_rw(
          "canonical", [](const Options &o) { return static_cast<int>(o.canonical); },
          [](Options &o, int c) { o.canonical = static_cast<Canonical>(std::clamp(c, 0, 1)); },
          "0 values, 1 graphs")
      .def_rw("max_block_operators", &Options::max_block_operators)
      .def_rw("max_custom", &Options::max_custom)
      .def_rw("max_loops", &Options::max_loops)
      .def_rw("branch_and_bound", &Options::branch_and_bound)
      .def_rw("dominance", &Options::dominance)
      .def_rw("threads", &Options::threads)
      .def_rw("max_states", &Options::max_states)
      .def_rw("max_value_operators", &Options::max_value_operators)
      .def_rw("max_found", &Options::max_found)
      .def_rw("max_attempts", &Options::max_attempts)
      .def_rw("candidates", &Options::candidates)
      .def_rw("margin", &Options::margin)
      .def_rw("budget_seconds", &Options::budget_seconds)
      .def_rw("seed", &Options::seed)
      .def_rw("intermediate_bytes", &Options::intermediate_bytes)
      .def_rw("target", &Options::target);

  nb::class_<StepView>(module, "Step", "One operation of a kernel.")
      .def_ro("value", &StepView::value)
      .def_ro("op", &StepView::op)
      .def_ro("function", &StepView::function)
      .def_ro("reduced", &StepView::reduced)
      .def_ro("args", &StepView::args);
  nb::class_<KernelView>(module, "Kernel", "One kernel of a plan; extents are per factor.")
      .def_ro("custom", &KernelView::custom)
      .def_ro("outputs", &KernelView::outputs)
      .def_ro("leaves", &KernelView::leaves)
      .def_ro("steps", &KernelView::steps)
      .def_ro("loops", &KernelView::loops)
      .def_ro("tile", &KernelView::tile)
      .def_ro("full", &KernelView::full)
      .def_ro("shared", &KernelView::shared)
      .def_ro("seconds", &KernelView::seconds);
  nb::class_<PlanView>(module, "Plan", "A whole program: kernels in the order they run.")
      .def_ro("seconds", &PlanView::seconds)
      .def_ro("split", &PlanView::split)
      .def_ro("kernels", &PlanView::kernels);
  nb::class_<ValueView>(module, "ValueInfo", "A value that some plan may use.")
      .def_ro("factors", &ValueView::factors)
      .def_ro("degrees", &ValueView::degrees)
      .def_ro("leaf", &ValueView::leaf)
      .def_ro("symbol", &ValueView::symbol)
      .def_ro("derivations", &ValueView::derivations);
  nb::class_<ResultView>(module, "Result", "Plans, cheapest first, and how the search went.")
      .def_ro("plans", &ResultView::plans)
      .def_ro("values", &ResultView::values)
      .def_ro("outputs", &ResultView::outputs)
      .def_ro("funnel", &ResultView::funnel)
      .def_ro("program_seconds", &ResultView::program_seconds)
      .def_ro("complete", &ResultView::complete);
  module.def("search", &search, "problem"_a, "options"_a, "stop"_a.none(), "oracle"_a.none(),
             "Search plans with custom kernels. `stop()` ends it early; `oracle(term, targets)` answers the "
             "pruning question where `options.prune` is 1.");
  module.def(
      "enumerate_kernels", &enumerate_kernels, "problem"_a, "options"_a, "oracle"_a.none(), "every"_a = false,
      "Every graph of one kernel that computes the outputs, or (`every`) any value that can be stored, as "
      "a plan each, without sizes.");
}

} // namespace superopt::search
