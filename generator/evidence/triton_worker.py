"""Runs beside the project, in a Python that has triton and torch: compiles or interprets Triton sources on request.

Reads pickled requests from standard input and answers on standard output, each with an 8-byte length before it. Triton decides at import
whether kernels are compiled or interpreted, so the mode is fixed for a process: `triton_worker.py compile` or `interpret`. Imports nothing
of the project.
"""

import importlib.util
import inspect
import os
import pickle
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

GUARD = 1 << 20
"""Bytes before and behind each tensor that belong to none."""


class OutOfBoundsError(Exception):
    """A load, store or atomic outside every tensor of the launch."""


def main(mode: str) -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not mix with the answers
    if mode == "interpret":
        os.environ["TRITON_INTERPRET"] = "1"
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    handle = interpret if mode == "interpret" else compile_entries
    if mode == "interpret":
        _check_memory()
    with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
        while (request := _receive(sys.stdin.buffer)) is not None:
            _send(answers, handle(request, Path(folder)))


def compile_entries(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Kernels of a source on one compute capability: name -> (registers, shared memory, spills), or the diagnostic."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    facts = {}
    try:
        module = _load(request["source"], request["file"], folder)
        for entry in request["entries"]:
            pointers = [i for i, kind in enumerate(entry["signature"].values()) if kind.startswith("*")]
            source = ASTSource(
                fn=getattr(module, entry["kernel"]),
                signature=dict(entry["signature"]),
                constexprs=dict(entry["constants"]),
                attrs={(i,): [["tt.divisibility", 16]] for i in pointers},
            )
            options = {"num_warps": entry["warps"], "num_stages": entry["stages"]}
            compiled = triton.compile(source, target=GPUTarget("cuda", request["cc"], 32), options=options)
            registers, spills = _registers(compiled.asm["ptx"], request["cc"], Path(triton.__file__).parent, folder)
            facts[entry["kernel"]] = (registers, int(compiled.metadata.shared), spills)
    except Exception as problem:  # noqa: BLE001 - whatever the compiler raises is its diagnostic
        return {"diagnostic": _diagnostic(problem, request["source"], request["file"])}
    return {"kernels": facts}


def interpret(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """All buffers after `launch(...)`, or the class and message of a fault."""
    import numpy as np
    import torch

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # NaN in torch.empty
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in request["buffers"].items()}
    known = {**request["shape"], **request["scalars"], **tensors}
    try:
        module = _load(request["source"], request["file"], folder)
        with np.errstate(all="ignore"):
            module.launch(**{name: known[name] for name in inspect.signature(module.launch).parameters})
    except Exception as problem:  # noqa: BLE001 - the fault of the kernel, told to the caller
        causes = [problem]
        while causes[-1].__cause__ is not None:
            causes.append(causes[-1].__cause__)  # type: ignore[arg-type]
        kind = "bounds" if isinstance(causes[-1], OutOfBoundsError) else "trap"
        return {"fault": kind, "message": f"{str(causes[-1]).strip() or type(causes[-1]).__name__}"[:400]}
    return {"buffers": {name: tensor.numpy() for name, tensor in tensors.items()}}


def _check_memory() -> None:
    """Make the interpreter check every address against the tensors of the launch, and poison what a mask leaves undefined."""
    import numpy as np
    from triton.runtime import interpreter as ti

    ranges: list[tuple[int, int]] = []
    builder: Any = ti.InterpreterBuilder
    executor: Any = ti.GridExecutor
    load, store, rmw, cas, arguments = (
        builder.create_masked_load,
        builder.create_masked_store,
        builder.create_atomic_rmw,
        builder.create_atomic_cas,
        executor._init_args_hst,
    )

    def check(pointers: Any, mask: Any, what: str) -> None:
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        at = np.broadcast_arrays(pointers.data, mask)[0][np.broadcast_to(mask, pointers.data.shape)].astype(np.uint64)
        inside = np.zeros(at.shape, dtype=bool)
        for begin, end in ranges:
            inside |= (at >= begin) & (at + np.uint64(size) <= end)
        if not inside.all():
            raise OutOfBoundsError(f"out-of-bounds global {what} of {size} bytes by {int((~inside).sum())} of {at.size} elements")

    def masked_load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        check(pointers, mask.data, "read")
        kind = pointers.get_element_ty()
        if other is None and kind.is_floating() and kind.primitive_bitwidth >= 16:
            dtype = ti._get_np_dtype(kind)
            fill = np.full(pointers.data.shape, 0x7FFF, np.uint16) if dtype == np.uint16 else np.full(pointers.data.shape, np.nan, dtype)
            other = ti.TensorHandle(fill, kind)
        return load(self, pointers, mask, other, *rest)

    def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask.data, "write")
        return store(self, pointers, value, mask, *rest)

    def atomic_rmw(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask.data, "atomic")
        return rmw(self, operation, pointers, value, mask, *rest)

    def atomic_cas(self: Any, pointers: Any, *rest: Any) -> Any:
        check(pointers, np.ones(pointers.data.shape, dtype=bool), "atomic")
        return cas(self, pointers, *rest)

    def init_args(self: Any, args: Any, kwargs: Any) -> Any:
        by_position, by_name = arguments(self, args, kwargs)
        apart: dict[int, Any] = {}
        on_host = [_moved(a, apart) for a in by_position], {name: _moved(a, apart) for name, a in by_name.items()}
        ranges[:] = [(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in apart.values()]
        return on_host

    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store
    builder.create_atomic_rmw, builder.create_atomic_cas = atomic_rmw, atomic_cas
    executor._init_args_hst = init_args


def _moved(argument: Any, apart: dict[int, Any]) -> Any:
    """A tensor in a copy of its memory, `GUARD` bytes from any other; `apart` has the copies of a launch by address. All else as it is.

    So a stray access is out of bounds on every run, wherever the heap puts things. The interpreter writes the copies back when the launch
    ends.
    """
    import numpy as np
    import torch

    if not hasattr(argument, "untyped_storage"):
        return argument
    storage = argument.untyped_storage()
    if storage.data_ptr() not in apart:
        memory = np.empty(storage.nbytes() + 2 * GUARD, dtype=np.uint8)
        apart[storage.data_ptr()] = torch.from_numpy(memory[GUARD:-GUARD]).untyped_storage().copy_(storage)
    return argument.new_empty(0).set_(apart[storage.data_ptr()], argument.storage_offset(), argument.size(), argument.stride())


def _load(source: str, file: str, folder: Path) -> Any:
    """The module of a source; Triton reads a kernel's text from its file, so it must lie in one."""
    count = len(list(folder.iterdir()))
    path = folder / str(count) / file
    path.parent.mkdir()
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"source_{count}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _registers(ptx: str, cc: int, package: Path, folder: Path) -> tuple[int, int]:
    """Registers and spill stores of the one kernel of a PTX text, from Triton's own ptxas."""
    match = re.search(r"\.target (\w+)", ptx)
    assert match is not None
    path = folder / "kernel.ptx"
    path.write_text(ptx, encoding="utf-8")
    ptxas = package / "backends" / "nvidia" / "bin" / ("ptxas-blackwell" if cc >= 90 else "ptxas")
    command = [str(ptxas), "-v", "--regAllocOptLevel=2", f"--gpu-name={match[1]}", "-o", os.devnull, str(path)]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    path.unlink()
    return int(re.findall(r"Used (\d+) registers", log)[0]), int(re.findall(r"(\d+) bytes spill stores", log)[0])


def _diagnostic(problem: Exception, source: str, file: str) -> str:
    """`file:line: Kind: what`: the last line of the compiler's message, and the line of the source that it points at."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    what = f"{type(problem).__name__}: {lines[-1] if lines else 'no message'}"
    line, function = getattr(getattr(problem, "node", None), "lineno", None), getattr(problem, "src", None)
    if line is None or not function or function not in source:
        return f"{file}: {what}"
    return f"{file}:{source.count(chr(10), 0, source.index(function)) + line}: {what}"


def _receive(stream: BinaryIO) -> dict[str, Any] | None:
    head = stream.read(8)
    if len(head) < 8:
        return None
    request: dict[str, Any] = pickle.loads(stream.read(struct.unpack("<Q", head)[0]))
    return request


def _send(stream: BinaryIO, answer: dict[str, Any]) -> None:
    data = pickle.dumps(answer)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


if __name__ == "__main__":
    main(sys.argv[1])
