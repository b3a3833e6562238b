// Each rule where it fits, proved by the pass manager, and where it does not.
// RUN: superopt-opt %s --derive="rules=product,one-product,sub-pixels,strides-as-channels,residues-as-batch,smaller-kernels,as-groups,offset-add,band-residues,band-blocks,one-matmul,batched-matmul,pool-as-conv" --split-input-file --verify-each-equivalence > %t.out 2> %t.err
// RUN: filecheck %s < %t.out
// RUN: filecheck %s --check-prefix=REMARK < %t.err

// A kernel of one position is a product, of groups a batched one.
// REMARK: 'conv' is rewritten by 'product'
// CHECK-LABEL: func.func @pointwise
// CHECK: "kernel.matmul"({{.*}}) : (tensor<6x4xf32>, tensor<2x4x30xf32>) -> tensor<2x6x30xf32>
// CHECK-NOT: kernel.conv
func.func @pointwise(%x: tensor<2x4x5x6xf32>, %w: tensor<6x4x1x1xf32>) -> tensor<2x6x5x6xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, low = array<i64: 0, 0>, high = array<i64: 0, 0>} : (tensor<2x4x5x6xf32>, tensor<6x4x1x1xf32>) -> tensor<2x6x5x6xf32>
  return %0 : tensor<2x6x5x6xf32>
}

// -----

// With padding the product would not read in place, and there is one position only to add.
// REMARK: no rule fits 'conv'
// CHECK-LABEL: func.func @pointwise_padded
// CHECK: kernel.conv
func.func @pointwise_padded(%x: tensor<2x4x5xf32>, %w: tensor<6x4x1xf32>) -> tensor<2x6x7xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 1>, high = array<i64: 1>} : (tensor<2x4x5xf32>, tensor<6x4x1xf32>) -> tensor<2x6x7xf32>
  return %0 : tensor<2x6x7xf32>
}

// -----

// The first of two convolutions of one operand takes the other's columns.
// REMARK: 'conv' is rewritten by 'one-product'
// CHECK-LABEL: func.func @siblings
// CHECK: "superopt.concat"({{.*}}) {dim = 0 : i64} : (tensor<6x4x3xf32>, tensor<2x4x3xf32>) -> tensor<8x4x3xf32>
// CHECK: kernel.conv
// CHECK-NOT: kernel.conv
func.func @siblings(%x: tensor<2x4x5xf32>, %w: tensor<6x4x3xf32>, %v: tensor<2x4x3xf32>) -> (tensor<2x6x5xf32>, tensor<2x2x5xf32>) {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 1>, high = array<i64: 1>} : (tensor<2x4x5xf32>, tensor<6x4x3xf32>) -> tensor<2x6x5xf32>
  %1 = "kernel.conv"(%x, %v) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 1>, high = array<i64: 1>} : (tensor<2x4x5xf32>, tensor<2x4x3xf32>) -> tensor<2x2x5xf32>
  return %0, %1 : tensor<2x6x5xf32>, tensor<2x2x5xf32>
}

// -----

// Siblings with other pads are not merged: each is split by its depth.
// REMARK: 'conv' is rewritten by 'offset-add'
// REMARK: 'conv' is rewritten by 'offset-add'
// CHECK-LABEL: func.func @unlike
// CHECK-COUNT-2: kernel.shifted_sum
func.func @unlike(%x: tensor<2x4x5xf32>, %w: tensor<6x4x3xf32>, %v: tensor<2x4x3xf32>) -> (tensor<2x6x5xf32>, tensor<2x2x5xf32>) {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 1>, high = array<i64: 1>} : (tensor<2x4x5xf32>, tensor<6x4x3xf32>) -> tensor<2x6x5xf32>
  %1 = "kernel.conv"(%x, %v) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 2>, high = array<i64: 0>} : (tensor<2x4x5xf32>, tensor<2x4x3xf32>) -> tensor<2x2x5xf32>
  return %0, %1 : tensor<2x6x5xf32>, tensor<2x2x5xf32>
}

// -----

