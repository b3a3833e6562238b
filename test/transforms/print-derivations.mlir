// What could be derived is said, and nothing changes.
// RUN: superopt-opt %s --print-derivations > %t.out 2> %t.err
// RUN: filecheck %s < %t.out
// RUN: filecheck %s --check-prefix=REMARK < %t.err

// REMARK: remark: 'conv': {{[0-9.]+}} us as it is
// REMARK: remark: 'conv': {{[0-9.]+}} us by rule 'offset-add'
// REMARK: remark: 'conv': {{[0-9.]+}} us: mutant 'residues-side-by-side' differs in 104 of 392 outputs, repaired by 'recompute'
// REMARK: remark: 'conv': {{[0-9.]+}} us: mutant 'residues-side-by-side' differs in 104 of 392 outputs, repaired by 'gap'
// CHECK: kernel.conv
// CHECK-NOT: kernel.
func.func @dilated(%x: tensor<1x4x14x14xf32>, %w: tensor<2x4x3x3xf32>) -> tensor<1x2x14x14xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1, 1>, dilations = array<i64: 2, 2>, low = array<i64: 2, 2>, high = array<i64: 2, 2>} : (tensor<1x4x14x14xf32>, tensor<2x4x3x3xf32>) -> tensor<1x2x14x14xf32>
  return %0 : tensor<1x2x14x14xf32>
}
