#ifndef RUNTIME_CPU_ONEDNN_DESCS_H_
#define RUNTIME_CPU_ONEDNN_DESCS_H_

#include <cstdint>
#include <vector>

#include "runtime/core/op_description.h"
#include "runtime/core/owned.h"
#include "runtime/cpu/onednn/api.h"
#include "runtime/cpu/onednn/kernel.h"

namespace tvm_interop {
namespace onednn {

using Shape = std::vector<int64_t>;

constexpr int kAnyTag = 1;
// oneDNN's numbers for the layouts of images in blocks of 16 and of 8 channels. It calls them
// aBcd16b and aBcd8b, or nChw16c and nChw8c.
constexpr int kBlocked16Tag = 78;
constexpr int kBlocked8Tag = 102;

// Makes oneDNN's descriptors of tensors.
class Descs {
 public:
  explicit Descs(const Api& api) : api_(api) {}

  // Lets the library choose the layout of the tensor.
  Owned<MemoryDesc> Any(const Shape& shape, int type) const { return Tagged(shape, type, kAnyTag); }

  Owned<MemoryDesc> Laid(const Shape& shape, int type, Layout layout) const {
    if (layout == Layout::kPlain) return Strided(shape, type, Contiguous(shape));
    return Tagged(shape, type, layout == Layout::kBlocked8 ? kBlocked8Tag : kBlocked16Tag);
  }

  Owned<MemoryDesc> Plain(const Shape& shape, int type) const {
    return Laid(shape, type, Layout::kPlain);
  }

  Owned<MemoryDesc> Strided(const Shape& shape, int type, const Shape& strides) const {
    MemoryDesc desc = nullptr;
    Check(api_.memory_desc_create_with_strides(&desc, static_cast<int>(shape.size()), shape.data(),
                                               type, strides.data()),
          "a descriptor");
    return {desc, api_.memory_desc_destroy};
  }

  // Describes a part of a larger tensor. The part has the shape `shape` and begins at index 0 along
  // each axis.
  Owned<MemoryDesc> FirstOf(const Owned<MemoryDesc>& whole, const Shape& shape) const {
    const Shape begins(shape.size(), 0);
    MemoryDesc desc = nullptr;
    Check(api_.memory_desc_create_submemory(&desc, whole.get(), shape.data(), begins.data()),
          "a descriptor of a part");
    return {desc, api_.memory_desc_destroy};
  }

  static Shape Contiguous(const Shape& shape) {
    Shape strides(shape.size(), 1);
    for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
    return strides;
  }

 private:
  Owned<MemoryDesc> Tagged(const Shape& shape, int type, int tag) const {
    MemoryDesc desc = nullptr;
    Check(api_.memory_desc_create_with_tag(&desc, static_cast<int>(shape.size()), shape.data(),
                                           type, tag),
          "a descriptor");
    return {desc, api_.memory_desc_destroy};
  }

  const Api& api_;
};

}  // namespace onednn
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_DESCS_H_
