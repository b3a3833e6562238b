"""What a program costs on a target: data files of GPUs, the analytic model, and its learned correction."""

from superopt.cost.compiled import CompiledCost, compiled_cost, compiled_seconds
from superopt.cost.gpus import Target, target, target_names
from superopt.cost.learned import Model, Prediction, load
from superopt.cost.model import Cost, KernelCost, Traffic, cost, kernel_cost, kernel_seconds, node_traffic

__all__ = [
    "CompiledCost",
    "Cost",
    "KernelCost",
    "Model",
    "Prediction",
    "Target",
    "Traffic",
    "compiled_cost",
    "compiled_seconds",
    "cost",
    "kernel_cost",
    "kernel_seconds",
    "load",
    "node_traffic",
    "target",
    "target_names",
]
