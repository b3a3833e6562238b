// Convolutions and pooling in any layout become kernel operators; constants around an operand become pads.
// RUN: superopt-opt %s --ingest-linalg --split-input-file | filecheck %s

// CHECK-LABEL: func.func @padded
// CHECK-NOT: concat
// CHECK: "kernel.conv"(%arg0, %arg1) {dilations = array<i64: 1, 1>, high = array<i64: 1, 1>, low = array<i64: 1, 1>, strides = array<i64: 2, 2>} : (tensor<1x4x7x7xf32>, tensor<6x4x3x3xf32>) -> tensor<1x6x4x4xf32>
// CHECK-NEXT: return
func.func @padded(%x: tensor<1x4x7x7xf32>, %w: tensor<6x4x3x3xf32>) -> tensor<1x6x4x4xf32> {
  %zero = arith.constant 0.0 : f32
  %p = tensor.pad %x low[0, 0, 1, 1] high[0, 0, 1, 1] {
  ^bb0(%a: index, %b: index, %c: index, %d: index):
    tensor.yield %zero : f32
  } : tensor<1x4x7x7xf32> to tensor<1x4x9x9xf32>
  %e = tensor.empty() : tensor<1x6x4x4xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x6x4x4xf32>) -> tensor<1x6x4x4xf32>
  %0 = linalg.conv_2d_nchw_fchw {strides = dense<2> : vector<2xi64>} ins(%p, %w : tensor<1x4x9x9xf32>, tensor<6x4x3x3xf32>) outs(%f : tensor<1x6x4x4xf32>) -> tensor<1x6x4x4xf32>
  return %0 : tensor<1x6x4x4xf32>
}

// -----

// Channels last: what is read is laid out as the operators have it.
// CHECK-LABEL: func.func @channels_last
// CHECK-DAG: "kernel.transpose"(%arg0) {perm = array<i64: 0, 3, 1, 2>}
// CHECK-DAG: "kernel.transpose"(%arg1) {perm = array<i64: 3, 2, 0, 1>}
// CHECK: "kernel.conv"({{.*}}) {dilations = array<i64: 1, 1>, high = array<i64: 0, 0>, low = array<i64: 0, 0>, strides = array<i64: 1, 1>} : (tensor<2x4x5x5xf32>, tensor<6x4x3x3xf32>) -> tensor<2x6x3x3xf32>
// CHECK: "kernel.transpose"({{.*}}) {perm = array<i64: 0, 2, 3, 1>}
func.func @channels_last(%x: tensor<2x5x5x4xf32>, %w: tensor<3x3x4x6xf32>) -> tensor<2x3x3x6xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x3x3x6xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<2x3x3x6xf32>) -> tensor<2x3x3x6xf32>
  %0 = linalg.conv_2d_nhwc_hwcf ins(%x, %w : tensor<2x5x5x4xf32>, tensor<3x3x4x6xf32>) outs(%f : tensor<2x3x3x6xf32>) -> tensor<2x3x3x6xf32>
  return %0 : tensor<2x3x3x6xf32>
}

// -----

// A channel for itself is a group.
// CHECK-LABEL: func.func @depthwise
// CHECK: "kernel.conv"({{.*}}) {dilations = array<i64: 2, 2>, groups = 4 : i64, {{.*}}} : (tensor<1x4x7x7xf32>, tensor<4x1x3x3xf32>) -> tensor<1x4x3x3xf32>
// CHECK: kernel.add
func.func @depthwise(%x: tensor<1x4x7x7xf32>, %w: tensor<4x3x3xf32>, %init: tensor<1x4x3x3xf32>) -> tensor<1x4x3x3xf32> {
  %0 = linalg.depthwise_conv_2d_nchw_chw {dilations = dense<2> : vector<2xi64>} ins(%x, %w : tensor<1x4x7x7xf32>, tensor<4x3x3xf32>) outs(%init : tensor<1x4x3x3xf32>) -> tensor<1x4x3x3xf32>
  return %0 : tensor<1x4x3x3xf32>
}

// -----

// Pads of minus infinity belong to a maximum.
// CHECK-LABEL: func.func @largest
// CHECK-NOT: concat
// CHECK: "kernel.pool_max"(%arg0) {dilations = array<i64: 1, 1>, high = array<i64: 1, 1>, low = array<i64: 1, 1>, sizes = array<i64: 3, 3>, strides = array<i64: 2, 2>}
func.func @largest(%x: tensor<1x4x7x7xf32>) -> tensor<1x4x4x4xf32> {
  %low = arith.constant 0xFF800000 : f32
  %p = tensor.pad %x low[0, 0, 1, 1] high[0, 0, 1, 1] {
  ^bb0(%a: index, %b: index, %c: index, %d: index):
    tensor.yield %low : f32
  } : tensor<1x4x7x7xf32> to tensor<1x4x9x9xf32>
  %e = tensor.empty() : tensor<1x4x4x4xf32>
  %f = linalg.fill ins(%low : f32) outs(%e : tensor<1x4x4x4xf32>) -> tensor<1x4x4x4xf32>
  %k = tensor.empty() : tensor<3x3xf32>
  %0 = linalg.pooling_nchw_max {strides = dense<2> : vector<2xi64>} ins(%p, %k : tensor<1x4x9x9xf32>, tensor<3x3xf32>) outs(%f : tensor<1x4x4x4xf32>) -> tensor<1x4x4x4xf32>
  return %0 : tensor<1x4x4x4xf32>
}

// -----

// Zeros around a maximum are elements of its operand: no pads.
// CHECK-LABEL: func.func @largest_of_zeros
// CHECK: superopt.concat
// CHECK: "kernel.pool_max"({{.*}}) {dilations = array<i64: 1, 1>, high = array<i64: 0, 0>, low = array<i64: 0, 0>, sizes = array<i64: 3, 3>, strides = array<i64: 2, 2>}
func.func @largest_of_zeros(%x: tensor<1x4x7x7xf32>) -> tensor<1x4x4x4xf32> {
  %low = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0.0 : f32
  %p = tensor.pad %x low[0, 0, 1, 1] high[0, 0, 1, 1] {
  ^bb0(%a: index, %b: index, %c: index, %d: index):
    tensor.yield %zero : f32
  } : tensor<1x4x7x7xf32> to tensor<1x4x9x9xf32>
  %e = tensor.empty() : tensor<1x4x4x4xf32>
  %f = linalg.fill ins(%low : f32) outs(%e : tensor<1x4x4x4xf32>) -> tensor<1x4x4x4xf32>
  %k = tensor.empty() : tensor<3x3xf32>
  %0 = linalg.pooling_nchw_max {strides = dense<2> : vector<2xi64>} ins(%p, %k : tensor<1x4x9x9xf32>, tensor<3x3xf32>) outs(%f : tensor<1x4x4x4xf32>) -> tensor<1x4x4x4xf32>
  return %0 : tensor<1x4x4x4xf32>
}
