// Resources keep their names in text and in bytecode; so does what another run has read.
// RUN: superopt-opt %s --verify-roundtrip --split-input-file | filecheck %s

// CHECK: dense_resource<blob>
// CHECK: // -----
// CHECK: dense_resource<blob
func.func @f() -> tensor<2xf32> {
  %0 = arith.constant dense_resource<blob> : tensor<2xf32>
  return %0 : tensor<2xf32>
}
{-# dialect_resources: { builtin: { blob: "0x040000000000803f00000040" } } #-}

// -----

func.func @g() -> tensor<2xf32> {
  %0 = arith.constant dense_resource<blob> : tensor<2xf32>
  return %0 : tensor<2xf32>
}
{-# dialect_resources: { builtin: { blob: "0x04000000000000400000803f" } } #-}