// A transposed convolution of stride 2 is four dense ones of a quarter of the kernel.
// REMARK: 'conv_transpose' is rewritten by 'sub-pixels'
// CHECK-LABEL: func.func @transposed
// CHECK-COUNT-4: "kernel.conv"({{.*}}) {{.*}} : (tensor<1x4x5x5xf32>, tensor<3x4x2x2xf32>) -> tensor<1x3x5x5xf32>
func.func @transposed(%x: tensor<1x4x5x5xf32>, %w: tensor<4x3x4x4xf32>) -> tensor<1x3x10x10xf32> {
  %0 = "kernel.conv_transpose"(%x, %w) {strides = array<i64: 2, 2>, dilations = array<i64: 1, 1>, low = array<i64: 1, 1>, high = array<i64: 1, 1>, extra = array<i64: 0, 0>} : (tensor<1x4x5x5xf32>, tensor<4x3x4x4xf32>) -> tensor<1x3x10x10xf32>
  return %0 : tensor<1x3x10x10xf32>
}

// -----

// With a stride of 1 there is one residue.
// REMARK: no rule fits 'conv_transpose'
// CHECK-LABEL: func.func @transposed_dense
// CHECK: kernel.conv_transpose
func.func @transposed_dense(%x: tensor<1x4x5xf32>, %w: tensor<4x3x3xf32>) -> tensor<1x3x7xf32> {
  %0 = "kernel.conv_transpose"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>, extra = array<i64: 0>} : (tensor<1x4x5xf32>, tensor<4x3x3xf32>) -> tensor<1x3x7xf32>
  return %0 : tensor<1x3x7xf32>
}

// -----

// Strides become channels.
// REMARK: 'conv' is rewritten by 'strides-as-channels'
// CHECK-LABEL: func.func @strided
// CHECK: "kernel.conv"({{.*}}) {{.*}} : (tensor<1x16x4x4xf32>, tensor<6x16x2x2xf32>) -> tensor<1x6x3x3xf32>
func.func @strided(%x: tensor<1x4x6x6xf32>, %w: tensor<6x4x3x3xf32>) -> tensor<1x6x3x3xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 2, 2>, dilations = array<i64: 1, 1>, low = array<i64: 1, 1>, high = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>, tensor<6x4x3x3xf32>) -> tensor<1x6x3x3xf32>
  return %0 : tensor<1x6x3x3xf32>
}

// -----

// Residues modulo the dilation become images.
// REMARK: 'conv' is rewritten by 'residues-as-batch'
// CHECK-LABEL: func.func @dilated
// CHECK: "kernel.conv"({{.*}}) {{.*}} : (tensor<4x4x5x5xf32>, tensor<6x4x3x3xf32>) -> tensor<4x6x3x3xf32>
func.func @dilated(%x: tensor<1x4x6x6xf32>, %w: tensor<6x4x3x3xf32>) -> tensor<1x6x6x6xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1, 1>, dilations = array<i64: 2, 2>, low = array<i64: 2, 2>, high = array<i64: 2, 2>} : (tensor<1x4x6x6xf32>, tensor<6x4x3x3xf32>) -> tensor<1x6x6x6xf32>
  return %0 : tensor<1x6x6x6xf32>
}

// -----

// A 5x5 kernel is four of 3x3.
// REMARK: 'conv' is rewritten by 'smaller-kernels'
// CHECK-LABEL: func.func @large_kernel
// CHECK: "kernel.conv"({{.*}}) {{.*}} : (tensor<1x4x6x6xf32>, tensor<24x4x3x3xf32>) -> tensor<1x24x8x8xf32>
// CHECK: kernel.shifted_sum
func.func @large_kernel(%x: tensor<1x4x6x6xf32>, %w: tensor<6x4x5x5xf32>) -> tensor<1x6x6x6xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, low = array<i64: 2, 2>, high = array<i64: 2, 2>} : (tensor<1x4x6x6xf32>, tensor<6x4x5x5xf32>) -> tensor<1x6x6x6xf32>
  return %0 : tensor<1x6x6x6xf32>
}

