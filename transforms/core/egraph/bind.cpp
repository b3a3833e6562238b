#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "egraph/extract.hpp"

#include <algorithm>
#include <stdexcept>

namespace nb = nanobind;
using namespace nb::literals;

namespace superopt::egraph {
namespace {

using Dims = std::vector<std::tuple<int32_t, int32_t, int32_t>>;
using PyTerm = std::vector<std::tuple<std::string, int32_t, int64_t, int64_t>>;

int64_t signed_id(Id id) { return id == NONE ? -1 : static_cast<int64_t>(id); }

PyTerm to_python(const Term &term) {
  PyTerm out;
  for (const Node &n : term)
    out.emplace_back(op_name(n.op), n.payload, signed_id(n.a), signed_id(n.b));
  return out;
}

// A Python callable without arguments, to be called while Python runs on.
std::function<bool()> asking(const nb::object &stop) {
  if (stop.is_none())
    return {};
  return [&stop] {
    const nb::gil_scoped_acquire acquire;
    return nb::cast<bool>(stop());
  };
}

// The e-graph, and what Python needs with it.
struct Handle {
  EGraph g;
  Outcome last;
  std::vector<LibraryForm> library;

  int32_t access(int32_t tensor, const Dims &dims) {
    if (tensor < 0 || tensor >= static_cast<int32_t>(g.tables.tensors.size()))
      throw std::invalid_argument("expected a tensor that was added");
    const Tensor &t = g.tables.tensors[tensor];
    if (dims.size() != t.shape.size())
      throw std::invalid_argument("expected an index for each dimension of " + t.name);
    Access out{tensor, {}};
    for (size_t d = 0; d < dims.size(); ++d) {
      const auto [kind, a, b] = dims[d];
      // Kind 4 is a block of b elements for each iteration; single elements are blocks of one.
      const DimIndex dim =
          kind == 4 ? DimIndex{DimIndex::Elem, a, 0, b} : DimIndex{static_cast<DimIndex::Kind>(kind), a, b};
      const bool moves = dim.kind == DimIndex::Tile || dim.kind == DimIndex::Elem;
      if (kind < 0 || kind > 4 || (kind == 4 && b < 1) ||
          (moves && (a < 0 || a >= static_cast<int32_t>(g.tables.vars.size()))))
        throw std::invalid_argument("expected an index by a variable that was added");
      int32_t low = 0, high = t.shape[d];
      if (moves) {
        const Var &v = g.tables.vars[a];
        if (dim.kind == DimIndex::Elem && v.step == 0)
          throw std::invalid_argument("expected a loop of known length for single elements");
        low = dim.b, high = dim.b + (dim.kind == DimIndex::Tile ? v.end : v.trips() * dim.c);
      } else if (dim.kind == DimIndex::Range) {
        low = a, high = a + b;
      }
      if (low < 0 || high > t.shape[d] || low >= high)
        throw std::invalid_argument("expected a region within " + t.name);
      const bool whole = dim.kind == DimIndex::Range && low == 0 && high == t.shape[d];
      out.dims.push_back(whole ? DimIndex{} : dim);
    }
    return g.tables.accesses(out);
  }

  int64_t add(const std::string &op, int32_t payload, int64_t a, int64_t b) {
    for (const int64_t child : {a, b})
      if (child >= 0 && static_cast<size_t>(child) >= size())
        throw std::invalid_argument("expected operands that were added");
    for (int i = 0; i < OP_COUNT; ++i) {
      if (op != op_name(static_cast<Op>(i)))
        continue;
      const Id x = a < 0 ? NONE : static_cast<Id>(a), y = b < 0 ? NONE : static_cast<Id>(b);
      const Id id = static_cast<Op>(i) == Op::Seq ? g.append(x, y) : g.add(static_cast<Op>(i), payload, x, y);
      if (id == NONE)
        throw std::invalid_argument("expected operands whose shapes fit '" + op + "'");
      return id;
    }
    throw std::invalid_argument("expected an operator of the e-graph, got '" + op + "'");
  }

  size_t size() const { return g.total_ids(); }

  void weaken(const std::string &guard) {
    for (int i = 0; i < GUARD_COUNT; ++i) {
      if (guard == described(static_cast<Guard>(i)).name) {
        g.weakened |= 1u << i;
        return;
      }
    }
    throw std::invalid_argument("expected the name of a guard, got '" + guard + "'");
  }

  void saturate(const std::vector<std::string> &rules, int iterations, size_t nodes, size_t bytes,
                double seconds, const nb::object &stop) {
    std::vector<bool> enabled(rule_table().size(), false);
    for (const std::string &name : rules) {
      bool known = false;
      for (size_t i = 0; i < rule_table().size(); ++i)
        if (name == rule_table()[i].name)
          enabled[i] = known = true;
      if (!known)
        throw std::invalid_argument("expected the name of a rule, got '" + name + "'");
    }
    Watch watch(seconds, asking(stop));
    nb::gil_scoped_release release;
    last = superopt::egraph::saturate(g, enabled, {iterations, nodes, bytes}, watch);
  }
};

} // namespace
} // namespace superopt::egraph

