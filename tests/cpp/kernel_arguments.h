#ifndef TESTS_CPP_KERNEL_ARGUMENTS_H_
#define TESTS_CPP_KERNEL_ARGUMENTS_H_

#include <cstdint>

// The arguments of a kernel that TVM compiled, for kernels that the tests write by hand.

struct Tensor {
  void* data;
  int32_t device_type, device_id, rank;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct Value {
  int32_t type_index;
  uint32_t padding;
  union {
    void* pointer;
    int64_t integer;
  };
};

#endif  // TESTS_CPP_KERNEL_ARGUMENTS_H_
