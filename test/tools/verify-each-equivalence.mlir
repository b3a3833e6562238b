// Every step is proved to keep the program's meaning; a pass that does not is caught at once.
// RUN: superopt-opt %s --cse --canonicalize --fuse-thread-graphs --kernel-to-tile --verify-each-equivalence | filecheck %s
// RUN: not %python %S/Inputs/wrong_pass.py %s 2>&1 | filecheck %s --check-prefix=WRONG

// CHECK: superopt.tiled
// WRONG: error: expected 'halve' to give an equivalent program, got
func.func @f(%x: tensor<32x64xf32>) -> tensor<32x64xf32> {
  %0 = "kernel.exp"(%x) : (tensor<32x64xf32>) -> tensor<32x64xf32>
  %1 = "kernel.add"(%0, %x) : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
  return %1 : tensor<32x64xf32>
}
