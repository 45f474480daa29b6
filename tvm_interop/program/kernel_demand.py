"""The resources of a GPU that one launch needs: threads, registers, shared memory and blocks."""

from __future__ import annotations

import msgspec

from ..plain_data import LARGEST


class KernelDemand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The resources of one launch. All blocks of a launch need the same resources.

    Attributes
    ----------
    function: name of the kernel in the machine code, or the kind of the operator if the numbers are
        assumed.
    blocks: blocks of the launch.
    threads: threads of a block.
    registers: number of 32-bit registers of a thread.
    static_shared_bytes: shared memory that the kernel itself declares for each block.
    dynamic_shared_bytes: shared memory that the launch adds for each block.
    assumed: whether the numbers are assumptions about a library's kernel. If not, they were read
        from machine code.
    """

    function: str
    blocks: int
    threads: int
    registers: int
    static_shared_bytes: int = 0
    dynamic_shared_bytes: int = 0
    assumed: bool = False

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        return self.static_shared_bytes + self.dynamic_shared_bytes

    def fault(self) -> str | None:
        """Describe the first field with an impossible number; None if all numbers are possible."""
        least = {"blocks": 1, "threads": 1}
        for field, number in msgspec.structs.asdict(self).items():
            if isinstance(number, bool) or not isinstance(number, int):
                continue
            low = least.get(field, 0)
            if not low <= number <= LARGEST:
                return f"a `{field}` of {number}; it must be {low} to {LARGEST}"
        return None


class GpuKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The properties of one of TVM's kernels for GPUs.

    Attributes
    ----------
    flops: floating-point operations of the kernel.
    launches: for each architecture, such as `sm_90`, the resources of the kernel's launches in
        order. The machine code differs between architectures, but the numbers of blocks and threads
        do not.
    """

    flops: int = 0
    launches: dict[str, tuple[KernelDemand, ...]] = {}
