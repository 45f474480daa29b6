#ifndef RUNTIME_CUDA_WORKSPACE_LIMIT_H_
#define RUNTIME_CUDA_WORKSPACE_LIMIT_H_

#include <cstddef>

namespace tvm_interop {

// The most bytes of a GPU's memory that a kernel of a library may ask for as a workspace. Each
// stream of an instance has one workspace, which is as large as the largest that a kernel on the
// stream asks for. So an instance takes at most this number of bytes for each of its streams, and
// releases them when it is destroyed.
//
// There is one limit for the whole process, because all schedules of a model must run the same
// algorithms. Kernels that are already prepared keep their algorithms.
size_t WorkspaceLimit();
void SetWorkspaceLimit(size_t nbytes);

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_WORKSPACE_LIMIT_H_
