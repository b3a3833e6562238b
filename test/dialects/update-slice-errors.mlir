// RUN: superopt-opt %s --split-input-file --verify-diagnostics

func.func @beyond_the_end(%cache: tensor<8x4xf32>, %new: tensor<2x4xf32>) -> tensor<8x4xf32> {
  // expected-error @+1 {{expected an offset within 0 and 6 along dimension 0, got 7}}
  %0 = "kernel.update_slice"(%cache, %new) {dim = 0, offset = 7} : (tensor<8x4xf32>, tensor<2x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @other_shape(%cache: tensor<8x4xf32>, %new: tensor<2x3xf32>) -> tensor<8x4xf32> {
  // expected-error @+1 {{expected shapes equal but for dimension 0}}
  %0 = "kernel.update_slice"(%cache, %new) {dim = 0, offset = 1} : (tensor<8x4xf32>, tensor<2x3xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
