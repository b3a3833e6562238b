// A schedule gives the same program again without a search; another program's schedule is refused.
// RUN: superopt-opt %s --superoptimize="target=sm_80 budget=20" --emit=bundle --quiet -o %t.bundle
// RUN: superopt-opt %s --schedule=%t.bundle/schedule.json --emit=bundle --quiet -o %t.again
// Names of values are not frozen, so places in the source may differ; instructions may not.
// RUN: grep -v '[.]loc' %t.bundle/sm_80/f_0.ptx | sed '/section/,$d' > %t.1.ptx
// RUN: grep -v '[.]loc' %t.again/sm_80/f_0.ptx | sed '/section/,$d' > %t.2.ptx
// RUN: diff %t.1.ptx %t.2.ptx
// RUN: superopt-opt %s --schedule=%t.bundle/schedule.json --report=%t.json -o /dev/null
// RUN: filecheck %s --input-file=%t.json
// RUN: sed s/relu/exp/ %s > %t.other.mlir
// RUN: not superopt-opt %t.other.mlir --schedule=%t.bundle/schedule.json 2>&1 | filecheck %s --check-prefix=OTHER
// RUN: not superopt-opt %s --replay-schedule="file=%t.bundle/bundle.json" 2>&1 | filecheck %s --check-prefix=WRONG
// RUN: not superopt-opt %s --replay-schedule 2>&1 | filecheck %s --check-prefix=REQUIRED

// CHECK: "enumerated": 0
// CHECK: "verified": 1
// OTHER: error: expected a schedule of program {{[0-9a-f]+}}, got one of {{[0-9a-f]+}}
// WRONG: bundle.json: error: expected a schedule, got
// REQUIRED: error: replay-schedule: option 'file' is required
func.func @f(%x: tensor<16x256xf16>, %w: tensor<256x512xf16>) -> tensor<16x512xf16> {
  %0 = "kernel.matmul"(%x, %w) : (tensor<16x256xf16>, tensor<256x512xf16>) -> tensor<16x512xf16>
  %1 = "kernel.relu"(%0) : (tensor<16x512xf16>) -> tensor<16x512xf16>
  return %1 : tensor<16x512xf16>
}
