#include <nanobind/nanobind.h>

#include "search/bind_cost.hpp"
#include "search/bind_search.hpp"

NB_MODULE(_search, module) {
  module.attr("__doc__") = "The muGraph search: expressions, values over named axes, kernels, sizes, cost.";
  superopt::bind_cost(module);
  superopt::search::bind_search(module);
}
