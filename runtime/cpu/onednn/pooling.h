#ifndef RUNTIME_CPU_ONEDNN_POOLING_H_
#define RUNTIME_CPU_ONEDNN_POOLING_H_

#include <string>

#include "runtime/core/owned.h"
#include "runtime/core/window.h"
#include "runtime/cpu/onednn/api.h"
#include "runtime/cpu/onednn/descs.h"

namespace tvm_interop {
namespace onednn {

// A pooling of images of these shapes, N,C,H,W, that lie as described.
Owned<PrimitiveDesc> PoolDesc(const Api& api, Engine engine, const Window& window, int algorithm,
                              const Owned<Attributes>& attributes, const Owned<MemoryDesc>& source,
                              const Shape& from, const Owned<MemoryDesc>& result, const Shape& to);

// oneDNN's algorithm for means.
inline int MeanOf(bool counts_padding) {
  return counts_padding ? kPoolingAverageWithPadding : kPoolingAverageWithoutPadding;
}

// Why oneDNN cannot compute a mean that counts padding, of images N,C,H,W: rounded up, it would
// count what hangs over the padding's edge as padding too. Empty where it can.
std::string WhyNotMean(const Window& window, const Shape& from, const Shape& to);

}  // namespace onednn
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_POOLING_H_
