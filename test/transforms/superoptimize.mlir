// The whole flow on a small program: one kernel where there were three operators, in every form that --emit knows.
// RUN: superopt-opt %s --superoptimize="target=sm_80 budget=20" --report=%t.json -o %t.mlir
// RUN: filecheck %s --input-file=%t.mlir
// RUN: filecheck %s --input-file=%t.json --check-prefix=REPORT
// RUN: superopt-verify %s %t.mlir | filecheck %s --check-prefix=SAME
// RUN: superopt-opt %t.mlir --emit=triton | filecheck %s --check-prefix=TRITON
// RUN: superopt-opt %t.mlir --emit=ptx --target=sm_80 | filecheck %s --check-prefix=PTX
// RUN: superopt-opt %t.mlir --emit=bundle --target=sm_80 --quiet -o %t.bundle
// RUN: superopt-verify --replay %t.bundle/certificate.json | filecheck %s --check-prefix=HOLDS
// RUN: superopt-verify %t.bundle | filecheck %s --check-prefix=ALONE
// RUN: echo "# more" >> %t.bundle/kernels.py
// RUN: not superopt-verify %t.bundle 2>&1 | filecheck %s --check-prefix=TAMPERED

// CHECK-LABEL: func.func @f
// CHECK-NEXT: superopt.{{custom|tiled}}
// CHECK: {{block|tile}}.matmul
// CHECK: {{block.save|tile.store}}
// CHECK-NOT: kernel.
// REPORT: "target": "sm_80"
// REPORT: "enumerated":
// REPORT: "verified": 1
// SAME: equivalent
// TRITON: @triton.jit
// TRITON: tl.dot
// TRITON-NOT: @triton.jit
// PTX: .target sm_80
// HOLDS: holds
// ALONE: equivalent to its original.mlir:
// ALONE: not checked: whether original.mlir is the program that you mean
// TAMPERED: kernels.py
func.func @f(%x: tensor<16x256xf16>, %w: tensor<256x512xf16>, %b: tensor<16x512xf16>) -> tensor<16x512xf16> {
  %0 = "kernel.matmul"(%x, %w) : (tensor<16x256xf16>, tensor<256x512xf16>) -> tensor<16x512xf16>
  %1 = "kernel.add"(%0, %b) : (tensor<16x512xf16>, tensor<16x512xf16>) -> tensor<16x512xf16>
  %2 = "kernel.relu"(%1) : (tensor<16x512xf16>) -> tensor<16x512xf16>
  return %2 : tensor<16x512xf16>
}
