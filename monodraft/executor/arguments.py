"""Launch arguments to argument words: numbers, addresses and tensors, checked against the launcher's parameters."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monodraft.errors import Fault
from monodraft.executor.errors import BadLaunch
from monodraft.executor.memory import Memory, Region
from monodraft.executor.program import Parameter, Pointer, Program, Scalar, Struct, leaves

# NumPy has no name for these; their bytes travel in an unsigned integer of the same size (ml_dtypes has them by name).
SIZES = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e8m0fnu": 1, "bool": 1}


@dataclass
class Words:
    """One launcher argument: bit patterns per scalar leaf, and the array to write back to (or None)."""

    name: str
    words: tuple[int, ...]
    region: Region | None = None
    write_back: Any = None

    def finish(self) -> None:
        """Copy what the kernel left in the region to the caller's array."""
        if self.region is not None and self.write_back is not None:
            self.write_back[...] = self.region.array


def argument_words(program: Program, args: Sequence[Any] | Mapping[str, Any], rank: int, memory: Memory) -> list[Words]:
    """Bit patterns for every launcher parameter. Raises BadLaunch naming each argument that is missing or wrong."""
    named = name_arguments(program, args)
    result, faults = [], []
    for parameter in program.parameters:
        where = f"{program.host.name}: argument {parameter.name}"
        if not parameter.types:
            continue
        if parameter.name not in named:
            faults.append(Fault(where, "nothing", wanted(parameter)))
            continue
        try:
            result.append(one_argument(parameter, named[parameter.name], rank, memory, program))
        except (ValueError, struct.error, OverflowError) as error:
            faults.append(Fault(where, describe(named[parameter.name]), str(error) or wanted(parameter)))
    if faults:
        raise BadLaunch("cannot launch", faults=faults)
    return result


def name_arguments(program: Program, args: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by parameter name; too many or unknown ones are refused."""
    names = [parameter.name for parameter in program.parameters]
    if isinstance(args, Mapping):
        # Compile-time constants are baked in already and have no parameter; anything else unknown is a slip.
        return dict(args)
    values = list(args)
    if len(values) > len(names):
        values = drop_constants(program, values)
    return dict(zip(names, values, strict=False))


def drop_constants(program: Program, values: list[Any]) -> list[Any]:
    """Arguments of a launcher call include compile-time constants, which the Program has no parameter for."""
    kept = [value for position, value in enumerate(values) if position not in program.constants]
    if len(kept) > len(program.parameters):
        fault = Fault(f"{program.host.name}: arguments", str(len(values)), f"at most {len(program.parameters)}")
        raise BadLaunch("cannot launch", faults=[fault])
    return kept


def one_argument(parameter: Parameter, value: Any, rank: int, memory: Memory, program: Program) -> Words:
    """Words of one argument. Raises ValueError with what was wanted."""
    array = as_array(value)
    region = value if isinstance(value, Region) else None
    if array is not None and array.ndim:
        region = placed(memory, rank, f"{program.name}.{parameter.name}", array)
    if parameter.tensor is not None:
        if region is None:
            raise ValueError(wanted(parameter))
        return Words(parameter.name, tensor_words(parameter, region), region, array)
    if region is not None:
        return Words(parameter.name, (address_word(parameter, region.address),), region, array)
    kind = parameter.types[0]
    if isinstance(kind, Struct) and len(parameter.types) == 1:
        return Words(parameter.name, struct_words(kind, value))
    if len(parameter.types) != 1 or not isinstance(kind, Scalar | Pointer):
        raise ValueError(wanted(parameter))
    if isinstance(kind, Pointer):
        return Words(parameter.name, (address_word(parameter, int(value)),))
    return Words(parameter.name, (scalar_word(kind, value),))


def as_array(value: Any) -> np.ndarray | None:
    """A NumPy array, or a CPU torch tensor as one that shares its memory."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "data_ptr"):
        import torch

        if value.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu):
            value = value.view(torch.uint16 if value.element_size() == 2 else torch.uint8)
        return value.detach().numpy()
    return None


def placed(memory: Memory, rank: int, name: str, array: np.ndarray) -> Region:
    """The region of a host array on this rank; the same array given again is the same memory."""
    key = (rank, array.__array_interface__["data"][0], array.shape, array.dtype.str)
    if key not in memory.placed:
        memory.placed[key] = memory.array(rank, unused_name(memory, rank, name), array)
    region = memory.placed[key]
    region.array[...] = array
    return region


