// Kernels for each bucket: a folder with a bundle for each, which is verified and run as a whole.
// RUN: superopt-opt %s --superoptimize="dynamic=n=1..8..64 budget=1 store=none against=operators" -o %t.bundle --emit=bundle 2>&1 | filecheck %s --check-prefix=SAVED
// RUN: superopt-verify %s %t.bundle --seed 1 | filecheck %s --check-prefix=VERIFY
// RUN: superopt-run %t.bundle --device=cpu --check --seed=1 | filecheck %s --check-prefix=RUN-BOTH
// RUN: not superopt-run %t.bundle --device=cpu --check --json=%t.json 2>&1 | filecheck %s --check-prefix=ONE
// RUN: not superopt-verify %s %t.bundle --certificate=%t.json 2>&1 | filecheck %s --check-prefix=ONE
// RUN: not superopt-verify %t.bundle --seed 1 | filecheck %s --check-prefix=ALONE
// RUN: superopt-opt %s --superoptimize="dynamic=n=1..auto..16 budget=1 store=none against=operators" -o %t.auto --emit=bundle --quiet
// RUN: superopt-verify %s %t.auto --seed 1 | filecheck %s --check-prefix=AUTO

// SAVED: 2 buckets, the last one: 1 kernel
// VERIFY: --- n from 1 to 8
// VERIFY-NEXT: equivalent
// VERIFY: --- n from 9 to 64
// VERIFY-NEXT: equivalent
// VERIFY: --- buckets for n from 1 to 64: all
// RUN-BOTH: n-1-8
// RUN-BOTH: within tolerance
// RUN-BOTH: n-9-64
// RUN-BOTH: within tolerance
// ONE: expected {{.*}} with one bundle, got buckets
// Without the program, each is known at one extent.
// ALONE: --- n from 1 to 8
// ALONE-NEXT: undecided
// ALONE: not checked: n: the program is given at one extent, and resized to others
// ALONE: not checked: whether original.mlir is the program that you mean
// ALONE: --- buckets for n from 1 to 64: all
// AUTO: equivalent
// AUTO-NOT: resized
func.func @f(%x: tensor<?x24xf32>) -> tensor<?x24xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?x24xf32>
  %0 = tensor.empty(%n) : tensor<?x24xf32>
  %1 = linalg.exp ins(%x : tensor<?x24xf32>) outs(%0 : tensor<?x24xf32>) -> tensor<?x24xf32>
  return %1 : tensor<?x24xf32>
}