// -----

// A 3x3 kernel is not made smaller but split by its depth.
// REMARK: 'conv' is rewritten by 'offset-add'
// CHECK-LABEL: func.func @small_kernel
// CHECK: "kernel.matmul"({{.*}}) : (tensor<54x4xf32>, tensor<1x4x36xf32>) -> tensor<1x54x36xf32>
// CHECK: kernel.shifted_sum
func.func @small_kernel(%x: tensor<1x4x6x6xf32>, %w: tensor<6x4x3x3xf32>) -> tensor<1x6x6x6xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, low = array<i64: 1, 1>, high = array<i64: 1, 1>} : (tensor<1x4x6x6xf32>, tensor<6x4x3x3xf32>) -> tensor<1x6x6x6xf32>
  return %0 : tensor<1x6x6x6xf32>
}

// -----

// Groups are not split by their depth: the rules leave them.
// REMARK: no rule fits 'conv'
// CHECK-LABEL: func.func @grouped
// CHECK: kernel.conv
func.func @grouped(%x: tensor<1x4x6xf32>, %w: tensor<6x2x3xf32>) -> tensor<1x6x6xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 1>, high = array<i64: 1>, groups = 2 : i64} : (tensor<1x4x6xf32>, tensor<6x2x3xf32>) -> tensor<1x6x6xf32>
  return %0 : tensor<1x6x6xf32>
}

// -----

// Convolutions of two images are groups of one; the second weight gets zeros for columns that it lacks.
// REMARK: 'conv' is rewritten by 'as-groups'
// CHECK-LABEL: func.func @groups
// CHECK: "kernel.pad"(%arg3) {high = array<i64: 2, 0, 0>
// CHECK: "kernel.conv"({{.*}}groups = 2 : i64{{.*}} : (tensor<2x8x5xf32>, tensor<12x4x3xf32>) -> tensor<2x12x5xf32>
// CHECK-NOT: kernel.conv
func.func @groups(%x: tensor<2x4x5xf32>, %w: tensor<6x4x3xf32>, %u: tensor<2x4x5xf32>, %v: tensor<4x4x3xf32>) -> (tensor<2x6x5xf32>, tensor<2x4x5xf32>) {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 1>, high = array<i64: 1>} : (tensor<2x4x5xf32>, tensor<6x4x3xf32>) -> tensor<2x6x5xf32>
  %1 = "kernel.conv"(%u, %v) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 1>, high = array<i64: 1>} : (tensor<2x4x5xf32>, tensor<4x4x3xf32>) -> tensor<2x4x5xf32>
  return %0, %1 : tensor<2x6x5xf32>, tensor<2x4x5xf32>
}

// -----

// The second convolution reads the first: neither waits for the other in a program of both.
// REMARK: 'conv' is rewritten by 'offset-add'
// CHECK-LABEL: func.func @in_a_row
func.func @in_a_row(%x: tensor<2x4x5xf32>, %w: tensor<4x4x3xf32>, %v: tensor<4x4x3xf32>) -> tensor<2x4x5xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 1>, high = array<i64: 1>} : (tensor<2x4x5xf32>, tensor<4x4x3xf32>) -> tensor<2x4x5xf32>
  %1 = "kernel.conv"(%0, %v) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 1>, high = array<i64: 1>} : (tensor<2x4x5xf32>, tensor<4x4x3xf32>) -> tensor<2x4x5xf32>
  return %1 : tensor<2x4x5xf32>
}

// -----

// So where the first one is the second one's weight.
// REMARK: 'conv' is rewritten by 'offset-add'
// CHECK-LABEL: func.func @as_weight
func.func @as_weight(%x: tensor<3x3x5xf32>, %w: tensor<3x3x3xf32>) -> tensor<3x3x5xf32> {
  %0 = "kernel.conv"(%x, %w) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>} : (tensor<3x3x5xf32>, tensor<3x3x3xf32>) -> tensor<3x3x3xf32>
  %1 = "kernel.conv"(%x, %0) {strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>} : (tensor<3x3x5xf32>, tensor<3x3x3xf32>) -> tensor<3x3x3xf32>
  %2 = "kernel.pad"(%1) {low = array<i64: 0, 0, 1>, high = array<i64: 0, 0, 1>, value = 0.0 : f64} : (tensor<3x3x3xf32>) -> tensor<3x3x5xf32>
  return %2 : tensor<3x3x5xf32>
}

