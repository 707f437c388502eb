"""The draft step of this room on a CPU: the very CUDA C++, compiled by the machine's C++ compiler (docs/hopper.md).

    from monodraft.hopper.emulator import Emulator

    drafter = HopperDrafter(config, weights, max_positions=512, emulator=Emulator(ctas=8, seed=1))

What passed here was executed on a CPU; it was not measured on a GPU.
"""

from monodraft.hopper.emulator.build import CompilerMissing
from monodraft.hopper.emulator.kernel import EmulatedKernel, Emulator, EmulatorError

__all__ = ["CompilerMissing", "EmulatedKernel", "Emulator", "EmulatorError"]
