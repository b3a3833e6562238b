"""What a program costs on a target: data files of GPUs, and the analytic model."""

from superopt.cost.gpus import Target, target, target_names
from superopt.cost.model import Cost, KernelCost, Traffic, cost, kernel_cost, kernel_seconds, node_traffic

__all__ = [
    "Cost",
    "KernelCost",
    "Target",
    "Traffic",
    "cost",
    "kernel_cost",
    "kernel_seconds",
    "node_traffic",
    "target",
    "target_names",
]
