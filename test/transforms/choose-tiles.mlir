// The tiles and launches of lowered kernels are decisions: listed, and taken from a configuration.
// RUN: superopt-opt %s --kernel-to-tile --choose-tiles --choose-launch --list-sites 2>&1 >/dev/null | filecheck %s --check-prefix=SITES
// SITES: choose-tiles.mlir:{{[0-9]+}}:8: remark: choose-tiles a51f1f50723ddfb7: i0=16 i1=32 i2=64 | {{.*}}i0=64 i1=64 i2=32
// SITES: choose-tiles.mlir:{{[0-9]+}}:8: remark: choose-launch ba6daa0a6ff292c8: warps=4 stages=4 hints=0 descriptors=0 separate=0 unmasked=0 | {{.*}}warps=2 stages=3 hints=1 descriptors=0 separate=0

// By themselves the passes change nothing.
// RUN: superopt-opt %s --kernel-to-tile > %t.before
// RUN: superopt-opt %s --kernel-to-tile --choose-tiles --choose-launch | diff %t.before -

// A configuration stands in the option or in a file; the tiles that it chooses compute the same.
// RUN: superopt-opt %s --kernel-to-tile --choose-tiles='config={"choose-tiles": {"a51f1f50723ddfb7": "i0=64 i1=64 i2=32"}}' --verify-each-equivalence | filecheck %s --check-prefix=TILES
// TILES: "tile.load"{{.*}} -> tensor<64x32xf16>
// RUN: echo '{"choose-launch": {"ba6daa0a6ff292c8": "warps=2 stages=3 hints=1 descriptors=0 separate=0 unmasked=0"}}' > %t.json
// RUN: superopt-opt %s --kernel-to-tile --choose-launch=config=%t.json | filecheck %s --check-prefix=LAUNCH
// LAUNCH: {{cache_hints = true.*num_stages = 3.*num_warps = 2}}

// What a site cannot be is an error; sites of other programs are counted.
// RUN: not superopt-opt %s --kernel-to-tile --choose-tiles='config={"choose-tiles": {"a51f1f50723ddfb7": "i0=7"}}' 2>&1 | filecheck %s --check-prefix=INVALID
// INVALID: choose-tiles.mlir:{{[0-9]+}}:8: error: choose-tiles: expected one of 'i0=16 i1=32 i2=64', {{.*}} at site a51f1f50723ddfb7, got 'i0=7'
// RUN: superopt-opt %s --kernel-to-tile --choose-tiles='config={"choose-tiles": {"0123456789abcdef": "i0=7"}}' 2>&1 | filecheck %s --check-prefix=OTHERS
// OTHERS: remark: choose-tiles: the program lacks 1 sites of the configuration, such as 0123456789abcdef
// RUN: superopt-opt %s --kernel-to-tile --choose-tiles='config={"chose-tiles": {"a51f1f50723ddfb7": "i0=64 i1=64 i2=32"}}' 2>&1 | filecheck %s --check-prefix=PASS
// PASS: remark: choose-tiles: the configuration has choices of chose-tiles, and none of this pass
// RUN: not superopt-opt %s --kernel-to-tile --choose-tiles=config=[1] 2>&1 | filecheck %s --check-prefix=TEXT
// TEXT: error: expected a configuration or a file with one, got '[1]'
// RUN: not superopt-opt %s --cse --list-sites 2>&1 | filecheck %s --check-prefix=NONE
// NONE: error: --list-sites: expected a pass that has sites, of partition, choose-extents, choose-layouts, choose-splits, choose-tiles, choose-launch, got none

func.func @f(%x: tensor<256x128xf16>, %w: tensor<128x256xf16>) -> tensor<256x256xf16> {
  %y = "kernel.matmul"(%x, %w) : (tensor<256x128xf16>, tensor<128x256xf16>) -> tensor<256x256xf16>
  return %y : tensor<256x256xf16>
}
