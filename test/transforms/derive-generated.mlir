// PET's generator: where no rule fits, mutants of up to three operators, corrected and proved.
// RUN: superopt-opt %s --derive="rules=product mutate=3" --split-input-file --verify-each-equivalence > %t.out 2> %t.err
// RUN: filecheck %s < %t.out
// RUN: filecheck %s --check-prefix=REMARK < %t.err
// RUN: superopt-opt %s --derive="rules=product mutate=3 difference=boxes agreement=0.95" --split-input-file -o /dev/null 2>&1 | filecheck %s --check-prefix=STRICT
// RUN: not superopt-opt %s --derive="mutate=5" 2>&1 | filecheck %s --check-prefix=OPERATORS
// RUN: not superopt-opt %s --derive="mutate=2 agreement=0" 2>&1 | filecheck %s --check-prefix=SHARE

// OPERATORS: error: expected mutate of 0 to 4 operators, got 5
// SHARE: error: expected an agreement above 0 and of at most 1, got 0.0

// Residues modulo 2 side by side: the generator knows no rule for it, and one kernel guards what it loads. With more
// agreement asked for, residues as images, which are right everywhere.
// REMARK: 'conv' is rewritten: mutant 'generated' differs in 4 of 40 outputs, repaired by 'load guard'
// STRICT: 'conv' is rewritten: mutant 'generated' differs nowhere
// CHECK-LABEL: func.func @dilated
// CHECK: "superopt.nest"
func.func @dilated(%x: tensor<1x2x20xf32>, %w: tensor<2x2x3xf32>) -> tensor<1x2x20xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 2>, low = array<i64: 2>, high = array<i64: 2>} : (tensor<1x2x20xf32>, tensor<2x2x3xf32>) -> tensor<1x2x20xf32>
  return %0 : tensor<1x2x20xf32>
}

// -----

// Halves of 20 positions as images: the two windows at the border between them are computed again.
// REMARK: 'conv' is rewritten: mutant 'generated' differs in 4 of 40 outputs, repaired by 'second pass'
// STRICT: no rule fits 'conv'
// CHECK-LABEL: func.func @halves
// CHECK: "superopt.nest"({{.*}}terms = array<i64: 2, 2>
func.func @halves(%x: tensor<1x2x20xf32>, %w: tensor<2x2x3xf32>) -> tensor<1x2x20xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 1>, high = array<i64: 1>} : (tensor<1x2x20xf32>, tensor<2x2x3xf32>) -> tensor<1x2x20xf32>
  return %0 : tensor<1x2x20xf32>
}

// -----

// Nothing of three operators agrees with a convolution of a prime number of positions.
// REMARK: no rule fits 'conv'
// CHECK-LABEL: func.func @prime
func.func @prime(%x: tensor<1x2x13xf32>, %w: tensor<2x2x3xf32>) -> tensor<1x2x13xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 2>, low = array<i64: 2>, high = array<i64: 2>} : (tensor<1x2x13xf32>, tensor<2x2x3xf32>) -> tensor<1x2x13xf32>
  return %0 : tensor<1x2x13xf32>
}
