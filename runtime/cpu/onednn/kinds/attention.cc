#include "runtime/cpu/attention/attention.h"

#include "runtime/core/operators/attention.h"
#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"

namespace tvm_interop {
namespace onednn {
namespace {

// Makes a kernel of this project's own, not of oneDNN. oneDNN's primitives would compute attention
// in three steps, and write all scores to memory between these steps.
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
