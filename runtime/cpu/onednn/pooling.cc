#include "runtime/cpu/onednn/pooling.h"

#include <algorithm>

namespace tvm_interop {
namespace onednn {

Owned<PrimitiveDesc> PoolDesc(const Api& api, Engine engine, const Window& window, int algorithm,
                              const Owned<Attributes>& attributes, const Owned<MemoryDesc>& source,
                              const Shape& from, const Owned<MemoryDesc>& result, const Shape& to) {
  const Shape dilation{window.dilation[0] - 1, window.dilation[1] - 1};
  // If the output's size is rounded up, the last window extends beyond the edge. oneDNN counts the
  // part beyond the edge as padding.
  Shape padding_end;
  for (int axis : {0, 1}) {
    const int64_t reach = window.Reach(axis, to[2 + axis]);
    padding_end.push_back(std::max<int64_t>(0, reach - from[2 + axis] - window.padding[axis]));
  }
  PrimitiveDesc made = nullptr;
  Check(api.pooling_forward_primitive_desc_create(
            &made, engine, kForwardInference, algorithm, source.get(), result.get(),
            window.strides.data(), window.size.data(), dilation.data(), window.padding.data(),
            padding_end.data(), attributes.get()),
        "a pooling");
  return {made, api.primitive_desc_destroy};
}

std::string WhyNotMean(const Window& window, const Shape& from, const Shape& to) {
  for (int axis : {0, 1}) {
    const int64_t padded = from[2 + axis] + window.padding[axis] + window.padding[2 + axis];
    if (window.Reach(axis, to[2 + axis]) > padded) return "rounds its output up and counts padding";
  }
  return "";
}

}  // namespace onednn
}  // namespace tvm_interop
