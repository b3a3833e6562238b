"""superopt inside PyTorch: what stands where a module stood, and the backend of torch.compile.

operator.py   a finished program as an operator of PyTorch (torch.library)
module.py     the torch.nn.Module that `superopt.optimize` returns for a module
saving.py     the same in a folder, and out of it
replace.py    modules of a model replaced by their names
backend.py    torch.compile(backend="superopt"), and `superopt.explain`
regions.py    the parts of a graph that one run each takes
plans.py      what became of regions in earlier processes, sealed
"""
