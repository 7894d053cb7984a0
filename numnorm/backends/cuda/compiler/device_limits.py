"""The limits of a device, and how many blocks it runs at the same time."""

from typing import NamedTuple

# Bytes of shared memory that the system reserves for every block.
_RESERVED = 1024


class CooperativeLaunchRefused(RuntimeError):
    """A device cannot run all blocks of a cooperative launch at the same time."""


class DeviceLimits(NamedTuple):
    """The limits of one device, from its driver.

    Attributes
    ----------
    multiprocessors : int
        The number of multiprocessors.
    shared_of_block : int
        The most bytes of dynamic shared memory of a block, after the opt-in.
    shared, threads, registers : int
        The limits of a multiprocessor for all of its blocks: bytes of shared memory, threads, and
        registers of 32 bits.
    cooperative : bool
        Whether the device has cooperative launches and the compiler can link a grid barrier.
    """

    multiprocessors: int
    shared_of_block: int
    shared: int
    threads: int
    registers: int
    cooperative: bool

    def blocks(self, threads: int, registers: int, memory: int) -> int:
        """Return how many blocks run at the same time.

        A block has `threads` with `registers` each, and `memory` bytes of shared memory.
        """
        if not self.cooperative or memory > self.shared_of_block:
            return 0
        by_memory = self.shared // (memory + _RESERVED)
        by_registers = self.registers // (threads * registers)
        return self.multiprocessors * min(by_memory, by_registers, self.threads // threads)
