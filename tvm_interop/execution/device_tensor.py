"""`DeviceTensor`: an output of a model in the memory of a GPU, for libraries that speak DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._native import cuda as _cuda
from ..errors import InputError
from ..program.host_memory import aligned_empty
from .cpu import as_tensor

_NO_WAIT = -1
"""The value of `stream` in `__dlpack__` with which no stream of the consumer waits."""
_DEFAULT_STREAM = 1
"""The value of `stream` in `__dlpack__` for CUDA's default stream, also used for None."""


class DeviceTensor:
    """A tensor of a module, in the memory of a GPU.

    ``torch.from_dlpack(tensor)`` and the `from_dlpack` of other libraries use the memory without a
    copy. The stream of such a library (the consumer) waits for the runs that were started. The
    consumer must read the memory before the module's next run, which changes it.

    Attributes
    ----------
    shape, dtype: the shape, and NumPy's name of the type.
    device: the GPU, such as ``cuda:0``.
    """

    def __init__(self, tensor: Any, streams: _cuda.CudaStreams) -> None:
        """Wrap `tensor`, a tensor of the native runtime. Runs on `streams` write to its memory."""
        self._tensor, self._streams = tensor, streams
        self.shape: tuple[int, ...] = tuple(int(size) for size in tensor.shape)
        self.dtype = str(tensor.dtype)
        self.device = f"cuda:{tensor.device.index}"

    def __repr__(self) -> str:
        return f"DeviceTensor({self.dtype} of shape {self.shape} on {self.device})"

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's number for CUDA, and the number of the GPU."""
        kind, number = self._tensor.__dlpack_device__()
        return int(kind), int(number)

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """Return a DLPack capsule of the memory; the consumer's stream waits for the runs so far.

        Parameters
        ----------
        stream: the handle of the consumer's stream. None and 1 mean CUDA's default stream, and 2
            means the default stream of the calling thread. With -1 no stream waits.
        options: `max_version`, `dl_device` and `copy` of DLPack.

        Raises
        ------
        InputError
            `stream` is 0, which DLPack forbids because it may mean either default stream; or it is
            less than -1, or is not a number.
        BufferError
            `copy` is true, or `dl_device` is another device.
        """
        chosen = _DEFAULT_STREAM if stream is None else stream
        if not isinstance(chosen, int) or chosen == 0 or chosen < _NO_WAIT:
            raise InputError(
                f"`stream` is {stream!r}: give the handle of a stream, 1 for the default stream, "
                "or -1"
            )
        if options.get("copy"):
            raise BufferError("no copy is made here: copy the tensor in your library")
        wanted = options.get("dl_device")
        if wanted is not None and tuple(wanted) != self.__dlpack_device__():
            raise BufferError(f"the tensor is on {self.device}: copy it in your library")
        if chosen != _NO_WAIT:
            _cuda.order_after(self._streams, self.__dlpack_device__()[1], chosen)
        given = {"max_version": options["max_version"]} if "max_version" in options else {}
        return self._tensor.__dlpack__(**given)

    def numpy(self) -> np.ndarray:
        """Wait for all runs, and return a copy in the host's memory."""
        array = aligned_empty(self.shape, self.dtype)
        _cuda.unload(_cuda.make_loader(self._streams), self._tensor, as_tensor(array))
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return a copy in the host's memory; `np.asarray` calls this method."""
        if copy is False:
            raise ValueError("a tensor on a GPU is copied into an array: leave `copy=False` out")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)