// -----

// Rows of one residue are a product of a batch.
// REMARK: 'g2bmm' is rewritten by 'band-residues'
// CHECK-LABEL: func.func @dilated_band
// CHECK: "kernel.g2bmm"({{.*}}) {low = 2 : i64, width = 5 : i64} : (tensor<2x4x6x16xf32>, tensor<2x4x6x16xf32>) -> tensor<2x4x6x5xf32>
func.func @dilated_band(%a: tensor<2x24x16xf32>, %b: tensor<2x24x16xf32>) -> tensor<2x24x5xf32> {
  %0 = "kernel.g2bmm"(%a, %b) {dilation = 4 : i64, low = 8 : i64, width = 5 : i64} : (tensor<2x24x16xf32>, tensor<2x24x16xf32>) -> tensor<2x24x5xf32>
  return %0 : tensor<2x24x5xf32>
}

// -----

// A dense band is a product of blocks, which are sheared.
// REMARK: 'gbmm' is rewritten by 'band-blocks'
// CHECK-LABEL: func.func @dense_band
// CHECK: "kernel.matmul"({{.*}}) : (tensor<2x2x16x32xf32>, tensor<2x2x32x8xf32>) -> tensor<2x2x16x8xf32>
func.func @dense_band(%a: tensor<2x24x5xf32>, %b: tensor<2x24x8xf32>) -> tensor<2x24x8xf32> {
  %0 = "kernel.gbmm"(%a, %b) {low = 2 : i64} : (tensor<2x24x5xf32>, tensor<2x24x8xf32>) -> tensor<2x24x8xf32>
  return %0 : tensor<2x24x8xf32>
}

// -----

// Nothing but zeros is read: there is nothing to multiply.
// REMARK: no rule fits 'gbmm'
// CHECK-LABEL: func.func @band_outside
// CHECK: kernel.gbmm
func.func @band_outside(%a: tensor<8x1xf32>, %b: tensor<24x8xf32>) -> tensor<8x8xf32> {
  %0 = "kernel.gbmm"(%a, %b) {low = 16 : i64} : (tensor<8x1xf32>, tensor<24x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// -----

// Two products of one matrix are one; a product alone stays, and nothing is said of it.
// REMARK: 'matmul' is rewritten by 'one-matmul'
// CHECK-LABEL: func.func @columns
// CHECK: "kernel.matmul"({{.*}}) : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
// CHECK-NOT: kernel.matmul
func.func @columns(%x: tensor<4x6xf32>, %v: tensor<6x5xf32>, %w: tensor<6x3xf32>) -> (tensor<4x5xf32>, tensor<4x3xf32>) {
  %0 = "kernel.matmul"(%x, %v) : (tensor<4x6xf32>, tensor<6x5xf32>) -> tensor<4x5xf32>
  %1 = "kernel.matmul"(%x, %w) : (tensor<4x6xf32>, tensor<6x3xf32>) -> tensor<4x3xf32>
  return %0, %1 : tensor<4x5xf32>, tensor<4x3xf32>
}

// -----

// REMARK: 'pool_sum' is rewritten by 'pool-as-conv'
// CHECK-LABEL: func.func @pool
// CHECK: "kernel.conv"({{.*}}) {{.*}}groups = 3 : i64
func.func @pool(%x: tensor<1x3x8xf32>) -> tensor<1x3x7xf32> {
  %0 = "kernel.pool_sum"(%x) {sizes = array<i64: 2>, strides = array<i64: 1>, dilations = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>} : (tensor<1x3x8xf32>) -> tensor<1x3x7xf32>
  return %0 : tensor<1x3x7xf32>
}
