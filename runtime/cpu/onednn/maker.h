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

// Makes the attributes of a primitive. The kernel provides the scratchpad. The result goes through
// `steps` in order, and each `kAddTensor` step adds the next tensor of `addends`. The remaining
// `addends` are added after the steps, and the activation comes last.
Owned<Attributes> MakeAttributes(const Api& api, const Ending& ending,
                                 const std::vector<Step>& steps,
                                 const std::vector<const MemoryDescObject*>& addends);

// Makes one oneDNN kernel. This class has the functions that all kinds of operator need. The
// subclasses for the kinds are in `kinds/`.
class Maker {
 public:
  Maker(const Api& api, Engine engine, const OpDescription& op, int threads,
        const std::vector<KernelArgument>& args)
      : api_(api),
        engine_(engine),
        op_(op),
        threads_(threads),
        args_(args),
        descs_(api),
        kernel_(std::make_unique<OneDnnKernel>(api, engine, threads)) {}
  virtual ~Maker() = default;

  virtual void Make() = 0;
  virtual std::unique_ptr<LibraryKernel> Take() { return std::move(kernel_); }

 protected:
  std::string Implementation(PrimitiveDesc desc) const;

  // Adds the call of a primitive that has one source and one result. Binds the source in the layout
  // `wanted`, and binds the result.
  void BindUnary(PrimitiveDesc desc, const MemoryDescObject* wanted);
  void AddBias(const MemoryDescObject* desc, std::vector<std::pair<int, int>>* tensors);
  // Binds the result, whose layout in memory is `given`, and adds the call of the primitive.
  void AddResultAndCall(PrimitiveDesc desc, const Owned<MemoryDesc>& given,
                        std::vector<std::pair<int, int>> tensors);

  // Describes an argument that is an image of shape N,H,W,C. oneDNN orders its axes as N,C,H,W, and
  // the strides say that the channels lie last.
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

  // Returns the bias's descriptor. It is null if there is no bias, as oneDNN expects.
  Owned<MemoryDesc> BiasDesc(const Shape& shape) const {
    return op_.ends().has_bias ? descs_.Plain(shape, kFloat32) : Owned<MemoryDesc>();
  }

  // Describes an argument of an operator with one input, as the primitive sees the argument. If the
  // source or the result is blocked in memory, the primitive sees both as blocked. The reason is
  // that oneDNN has only slow kernels for a source and a result of different layouts.
  Owned<MemoryDesc> Inner(int arg, int type) const {
    const Layout source = op_.layouts[0], result = op_.layouts[last()];
    return descs_.Laid(op_.shapes[arg], type, source == Layout::kPlain ? result : source);
  }

  // `Laid` describes the layout of an argument in memory. `DataDesc` describes the argument for the
  // primitive. For a plain argument, `DataDesc` leaves the choice of the layout to oneDNN, because
  // few kernels are fast on the plain layout.
  Owned<MemoryDesc> Laid(int arg) const {
    if (!op_.is_cut(arg)) return descs_.Laid(op_.shapes[arg], Stored(arg), op_.layouts[arg]);
    const auto whole = descs_.Laid(GivenShape(), Stored(arg), op_.layouts[arg]);
    return descs_.FirstOf(whole, op_.shapes[arg]);
  }
  Owned<MemoryDesc> DataDesc(int arg, int type) const {
    return op_.layouts[arg] == Layout::kPlain
               ? descs_.Any(op_.shapes[arg], type)
               : descs_.Laid(op_.shapes[arg], type, op_.layouts[arg]);
  }

  // Describes the right matrix of a matrix product as it lies in memory.
  Owned<MemoryDesc> GivenRight(int type) const {
    return op_.is_cut(1) ? descs_.Strided(op_.shapes[1], type, Descs::Contiguous(GivenShape()))
                         : descs_.Plain(op_.shapes[1], type);
  }
  // The shape of the larger tensor that contains an argument.
  Shape GivenShape() const;
  // Returns the argument, with its position in the larger tensor if it is cut.
  KernelArgument Argument(int arg) const;

  // The type in which an argument is stored.
  int Stored(int arg) const { return TypeOf(op_.stored_type(arg)); }
  // The type to which numbers are rounded before they are multiplied.
  int Factors() const { return TypeOf(op_.dtype); }
  // The type that the primitive uses for an addend or a result of a product. It is float32 if the
  // numbers to multiply are float32, and the stored type otherwise.
  int Computed(int arg) const { return Factors() == kFloat32 ? kFloat32 : Stored(arg); }
  // The type of source and result in a primitive that only moves or pools numbers. If both are
  // stored in the same type, it is this type. Otherwise it is float32.
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
  const int threads_;
  const std::vector<KernelArgument>& args_;
  Descs descs_;
  std::unique_ptr<OneDnnKernel> kernel_;
};

// A maker of kernels for operators of one kind, with access to the fields of this kind.
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
