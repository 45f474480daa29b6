#ifndef RUNTIME_CORE_WINDOW_H_
#define RUNTIME_CORE_WINDOW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/fields.h"

namespace tvm_interop {

// The window of a convolution or a pooling, which slides over an image. Sizes, strides and
// dilations are given for height and width. Padding is given as top, left, bottom, right. If
// the dilation is 1, the elements of the window have no gaps between them.
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

  // Returns why this window cannot turn `input` into `output`, or an empty string if it can. Both
  // shapes are N,C,H,W. If `may_round_up` is true, the output's size may be rounded up, so that the
  // last window extends beyond the edge.
  std::string WhyWrong(const std::vector<int64_t>& input, const std::vector<int64_t>& output,
                       bool may_round_up) const;

  // The position at which the last window ends, counted from the beginning of the padding. `output`
  // is the size of the result along `axis`; axis 0 is the height and axis 1 the width.
  int64_t Reach(int axis, int64_t output) const {
    return (output - 1) * strides[axis] + (size[axis] - 1) * dilation[axis] + 1;
  }
};

// Returns the fault of a pooling of these shapes, or an empty string if there is none. Both shapes
// are N,C,H,W.
std::string WhyNoPooling(const Window& window, const std::vector<int64_t>& data,
                         const std::vector<int64_t>& output);

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_WINDOW_H_
