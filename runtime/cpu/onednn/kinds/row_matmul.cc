#include "runtime/core/operators/row_matmul.h"

#include "runtime/cpu/onednn/kinds.h"
#include "runtime/cpu/onednn/maker.h"
#include "runtime/cpu/rows/product.h"

namespace tvm_interop {
namespace onednn {
namespace {

// Makes a kernel of this project's own (see `runtime/cpu/rows/product.h`), not of oneDNN.
class RowMatmulMaker : public MakerOf<RowMatmul> {
 public:
  using MakerOf::MakerOf;
  void Make() override { made_ = rows::MakeProduct(kind_, threads_, args_); }
  std::unique_ptr<LibraryKernel> Take() override { return std::move(made_); }

 private:
  std::unique_ptr<LibraryKernel> made_;
};

const RegisteredMaker<RowMatmulMaker> kRegistered("row_matmul", rows::WhyNot);

}  // namespace
}  // namespace onednn
}  // namespace tvm_interop
