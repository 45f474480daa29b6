"""Executes CUDA kernels that TVM generates on the CPU, to check their results without a GPU.

`python -m tests.cuda_emulation MODEL ...` compiles models as `compile(..., target="cuda")` does. A
C++ compiler compiles the CUDA C source of each kernel, with the headers in `include`. Each kernel
runs on the numbers of `tvm_interop.kernels.check`, and its results are compared with the reference
of that check: the same kernel before any schedule.

A kernel runs one block after the other. Each thread of a block is a fiber, which runs until it
waits at a barrier, a shuffle or a vote. Each launch runs twice: with the blocks and threads in
order, and in reverse order. The emulation finds:
- wrong numbers, from the schedule, TVM's passes or the generated source;
- a missing barrier: the results of the two orders differ. No access to shared memory is watched, so
  a missing barrier is found only if one of the two orders makes a difference to the results;
- a barrier that some threads of the block do not reach, and a shuffle that waits for lanes of the
  warp that never take part;
- shared memory that is read before it is written: the two orders find different bytes there;
- accesses outside of tensors and of shared and local arrays, and vectors at addresses that are not
  aligned to their size (with sanitizers, as by default);
- writes to inputs, launches with more threads than a kernel takes, and launches that are given
  memory of the host.

Tensor cores are emulated only if a kernel uses them through `nvcuda::wmma` on floats. The emulation
then finds three more faults. A fragment is loaded or stored at an address that CUDA forbids. The
lanes of a warp name different matrices. Or only some lanes of a warp take part.

The emulation says nothing about speed, and finds no faults of nvcc, of a driver or of a GPU. A
fused multiply and add is rounded twice here. Kernels that use tensor cores in another way or inline
assembly are not executed, and are listed with the reason.
"""
