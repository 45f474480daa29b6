#ifndef PASSES_SCHEDULERS_STAGE_BOOK_H_
#define PASSES_SCHEDULERS_STAGE_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "passes/schedulers/stage_batch.h"

namespace tvm_interop {

// What stages of one graph take, as far as somebody has said so: no search asks for one twice. A
// stage is known by its operators; they must always come in the same order, such as AppendStage's.
class StageBook {
 public:
  void Write(const StageBatch& stages, const std::vector<double>& price_us);
  // Not a number where nobody has said it.
  std::vector<double> Read(const StageBatch& stages) const;

 private:
  struct Hash {
    size_t operator()(const std::vector<int64_t>& ops) const;
  };

  std::unordered_map<std::vector<int64_t>, double, Hash> price_us_;
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_STAGE_BOOK_H_
