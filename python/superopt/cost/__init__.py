"""What a program costs on a target: data files of GPUs, the analytic model, and its learned correction."""

from superopt.cost.baseline import Baseline, baselines, best_baseline
from superopt.cost.compiled import CompiledCost, PricedKernel, compiled_cost, compiled_seconds, priced_kernels
from superopt.cost.gpus import Target, host, target, target_names
from superopt.cost.learned import Model, Prediction, load
from superopt.cost.library import contraction_cost, left_to_library
from superopt.cost.model import Cost, KernelCost, cost, costs_alone, kernel_cost
from superopt.cost.traffic import Traffic, kernel_seconds, node_traffic

__all__ = [
    "Baseline",
    "CompiledCost",
    "Cost",
    "KernelCost",
    "Model",
    "Prediction",
    "PricedKernel",
    "Target",
    "Traffic",
    "baselines",
    "best_baseline",
    "compiled_cost",
    "compiled_seconds",
    "contraction_cost",
    "cost",
    "costs_alone",
    "host",
    "kernel_cost",
    "kernel_seconds",
    "left_to_library",
    "load",
    "node_traffic",
    "priced_kernels",
    "target",
    "target_names",
]
