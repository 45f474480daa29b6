#ifndef RUNTIME_CORE_WINDOW_H_
#define RUNTIME_CORE_WINDOW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/fields.h"

namespace tvm_interop {

// What slides over an image: by height and width. Padding is top, left, bottom, right; a dilation
// of 1 is none.
struct Window {
  std::vector<int64_t> size;
  std::vector<int64_t> strides;
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation;

  void Visit(Fields* fields) {
    fields->Visit("window", &size);
    fields->Visit("strides", &strides);
    fields->Visit("padding", &padding);
    fields->Visit("dilation", &dilation);
  }

  // Why it cannot make an image of another, both N,C,H,W; empty where it can. What hangs over the
  // edge counts where the output may have been rounded up.
  std::string WhyWrong(const std::vector<int64_t>& input, const std::vector<int64_t>& output,
                       bool may_round_up) const;

  // Where the last window of a result of this size ends, counted from the padding's beginning.
  int64_t Reach(int axis, int64_t output) const {
    return (output - 1) * strides[axis] + (size[axis] - 1) * dilation[axis] + 1;
  }
};

// What is wrong with a pooling of these shapes, N,C,H,W.
std::string WhyNoPooling(const Window& window, const std::vector<int64_t>& data,
                         const std::vector<int64_t>& output);

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_WINDOW_H_
