// A batch norm in inference goes into the weights, all but one shift, where what scales follows from weights: then
// that is prepared, and the convolution has one operand more.
// RUN: superopt-opt %s --derive="rules=scales-into-weights" --split-input-file --verify-each-equivalence > %t.out 2> %t.err
// RUN: filecheck %s < %t.out
// RUN: filecheck %s --check-prefix=REMARK < %t.err

// REMARK: 'conv' is rewritten by 'scales-into-weights'
// CHECK-LABEL: func.func @norm
// CHECK: [[scaled:%.*]] = "kernel.mul"(%arg1, %{{.*}}) : (tensor<6x4x3x3xf32>, tensor<6x1x1x1xf32>)
// CHECK: [[y:%.*]] = "kernel.conv"(%arg0, [[scaled]])
// CHECK: [[z:%.*]] = "kernel.add"([[y]], %{{.*}}) : (tensor<2x6x5x5xf32>, tensor<6x1x1xf32>)
// CHECK: "kernel.relu"([[z]])
// CHECK-NOT: tensor<2x6x5x5xf32>, tensor<
func.func @norm(%x: tensor<2x4x5x5xf32>, %w: tensor<6x4x3x3xf32> {superopt.weight}, %mean: tensor<6x1x1xf32> {superopt.weight}, %r: tensor<6x1x1xf32> {superopt.weight}, %s: tensor<1x6x1x1xf32> {superopt.weight}, %b: tensor<6x1x1xf32> {superopt.weight}) -> tensor<2x6x5x5xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, low = array<i64: 1, 1>, high = array<i64: 1, 1>} : (tensor<2x4x5x5xf32>, tensor<6x4x3x3xf32>) -> tensor<2x6x5x5xf32>
  %1 = "kernel.sub"(%0, %mean) : (tensor<2x6x5x5xf32>, tensor<6x1x1xf32>) -> tensor<2x6x5x5xf32>
  %2 = "kernel.mul"(%1, %r) : (tensor<2x6x5x5xf32>, tensor<6x1x1xf32>) -> tensor<2x6x5x5xf32>
  %3 = "kernel.mul"(%s, %2) : (tensor<1x6x1x1xf32>, tensor<2x6x5x5xf32>) -> tensor<2x6x5x5xf32>
  %4 = "kernel.add"(%3, %b) : (tensor<2x6x5x5xf32>, tensor<6x1x1xf32>) -> tensor<2x6x5x5xf32>
  %5 = "kernel.relu"(%4) : (tensor<2x6x5x5xf32>) -> tensor<2x6x5x5xf32>
  return %5 : tensor<2x6x5x5xf32>
}

// -----

// A transposed convolution has its columns in the second dimension of its weights; groups have a part of them each.
// REMARK: 'conv_transpose' is rewritten by 'scales-into-weights'
// CHECK-LABEL: func.func @transposed
// CHECK: [[scaled:%.*]] = "kernel.mul"(%arg1, %{{.*}}) : (tensor<4x6x3xf32>, tensor<1x6x1xf32>)
// CHECK: "kernel.conv_transpose"(%arg0, [[scaled]])
func.func @transposed(%x: tensor<2x4x5xf32>, %w: tensor<4x6x3xf32> {superopt.weight}, %r: tensor<6x1xf32> {superopt.weight}) -> tensor<2x6x11xf32> {
  %0 = "kernel.conv_transpose"(%x, %w) {extra = array<i64: 0>, strides = array<i64: 2>, dilations = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>} : (tensor<2x4x5xf32>, tensor<4x6x3xf32>) -> tensor<2x6x11xf32>
  %1 = "kernel.mul"(%0, %r) : (tensor<2x6x11xf32>, tensor<6x1xf32>) -> tensor<2x6x11xf32>
  return %1 : tensor<2x6x11xf32>
}

// -----

