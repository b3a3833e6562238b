// What depends on weights alone is computed by kernels of its own, which the launcher calls once; nothing joins them
// to kernels of each call.
// RUN: superopt-opt %s --kernel-to-tile | filecheck %s
// RUN: superopt-opt %s --superoptimize="budget=10 against=operators store=none" --report=%t.json --emit=bundle -o %t.bundle 2>&1 | filecheck %s --check-prefix=SAYS
// RUN: filecheck %s --input-file %t.bundle/launch.py --check-prefix=LAUNCH
// RUN: filecheck %s --input-file %t.json --check-prefix=REPORT

// CHECK: [[w:%arg1]]: tensor<32x64xf32> {superopt.name = "w", superopt.weight}
// CHECK: "superopt.tiled"([[w]])
// CHECK: "superopt.tiled"(
// CHECK-NOT: superopt.tiled

// SAYS: 1 kernel; {{.*}}; prepared once: 1 kernel, {{.*}} us, 8192 bytes;

// LAUNCH: def prepare(device, w):
// LAUNCH: return ([[held:.*]],)
// LAUNCH: WEIGHTS = (1,)
// LAUNCH: def run(x, w, prepared=None):
// LAUNCH: [[held]], = prepare(device, w) if prepared is None else prepared
// LAUNCH-NOT: (w,

// REPORT: "prepared": true
// REPORT: "prepared_bytes": 8192
func.func @main(%x: tensor<32x64xf32>, %w: tensor<32x64xf32> {superopt.weight}) -> tensor<32x64xf32> {
  %0 = "kernel.exp"(%w) : (tensor<32x64xf32>) -> tensor<32x64xf32>
  %1 = "kernel.sigmoid"(%0) : (tensor<32x64xf32>) -> tensor<32x64xf32>
  %2 = "kernel.mul"(%x, %1) : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
  return %2 : tensor<32x64xf32>
}
