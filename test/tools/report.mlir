// Searches that run as passes of their own are reported, too: what was counted, for each pass and part.
// RUN: superopt-opt %s --mugraph-search="axis-test=false budget=20" --report=%t.json --quiet -o %t.mlir
// RUN: filecheck %s --input-file %t.json
// RUN: superopt-opt %s --saturate-tiles --report=%t.json --quiet -o %t.mlir
// RUN: filecheck %s --input-file %t.json --check-prefix=TILES
// RUN: superopt-opt %s --cse --report=%t.json -o %t.mlir
// RUN: filecheck %s --input-file %t.json --check-prefix=NONE

// CHECK: "version": 1,
// CHECK: "searches": [
// CHECK: "by": "mugraph-search{budget=20.0 axis-test=false}",
// CHECK: "segment": null,
// CHECK: "chosen": 0,
// CHECK: "complete": true,
// CHECK: "values.attempted": {{[1-9]}}
// TILES: "by": "saturate-tiles",
// TILES: "segment": null,
// TILES: "chosen": 0,
// TILES: "tiles.candidates": {{[1-9]}}
// TILES: "egraphs": [
// TILES: "stopped": "saturated",
// TILES: "rules": {
// NONE: {}
func.func @f(%x: tensor<16x64xf16>, %w: tensor<64x64xf16>) -> tensor<16x64xf16> {
  %0 = "kernel.matmul"(%x, %w) : (tensor<16x64xf16>, tensor<64x64xf16>) -> tensor<16x64xf16>
  %1 = "kernel.relu"(%0) : (tensor<16x64xf16>) -> tensor<16x64xf16>
  return %1 : tensor<16x64xf16>
}
