#ifndef RUNTIME_CORE_OP_DESCRIPTION_H_
#define RUNTIME_CORE_OP_DESCRIPTION_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tvm_interop {

// Where a tensor's elements lie. A blocked tensor keeps 16 channels of a pixel side by side; the
// last block is filled up with zeros.
enum class Layout { kPlain, kBlocked16 };

// What is done to each number of the result. Swish is x * sigmoid(x), hard sigmoid
// clip(x / 6 + 1 / 2, 0, 1) and hard swish x times that.
enum class Activation {
  kNone,
  kRelu,
  kClip,
  kSigmoid,
  kTanh,
  kSwish,
  kHardSwish,
  kHardSigmoid,
  kGelu,
  kGeluTanh,
};

// One thing that is done to each number on the way to a quantised result: `a` and `b` are the
// bounds of a clip, or factor and addend of a linear function; rounding goes to the even number
// from halves.
enum class StepKind { kClip, kRound, kLinear, kAddTensor };

struct Step {
  StepKind kind;
  float a = 0;
  float b = 0;
};

enum class DataType { kFloat32, kFloat16, kBfloat16, kInt8, kUint8, kInt32 };

// What an operator computes, in terms that any library understands. Its tensors are of `dtype`, but
// for those that `stored` says are kept otherwise. Products of float16 and bfloat16 add up in
// float32.
//
//   conv2d      data (N,C,H,W), weight (O,C/groups,KH,KW) [, bias O] [, sum, as the output]
//   matmul      left (...,M,K), right (...,K,N) [, bias N] [, sum, as the output]
//   max_pool2d  data (N,C,H,W)
//   avg_pool2d  data (N,C,H,W)
//   lrn         data (N,C,H,W): local response normalisation across channels
//   reorder     data, from one layout to another
//   scale       data (N,C,H,W), factor (N or 1,C,1,1) [, bias C]
//   softmax     data: along the last axis
//   layer_norm  data (...,C), scale C, shift C: along the last axis
//
// Quantised ones are of dtype int8: they add up products of integers, each less its tensor's zero
// point, in int32. That times a scale, plus a bias, then the steps, then the activation, is the
// result: a float32, or rounded to int8 or uint8, halves to even; what is out of range becomes the
// nearest. One of the steps may add a tensor of integers of 8 bits. Images lie with their channels
// last.
//
//   quantised_conv2d      data (N,H,W,C), weight (O,C/groups,KH,KW), scale O [, bias O] [, sum]
//   quantised_matmul      left (...,M,K), right (...,K,N), scale N [, bias N] [, sum]
//   quantised_max_pool2d  data (N,H,W,C): numbers of one type throughout
//   quantised_avg_pool2d  the same; the steps are done to the mean of the integers, before it is
//                         rounded
struct OpDescription {
  std::string op;
  // Of each argument in order, the output last. Shapes are those of plain tensors, always.
  std::vector<std::vector<int64_t>> shapes;
  std::vector<Layout> layouts;
  // What the factors of products are rounded to.
  DataType dtype = DataType::kFloat32;
  // Of each argument, what its numbers are kept as in memory; none where all are kept as `dtype`.
  std::vector<DataType> stored;
  // Whether products of float32 may be made of factors rounded to TF32, which has 10 bits of 23.
  bool allow_tf32 = false;
  // By height and width. Padding is top, left, bottom, right; a dilation of 1 is none.
  std::vector<int64_t> window;
  std::vector<int64_t> strides;
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation;
  int64_t groups = 1;
  bool has_bias = false;
  bool has_sum = false;  // Added before the activation.
  Activation activation = Activation::kNone;
  float clip_low = 0;
  float clip_high = 0;
  bool counts_padding = false;  // Average pooling: whether padding counts as zeros.
  // Local response normalisation: by (bias + alpha / size * sum of squares) to the power of beta.
  int64_t lrn_size = 0;
  float lrn_alpha = 0;
  float lrn_beta = 0;
  float lrn_bias = 0;
  float epsilon = 0;  // Layer normalisation: added to the variance.
  // Of quantised operators: the integers that stand for 0 in the data and in the weight.
  int64_t data_zero = 0;
  int64_t weight_zero = 0;
  std::vector<Step> steps;  // In order; before the activation.
  // Where one argument is cut out of the tensor that is given for it: the argument, the axis, where
  // on that axis it begins, and the tensor's size along it. Empty where none is. `shapes` has what
  // is cut out. Only the data of convolutions by rows, and the right side of `matmul` by columns,
  // all plain.
  std::vector<int64_t> cut;

  bool is_cut(size_t argument) const {
    return !cut.empty() && cut[0] == static_cast<int64_t>(argument);
  }
  DataType stored_type(size_t argument) const { return stored.empty() ? dtype : stored[argument]; }
};

// Whether an operator is one of the quantised ones.
bool IsQuantised(const OpDescription& op);

// What is wrong with a description, whatever the library: a shape that does not follow from the
// others, say. Empty where nothing is.
std::string WhyMalformed(const OpDescription& op);

// A description as text: equal ones give equal text, others do not.
std::string Describe(const OpDescription& op);

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_OP_DESCRIPTION_H_
