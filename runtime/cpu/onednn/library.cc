#include "runtime/cpu/onednn/library.h"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cpu/onednn/api.h"
#include "runtime/cpu/onednn/kinds.h"

namespace tvm_interop {
namespace {

using namespace onednn;  // NOLINT: this file is about nothing else.

// Whether an implementation of this name adds numbers up in the same order for every number of
// threads. Implementations that use a general matrix product change the order, and the convolutions
// called `brgconv` do too. For unknown implementations the answer is no.
bool IsSureOfItsBits(const std::string& implementation) {
  for (const char* sure : {"jit", "brg:", "brdgmm_dw:", "ref:", "simple", "winograd:", "rows:"}) {
    if (implementation.rfind(sure, 0) == 0) return true;
  }
  return false;
}

class OneDnnLibrary : public KernelLibrary {
 public:
  explicit OneDnnLibrary(const std::string& path) : api_(Api::Load(path)) {
    Engine engine = nullptr;
    Check(api_.engine_create(&engine, kCpu, 0), "a CPU engine");
    engine_ = {engine, api_.engine_destroy};
  }

  std::string name() const override { return "onednn"; }

  std::string version() const override {
    const Version& version = *api_.version();
    return std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
           std::to_string(version.patch);
  }

  std::string WhyUnsupported(const OpDescription& op) const override {
    const std::string malformed = WhyMalformed(op);
    if (!malformed.empty()) return malformed;
    const auto found = Kernels().find(op.op);
    if (found == Kernels().end()) return "`" + op.op + "` has no kernels in oneDNN";
    const std::string why = found->second.why_not(op);
    return why.empty() ? "" : "`" + op.op + "` " + why;
  }

  Layout BlockedLayout() const override { return api_.Blocked(); }

  std::unique_ptr<LibraryKernel> Prepare(const OpDescription& op, int threads,
                                         const std::vector<KernelArgument>& args) override {
    const std::string why = WhyUnsupported(op);
    if (!why.empty()) throw std::runtime_error(why);
    if (args.size() != op.shapes.size()) {
      throw std::runtime_error("`" + op.op + "` was given " + std::to_string(args.size()) +
                               " tensors for " + std::to_string(op.shapes.size()));
    }
    auto kernel = Make(op, threads, args);
    // Sums of integers are the same in any order, so quantised operators always get all `threads`
    // threads.
    const bool gets_team =
        threads == 1 || op.is_quantised() || IsSureOfItsBits(kernel->implementation());
    return gets_team ? std::move(kernel) : Make(op, 1, args);
  }

 private:
  std::unique_ptr<LibraryKernel> Make(const OpDescription& op, int threads,
                                      const std::vector<KernelArgument>& args) {
    const TeamGuard team(api_, threads);
    const auto maker = Kernels().at(op.op).maker(api_, engine_.get(), op, threads, args);
    maker->Make();
    return maker->Take();
  }

  Api api_;
  Owned<Engine> engine_;
};

}  // namespace

std::unique_ptr<KernelLibrary> LoadOneDnn(const std::string& path) {
  return std::make_unique<OneDnnLibrary>(path);
}

}  // namespace tvm_interop
