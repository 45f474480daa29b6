#ifndef RUNTIME_CORE_SHAPES_H_
#define RUNTIME_CORE_SHAPES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tvm_interop {

// Writes a shape as text, such as `(1, 3, 224, 224)`.
inline std::string Text(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + ")";
}

inline int64_t NumElements(const std::vector<int64_t>& shape) {
  int64_t number = 1;
  for (int64_t dim : shape) number *= dim;
  return number;
}

// Turns a shape N,H,W,C (channels last) into N,C,H,W.
inline std::vector<int64_t> ChannelsFirst(const std::vector<int64_t>& shape) {
  return {shape[0], shape[3], shape[1], shape[2]};
}

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_SHAPES_H_
