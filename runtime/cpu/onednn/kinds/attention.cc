#include "runtime/cpu/attention/attention.h"

#include "runtime/core/operators/attention.h"
#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"

namespace tvm_interop {
namespace onednn {
namespace {

// oneDNN's primitives compute attention in three steps, which write all scores to memory. This
// project's own kernels stand in for them.
class AttentionMaker : public MakerOf<Attention> {
 public:
  using MakerOf::MakerOf;
  void Make() override { made_ = attention::MakeAttention(kind_, threads_, args_); }
  std::unique_ptr<LibraryKernel> Take() override { return std::move(made_); }

 private:
  std::unique_ptr<LibraryKernel> made_;
};

const RegisteredMaker<AttentionMaker> kRegistered("attention", attention::WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop
