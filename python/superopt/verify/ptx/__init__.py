"""PTX as text: a reader, and its check against the TTIR and the order of its memory accesses.

parser    text -> registers, labels, instructions
decode    instructions as numbers; unknown opcodes are refused by name
operands  registers, immediates and addresses; `registers` and `accesses` are the rules for opcodes
functions library functions found in it: blocks in order, regions that loop over local memory, templates
budget    what the check of a kernel may take
launch    one launch, block by block, in the core (`transforms/core/ptx`)
grid      all blocks of a launch from few that run
check     blocks of a kernel against the instances of its TTIR
record    what was checked
artifact  the same for what goes into a bundle
"""
