#include "runtime/core/operators/winograd_conv2d.h"

#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"
#include "runtime/cpu/winograd/conv.h"

namespace tvm_interop {
namespace onednn {
namespace {

// Makes a kernel of this project's own, because oneDNN 3 has no Winograd kernels of float32. It
// works on the layouts that oneDNN's kernels prefer.
class WinogradMaker : public MakerOf<WinogradConv2d> {
 public:
  using MakerOf::MakerOf;
  void Make() override { made_ = winograd::MakeConv(kind_, threads_, args_); }
  std::unique_ptr<LibraryKernel> Take() override { return std::move(made_); }

 private:
  std::unique_ptr<LibraryKernel> made_;
};

const RegisteredMaker<WinogradMaker> kRegistered("winograd_conv2d", winograd::WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop
