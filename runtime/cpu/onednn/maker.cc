#include "runtime/cpu/onednn/maker.h"

#include <stdexcept>

namespace tvm_interop {
namespace onednn {
namespace {

// A function applied to each element, in oneDNN's terms. If `algorithm` is 0, no function is
// applied.
struct Elementwise {
  int algorithm;
  float alpha;
  float beta;
};

Elementwise ElementwiseOf(const Ending& ending) {
  switch (ending.activation) {
    case Activation::kNone:
      return {0, 0, 0};
    case Activation::kRelu:
      return {kRelu, 0, 0};
    case Activation::kClip:
      return {kClip, ending.clip_low, ending.clip_high};
    case Activation::kSigmoid:
      return {kLogistic, 0, 0};
    case Activation::kTanh:
      return {kTanh, 0, 0};
    case Activation::kSwish:
      return {kSwish, 1, 0};
    case Activation::kHardSwish:
      return {kHardSwish, 1.0f / 6, 0.5f};
    case Activation::kHardSigmoid:
      return {kHardSigmoid, 1.0f / 6, 0.5f};
    case Activation::kGelu:
      return {kGeluErf, 0, 0};
    case Activation::kGeluTanh:
      return {kGeluTanh, 0, 0};
  }
  throw std::logic_error("an activation without a name");
}

// Returns the function of a step. The step must not be a `kAddTensor`.
Elementwise ElementwiseOf(const Step& step) {
  if (step.kind == StepKind::kClip) return {kClip, step.a, step.b};
  if (step.kind == StepKind::kLinear) return {kLinear, step.a, step.b};
  return {kRound, 0, 0};
}

// Returns the shape of a tensor as it lies in memory. For a blocked image, the axes are images,
// blocks of channels, rows, columns, and the channels of a block.
Shape InMemory(const Shape& shape, Layout layout) {
  if (layout == Layout::kPlain) return shape;
  const int64_t block = BlockOf(layout);
  return {shape[0], (shape[1] + block - 1) / block, shape[2], shape[3], block};
}

int64_t SizeOf(tvm_interop::DataType type) {
  switch (type) {
    case tvm_interop::DataType::kFloat32:
    case tvm_interop::DataType::kInt32:
      return 4;
    case tvm_interop::DataType::kFloat16:
    case tvm_interop::DataType::kBfloat16:
      return 2;
    case tvm_interop::DataType::kInt8:
    case tvm_interop::DataType::kUint8:
      return 1;
  }
  throw std::logic_error("a type without a size");
}

}  // namespace

Owned<Attributes> MakeAttributes(const Api& api, const Ending& ending,
                                 const std::vector<Step>& steps,
                                 const std::vector<const MemoryDescObject*>& addends) {
  PostOps post_ops = nullptr;
  Check(api.post_ops_create(&post_ops), "post-ops");
  const Owned<PostOps> owned(post_ops, api.post_ops_destroy);
  const auto append = [&](const Elementwise& each) {
    Check(api.post_ops_append_eltwise(post_ops, each.algorithm, each.alpha, each.beta),
          "an activation");
  };
  size_t added = 0;
  const auto add_tensor = [&] {
    Check(api.post_ops_append_binary(post_ops, kBinaryAdd, addends.at(added++)), "a sum");
  };
  for (const Step& step : steps) {
    if (step.kind == StepKind::kAddTensor) {
      add_tensor();
    } else {
      append(ElementwiseOf(step));
    }
  }
  while (added < addends.size()) add_tensor();
  if (ending.activation != Activation::kNone) append(ElementwiseOf(ending));
  Attributes attributes = nullptr;
  Check(api.primitive_attr_create(&attributes), "attributes");
  Owned<Attributes> owned_attributes(attributes, api.primitive_attr_destroy);
  Check(api.primitive_attr_set_scratchpad_mode(attributes, kUserScratchpad), "a scratchpad");
  Check(api.primitive_attr_set_post_ops(attributes, post_ops), "post-ops");
  return owned_attributes;
}

std::string Maker::Implementation(PrimitiveDesc desc) const {
  const char* name = "";
  Check(api_.primitive_desc_query(desc, kImplementation, 0, &name), "a kernel's name");
  return name;
}

void Maker::BindUnary(PrimitiveDesc desc, const MemoryDescObject* wanted) {
  const auto given = Laid(0);
  std::vector<std::pair<int, int>> tensors{
      {kSource, kernel_->AddInput(args_[0], given.get(), wanted)}};
  AddResultAndCall(desc, Laid(last()), std::move(tensors));
}

Shape Maker::GivenShape() const {
  Shape given = op_.shapes[op_.cut[0]];
  given[op_.cut[1]] = op_.cut[3];
  return given;
}

KernelArgument Maker::Argument(int arg) const {
  KernelArgument argument = args_[arg];
  if (!op_.is_cut(arg)) return argument;
  const Shape strides = Descs::Contiguous(InMemory(GivenShape(), op_.layouts[arg]));
  const Shape shape = InMemory(op_.shapes[arg], op_.layouts[arg]);
  int64_t last = 0;
  for (size_t i = 0; i < shape.size(); ++i) last += (shape[i] - 1) * strides[i];
  argument.offset = op_.cut[2] * strides[op_.cut[1]] * SizeOf(op_.stored_type(arg));
  argument.nbytes = (last + 1) * SizeOf(op_.stored_type(arg));
  return argument;
}

void Maker::AddBias(const MemoryDescObject* desc, std::vector<std::pair<int, int>>* tensors) {
  if (op_.ends().has_bias) tensors->emplace_back(kBias, kernel_->AddArgument(args_[2], desc));
}

void Maker::AddResultAndCall(PrimitiveDesc desc, const Owned<MemoryDesc>& given,
                             std::vector<std::pair<int, int>> tensors) {
  const MemoryDescObject* made = Wanted(desc, kDestinationDesc);
  const int result = kernel_->AddArgument(args_[last()], given.get());
  const bool as_is = api_.memory_desc_equal(given.get(), made) != 0;
  const int computed = as_is ? result : kernel_->AddBuffer(made);
  tensors.emplace_back(kDestination, computed);
  kernel_->AddPrimitive(desc, std::move(tensors));
  if (!as_is) kernel_->AddReorder(computed, result);
}

}  // namespace onednn
}  // namespace tvm_interop
