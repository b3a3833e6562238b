// Times as a list, longest first, one row for each name, and as JSON.
// RUN: superopt-opt %s --cse --canonicalize --cse --mlir-timing --mlir-timing-display=list -o /dev/null 2>&1 | filecheck %s
// RUN: superopt-opt %s --pass-pipeline='builtin.module(func.func(cse))' --mlir-timing --mlir-output-format=json -o /dev/null 2> %t.json
// RUN: python3 -c "import json, sys; rows = json.load(open(sys.argv[1])); print([r['name'] for r in rows], [r.get('name') for r in rows[1]['passes']], rows[-1]['wall']['percentage'])" %t.json | filecheck %s --check-prefix=JSON
// RUN: not superopt-opt %s --cse --mlir-output-format=json 2>&1 | filecheck %s --check-prefix=ALONE
// RUN: not superopt-opt %s --cse --mlir-timing --mlir-timing-display=lists 2>&1 | filecheck %s --check-prefix=MEANT

// CHECK: Total Execution Time:
// CHECK-COUNT-1: {{ }}cse
// CHECK-NOT: {{ }}cse
// CHECK: Total
// JSON: ['Parser', "'func.func' Pipeline", 'Output', 'Total'] ['cse', None] 100.0
// ALONE: error: --mlir-output-format writes times: expected --mlir-timing with it
// MEANT: error: argument --mlir-timing-display: expected one of tree, list, got 'lists' (did you mean 'list'?)
func.func @f(%a: i32) -> i32 {
  return %a : i32
}
