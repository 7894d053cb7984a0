"""What a device has for blocks that run at the same time."""

from typing import NamedTuple

# Bytes that a device keeps for itself of the shared memory of every block.
_RESERVED = 1024


class DeviceLimits(NamedTuple):
    """The limits of one device, by its driver.

    Attributes
    ----------
    multiprocessors : int
        How many it has.
    shared_of_block : int
        Bytes of shared memory that a block may have at most, if it asks for leave.
    shared, threads, registers : int
        What a multiprocessor has for all of its blocks: bytes of shared memory, threads, and
        registers of 32 bits.
    cooperative : bool
        Whether all blocks of a launch can wait for each other, and kernels can be linked that do.
    """

    multiprocessors: int
    shared_of_block: int
    shared: int
    threads: int
    registers: int
    cooperative: bool

    def blocks(self, threads: int, registers: int, memory: int) -> int:
        """Return how many blocks run at the same time.

        Each has so many threads, with so many registers, and bytes of shared memory.
        """
        if not self.cooperative or memory > self.shared_of_block:
            return 0
        by_memory = self.shared // (memory + _RESERVED)
        by_registers = self.registers // (threads * registers)
        return self.multiprocessors * min(by_memory, by_registers, self.threads // threads)
