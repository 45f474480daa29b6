#ifndef RUNTIME_CPU_ONEDNN_MAKER_H_
#define RUNTIME_CPU_ONEDNN_MAKER_H_

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/op_description.h"
#include "runtime/core/owned.h"
#include "runtime/cpu/kernel_library.h"
#include "runtime/cpu/onednn/api.h"
#include "runtime/cpu/onednn/kernel.h"

namespace tvm_interop {
namespace onednn {

using Shape = std::vector<int64_t>;

constexpr int kAnyTag = 1;
constexpr int kBlocked16Tag = 78;  // aBcd16b, or nChw16c

// Descriptors of tensors.
class Descs {
 public:
  explicit Descs(const Api& api) : api_(api) {}

  // The library may choose how the tensor lies.
  Owned<MemoryDesc> Any(const Shape& shape, int type) const { return Tagged(shape, type, kAnyTag); }

  Owned<MemoryDesc> Laid(const Shape& shape, int type, Layout layout) const {
    return layout == Layout::kPlain ? Strided(shape, type, Contiguous(shape))
                                    : Tagged(shape, type, kBlocked16Tag);
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

// Scratchpads are ours; `addends` are added, one after the other, and what follows the operator is
// fused into it.
Owned<Attributes> MakeAttributes(const Api& api, const OpDescription& op,
                                 const std::vector<const MemoryDescObject*>& addends);

// Makes one kernel: the library's parts for it, put together.
class Maker {
 public:
  Maker(const Api& api, Engine engine, const OpDescription& op, int threads,
        const std::vector<KernelArgument>& args)
      : api_(api),
        engine_(engine),
        op_(op),
        args_(args),
        descs_(api),
        kernel_(std::make_unique<OneDnnKernel>(api, engine, threads)) {}

  std::unique_ptr<LibraryKernel> Make();

 private:
  void MakeConv();
  // Null where there is no such kernel.
  Owned<PrimitiveDesc> ConvDesc(const Shape& weight, const Owned<MemoryDesc>& source,
                                const Owned<MemoryDesc>& result, MemoryDesc bias) const;
  std::string Implementation(PrimitiveDesc desc) const;
  void MakeMatmul();
  void MakePool();
  // Of images of these shapes, N,C,H,W, that lie as described.
  Owned<PrimitiveDesc> PoolDesc(const Owned<MemoryDesc>& source, const Shape& from,
                                const Owned<MemoryDesc>& result, const Shape& to) const;
  void MakeLrn();
  void MakeReorder();
  // The bias is added after the product.
  void MakeScale();
  void MakeSoftmax();
  void MakeLayerNorm();

  // The quantised ones are in quantised.cc.
  void MakeQuantisedConv();
  void MakeQuantisedMatmul();
  void MakeQuantisedPool();
  // What turns sums of products into the result. `axes` are the weight's that the scales go along.
  Owned<Attributes> QuantisedAttributes(int axes, const Owned<MemoryDesc>& addend) const;
  void BindQuantised(PrimitiveDesc desc, const Owned<MemoryDesc>& source,
                     const Owned<MemoryDesc>& weights, const Owned<MemoryDesc>& bias,
                     const Owned<MemoryDesc>& addend, const Owned<MemoryDesc>& result);

  // Binds source and result, the source as the primitive was made for.
  void BindUnary(PrimitiveDesc desc, const MemoryDescObject* wanted);
  // Binds source, weights, bias, addend and result, each as `desc` wants it.
  void Bind(PrimitiveDesc desc, const Owned<MemoryDesc>& source, const Owned<MemoryDesc>& weights,
            const MemoryDescObject* bias);
  void AddBias(const MemoryDescObject* desc, std::vector<std::pair<int, int>>* tensors);
  // Binds the result, which lies as `given` says, and adds the call.
  void AddResultAndCall(PrimitiveDesc desc, const Owned<MemoryDesc>& given,
                        std::vector<std::pair<int, int>> tensors);

  // An image whose channels lie last, as oneDNN names its axes.
  Owned<MemoryDesc> ChannelsLast(int arg) const {
    const Shape& s = op_.shapes[arg];
    return descs_.Strided({s[0], s[3], s[1], s[2]}, Stored(arg),
                          {s[1] * s[2] * s[3], 1, s[2] * s[3], s[3]});
  }

  const MemoryDescObject* Wanted(PrimitiveDesc desc, int query, int index = 0) const {
    return api_.primitive_desc_query_md(desc, query, index);
  }

  std::vector<const MemoryDescObject*> Addends(const Owned<MemoryDesc>& addend) const {
    if (!op_.has_sum) return {};
    return {addend.get()};
  }

  // Null where there is no bias, as oneDNN has it.
  Owned<MemoryDesc> BiasDesc(const Shape& shape) const {
    return op_.has_bias ? descs_.Plain(shape, kFloat32) : Owned<MemoryDesc>();
  }

  // An argument of a unary operator as it is computed: blocked where either tensor is. Between two
  // layouts oneDNN has only its slowest kernels.
  Owned<MemoryDesc> Inner(int arg, int type) const {
    const bool blocked =
        op_.layouts[0] == Layout::kBlocked16 || op_.layouts[last()] == Layout::kBlocked16;
    return descs_.Laid(op_.shapes[arg], type, blocked ? Layout::kBlocked16 : Layout::kPlain);
  }

  // An argument as it lies in memory, and as the primitive may have it: in a layout of its own
  // choice where ours is plain, which suits few kernels.
  Owned<MemoryDesc> Laid(int arg) const {
    if (op_.is_cut(arg)) return descs_.Strided(op_.shapes[arg], Stored(arg), GivenStrides());
    return descs_.Laid(op_.shapes[arg], Stored(arg), op_.layouts[arg]);
  }
  Owned<MemoryDesc> DataDesc(int arg, int type) const {
    return op_.layouts[arg] == Layout::kPlain
               ? descs_.Any(op_.shapes[arg], type)
               : descs_.Laid(op_.shapes[arg], type, op_.layouts[arg]);
  }

  // The right side of a matrix product, as it lies in memory.
  Owned<MemoryDesc> GivenRight(int type) const {
    return op_.is_cut(1) ? descs_.Strided(op_.shapes[1], type, GivenStrides())
                         : descs_.Plain(op_.shapes[1], type);
  }
  // Strides, in numbers, of the tensor that an argument is cut out of.
  Shape GivenStrides() const;
  // The argument, where it begins in the tensor that was given for it.
  KernelArgument Argument(int arg) const;

  // What the numbers of an argument are kept as.
  int Stored(int arg) const { return TypeOf(op_.stored_type(arg)); }
  // What factors of products are rounded to.
  int Factors() const { return TypeOf(op_.dtype); }
  // An addend or result of a product as the primitive has it: those of float32 are of float32.
  int Computed(int arg) const { return Factors() == kFloat32 ? kFloat32 : Stored(arg); }
  // What only moves or pools numbers has one type for both of its tensors.
  int Moved() const { return Stored(0) == Stored(last()) ? Stored(0) : kFloat32; }

  static int TypeOf(tvm_interop::DataType type) {
    switch (type) {
      case tvm_interop::DataType::kBfloat16:
        return kBfloat16;
      case tvm_interop::DataType::kInt8:
        return kInt8;
      case tvm_interop::DataType::kUint8:
        return kUint8;
      case tvm_interop::DataType::kInt32:
        return kInt32;
      default:
        return kFloat32;
    }
  }

  static int64_t Product(const Shape& shape) {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
  int last() const { return static_cast<int>(op_.shapes.size()) - 1; }

  const Api& api_;
  Engine engine_;
  const OpDescription& op_;
  const std::vector<KernelArgument>& args_;
  Descs descs_;
  std::unique_ptr<OneDnnKernel> kernel_;
};

}  // namespace onednn
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_MAKER_H_
