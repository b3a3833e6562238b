// Programs out of a class: the k best.
//
// The paper's Algorithm 1 (Trinity, section 5.1) enumerates loop structures, which is infeasible when taken
// literally (1e10 of them with one kernel). Here both passes are one dynamic program: for every class it
// keeps the k best terms, inside a kernel and, by number of kernels, outside. Of terms that are equal up to
// the order of independent statements it keeps one.
#pragma once

#include "egraph/estimate.hpp"
#include "egraph/rules.hpp"
#include "egraph/term.hpp"

namespace superopt::egraph {

struct Candidate {
  int kernels = 0;
  double seconds = 0; // by the cost formula, at nominal tile widths
  Term term;
};

// A statement that a library kernel computes, and the seconds that kernel takes. All members of its class
// compute the same, so the library's kernel may replace any of them.
struct LibraryForm {
  Id id;
  Term term;
  double seconds = 0;
};

// At most `k` terms for each number of kernels up to `kernels`, fewest predicted seconds first. Inside a
// kernel terms are ranked by the flops and tiles of the busiest unit; kernels, each in its surroundings (what
// is live after it), by the cost formula or the library's time; tiles have the `widths` that divide their
// extents. Empty where `watch` ends it first.
std::vector<Candidate> best(const EGraph &g, Id root, int kernels, int k, const TargetNumbers &target,
                            const std::vector<int32_t> &widths, const std::vector<LibraryForm> &library,
                            Watch &watch);

// Whether iterations of the loop may run in any order, if each gets its own copy of the temporaries that it
// writes before reading them.
bool is_parallel(const EGraph &g, const LoopHead &head, const Facts &body);

} // namespace superopt::egraph
