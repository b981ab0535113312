"""The few calls of the CUDA driver that running a cubin takes, by ctypes: memory, modules, launches, events, tensor maps."""

import ctypes
import ctypes.util
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

_MAX_DYNAMIC_SMEM: Final = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*."""
_SWIZZLE_128B, _PROMOTE_128B = 3, 2
"""CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B."""
_INTEGERS: Final = {1: 0, 2: 1, 4: 2}
"""Bytes of an element -> CU_TENSOR_MAP_DATA_TYPE_UINT*: a tensor map moves bits."""


class CudaError(RuntimeError):
    """A driver call failed; after a fault of a kernel the context is lost, and with it the process."""


class TensorMap(ctypes.Structure):
    """CUtensorMap: 128 opaque bytes, aligned to 64."""

    _fields_ = [("opaque", ctypes.c_uint64 * 16)]


def available() -> str | None:
    """Why no GPU can be used here, or None."""
    try:
        Cuda()
    except (OSError, CudaError) as problem:
        return str(problem)
    return None


class Cuda:
    """The first GPU of this machine. Raises OSError without a driver, CudaError without a GPU."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._device = device

    @property
    def name(self) -> str:
        text = ctypes.create_string_buffer(128)
        self._call("cuDeviceGetName", text, 128, self._device)
        return text.value.decode()

    @property
    def driver(self) -> str:
        """The CUDA version of the driver, `13.0`."""
        number = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    @property
    def capability(self) -> int:
        """90 for compute capability 9.0."""
        parts = []
        for attribute in (_MAJOR, _MINOR):
            value = ctypes.c_int()
            self._call("cuDeviceGetAttribute", ctypes.byref(value), attribute, self._device)
            parts.append(value.value)
        return 10 * parts[0] + parts[1]

    def upload(self, array: Array) -> int:
        """Address of a copy of an array in device memory."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(array.nbytes, 1)))
        self._call("cuMemcpyHtoD_v2", address, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes))
        return address.value

    def download(self, address: int, like: Array) -> Array:
        """What lies at an address, of the type and shape of `like`."""
        out = np.empty_like(like)
        self._call("cuMemcpyDtoH_v2", out.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(address), ctypes.c_size_t(out.nbytes))
        return out

    def fill(self, address: int, nbytes: int) -> None:
        """Zeros over device memory; as large as L2, it leaves L2 cold."""
        self._call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(nbytes))

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def load(self, cubin: bytes) -> ctypes.c_void_p:
        """A module."""
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), cubin)
        return module

    def function(self, module: ctypes.c_void_p, name: str, smem: int) -> ctypes.c_void_p:
        """A kernel, with leave to use so much dynamic shared memory."""
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SMEM, smem)
        return function

    def launch(self, function: ctypes.c_void_p, grid: tuple[int, int, int], block: int, smem: int, arguments: Sequence[Any]) -> None:
        """Start a kernel; `arguments` are ctypes values of the kernel's parameter types."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        self._call("cuLaunchKernel", function, *grid, block, 1, 1, smem, None, pointers, None)

    def synchronize(self) -> None:
        self._call("cuCtxSynchronize")

    def milliseconds(self, work: Callable[[], None]) -> float:
        """Time of what `work` launches, by events around it."""
        start, end, ms = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
        for event in (start, end):
            self._call("cuEventCreate", ctypes.byref(event), 0)
        self._call("cuEventRecord", start, None)
        work()
        self._call("cuEventRecord", end, None)
        self._call("cuEventSynchronize", end)
        self._call("cuEventElapsedTime", ctypes.byref(ms), start, end)
        for event in (start, end):
            self._call("cuEventDestroy_v2", event)
        return ms.value

    def tensor_map(self, address: int, rows: Array, box: tuple[int, int], *, swizzle: bool) -> TensorMap:
        """A map over a 2-D array, `box` elements (columns, rows) a load, in the 128-byte swizzle or as they are."""
        room = (ctypes.c_char * (ctypes.sizeof(TensorMap) + 64))()
        made = TensorMap.from_buffer(room, -ctypes.addressof(room) % 64)
        sizes, strides = (ctypes.c_uint64 * 2)(rows.shape[1], rows.shape[0]), (ctypes.c_uint64 * 1)(rows.shape[1] * rows.itemsize)
        boxes, steps = (ctypes.c_uint32 * 2)(*box), (ctypes.c_uint32 * 2)(1, 1)
        where = ctypes.c_uint64(address)
        shape = (_INTEGERS[rows.itemsize], 2, where, sizes, strides, boxes, steps)
        self._call("cuTensorMapEncodeTiled", ctypes.byref(made), *shape, 0, _SWIZZLE_128B if swizzle else 0, _PROMOTE_128B, 0)
        return made

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._lib.cuGetErrorString(code, ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or b'error').decode()} ({code})")