def unused_name(memory: Memory, rank: int, name: str) -> str:
    taken = {region.name for region in memory.regions if region.rank == rank}
    later = (f"{name}.{number}" for number in itertools.count(2))
    return name if name not in taken else next(each for each in later if each not in taken)


def address_word(parameter: Parameter, address: int) -> int:
    """An address for an Int64 or pointer parameter."""
    if parameter.types not in ((Scalar("i64"),),) and not isinstance(parameter.types[0], Pointer):
        raise ValueError(f"{wanted(parameter)} (an address needs 64 bits)")
    if not 0 <= address < 1 << 63:
        raise ValueError("an address from 0 to 2^63 - 1")
    return address


def scalar_word(kind: Scalar, value: Any) -> int:
    """A number as the bit pattern of `kind`; it must fit exactly the range, and integers must be integers."""
    if hasattr(value, "value") and not isinstance(value, np.generic):  # an fx.Int32(3) and the like
        value = value.value
    if kind.is_float:
        wide = np.asarray(value, np.float64)
        codes = {"f32": (np.float32, np.uint32), "f64": (np.float64, np.uint64), "f16": (np.float16, np.uint16)}
        if kind.name not in codes:
            raise ValueError("a float of a kind that a launcher can pass (f16, f32, f64)")
        kept, bits = codes[kind.name]
        return int(wide.astype(kept).view(bits))
    if not isinstance(value, int | np.integer | np.bool_):
        raise ValueError(f"an integer of {kind.bits} bits")
    number = int(value)
    if not -(1 << (kind.bits - 1)) <= number < 1 << kind.bits:
        raise ValueError(f"an integer of {kind.bits} bits")
    return number & ((1 << kind.bits) - 1)


def struct_words(kind: Struct, value: Any) -> tuple[int, ...]:
    """A struct from its numbers in order, nested or flat; a single number for a struct of one. What a dump's launcher
    takes for the sizes and strides of a tensor."""
    numbers = flat(value)
    parts = leaves(kind)
    if len(numbers) != len(parts):
        raise ValueError(f"{len(parts)} numbers for {kind}")
    return tuple(
        scalar_word(part, number) for part, number in zip(parts, numbers, strict=True) if isinstance(part, Scalar)
    )


def flat(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [number for each in value for number in flat(each)]
    return [value]


def tensor_words(parameter: Parameter, region: Region) -> tuple[int, ...]:
    """Address, dynamic sizes, dynamic strides. The region's dtype and fixed dimensions must be the traced ones."""
    layout = parameter.tensor
    assert layout is not None
    array = region.array
    if not same_dtype(layout.dtype, array.dtype):
        raise ValueError(f"{layout.dtype} elements, as traced")
    if region.address % array.itemsize:
        raise ValueError(f"an address that is a multiple of {array.itemsize}, not {region.address:#x}")
    if array.ndim != len(layout.shape):
        raise ValueError(f"{len(layout.shape)} dimensions, as traced")
    strides = [each // array.itemsize for each in array.strides]
    for fixed, seen, label in ((layout.shape, array.shape, "shape"), (layout.strides, strides, "strides")):
        if any(want is not None and want != got for want, got in zip(fixed, seen, strict=True)):
            raise ValueError(f"{label} {fixed}, as traced")
    dynamic = [got for want, got in zip(layout.shape, array.shape, strict=True) if want is None]
    dynamic += [got for want, got in zip(layout.strides, strides, strict=True) if want is None]
    kinds = [leaf for kind in parameter.types for leaf in leaves(kind)][1:]
    words = [scalar_word(kind, got) for kind, got in zip(kinds, dynamic, strict=True) if isinstance(kind, Scalar)]
    return (region.address, *words)


def same_dtype(traced: str, dtype: np.dtype) -> bool:
    """Whether an array's dtype carries the traced element type."""
    if traced in SIZES:
        return dtype.name == traced or (dtype.kind in "ub" and dtype.itemsize == SIZES[traced])
    return dtype.name == traced


def wanted(parameter: Parameter) -> str:
    if parameter.tensor is not None:
        return f"a region, array or tensor of {parameter.tensor.dtype}, {len(parameter.tensor.shape)} dimensions"
    return " and ".join(map(str, parameter.types))


def describe(value: Any) -> str:
    array = as_array(value.array if isinstance(value, Region) else value)
    return repr(value)[:80] if array is None else f"{array.dtype} array of shape {array.shape}"
