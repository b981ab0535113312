"""What real compilers and a real numeric check say of every kernel source, without a GPU.

`build` compiles all of them for every arch (`nvcc`, `triton_tools`), runs them on the CPU (`ptx` and `emulate` on the C++ of `emulator/`
for CUDA, Triton's interpreter) against each op's reference (`judge`), and writes a table per op beside its kernels (`table`). The
generator reads those tables and never imports this package.
"""
