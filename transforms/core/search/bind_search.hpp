// Python names of the search.
#pragma once

#include <nanobind/nanobind.h>

namespace superopt::search {

void bind_search(nanobind::module_ &module);

} // namespace superopt::search
