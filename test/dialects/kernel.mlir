// The kernel dialect: operators of the table are verified when parsed, attributes that the result type says are implied.
// RUN: superopt-opt %s | filecheck %s
// RUN: superopt-opt %s --split-input-file --verify-diagnostics -o /dev/null

// CHECK-LABEL: func.func @forms
func.func @forms(%x: tensor<4x8xf16>, %w: tensor<16x8xf16>) -> tensor<64xf16> {
  // CHECK: "kernel.matmul"(%arg0, %arg1) {transpose_b = true} : (tensor<4x8xf16>, tensor<16x8xf16>) -> tensor<4x16xf16>
  %0 = "kernel.matmul"(%x, %w) {transpose_b = true} : (tensor<4x8xf16>, tensor<16x8xf16>) -> tensor<4x16xf16>
  // CHECK: "kernel.constant"() {value = 5.000000e-01 : f64} : () -> tensor<f16>
  %c = "kernel.constant"() {value = 0.5} : () -> tensor<f16>
  // CHECK: "kernel.mul"({{.*}}) : (tensor<4x16xf16>, tensor<f16>) -> tensor<4x16xf16>
  %1 = "kernel.mul"(%0, %c) : (tensor<4x16xf16>, tensor<f16>) -> tensor<4x16xf16>
  // CHECK: "kernel.reshape"({{.*}}) : (tensor<4x16xf16>) -> tensor<64xf16>
  %2 = "kernel.reshape"(%1) : (tensor<4x16xf16>) -> tensor<64xf16>
  return %2 : tensor<64xf16>
}

// CHECK-LABEL: func.func @selections
func.func @selections(%t: tensor<4xf16>, %x: tensor<3x4xf16>) -> tensor<3x4xf16> {
  // CHECK: "kernel.select"(%arg0, %arg1) {other = 0xFFF0000000000000 : f64} : (tensor<4xf16>, tensor<3x4xf16>) -> tensor<3x4xf16>
  %0 = "kernel.select"(%t, %x) {other = 0xFFF0000000000000 : f64} : (tensor<4xf16>, tensor<3x4xf16>) -> tensor<3x4xf16>
  // CHECK: "kernel.step"({{.*}}) : (tensor<3x4xf16>) -> tensor<3x4xf16>
  %1 = "kernel.step"(%0) : (tensor<3x4xf16>) -> tensor<3x4xf16>
  return %1 : tensor<3x4xf16>
}
