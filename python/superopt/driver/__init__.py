"""What stands behind `superopt-opt`: command line, pipelines, input and output, instrumentation.

command_line   argv -> Settings                      pipeline   pipeline text -> Steps
source         files -> located modules              runner     Steps on a module, printed, timed, verified
expected       --verify-diagnostics                  output     atomic files, --emit
isolation      a crash of LLVM is an error message   console    progress on a terminal
"""
