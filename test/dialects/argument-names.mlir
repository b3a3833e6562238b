// The names of arguments survive passes and text; those that say nothing are left out.
// RUN: superopt-opt %s --ingest-linalg | superopt-opt | filecheck %s
// RUN: superopt-opt %s --ingest-linalg | superopt-opt --emit=text | filecheck %s --check-prefix=TEXT
// RUN: superopt-opt %s --emit=triton | filecheck %s --check-prefix=TRITON

// CHECK: func.func @f(%arg0: tensor<16x32xf16> {superopt.name = "scores"}, %arg1: tensor<16x32xf16>, %arg2: tensor<16x32xf16> {superopt.name = "i.0"})
// TEXT: f(scores: f16[16, 32], arg1: f16[16, 32], i.0: f16[16, 32])
// TRITON: def f_0(scores_ptr, arg1_ptr,
// TRITON: i_0_ptr
func.func @f(%scores: tensor<16x32xf16>, %0: tensor<16x32xf16>,
             %i.0: tensor<16x32xf16>) -> tensor<16x32xf16> {
  %a = "kernel.add"(%scores, %0) : (tensor<16x32xf16>, tensor<16x32xf16>) -> tensor<16x32xf16>
  %b = "kernel.mul"(%a, %i.0) : (tensor<16x32xf16>, tensor<16x32xf16>) -> tensor<16x32xf16>
  return %b : tensor<16x32xf16>
}
