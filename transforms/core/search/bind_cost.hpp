// Python names of the cost formula.
#pragma once

#include <nanobind/nanobind.h>

#include "cost.hpp"

namespace superopt {

inline void bind_cost(nanobind::module_ &module) {
  namespace nb = nanobind;
  nb::class_<TargetNumbers>(module, "TargetNumbers",
                            "What the cost formula knows of a GPU; seconds, bytes, flops.")
      .def(nb::init<>())
      .def_rw("launch_seconds", &TargetNumbers::launch_seconds)
      .def_rw("iteration_seconds", &TargetNumbers::iteration_seconds)
      .def_rw("dram_bytes_per_second", &TargetNumbers::dram_bytes_per_second)
      .def_rw("l2_bytes_per_second", &TargetNumbers::l2_bytes_per_second)
      .def_rw("l2_capacity", &TargetNumbers::l2_capacity)
      .def_rw("tensor_flops", &TargetNumbers::tensor_flops)
      .def_rw("vector_flops", &TargetNumbers::vector_flops)
      .def_rw("multiprocessors", &TargetNumbers::multiprocessors)
      .def_rw("shared_per_block", &TargetNumbers::shared_per_block)
      .def_rw("shared_per_multiprocessor", &TargetNumbers::shared_per_multiprocessor)
      .def_rw("blocks_per_multiprocessor", &TargetNumbers::blocks_per_multiprocessor);
  nb::class_<KernelTraffic>(module, "KernelTraffic", "What one kernel moves and computes.")
      .def(nb::init<>())
      .def_rw("dram_bytes", &KernelTraffic::dram_bytes)
      .def_rw("l2_bytes", &KernelTraffic::l2_bytes)
      .def_rw("tensor_flops", &KernelTraffic::tensor_flops)
      .def_rw("vector_flops", &KernelTraffic::vector_flops)
      .def_rw("blocks", &KernelTraffic::blocks)
      .def_rw("shared_bytes", &KernelTraffic::shared_bytes)
      .def_rw("loop_trips", &KernelTraffic::loop_trips);
  module.def(
      "kernel_seconds", &kernel_seconds, nb::arg("target"), nb::arg("kernel"),
      "Seconds that one kernel takes on the target, its launch included; infinity where it does not fit.");
}

} // namespace superopt
