// A fake libcublasLt.so.13 with the functions of cuBLASLt that we call. The functions compute their
// results on the host, slowly.

#include <algorithm>

#include "fake_library.h"

namespace {

using fake_cuda::Line;
using fake_cuda::Numbers;
using fake_cuda::TheState;

constexpr int kAllocFailed = 3;
constexpr int kInvalidValue = 7;
constexpr int kExecutionFailed = 13;
constexpr int kNotSupported = 15;

struct Handle {
  int id = 0;
  int device = 0;
};

struct Product {
  int compute_type = 0;
  uint32_t epilogue = 1;
  const void* bias = nullptr;
};

// A matrix in column-major order, or a batch of them.
struct Layout {
  bool is_half = false;
  int64_t rows = 0, columns = 0, leading = 0;
  int32_t batch = 1;
  int64_t offset = 0;
  int64_t nbytes() const {
    return ((batch - 1) * offset + (columns - 1) * leading + rows) * (is_half ? 2 : 4);
  }
  int64_t at(int64_t which, int64_t row, int64_t column) const {
    return which * offset + column * leading + row;
  }
};

struct Preference {
  uint64_t workspace_nbytes = 0;
  uint32_t reduction_schemes = 7;
  uint32_t alignment = 256;  // The smallest alignment of the four matrices, in bytes.
};

struct Algorithm {
  uint64_t data[8];
};

struct Result {
  Algorithm algorithm;
  size_t workspace_nbytes;
  int status;
  float waves;
  int reserved[4];
};

template <typename Value>
int Take(Value* to, const void* value, size_t nbytes) {
  if (nbytes != sizeof(Value)) return kInvalidValue;
  std::memcpy(to, value, nbytes);
  return 0;
}

}  // namespace

extern "C" {

// A switch for tests: makes an algorithm take `ms` milliseconds longer than an ordinary kernel.
void FakeCublasLtSetTime(int algorithm, double ms) { fake_cuda::ExtraTimes()[algorithm] = ms; }

// A switch for tests: launches of an algorithm return `status`, although the library proposes the
// algorithm. If `status` is success, launches work again.
void FakeCublasLtRefuse(int algorithm, int status) {
  fake_cuda::LateRefusals()[algorithm] = status;
}

size_t cublasLtGetVersion() { return 130102; }

const char* cublasLtGetStatusString(int status) {
  switch (status) {
    case kAllocFailed:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case kInvalidValue:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case kNotSupported:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
  }
}

int cublasLtCreate(Handle** handle) {
  FAKE_LIBRARY_CALL("cublasLtCreate", kExecutionFailed);
  *handle = new Handle{TheState().next_id++, fake_cuda::CurrentDevice()};
  Line("cublasLtCreate").Add("handle", int64_t{(*handle)->id});
  return fake_cuda::RefuseWhileCapturing() == 0 ? 0 : kExecutionFailed;
}

int cublasLtDestroy(Handle* handle) {
  Line("cublasLtDestroy").Add("handle", int64_t{handle->id});
  delete handle;
  return 0;
}

int cublasLtMatmulDescCreate(Product** desc, int compute_type, int scale_type) {
  if (scale_type != 0) return kNotSupported;
  *desc = new Product;
  (*desc)->compute_type = compute_type;
  return 0;
}
int cublasLtMatmulDescDestroy(Product* desc) { return delete desc, 0; }
int cublasLtMatmulDescSetAttribute(Product* desc, int attribute, const void* value, size_t nbytes) {
  if (attribute == 7) return Take(&desc->epilogue, value, nbytes);
  if (attribute == 8) return Take(&desc->bias, value, nbytes);
  return kInvalidValue;
}

int cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns,
                               int64_t leading) {
  *layout =
      new Layout{type == 2, static_cast<int64_t>(rows), static_cast<int64_t>(columns), leading};
  return type == 0 || type == 2 ? 0 : kNotSupported;
}
int cublasLtMatrixLayoutDestroy(Layout* layout) { return delete layout, 0; }
int cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value,
                                     size_t nbytes) {
  if (attribute == 5) return Take(&layout->batch, value, nbytes);
  if (attribute == 6) return Take(&layout->offset, value, nbytes);
  return kInvalidValue;
}