// REMARK: no rule fits 'conv_transpose'
// CHECK-LABEL: func.func @transposed_groups
func.func @transposed_groups(%x: tensor<2x4x5xf32>, %w: tensor<4x3x3xf32> {superopt.weight}, %r: tensor<6x1xf32> {superopt.weight}) -> tensor<2x6x11xf32> {
  %0 = "kernel.conv_transpose"(%x, %w) {extra = array<i64: 0>, strides = array<i64: 2>, dilations = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>, groups = 2 : i64} : (tensor<2x4x5xf32>, tensor<4x3x3xf32>) -> tensor<2x6x11xf32>
  %1 = "kernel.mul"(%0, %r) : (tensor<2x6x11xf32>, tensor<6x1xf32>) -> tensor<2x6x11xf32>
  return %1 : tensor<2x6x11xf32>
}

// -----

// What scales is an input: it would scale the weights in every call.
// REMARK: no rule fits 'conv'
// CHECK-LABEL: func.func @gated
func.func @gated(%x: tensor<2x4x5xf32>, %w: tensor<6x4x3xf32> {superopt.weight}, %r: tensor<6x1xf32>) -> tensor<2x6x3xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>} : (tensor<2x4x5xf32>, tensor<6x4x3xf32>) -> tensor<2x6x3xf32>
  %1 = "kernel.mul"(%0, %r) : (tensor<2x6x3xf32>, tensor<6x1xf32>) -> tensor<2x6x3xf32>
  return %1 : tensor<2x6x3xf32>
}

// -----

// One number for each position, as many as there are channels.
// REMARK: no rule fits 'conv'
// CHECK-LABEL: func.func @positions
func.func @positions(%x: tensor<2x4x5xf32>, %w: tensor<3x4x3xf32> {superopt.weight}, %r: tensor<3xf32> {superopt.weight}) -> tensor<2x3x3xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>} : (tensor<2x4x5xf32>, tensor<3x4x3xf32>) -> tensor<2x3x3xf32>
  %1 = "kernel.mul"(%0, %r) : (tensor<2x3x3xf32>, tensor<3xf32>) -> tensor<2x3x3xf32>
  return %1 : tensor<2x3x3xf32>
}

// -----

// Behind an activation, from a number, and where somebody else reads the convolution, nothing is moved.
// REMARK: no rule fits 'conv'
// CHECK-LABEL: func.func @activated
func.func @activated(%x: tensor<2x4x5xf32>, %w: tensor<6x4x3xf32> {superopt.weight}, %r: tensor<6x1xf32> {superopt.weight}) -> tensor<2x6x3xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>} : (tensor<2x4x5xf32>, tensor<6x4x3xf32>) -> tensor<2x6x3xf32>
  %1 = "kernel.relu"(%0) : (tensor<2x6x3xf32>) -> tensor<2x6x3xf32>
  %2 = "kernel.mul"(%1, %r) : (tensor<2x6x3xf32>, tensor<6x1xf32>) -> tensor<2x6x3xf32>
  return %2 : tensor<2x6x3xf32>
}

// -----

// REMARK: no rule fits 'conv'
// CHECK-LABEL: func.func @read_twice
func.func @read_twice(%x: tensor<2x4x5xf32>, %w: tensor<6x4x3xf32> {superopt.weight}, %r: tensor<6x1xf32> {superopt.weight}) -> (tensor<2x6x3xf32>, tensor<2x6x3xf32>) {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>} : (tensor<2x4x5xf32>, tensor<6x4x3xf32>) -> tensor<2x6x3xf32>
  %1 = "kernel.mul"(%0, %r) : (tensor<2x6x3xf32>, tensor<6x1xf32>) -> tensor<2x6x3xf32>
  return %0, %1 : tensor<2x6x3xf32>, tensor<2x6x3xf32>
}

// -----

// REMARK: no rule fits 'conv'
// CHECK-LABEL: func.func @subtracted
func.func @subtracted(%x: tensor<2x4x5xf32>, %w: tensor<6x4x3xf32> {superopt.weight}, %r: tensor<6x1xf32> {superopt.weight}) -> tensor<2x6x3xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>} : (tensor<2x4x5xf32>, tensor<6x4x3xf32>) -> tensor<2x6x3xf32>
  %1 = "kernel.sub"(%r, %0) : (tensor<6x1xf32>, tensor<2x6x3xf32>) -> tensor<2x6x3xf32>
  %2 = "kernel.mul"(%1, %r) : (tensor<2x6x3xf32>, tensor<6x1xf32>) -> tensor<2x6x3xf32>
  return %2 : tensor<2x6x3xf32>
}
