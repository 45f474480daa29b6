"""Reads the resources that each kernel needs from machine code for NVIDIA GPUs, without a GPU.

nvcc writes a "fatbin", which holds one "cubin" for each architecture. A cubin is an ELF file. For a
kernel `k` it has these sections, named as `cuobjdump -elf` names them:

- `.text.k`, the code of the kernel `k`;
- `.nv.shared.k`, whose size is the shared memory that the kernel declares. If the cubin also has a
  section `.nv.shared.reserved.0` (since compute capability 9.0), this size includes the 1024 bytes
  that CUDA takes for itself in each block;
- `.nv.info`, which says how many registers a thread of each kernel needs, by the kernel's symbol.

`ptxas -v` prints the needed resources too, and the tests compare its numbers with those that this
module reads from the cubin's sections. The sections are read because they are part of the code that
a GPU loads. The output of ptxas is hard to read for programs: it changes between releases, and it
mixes several architectures.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import DeviceError

_FATBIN_MAGIC = 0xBA55ED50
_FATBIN_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_CUBIN = 2
_COMPRESSED = 0x2000 | 0x8000  # The flags of code that is compressed by LZ4 and by Zstandard.
_ELF_MAGIC = b"\x7fELF"
_ELF_64_BITS = 2
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2
_REGISTER_COUNT = 0x2F
_WITH_SIZE = 4
"""The code of attributes whose data may have any length. Such an attribute holds the number of
bytes, and then the bytes.
"""
_RESERVED_BYTES = 1024


@dataclass(frozen=True)
class KernelResources:
    """The resources that a kernel's machine code needs.

    Attributes
    ----------
    registers: number of 32-bit registers of a thread.
    shared_bytes: bytes of shared memory that the kernel declares for each block.
    """

    registers: int
    shared_bytes: int


def resources_in(fatbin: bytes) -> dict[str, dict[str, KernelResources]]:
    """The resources of each kernel in a fatbin, by architecture such as `sm_90` and by name.

    A fatbin may also hold PTX, from which code for other architectures is compiled. PTX is left
    out.

    Raises
    ------
    DeviceError
        The bytes are not a fatbin that this version can read; the message says why.
    """
    try:
        return {arch: _kernels_of(cubin) for arch, cubin in _cubins(fatbin)}
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DeviceError(f"nvcc's machine code cannot be read: it is cut off ({error})") from error


def _cubins(fatbin: bytes) -> Iterator[tuple[str, bytes]]:
    magic, _, header_bytes, nbytes = _FATBIN_HEADER.unpack_from(fatbin)
    if magic != _FATBIN_MAGIC:
        raise DeviceError(f"nvcc's machine code cannot be read: it begins with {fatbin[:4].hex()}")
    at, end = header_bytes, header_bytes + nbytes
    while at < end:
        kind, _, header_bytes, nbytes, *_, arch, _, _, flags = _ENTRY.unpack_from(fatbin, at)
        if kind == _CUBIN:
            if flags & _COMPRESSED:
                raise DeviceError(
                    f"nvcc's machine code for sm_{arch} cannot be read: it is compressed; compile "
                    "it without compression"
                )
            yield f"sm_{arch}", fatbin[at + header_bytes : at + header_bytes + nbytes]
        at += header_bytes + nbytes


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    offset: int
    nbytes: int
    link: int


def _kernels_of(cubin: bytes) -> dict[str, KernelResources]:
    sections = _sections(cubin)
    names = [section.name for section in sections]
    kernels = [name.removeprefix(".text.") for name in names if name.startswith(".text.")]
    shared = {
        section.name.removeprefix(".nv.shared."): section.nbytes
        for section in sections
        if section.name.startswith(".nv.shared.")
    }
    reserved = _RESERVED_BYTES if ".nv.shared.reserved.0" in names else 0
    registers = _registers(cubin, sections)
    found = {}
    for kernel in kernels:
        if kernel not in registers:
            raise DeviceError(
                f"nvcc's machine code cannot be read: it does not say how many registers "
                f"`{kernel}` needs"
            )
        declared = max(shared.get(kernel, 0) - reserved, 0)
        found[kernel] = KernelResources(registers[kernel], declared)
    return found


def _sections(cubin: bytes) -> list[_Section]:
    ident, *_, begin, _, _, _, _, entry_bytes, number, names_at = _ELF_HEADER.unpack_from(cubin)
    if ident[:4] != _ELF_MAGIC or ident[4] != _ELF_64_BITS:
        raise DeviceError(
            "nvcc's machine code cannot be read: it is not an ELF file, and begins with "
            f"{ident.hex()}"
        )
    rows = [_SECTION.unpack_from(cubin, begin + i * entry_bytes) for i in range(number)]
    texts = rows[names_at][4]
    return [
        _Section(_text(cubin, texts + name), kind, offset, nbytes, link)
        for name, kind, _, _, offset, nbytes, link, *_ in rows
    ]


def _registers(cubin: bytes, sections: list[_Section]) -> dict[str, int]:
    """The number of registers that a thread of each function needs, by the function's name."""
    symbols = [
        _text(cubin, sections[table.link].offset + _SYMBOL.unpack_from(cubin, at)[0])
        for table in sections
        if table.kind == _SYMBOL_TABLE
        for at in range(table.offset, table.offset + table.nbytes, _SYMBOL.size)
    ]
    found = {}
    for section in sections:
        if section.name != ".nv.info":
            continue
        at, end = section.offset, section.offset + section.nbytes
        while at < end:
            form, attribute, size = struct.unpack_from("<BBH", cubin, at)
            if form == _WITH_SIZE and attribute == _REGISTER_COUNT:
                symbol, number = struct.unpack_from("<II", cubin, at + 4)
                found[symbols[symbol]] = number
            at += 4 + (size if form == _WITH_SIZE else 0)
    return found


def _text(cubin: bytes, at: int) -> str:
    end = cubin.find(b"\0", at)
    if end < 0:
        raise IndexError(f"a name at byte {at} has no end")
    return cubin[at:end].decode()
