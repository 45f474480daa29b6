#ifndef RUNTIME_CUDA_TIMING_H_
#define RUNTIME_CUDA_TIMING_H_

#include <cstddef>
#include <functional>

#include "runtime/cuda/api.h"
#include "runtime/cuda/streams.h"

namespace tvm_interop {

// An event that keeps the time, for measuring.
cuda::OwnedEvent TimingEvent(int device);

// Which of `number` alternatives takes the GPU the least, by the median of a few runs in turn on
// `stream`; ties go to the first. `launch` puts an alternative's work on the stream, and throws
// where it cannot: then that one is out. Throws what the last one threw where all are.
size_t FastestOf(size_t number, const CudaStream& stream,
                 const std::function<void(size_t)>& launch);

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_TIMING_H_
