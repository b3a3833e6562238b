"""The parts of `superopt-opt`: command line, pipelines, emission and output, instrumentation.

command_line   argv -> Settings                      pipeline   pipeline text -> Steps
emission       kernels, for --emit below MLIR        runner     Steps on a module, printed, timed, verified
expected       --verify-diagnostics                  output     atomic files, --emit
isolation      a crash of LLVM is an error message   console    progress on a terminal
"""
