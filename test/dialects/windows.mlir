// Operators on windows: what they infer, and what they refuse.
// RUN: superopt-opt %s --split-input-file --verify-diagnostics
// RUN: not superopt-opt %s --split-input-file 2>&1 | filecheck %s

// CHECK: "kernel.conv"(%arg0, %arg1) {dilations = array<i64: 1, 2>, {{.*}}} : (tensor<2x4x7x9xf32>, tensor<6x2x3x3xf32>) -> tensor<2x6x4x7xf32>
func.func @conv(%x: tensor<2x4x7x9xf32>, %w: tensor<6x2x3x3xf32>) -> tensor<2x6x4x7xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 2, 1>, dilations = array<i64: 1, 2>, low = array<i64: 1, 1>, high = array<i64: 1, 1>, groups = 2 : i64} : (tensor<2x4x7x9xf32>, tensor<6x2x3x3xf32>) -> tensor<2x6x4x7xf32>
  return %0 : tensor<2x6x4x7xf32>
}

// -----

func.func @wrong_groups(%x: tensor<2x4x7xf32>, %w: tensor<6x4x3xf32>) -> tensor<2x6x5xf32> {
  // expected-error @+1 {{expected a weight of (f, 4 / 2 groups, 1 sizes), f in groups, got (6, 4, 3)}}
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>, groups = 2 : i64} : (tensor<2x4x7xf32>, tensor<6x4x3xf32>) -> tensor<2x6x5xf32>
  return %0 : tensor<2x6x5xf32>
}

// -----

func.func @too_small(%x: tensor<2x4x3xf32>, %w: tensor<6x4x5xf32>) -> tensor<2x6x1xf32> {
  // expected-error @+1 {{expected windows that fit into the padded extents [4], got ones of [5]}}
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 1>, high = array<i64: 0>} : (tensor<2x4x3xf32>, tensor<6x4x5xf32>) -> tensor<2x6x1xf32>
  return %0 : tensor<2x6x1xf32>
}

// -----

func.func @no_stride(%x: tensor<2x4x3xf32>) -> tensor<2x4x2xf32> {
  // expected-error @+1 {{expected 1 numbers of at least 1 as 'strides', got (0,)}}
  %0 = "kernel.pool_max"(%x) {sizes = array<i64: 2>, strides = array<i64: 0>, dilations = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>} : (tensor<2x4x3xf32>) -> tensor<2x4x2xf32>
  return %0 : tensor<2x4x2xf32>
}

// -----

func.func @no_space(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  // expected-error @+1 {{expected 1 to 3 spatial dimensions, got 0}}
  %0 = "kernel.pool_sum"(%x) {sizes = array<i64>, strides = array<i64>, dilations = array<i64>, low = array<i64>, high = array<i64>} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

// -----

func.func @wrong_result(%x: tensor<1x4x5xf32>, %w: tensor<4x3x4xf32>) -> tensor<1x3x9xf32> {
  // expected-error @+1 {{expected result type tensor<1x3x10xf32>, got tensor<1x3x9xf32>}}
  %0 = "kernel.conv_transpose"(%x, %w) {strides = array<i64: 2>, dilations = array<i64: 1>, low = array<i64: 1>, high = array<i64: 1>, extra = array<i64: 0>} : (tensor<1x4x5xf32>, tensor<4x3x4xf32>) -> tensor<1x3x9xf32>
  return %0 : tensor<1x3x9xf32>
}

// -----

func.func @negative_pad(%x: tensor<4xf32>) -> tensor<3xf32> {
  // expected-error @+1 {{expected 1 numbers of at least 0 as 'low' and 'high', got (-1,) and (0,)}}
  %0 = "kernel.pad"(%x) {low = array<i64: -1>, high = array<i64: 0>} : (tensor<4xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

// CHECK: "kernel.g2bmm"(%arg0, %arg1) {dilation = 2 : i64, low = 4 : i64, width = 5 : i64} : (tensor<2x12x6xf32>, tensor<2x12x6xf32>) -> tensor<2x12x5xf32>
func.func @band(%a: tensor<2x12x6xf32>, %b: tensor<2x12x6xf32>) -> tensor<2x12x5xf32> {
  %0 = "kernel.g2bmm"(%a, %b) {dilation = 2 : i64, low = 4 : i64, width = 5 : i64} : (tensor<2x12x6xf32>, tensor<2x12x6xf32>) -> tensor<2x12x5xf32>
  return %0 : tensor<2x12x5xf32>
}

// -----

func.func @band_of_another_depth(%a: tensor<12x5xf32>, %b: tensor<12x6xf32>) -> tensor<12x5xf32> {
  // expected-error @+1 {{expected one contracted extent and a positive width, got 5, 6 and 5}}
  %0 = "kernel.g2bmm"(%a, %b) {low = 4 : i64, width = 5 : i64} : (tensor<12x5xf32>, tensor<12x6xf32>) -> tensor<12x5xf32>
  return %0 : tensor<12x5xf32>
}

// -----

func.func @batches(%a: tensor<2x12x5xf32>, %b: tensor<3x12x6xf32>) -> tensor<2x12x6xf32> {
  // expected-error @+1 {{expected operands of one batch and of rank 2 or more, got shapes (2, 12, 5) and (3, 12, 6)}}
  %0 = "kernel.gbmm"(%a, %b) {low = 4 : i64} : (tensor<2x12x5xf32>, tensor<3x12x6xf32>) -> tensor<2x12x6xf32>
  return %0 : tensor<2x12x6xf32>
}
