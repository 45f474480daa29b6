// A fake libcudnn.so.9 with the functions of cuDNN that we call. The functions compute their
// results on the host, slowly.

#include <algorithm>
#include <cstdio>

#include "fake_library.h"

namespace {

using fake_cuda::Line;
using fake_cuda::Numbers;
using fake_cuda::TheState;

constexpr int kBadParam = 2000;
constexpr int kNotSupported = 3000;
constexpr int kAllocFailed = 4003;
constexpr int kExecutionFailed = 5000;

struct Handle {
  int id = 0;
  int device = 0;
  fake_cuda::Stream* stream = nullptr;
};

struct Tensor {
  bool is_half = false;
  int n = 0, c = 0, h = 0, w = 0;
  int64_t size() const { return int64_t{n} * c * h * w; }
  int64_t nbytes() const { return size() * (is_half ? 2 : 4); }
};

struct Convolution {
  int pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w;
  int groups = 1;
  int math = 0;
};

struct Activation {
  int mode = 0;
  int nan_mode = 0;
};

struct Perf {
  int algorithm;
  int status;
  float time_ms;
  size_t workspace_nbytes;
  int determinism;
  int math_type;
  int reserved[3];
};

constexpr size_t kMib = size_t{1} << 20;
constexpr int kTensorOpMath = 1;

// Additional bytes of workspace that every algorithm needs.
size_t& MoreWorkspace() {
  static size_t nbytes = 0;
  return nbytes;
}

// The workspace of an algorithm. Tensor cores want another layout, and so more memory.
size_t WorkspaceOf(int algorithm, int math) {
  static const std::map<int, size_t> plain{{1, kMib}, {4, 1024 * kMib}, {5, kMib}, {7, 2 * kMib}};
  const auto found = plain.find(algorithm);
  return MoreWorkspace() + (found == plain.end() ? 0 : found->second) +
         (math == kTensorOpMath ? kMib : 0);
}

Perf PerfOf(int algorithm, int math, int status = 0, int determinism = 1) {
  return {algorithm, status, 0, WorkspaceOf(algorithm, math), determinism, math, {}};
}

int StatusOf(int cuda_status) { return cuda_status == 0 ? 0 : kExecutionFailed; }

void Convolve(const Tensor& x, Numbers data, const Tensor& w, Numbers weight,
              const Convolution& conv, const Tensor& y,
              const std::function<void(int64_t, int, float)>& put) {
  const int channels = w.c, per_group = w.n / conv.groups;
  for (int64_t i = 0; i < y.size(); ++i) {
    const int column = static_cast<int>(i % y.w), row = static_cast<int>(i / y.w % y.h);
    const int out = static_cast<int>(i / y.w / y.h % y.c);
    const int image = static_cast<int>(i / y.w / y.h / y.c);
    float sum = 0;
    for (int c = 0; c < channels; ++c) {
      const int64_t in = int64_t{image} * x.c + out / per_group * channels + c;
      for (int kh = 0; kh < w.h; ++kh) {
        for (int kw = 0; kw < w.w; ++kw) {
          const int h = row * conv.stride_h - conv.pad_h + kh * conv.dilation_h;
          const int v = column * conv.stride_w - conv.pad_w + kw * conv.dilation_w;
          if (h < 0 || h >= x.h || v < 0 || v >= x.w) continue;
          sum += data.at((in * x.h + h) * x.w + v) *
                 weight.at(((int64_t{out} * channels + c) * w.h + kh) * w.w + kw);
        }
      }
    }
    put(i, out, sum);
  }
}

bool IsSmall(const Tensor& y, const Tensor& w) {
  return y.size() * w.c * w.h * w.w <= fake_cuda::kMostMultiplications;
}

float Activated(const Activation& activation, float number) {
  return activation.mode == 1 ? std::max(number, 0.0f) : number;
}

// Whether a handle can be used now: its device must be current, and its stream must have been set.
bool IsUsable(const Handle* handle) {
  return handle->stream != nullptr && handle->device == fake_cuda::CurrentDevice() &&
         handle->stream->device == handle->device;
}

}  // namespace

