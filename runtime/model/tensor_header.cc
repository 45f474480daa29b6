#include "runtime/model/tensor_header.h"

#include <algorithm>

namespace tvm_interop {

TensorHeader HeaderOf(const PlannedValue& value, DeviceKind kind, int device,
                      std::vector<int64_t>* dims) {
  *dims = value.StoredShape();
  const size_t rank = dims->size();
  dims->resize(2 * rank);
  int64_t stride = 1;
  for (size_t axis = rank; axis-- > 0;) {
    (*dims)[rank + axis] = stride;
    stride *= std::max<int64_t>((*dims)[axis], 1);
  }
  TensorHeader header{};
  header.device_type = kind;
  header.device_id = device;
  header.rank = static_cast<int32_t>(rank);
  // TVM's kernels take bfloat16 as integers of 16 bits.
  const ElementType& type = value.dtype == "bfloat16" ? *FindElementType("uint16") : *value.type;
  header.type_code = type.code;
  header.type_bits = type.bits;
  header.type_lanes = 1;
  header.shape = dims->data();
  header.strides = dims->data() + rank;
  return header;
}

}  // namespace tvm_interop