int cublasLtMatmulPreferenceCreate(Preference** preference) {
  return *preference = new Preference, 0;
}
int cublasLtMatmulPreferenceDestroy(Preference* preference) { return delete preference, 0; }
int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value,
                                         size_t nbytes) {
  if (attribute == 1) return Take(&preference->workspace_nbytes, value, nbytes);
  if (attribute == 3) return Take(&preference->reduction_schemes, value, nbytes);
  if (attribute < 5 || attribute > 8) return kInvalidValue;
  uint32_t alignment = 0;
  const int status = Take(&alignment, value, nbytes);
  preference->alignment = std::min(preference->alignment, alignment);
  return status;
}

int cublasLtMatmulAlgoGetHeuristic(Handle* handle, Product*, Layout* a, Layout* b, Layout* c,
                                   Layout* d, Preference* preference, int most, Result* results,
                                   int* number) {
  if (handle->device != fake_cuda::CurrentDevice()) return kInvalidValue;
  if (a->columns != b->rows || d->rows != a->rows || d->columns != b->columns ||
      c->rows != d->rows || c->columns != d->columns) {
    return kInvalidValue;
  }
  Line("cublasLtMatmulAlgoGetHeuristic")
      .Add("reduction_schemes", int64_t{preference->reduction_schemes})
      .Add("alignment", int64_t{preference->alignment})
      .Add("workspace_nbytes", static_cast<int64_t>(preference->workspace_nbytes));
  const Result known[] = {
      {{{0}}, 1 << 16, 0, 1, {}},
      {{{1}}, 0, 0, 1, {}},
      {{{2}}, 0, kNotSupported, 1, {}},
  };
  *number = 0;
  for (const Result& result : known) {
    // Only algorithms within the workspace that the caller allows are proposed.
    if (result.workspace_nbytes > preference->workspace_nbytes || *number == most) continue;
    results[(*number)++] = result;
  }
  return 0;
}

int cublasLtMatmul(Handle* handle, Product* product, const float* alpha, const void* a,
                   Layout* a_layout, const void* b, Layout* b_layout, const float* beta,
                   const void* c, Layout*, void* d, Layout* d_layout, const Algorithm* algorithm,
                   void* workspace, size_t workspace_nbytes, void* stream) {
  FAKE_LIBRARY_CALL("cublasLtMatmul", kExecutionFailed);
  fake_cuda::Stream* on = fake_cuda::Resolve(stream);
  if (handle->device != fake_cuda::CurrentDevice() || on->device != handle->device)
    return kInvalidValue;
  const auto number = static_cast<int64_t>(algorithm->data[0]);
  if (const int refused = fake_cuda::LateRefusals()[number]) return refused;
  const Layout al = *a_layout, bl = *b_layout, dl = *d_layout;
  const Product desc = *product;
  const float left = *alpha, right = *beta;
  std::vector<fake_cuda::Piece> reads{{a, al.nbytes()}, {b, bl.nbytes()}};
  if (right != 0) reads.push_back({c, dl.nbytes()});
  const bool has_bias = (desc.epilogue & 4) != 0;
  if (has_bias) reads.push_back({desc.bias, dl.rows * (dl.is_half ? 2 : 4)});
  const fake_cuda::LibraryLaunch launch{
      "cublasLtMatmul",   number,
      desc.compute_type,  reads,
      {{d, dl.nbytes()}}, {workspace, static_cast<int64_t>(workspace_nbytes)}};
  const int status = fake_cuda::Launch(launch, on, [=] {
    if (dl.batch * dl.rows * dl.columns * al.columns > fake_cuda::kMostMultiplications) return;
    const Numbers first(a, al.is_half), second(b, bl.is_half), added(c, dl.is_half);
    const Numbers bias(desc.bias, dl.is_half), to(d, dl.is_half);
    for (int64_t which = 0; which < dl.batch; ++which) {
      for (int64_t column = 0; column < dl.columns; ++column) {
        for (int64_t row = 0; row < dl.rows; ++row) {
          float sum = 0;
          for (int64_t k = 0; k < al.columns; ++k) {
            sum += first.at(al.at(which, row, k)) * second.at(bl.at(which, k, column));
          }
          sum *= left;
          if (right != 0) sum += right * added.at(dl.at(which, row, column));
          if (has_bias) sum += bias.at(row);
          if ((desc.epilogue & 2) != 0) sum = std::max(sum, 0.0f);
          to.set(dl.at(which, row, column), sum);
        }
      }
    }
  });
  return status == 0 ? 0 : kExecutionFailed;
}
}
