// Python names of the cost formula and of the counting that goes with it.
#include <nanobind/nanobind.h>

#include "cost/cost.hpp"

NB_MODULE(_cost, module) {
  using namespace superopt;
  namespace nb = nanobind;
  using namespace nb::literals;
  module.attr("__doc__") = "The analytic cost of one kernel, and the counting of what goes into it.";

  nb::class_<TargetNumbers>(module, "TargetNumbers",
                            "What the cost formula knows of a GPU; seconds, bytes, flops.")
      .def(nb::init<>())
      .def_rw("launch_seconds", &TargetNumbers::launch_seconds)
      .def_rw("iteration_seconds", &TargetNumbers::iteration_seconds)
      .def_rw("floor_seconds", &TargetNumbers::floor_seconds)
      .def_rw("dram_bytes_per_second", &TargetNumbers::dram_bytes_per_second)
      .def_rw("l2_bytes_per_second", &TargetNumbers::l2_bytes_per_second)
      .def_rw("multiprocessor_bytes_per_second", &TargetNumbers::multiprocessor_bytes_per_second)
      .def_rw("l2_capacity", &TargetNumbers::l2_capacity)
      .def_rw("tensor_flops", &TargetNumbers::tensor_flops)
      .def_rw("vector_flops", &TargetNumbers::vector_flops)
      .def_rw("special_operations", &TargetNumbers::special_operations)
      .def_rw("multiprocessors", &TargetNumbers::multiprocessors)
      .def_rw("shared_per_block", &TargetNumbers::shared_per_block)
      .def_rw("shared_per_multiprocessor", &TargetNumbers::shared_per_multiprocessor)
      .def_rw("blocks_per_multiprocessor", &TargetNumbers::blocks_per_multiprocessor)
      .def_rw("registers", &TargetNumbers::registers)
      .def_rw("matrix_side", &TargetNumbers::matrix_side)
      .def_rw("matrix_rows", &TargetNumbers::matrix_rows);

  nb::class_<KernelTraffic>(module, "KernelTraffic",
                            "What one kernel moves (bytes) and computes (flops), over all its blocks.")
      .def(nb::init<>())
      .def_rw("dram_bytes", &KernelTraffic::dram_bytes)
      .def_rw("l2_bytes", &KernelTraffic::l2_bytes)
      .def_rw("tensor_flops", &KernelTraffic::tensor_flops)
      .def_rw("vector_flops", &KernelTraffic::vector_flops)
      .def_rw("special_operations", &KernelTraffic::special_operations)
      .def_rw("blocks", &KernelTraffic::blocks)
      .def_rw("shared_bytes", &KernelTraffic::shared_bytes, "Of one block.")
      .def_rw("loop_trips", &KernelTraffic::loop_trips,
              "Of one block: loops within loops multiply, those one after the other add up.")
      .def("move", &KernelTraffic::move, "target"_a, "tensor_bytes"_a, "moved"_a, "run"_a,
           "Blocks load and store `moved` bytes in all of a tensor, `run` of them one after the other; call "
           "it "
           "when `blocks` and `shared_bytes` are set.")
      .def("product", &KernelTraffic::product, "target"_a, "rows"_a, "columns"_a, "depth"_a, "times"_a,
           "operand_bytes"_a, "Matrix products, `times` of them, of operands with so many bytes an element.");

  module.def("waves", &waves, "target"_a, "blocks"_a, "resident"_a,
             "Rounds that the blocks of a kernel take where each multiprocessor holds so many at once.");
  module.def("busy_share", &busy_share, "target"_a, "blocks"_a,
             "The share of the matrix and vector units that so many blocks keep busy.");
  module.def("memory_rate", &memory_rate, "target"_a, "peak"_a, "blocks"_a,
             "Bytes a second that so many blocks move where the memory does `peak`.");
  module.def(
      "kernel_seconds", &kernel_seconds, "target"_a, "kernel"_a,
      "Seconds that one kernel takes on the target, its launch included; infinity where it does not fit.");
}