NB_MODULE(_egraph, module) {
  using namespace superopt::egraph;
  nb::module_::import_("superopt.transforms.core._cost"); // which knows TargetNumbers
  module.attr("__doc__") =
      "Equality saturation of tile programs: the e-graph, its rules and guards, extraction.";

  read_patterns(); // a wrong pattern or guard fails the import

  module.def(
      "rules",
      [] {
        using Guards = std::vector<std::pair<std::string, std::string>>;
        std::vector<std::tuple<std::string, std::string, std::string, Guards, std::string, bool>> out;
        for (const RuleEntry &r : rule_table()) {
          Guards guards;
          for (const RuleGuard &guard : r.guards)
            guards.emplace_back(described(guard.guard).name, guard.asks());
          out.emplace_back(r.name, r.before, r.after, guards, r.source, r.by_default);
        }
        return out;
      },
      "(name, before, after, guards, source, on by default) of every rule; of a guard its name and what it "
      "asks.");
  module.def(
      "guards",
      [] {
        std::vector<std::string> out;
        for (int i = 0; i < GUARD_COUNT; ++i)
          out.emplace_back(described(static_cast<Guard>(i)).name);
        return out;
      },
      "Names of the guards that `weaken` takes.");

  nb::class_<Handle>(module, "EGraph", "Tile programs, equal ones in one class; ids are numbers of classes.")
      .def(nb::init<>())
      .def(
          "add_var",
          [](Handle &h, const std::string &name, int32_t end, int32_t step, int32_t nominal, bool grid) {
            return h.g.tables.add_var({name, end, step, nominal, grid});
          },
          "name"_a, "end"_a, "step"_a, "nominal"_a, "grid"_a = true,
          "A loop variable over range(0, end, step); step 0 is a parameter.")
      .def(
          "add_tensor",
          [](Handle &h, const std::string &name, const std::vector<int32_t> &shape, int kind,
             const std::vector<int32_t> &members, int32_t bytes) {
            return h.g.tables.add_tensor({name, shape, static_cast<TensorKind>(kind), members, bytes});
          },
          "name"_a, "shape"_a, "kind"_a, "members"_a = std::vector<int32_t>{}, "bytes"_a = 4,
          "A tensor (kind 0 input, 1 output, 2 temporary), or a bundle of the members; bytes of an element.")
      .def("access", &Handle::access, "tensor"_a, "dims"_a,
           "A region: per dimension (0,0,0) all, (1,v,base) tile, (2,v,base) element, (3,base,size) "
           "range,\n(4,v,size) block.")
      .def(
          "loop_head",
          [](Handle &h, int32_t var, std::vector<std::pair<int32_t, int32_t>> inits) {
            std::sort(inits.begin(), inits.end());
            return h.g.tables.loops({var, inits});
          },
          "var"_a, "inits"_a, "A loop and the regions filled before it, with 0 (0) or minus infinity (1).")
      .def("constant",
           [](Handle &h, double value, const std::vector<int32_t> &shape) {
             return h.g.tables.constants({value, h.g.tables.shapes(shape)});
           })
      .def("ints", [](Handle &h, const std::vector<int32_t> &list) { return h.g.tables.lists(list); })
      .def("shape", [](Handle &h, const std::vector<int32_t> &shape) { return h.g.tables.shapes(shape); })
      .def(
          "name",
          [](Handle &h, const std::string &name, double flops, double special) {
            const int32_t id = h.g.tables.names(name);
            h.g.tables.works[id] = {flops, special};
            return id;
          },
          "name"_a, "flops"_a = 1, "special"_a = 0,
          "An operator that rules do not know; operations on an element, and those of them for the special "
          "function units.")
      .def("add", &Handle::add, "op"_a, "payload"_a = 0, "a"_a = -1, "b"_a = -1,
           "The class of a node; ValueError where the operands do not fit.")
      .def("weaken", &Handle::weaken, "guard"_a,
           "Switch a guard off: unsound, for tests that show what it stops.")
      .def("saturate", &Handle::saturate, "rules"_a, "iterations"_a, "nodes"_a, "bytes"_a, "seconds"_a,
           "stop"_a = nb::none(),
           "Apply the rules until nothing new appears, a limit is met, or `stop`, asked now and then, says "
           "so.")
      .def_prop_ro(
          "stopped", [](const Handle &h) { return h.last.stopped; }, "Why the last saturation ended.")
      .def_prop_ro("iterations", [](const Handle &h) { return h.last.iterations; })
      .def_prop_ro("seconds", [](const Handle &h) { return h.last.seconds; })
      .def_prop_ro(
          "statistics",
          [](const Handle &h) {
            std::vector<std::tuple<std::string, size_t, size_t, size_t>> out;
            for (size_t i = 0; i < h.last.counts.size(); ++i)
              out.emplace_back(rule_table()[i].name, h.last.counts[i].matched, h.last.counts[i].refused,
                               h.last.counts[i].fired);
            return out;
          },
          "(rule, matched, refused by the guard, fired) of the last saturation.")
      .def_prop_ro("classes", [](const Handle &h) { return h.g.class_count(); })
      .def_prop_ro("nodes", [](const Handle &h) { return h.g.node_count(); })
      .def_prop_ro("memory_bytes", [](const Handle &h) { return h.g.memory_bytes(); })
      .def("same", [](const Handle &h, Id a, Id b) { return h.g.find(a) == h.g.find(b); })
      .def(
          "find", [](const Handle &h, Id id) { return h.g.find(id); }, "The class that an id belongs to now.")
      .def(
          "count", [](const Handle &h, Id root) { return count_programs(h.g, root); }, "root"_a,
          "Programs that the class represents; a lower bound where classes are cyclic.")
      .def("sample",
           [](const Handle &h, Id root, uint64_t seed) { return to_python(sample(h.g, root, seed)); })
      .def(
          "best",
          [](Handle &h, Id root, int kernels, int k, const superopt::TargetNumbers &target,
             const std::vector<int32_t> &widths, double seconds, const nb::object &stop,
             const std::vector<double> &library) {
            if (library.size() > h.library.size())
              throw std::invalid_argument("expected seconds of statements that were noted");
            std::vector<LibraryForm> forms(h.library.begin(), h.library.begin() + library.size());
            for (size_t i = 0; i < forms.size(); ++i)
              forms[i].seconds = library[i];
            std::vector<std::tuple<int, double, PyTerm>> out;
            std::vector<Candidate> found;
            {
              Watch watch(seconds, asking(stop));
              nb::gil_scoped_release release;
              found = best(h.g, root, kernels, k, target, widths, forms, watch);
            }
            for (const Candidate &c : found)
              out.emplace_back(c.kernels, c.seconds, to_python(c.term));
            return out;
          },
          "root"_a, "kernels"_a, "k"_a, "target"_a, "widths"_a, "seconds"_a, "stop"_a = nb::none(),
          "library"_a = std::vector<double>{},
          "At most k (kernels, predicted seconds, term) for each number of kernels, tiles having those of "
          "the\n"
          "`widths` that divide their extents and suit each kernel best;\n"
          "nothing where time is up or `stop` says so. `library`: what the library takes for the statements\n"
          "that were noted, in that order.")
      .def(
          "note_library", [](Handle &h, Id id) { h.library.push_back({id, smallest_term(h.g, id), 0}); },
          "id"_a, "The library has a kernel for this statement, of which there is one form yet.")
      .def("access_at",
           [](const Handle &h, int32_t i) {
             const Access &access = h.g.tables.accesses[i];
             Dims dims;
             for (const DimIndex &d : access.dims)
               if (d.kind == DimIndex::Elem && d.c != 1)
                 dims.emplace_back(4, d.a, d.c);
               else
                 dims.emplace_back(d.kind, d.a, d.b);
             return std::pair(access.tensor, dims);
           })
      .def("loop_at",
           [](const Handle &h, int32_t i) {
             const LoopHead &head = h.g.tables.loops[i];
             return std::pair(head.var, head.inits);
           })
      .def("constant_at",
           [](const Handle &h, int32_t i) {
             const Constant &c = h.g.tables.constants[i];
             return std::pair(c.value, h.g.tables.shapes[c.shape]);
           })
      .def("ints_at", [](const Handle &h, int32_t i) { return h.g.tables.lists[i]; })
      .def("shape_at", [](const Handle &h, int32_t i) { return h.g.tables.shapes[i]; })
      .def("name_at", [](const Handle &h, int32_t i) { return h.g.tables.names[i]; })
      .def(
          "dump",
          [](const Handle &h) {
            std::vector<std::tuple<int64_t, std::string, int32_t, int64_t, int64_t>> out;
            for (const Id id : h.g.roots())
              for (const Id number : h.g.at(id).nodes) {
                const Node &n = h.g.node(number);
                out.emplace_back(id, op_name(n.op), n.payload, n.a == NONE ? -1 : signed_id(h.g.find(n.a)),
                                 n.b == NONE ? -1 : signed_id(h.g.find(n.b)));
              }
            return out;
          },
          "(class, operator, payload, children) of every node.");
}
