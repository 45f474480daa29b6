#ifndef RUNTIME_CUDA_TIMING_H_
#define RUNTIME_CUDA_TIMING_H_

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/api.h"
#include "runtime/cuda/streams.h"

namespace tvm_interop {

// Makes an event that records the time, for measurements.
cuda::OwnedEvent TimingEvent(int device);

// The fastest of several alternative ways to compute the same result.
struct Fastest {
  size_t index = 0;
  // For each alternative that could not be launched, its index and the reason.
  std::vector<std::pair<size_t, std::string>> refusals;
};

// Finds the fastest of `number` alternatives. `launch` puts an alternative's work on the stream.
// Each alternative is first launched twice. The second launch is timed, to find alternatives that
// are hopelessly slow. Such an alternative is not launched again, because one launch may take
// milliseconds. Each other alternative is captured several times in a CUDA graph. The graphs run on
// `stream` in turn, for a few rounds, and the median times on the GPU are compared. In a tie, the
// first alternative wins. An alternative is refused if `launch` throws for it, or if it cannot be
// captured. If all are refused, the last exception is thrown.
//
// Single launches are not compared, because the GPU often waits for the host's calls, which take
// longer than short kernels. In the graph of a model, the GPU does not wait for the host.
Fastest FastestOf(size_t number, const CudaStream& stream,
                  const std::function<void(size_t)>& launch);

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_TIMING_H_
