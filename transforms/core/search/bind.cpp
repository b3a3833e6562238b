#include <nanobind/nanobind.h>

#include "search/bind_search.hpp"

NB_MODULE(_search, module) {
  nanobind::module_::import_("superopt.transforms.core._cost"); // which knows TargetNumbers
  module.attr("__doc__") = "The muGraph search: expressions, values over named axes, kernels, sizes.";
  superopt::search::bind_search(module);
}
