// An optimizer from a file of one's own is asked like those of the package, with its options, and believed no more.
// RUN: superopt-opt %s --load-pass-plugin=%S/Inputs/optimizer.py --superoptimize="optimizers=squares store=none" --report=%t.json | filecheck %s
// RUN: filecheck %s --input-file %t.json --check-prefix=REPORT
// RUN: superopt-opt %s --load-pass-plugin=%S/Inputs/optimizer.py --superoptimize="optimizers=squares{wrong=true} store=none" --report=%t.json | filecheck %s --check-prefix=KEPT
// RUN: filecheck %s --input-file %t.json --check-prefix=WRONG
// RUN: superopt-opt %s --load-pass-plugin=%S/Inputs/optimizer.py --pass-pipeline='builtin.module(superoptimize{optimizers=mugraph{max-custom=1},squares store=none})' | filecheck %s --check-prefix=BOTH
// RUN: not superopt-opt %s --superoptimize="optimizers=squares" 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: not superopt-opt %s --load-pass-plugin=%S/Inputs/optimizer.py --superoptimize="optimizers=squares{right=true}" 2>&1 | filecheck %s --check-prefix=OPTION

// CHECK: kernel.square
// CHECK-NOT: kernel.mul
// REPORT: "optimizer": "squares",
// REPORT: "outcome": "chosen"
// KEPT: kernel.mul
// WRONG: "outcome": "not equivalent"
// BOTH-NOT: kernel.mul
// UNKNOWN: error: expected an optimizer of derivation, saturation, mugraph, with its options in braces, got 'squares'
// OPTION: error: squares has no option 'right'; its options: wrong
func.func @f(%x: tensor<4096x4096xf32>) -> tensor<4096x4096xf32> {
  %0 = "kernel.mul"(%x, %x) : (tensor<4096x4096xf32>, tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
  return %0 : tensor<4096x4096xf32>
}
