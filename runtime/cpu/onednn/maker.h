#ifndef RUNTIME_CPU_ONEDNN_MAKER_H_
#define RUNTIME_CPU_ONEDNN_MAKER_H_

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/op_description.h"
#include "runtime/core/owned.h"
#include "runtime/cpu/kernel_library.h"
#include "runtime/cpu/onednn/api.h"
#include "runtime/cpu/onednn/descs.h"
#include "runtime/cpu/onednn/kernel.h"

namespace tvm_interop {
namespace onednn {

// Scratchpads are ours; the steps are done, `addends` are added, one after the other, each by its
// step or after them, and then comes the activation.
Owned<Attributes> MakeAttributes(const Api& api, const Ending& ending,
                                 const std::vector<Step>& steps,
                                 const std::vector<const MemoryDescObject*>& addends);

// Makes one kernel: the library's parts for it, put together. What kernels of all kinds need is
// here; each kind's maker is in `kinds/`.
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
  virtual ~Maker() = default;

  virtual void Make() = 0;
  std::unique_ptr<LibraryKernel> Take() { return std::move(kernel_); }

 protected:
  std::string Implementation(PrimitiveDesc desc) const;

  // Binds source and result, the source as the primitive was made for.
  void BindUnary(PrimitiveDesc desc, const MemoryDescObject* wanted);
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
    if (!op_.ends().has_sum) return {};
    return {addend.get()};
  }

  // Null where there is no bias, as oneDNN has it.
  Owned<MemoryDesc> BiasDesc(const Shape& shape) const {
    return op_.ends().has_bias ? descs_.Plain(shape, kFloat32) : Owned<MemoryDesc>();
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

// A maker of kernels of one kind, whose own fields it knows.
template <typename Kind>
class MakerOf : public Maker {
 public:
  MakerOf(const Api& api, Engine engine, const OpDescription& op, int threads,
          const std::vector<KernelArgument>& args)
      : Maker(api, engine, op, threads, args), kind_(dynamic_cast<const Kind&>(op)) {}

 protected:
  const Kind& kind_;
};

}  // namespace onednn
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ONEDNN_MAKER_H_
