"""
The analytic cost of one kernel, and the counting of what goes into it.
"""



class TargetNumbers:
    """What the cost formula knows of a GPU; seconds, bytes, flops."""

    def __init__(self) -> None: ...

    @property
    def launch_seconds(self) -> float: ...

    @launch_seconds.setter
    def launch_seconds(self, arg: float, /) -> None: ...

    @property
    def iteration_seconds(self) -> float: ...

    @iteration_seconds.setter
    def iteration_seconds(self, arg: float, /) -> None: ...

    @property
    def floor_seconds(self) -> float: ...

    @floor_seconds.setter
    def floor_seconds(self, arg: float, /) -> None: ...

    @property
    def dram_bytes_per_second(self) -> float: ...

    @dram_bytes_per_second.setter
    def dram_bytes_per_second(self, arg: float, /) -> None: ...

    @property
    def l2_bytes_per_second(self) -> float: ...

    @l2_bytes_per_second.setter
    def l2_bytes_per_second(self, arg: float, /) -> None: ...

    @property
    def multiprocessor_bytes_per_second(self) -> float: ...

    @multiprocessor_bytes_per_second.setter
    def multiprocessor_bytes_per_second(self, arg: float, /) -> None: ...

    @property
    def l2_capacity(self) -> float: ...

    @l2_capacity.setter
    def l2_capacity(self, arg: float, /) -> None: ...

    @property
    def tensor_flops(self) -> float: ...

    @tensor_flops.setter
    def tensor_flops(self, arg: float, /) -> None: ...

    @property
    def vector_flops(self) -> float: ...

    @vector_flops.setter
    def vector_flops(self, arg: float, /) -> None: ...

    @property
    def special_operations(self) -> float: ...

    @special_operations.setter
    def special_operations(self, arg: float, /) -> None: ...

    @property
    def multiprocessors(self) -> int: ...

    @multiprocessors.setter
    def multiprocessors(self, arg: int, /) -> None: ...

    @property
    def shared_per_block(self) -> int: ...

    @shared_per_block.setter
    def shared_per_block(self, arg: int, /) -> None: ...

    @property
    def shared_per_multiprocessor(self) -> int: ...

    @shared_per_multiprocessor.setter
    def shared_per_multiprocessor(self, arg: int, /) -> None: ...

    @property
    def blocks_per_multiprocessor(self) -> int: ...

    @blocks_per_multiprocessor.setter
    def blocks_per_multiprocessor(self, arg: int, /) -> None: ...

    @property
    def registers(self) -> int: ...

    @registers.setter
    def registers(self, arg: int, /) -> None: ...

    @property
    def matrix_side(self) -> int: ...

    @matrix_side.setter
    def matrix_side(self, arg: int, /) -> None: ...

    @property
    def matrix_rows(self) -> int: ...

    @matrix_rows.setter
    def matrix_rows(self, arg: int, /) -> None: ...

class KernelTraffic:
    """
    What one kernel moves (bytes) and computes (flops), over all its blocks.
    """

    def __init__(self) -> None: ...

    @property
    def dram_bytes(self) -> float: ...

    @dram_bytes.setter
    def dram_bytes(self, arg: float, /) -> None: ...

    @property
    def l2_bytes(self) -> float: ...

    @l2_bytes.setter
    def l2_bytes(self, arg: float, /) -> None: ...

    @property
    def tensor_flops(self) -> float: ...

    @tensor_flops.setter
    def tensor_flops(self, arg: float, /) -> None: ...

    @property
    def vector_flops(self) -> float: ...

    @vector_flops.setter
    def vector_flops(self, arg: float, /) -> None: ...

    @property
    def special_operations(self) -> float: ...

    @special_operations.setter
    def special_operations(self, arg: float, /) -> None: ...

    @property
    def blocks(self) -> int: ...

    @blocks.setter
    def blocks(self, arg: int, /) -> None: ...

    @property
    def shared_bytes(self) -> int:
        """Of one block."""

    @shared_bytes.setter
    def shared_bytes(self, arg: int, /) -> None: ...

    @property
    def loop_trips(self) -> int:
        """
        Of one block: loops within loops multiply, those one after the other add up.
        """

    @loop_trips.setter
    def loop_trips(self, arg: int, /) -> None: ...

    def move(self, target: TargetNumbers, tensor_bytes: float, moved: float, run: float) -> None:
        """
        Blocks load and store `moved` bytes in all of a tensor, `run` of them one after the other; call it when `blocks` and `shared_bytes` are set.
        """

    def product(self, target: TargetNumbers, rows: float, columns: float, depth: float, times: float, operand_bytes: int) -> None:
        """
        Matrix products, `times` of them, of operands with so many bytes an element.
        """

def waves(target: TargetNumbers, blocks: int, resident: int) -> float:
    """
    Rounds that the blocks of a kernel take where each multiprocessor holds so many at once.
    """

def busy_share(target: TargetNumbers, blocks: int) -> float:
    """
    The share of the matrix and vector units that so many blocks keep busy.
    """

def memory_rate(target: TargetNumbers, peak: float, blocks: int) -> float:
    """Bytes a second that so many blocks move where the memory does `peak`."""

def kernel_seconds(target: TargetNumbers, kernel: KernelTraffic) -> float:
    """
    Seconds that one kernel takes on the target, its launch included; infinity where it does not fit.
    """
