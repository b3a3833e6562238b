// The cost of one kernel of an extracted term, by the formula that ranks whole programs.
//
// The traffic is counted as `superopt.cost` counts it on tile programs: values once per scope, data that
// stays on chip for free, stores that nobody reads not at all; tile widths are chosen one at a time. The
// tensors live after the kernel matter: they decide what is stored, and which loops may be grid dimensions.
#pragma once

#include "cost/cost.hpp"
#include "egraph/egraph.hpp"
#include "egraph/term.hpp"

namespace superopt::egraph {

using TensorSet = std::vector<int32_t>; // sorted single tensors (lanes of bundles)

bool in(const TensorSet &set, int32_t tensor);
bool insert(TensorSet &set, int32_t tensor); // true if it was new
bool meet(const TensorSet &x, const TensorSet &y);

struct Estimate {
  double seconds = 0; // infinity: not possible as a kernel; 0: nothing of it is needed
  TensorSet live;     // before the kernel
};

// One kernel's term, with what does not depend on its surroundings.
class KernelTerm {
public:
  KernelTerm(const EGraph &g, Term term);
  const TensorSet &writes() const { return writes_; }
  // Seconds on the target, `live` being the tensors that somebody reads after the kernel; with those of the
  // widths that suit the kernel best.
  Estimate on(const TargetNumbers &target, const TensorSet &live, const std::vector<int32_t> &widths) const;

private:
  struct Access {
    int32_t region;
    bool store; // or a start
  };

  const EGraph &g_;
  Term term_;
  std::vector<TensorSet> reads_; // of each value of the term
  std::vector<Regions> regions_; // that each value loads
  std::vector<double> lanes_;    // bundled tensors that each value stands for
  std::vector<int32_t> bytes_;   // of one element of the narrowest tensor that each value loads
  std::vector<Bits> vars_;       // that each value depends on
  TensorSet writes_;
  std::vector<int32_t> free_; // loop variables whose tiles may have any width that divides the extent

  const TensorSet &members(int32_t region) const;
  void accesses(Id at, std::vector<Access> &out) const;
  void writes_of(Id at, TensorSet &out) const;
  void needed(Id at, TensorSet &kept, bool &grown) const;
  std::vector<int32_t> free_widths() const;
  friend class Count;
};

} // namespace superopt::egraph
