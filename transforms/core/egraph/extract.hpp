// Programs out of a class: the k best.
//
// The paper's Algorithm 1 (Trinity, section 5.1) enumerates loop structures; taken literally that is
// infeasible (1e10 of them with one kernel). Here both passes are one dynamic program: for every class the k
// best terms, inside a kernel and, by number of kernels, outside, equal up to the order of independent
// statements only once.
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

// A statement that a kernel of the library computes: the statement itself, and what that kernel takes.
// Whatever else its class holds computes the same, so that the library's kernel may stand for it.
struct LibraryForm {
  Id id;
  Term term;
  double seconds = 0;
};

// At most `k` terms for each number of kernels up to `kernels`, fewest predicted seconds first. Inside a
// kernel terms are ranked by the flops and tiles of the busiest unit; kernels, each in its surroundings (what
// is live after it), by the cost formula, or as the library's; tiles have the `widths`
// that divide their extents. Nothing where `watch` ends it first.
std::vector<Candidate> best(const EGraph &g, Id root, int kernels, int k, const TargetNumbers &target,
                            const std::vector<int32_t> &widths, const std::vector<LibraryForm> &library,
                            Watch &watch);

// Whether iterations of the loop may run in any order, given that temporaries which an iteration writes
// before it reads them get a copy each.
bool is_parallel(const EGraph &g, const LoopHead &head, const Facts &body);

} // namespace superopt::egraph