extern "C" {

// A switch for tests: makes an algorithm take `ms` milliseconds longer than an ordinary kernel.
void FakeCudnnSetTime(int algorithm, double ms) { fake_cuda::ExtraTimes()[algorithm] = ms; }

// A switch for tests: launches of an algorithm return `status`, although the library proposes the
// algorithm. If `status` is success, launches work again.
void FakeCudnnRefuse(int algorithm, int status) { fake_cuda::LateRefusals()[algorithm] = status; }

// A switch for tests: the workspace that every algorithm needs in addition.
void FakeCudnnSetMoreWorkspace(int64_t nbytes) { MoreWorkspace() = static_cast<size_t>(nbytes); }

size_t cudnnGetVersion() { return 91234; }

const char* cudnnGetErrorString(int status) {
  switch (status) {
    case kBadParam:
      return "CUDNN_STATUS_BAD_PARAM";
    case kNotSupported:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case kAllocFailed:
      return "CUDNN_STATUS_ALLOC_FAILED";
    default:
      return "CUDNN_STATUS_EXECUTION_FAILED";
  }
}

int cudnnCreate(Handle** handle) {
  FAKE_LIBRARY_CALL("cudnnCreate", kExecutionFailed);
  *handle = new Handle{TheState().next_id++, fake_cuda::CurrentDevice(), nullptr};
  Line("cudnnCreate").Add("handle", int64_t{(*handle)->id});
  return StatusOf(fake_cuda::RefuseWhileCapturing());
}

int cudnnDestroy(Handle* handle) {
  Line("cudnnDestroy").Add("handle", int64_t{handle->id});
  delete handle;
  return 0;
}

int cudnnSetStream(Handle* handle, void* stream) {
  handle->stream = fake_cuda::Resolve(stream);
  return handle->stream->device == handle->device ? 0 : kBadParam;
}

int cudnnCreateTensorDescriptor(Tensor** desc) { return *desc = new Tensor, 0; }
int cudnnDestroyTensorDescriptor(Tensor* desc) { return delete desc, 0; }
int cudnnSetTensor4dDescriptor(Tensor* desc, int format, int type, int n, int c, int h, int w) {
  if (format != 0 || (type != 0 && type != 2)) return kNotSupported;
  *desc = {type == 2, n, c, h, w};
  return 0;
}

int cudnnCreateFilterDescriptor(Tensor** desc) { return *desc = new Tensor, 0; }
int cudnnDestroyFilterDescriptor(Tensor* desc) { return delete desc, 0; }
int cudnnSetFilter4dDescriptor(Tensor* desc, int type, int format, int k, int c, int h, int w) {
  return cudnnSetTensor4dDescriptor(desc, format, type, k, c, h, w);
}

int cudnnCreateConvolutionDescriptor(Convolution** desc) { return *desc = new Convolution, 0; }
int cudnnDestroyConvolutionDescriptor(Convolution* desc) { return delete desc, 0; }
int cudnnSetConvolution2dDescriptor(Convolution* desc, int pad_h, int pad_w, int stride_h,
                                    int stride_w, int dilation_h, int dilation_w, int mode,
                                    int compute_type) {
  if (mode != 1 || compute_type != 0) return kNotSupported;
  *desc = {pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w};
  return 0;
}
int cudnnSetConvolutionGroupCount(Convolution* desc, int groups) {
  return desc->groups = groups, 0;
}
int cudnnSetConvolutionMathType(Convolution* desc, int math) { return desc->math = math, 0; }

int cudnnCreateActivationDescriptor(Activation** desc) { return *desc = new Activation, 0; }
int cudnnDestroyActivationDescriptor(Activation* desc) { return delete desc, 0; }
int cudnnSetActivationDescriptor(Activation* desc, int mode, int nan_mode, double) {
  *desc = {mode, nan_mode};
  return 0;
}

int cudnnGetConvolutionForwardAlgorithm_v7(Handle* handle, Tensor*, Tensor* w, Convolution* conv,
                                           Tensor* y, int most, int* number, Perf* perfs) {
  FAKE_LIBRARY_CALL("cudnnGetConvolutionForwardAlgorithm_v7", kExecutionFailed);
  if (!IsUsable(handle)) return kBadParam;
  if (w->n % conv->groups != 0 || y->c != w->n) return kBadParam;
  const int math = conv->math;
  const Perf known[] = {
      PerfOf(1, math),
      PerfOf(1, 0),                                 // The same algorithm with another math type.
      PerfOf(0, math == kTensorOpMath ? 0 : math),  // This algorithm uses no tensor cores.
      PerfOf(3, math, kNotSupported),
      PerfOf(4, math),        // Needs more memory than callers should allow.
      PerfOf(5, math, 0, 0),  // Gives other bits in each run.
      PerfOf(7, math),
  };
  *number = std::min(most, static_cast<int>(std::size(known)));
  std::copy_n(known, *number, perfs);
  return 0;
}

int cudnnConvolutionForward(Handle* handle, const float* alpha, Tensor* x_desc, const void* x,
                            Tensor* w_desc, const void* w, Convolution* conv_desc, int algorithm,
                            void* workspace, size_t workspace_nbytes, const float* beta,
                            Tensor* y_desc, void* y) {
  FAKE_LIBRARY_CALL("cudnnConvolutionForward", kExecutionFailed);
  if (!IsUsable(handle) || *alpha != 1 || *beta != 0) return kBadParam;
  if (const int refused = fake_cuda::LateRefusals()[algorithm]) return refused;
  if (workspace_nbytes < WorkspaceOf(algorithm, conv_desc->math)) return kBadParam;
  const Tensor xd = *x_desc, wd = *w_desc, yd = *y_desc;
  const Convolution conv = *conv_desc;
  const auto nbytes = static_cast<int64_t>(workspace_nbytes);
  return StatusOf(fake_cuda::Launch({"cudnnConvolutionForward",
                                     algorithm,
                                     conv.math,
                                     {{x, xd.nbytes()}, {w, wd.nbytes()}},
                                     {{y, yd.nbytes()}},
                                     {workspace, nbytes}},
                                    handle->stream, [=] {
                                      if (!IsSmall(yd, wd)) return;
                                      const Numbers to(y, yd.is_half);
                                      Convolve(xd, {x, xd.is_half}, wd, {w, wd.is_half}, conv, yd,
                                               [&](int64_t i, int, float sum) { to.set(i, sum); });
                                    }));
}

int cudnnConvolutionBiasActivationForward(Handle* handle, const float* alpha1, Tensor* x_desc,
                                          const void* x, Tensor* w_desc, const void* w,
                                          Convolution* conv_desc, int algorithm, void* workspace,
                                          size_t workspace_nbytes, const float* alpha2,
                                          Tensor* z_desc, const void* z, Tensor* bias_desc,
                                          const void* bias, Activation* activation_desc,
                                          Tensor* y_desc, void* y) {
  FAKE_LIBRARY_CALL("cudnnConvolutionBiasActivationForward", kExecutionFailed);
  if (!IsUsable(handle) || *alpha1 != 1 || bias_desc->c != w_desc->n) return kBadParam;
  if (const int refused = fake_cuda::LateRefusals()[algorithm]) return refused;
  if (activation_desc->mode == 5 && algorithm != 1) return kNotSupported;
  // The mode must be CUDNN_NOT_PROPAGATE_NAN.
  if (activation_desc->nan_mode != 0) return kNotSupported;
  if (workspace_nbytes < WorkspaceOf(algorithm, conv_desc->math)) return kBadParam;
  if (z_desc->size() != y_desc->size()) return kBadParam;
  const Tensor xd = *x_desc, wd = *w_desc, yd = *y_desc, bd = *bias_desc;
  const Convolution conv = *conv_desc;
  const Activation activation = *activation_desc;
  const float factor = *alpha2;
  const auto nbytes = static_cast<int64_t>(workspace_nbytes);
  std::vector<fake_cuda::Piece> reads{{x, xd.nbytes()}, {w, wd.nbytes()}, {bias, bd.nbytes()}};
  if (factor != 0) reads.push_back({z, yd.nbytes()});
  return StatusOf(fake_cuda::Launch(
      {"cudnnConvolutionBiasActivationForward",
       algorithm,
       conv.math,
       reads,
       {{y, yd.nbytes()}},
       {workspace, nbytes}},
      handle->stream, [=] {
        if (!IsSmall(yd, wd)) return;
        const Numbers to(y, yd.is_half), added(z, yd.is_half), by_channel(bias, bd.is_half);
        Convolve(xd, {x, xd.is_half}, wd, {w, wd.is_half}, conv, yd,
                 [&](int64_t i, int channel, float sum) {
                   if (factor != 0) sum += factor * added.at(i);
                   to.set(i, Activated(activation, sum + by_channel.at(channel)));
                 });
      }));
}

int cudnnAddTensor(Handle* handle, const float* alpha, Tensor* a_desc, const void* a,
                   const float* beta, Tensor* c_desc, void* c) {
  FAKE_LIBRARY_CALL("cudnnAddTensor", kExecutionFailed);
  if (!IsUsable(handle) || *alpha != 1 || *beta != 1) return kBadParam;
  const Tensor ad = *a_desc, cd = *c_desc;
  const bool by_channel = ad.size() == cd.c;
  if (!by_channel && ad.size() != cd.size()) return kBadParam;
  return StatusOf(fake_cuda::Launch({"cudnnAddTensor",
                                     -1,
                                     0,
                                     {{a, ad.nbytes()}, {c, cd.nbytes()}},
                                     {{c, cd.nbytes()}},
                                     {nullptr, 0}},
                                    handle->stream, [=] {
                                      const Numbers from(a, ad.is_half), to(c, cd.is_half);
                                      for (int64_t i = 0; i < cd.size(); ++i) {
                                        const int64_t which =
                                            by_channel ? i / (int64_t{cd.h} * cd.w) % cd.c : i;
                                        to.set(i, to.at(i) + from.at(which));
                                      }
                                    }));
}

int cudnnActivationForward(Handle* handle, Activation* desc, const float* alpha, Tensor* x_desc,
                           const void* x, const float* beta, Tensor*, void* y) {
  FAKE_LIBRARY_CALL("cudnnActivationForward", kExecutionFailed);
  if (!IsUsable(handle) || *alpha != 1 || *beta != 0) return kBadParam;
  const Tensor xd = *x_desc;
  const Activation activation = *desc;
  return StatusOf(fake_cuda::Launch(
      {"cudnnActivationForward", -1, 0, {{x, xd.nbytes()}}, {{y, xd.nbytes()}}, {nullptr, 0}},
      handle->stream, [=] {
        const Numbers from(x, xd.is_half), to(y, xd.is_half);
        for (int64_t i = 0; i < xd.size(); ++i) to.set(i, Activated(activation, from.at(i)));
      }));
}
}
