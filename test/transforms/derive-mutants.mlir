// Mutants are right in places only: the pass corrects them, and the pass manager proves what comes of it.
// RUN: superopt-opt %s --derive="rules=residues-side-by-side,images-side-by-side,blocks-as-images,without-pads" --split-input-file --verify-each-equivalence > %t.out 2> %t.err
// RUN: filecheck %s < %t.out
// RUN: filecheck %s --check-prefix=REMARK < %t.err

// Residues modulo 2 side by side: windows that reach into the next one load nothing there.
// REMARK: 'conv' is rewritten: mutant 'residues-side-by-side' differs in 104 of 392 outputs, repaired by 'load guard'
// CHECK-LABEL: func.func @dilated
// CHECK: "superopt.nest"({{.*}}guards = "{{.*}} >= 0
func.func @dilated(%x: tensor<1x4x14x14xf32>, %w: tensor<2x4x3x3xf32>) -> tensor<1x2x14x14xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1, 1>, dilations = array<i64: 2, 2>, low = array<i64: 2, 2>, high = array<i64: 2, 2>} : (tensor<1x4x14x14xf32>, tensor<2x4x3x3xf32>) -> tensor<1x2x14x14xf32>
  return %0 : tensor<1x2x14x14xf32>
}

// -----

// Padding that is not whole windows changes the residue: the second mutant that fits is taken.
// REMARK: 'conv' is rewritten: mutant 'images-side-by-side' differs in 16 of 80 outputs, repaired by 'load guard'
// CHECK-LABEL: func.func @pairs
func.func @pairs(%x: tensor<4x3x10xf32>, %w: tensor<2x3x3xf32>) -> tensor<4x2x10xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 2>, low = array<i64: 3>, high = array<i64: 1>} : (tensor<4x3x10xf32>, tensor<2x3x3xf32>) -> tensor<4x2x10xf32>
  return %0 : tensor<4x2x10xf32>
}

// -----

// One image of 13 positions as blocks: windows that reach into the next block are computed again.
// REMARK: 'conv' is rewritten: mutant 'blocks-as-images' differs in {{[0-9]+}} of 26 outputs, repaired by 'second pass'
// CHECK-LABEL: func.func @blocks
// CHECK: "superopt.nest"({{.*}}terms = array<i64: 2, 2>
func.func @blocks(%x: tensor<1x3x13xf32>, %w: tensor<2x3x5xf32>) -> tensor<1x2x13xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 2>, high = array<i64: 2>} : (tensor<1x3x13xf32>, tensor<2x3x5xf32>) -> tensor<1x2x13xf32>
  return %0 : tensor<1x2x13xf32>
}

// -----

// Fewer results than positions: windows inside need no pads, the border is computed again.
// REMARK: 'conv' is rewritten: mutant 'without-pads' differs in 2 of 14 outputs, repaired by 'second pass'
// CHECK-LABEL: func.func @border
// CHECK: "superopt.nest"({{.*}}guards = "d2 - 1 >= 0; true; d2 == 0; true"
func.func @border(%x: tensor<1x3x14xf32>, %w: tensor<2x3x3xf32>) -> tensor<1x2x7xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 2>, dilations = array<i64: 1>, low = array<i64: 1>, high = array<i64: 1>, groups = 1 : i64} : (tensor<1x3x14xf32>, tensor<2x3x3xf32>) -> tensor<1x2x7xf32>
  return %0 : tensor<1x2x7xf32>
}

// -----

// Neither a dilation, nor images, nor pads; results that are fewer than what is read.
// REMARK: no rule fits 'conv'
// CHECK-LABEL: func.func @none
func.func @none(%x: tensor<1x3x14xf32>, %w: tensor<2x3x3xf32>) -> tensor<1x2x12xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>} : (tensor<1x3x14xf32>, tensor<2x3x3xf32>) -> tensor<1x2x12xf32>
  return %0 : tensor<1x2x12xf32>
}

// -----

// A maximum is not a sum of products: zeros between images would be more than negative numbers.
// REMARK: no rule fits 'pool_max'
// CHECK-LABEL: func.func @maximum
func.func @maximum(%x: tensor<4x3x10xf32>) -> tensor<4x3x10xf32> {
  %0 = "kernel.pool_max"(%x) {sizes = array<i64: 3>, strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 1>, high = array<i64: 1>} : (tensor<4x3x10xf32>) -> tensor<4x3x10xf32>
  return %0 : tensor<4x3x10xf32>
}
