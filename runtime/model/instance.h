#ifndef RUNTIME_MODEL_INSTANCE_H_
#define RUNTIME_MODEL_INSTANCE_H_

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/core/timed.h"
#include "runtime/cpu/executor.h"
#include "runtime/cpu/scratch.h"
#include "runtime/model/model.h"
#include "runtime/model/rows.h"
#include "runtime/model/runnable.h"

namespace tvm_interop {

// An instance on this machine's CPU. All instances of a model share its weights. All instances of
// the process share the memory for the tensors between operators. An instance leases a part of this
// memory, its arena, for each run. Inputs and outputs are never in the arena.
class Instance : public Runnable, public Timed {
 public:
  // Allocates the tensors and prepares the kernels. `guests` is the pool of threads to do this and
  // to run in; null means the pool of the process. Throws ModelError or std::bad_alloc.
  Instance(std::shared_ptr<Model> model, size_t shape,
           std::shared_ptr<ThreadPool> guests = nullptr);

  // An input is read in place if its address is a multiple of `Model::InputAlignment`. An output is
  // written in place if its address is a multiple of 64 and it shares no bytes with another tensor
  // of the caller. Otherwise the tensor is copied.
  void Run(const void* const* inputs, void* const* outputs) override {
    Run(inputs, outputs, all_rows_);
  }
  void RunRows(const std::vector<int64_t>& rows, const void* const* inputs,
               void* const* outputs) override;
  std::vector<OpTiming> Profile(const void* const* inputs, void* const* outputs) override;
  void* InputBuffer(size_t index) override { return OwnBuffer(&inputs_[index]); }
  void* OutputBuffer(size_t index) override { return OwnBuffer(&outputs_[index]); }

  Model& model() const { return *model_; }
  size_t shape() const { return shape_; }
  const Plan& plan() const override { return plan_; }

  // Runs the model `number` times on the inputs and outputs of the latest run, without copying
  // them. Returns the time of all these runs in seconds.
  double Time(int number) override;

 private:
  // An input or output of the model.
  struct Port {
    int64_t value = 0;
    size_t nbytes = 0;
    size_t alignment = kTensorAlignment;  // of the caller's memory, to use it in place
    // Whether the value can be moved to the caller's memory. False for an output that is a part of
    // another tensor, or that is listed twice.
    bool may_move = false;
    std::shared_ptr<char> own;
    void* given = nullptr;   // what the caller gave in the latest run
    bool is_copied = false;  // whether the tensor is copied from or to `given`
    std::vector<int64_t> aliases;
    RowPieces pieces;  // where the rows lie, if the model was compiled for ranges of rows
    Filling filling = Filling::kLastRow;
  };

  // The end of one of the instance's own buffers, and what the buffer is for.
  struct OwnBufferEnd {
    const char* end;
    Storage storage;
  };

  // Gives each weight its memory, and notes which tensors lie in the arena.
  void PlaceTensors();
  // Places the tensors between operators in leased memory.
  void PlaceArena(char* arena);
  void MakePorts();
  void PrepareKernels();
  void PrepareLibraryKernels(const std::vector<size_t>& ops,
                             std::vector<std::unique_ptr<Kernel>>* made);
  std::unique_ptr<Kernel> MakeLibraryKernel(const PlannedOperator& op);
  std::unique_ptr<Kernel> MakeTvmKernel(const PlannedOperator& op);
  void* OwnBuffer(Port* port);
  void Place(const Port& port, void* address);
  void Run(const void* const* inputs, void* const* outputs, const RowCounts& rows);
  // Places all inputs and outputs for a run at the addresses in `inputs` and `outputs`. A tensor
  // with a dimension of rows has `rows` rows at its address.
  void Bind(const void* const* inputs, void* const* outputs, const RowCounts& rows);
  // The product of the numbers of rows of all ranges.
  uint64_t NumberOf(const RowCounts& rows) const;
  // Whether a run computes more rows of this tensor than the caller gives.
  bool IsFilledUp(const Port& port) const { return port.pieces.HasMoreThan(rows_); }
  void FindOverlaps();
  // Whether the caller's memory for this port lies in the instance's own buffer for another port,
  // and operators write one of the two ports. An operator may write an output before another
  // operator has read an input, so such a port is copied.
  bool IsInOwnBufferOfAnother(const Port& port) const;
  // Copies the inputs that are not read in place.
  void CopyInputs();
  // Pads a mask with 0. Throws ModelError with `kInvalidArgument` if the mask does not allow a run
  // to be padded to the rows of the instance's shape.
  void FillMask(const Port& port);
  // Copies the outputs that were not written in place.
  void CopyOutputs();

  std::shared_ptr<Model> model_;
  const size_t shape_;
  const Plan& plan_;
  std::shared_ptr<const TvmKernels> kernel_code_;
  const std::shared_ptr<ThreadPool> guests_;

  ScratchNeed arena_need_;
  char* arena_ = nullptr;  // The memory of the latest run. It may belong to others between runs.
  std::vector<std::pair<size_t, int64_t>> in_arena_;  // values in the arena, and their positions
  std::vector<std::vector<int64_t>> dims_;  // the stored shape of each value, then its strides
  std::vector<TensorHeader> headers_;       // by value; never resized, since kernels point to them
  std::vector<Port> inputs_, outputs_;
  std::map<const char*, OwnBufferEnd> own_buffers_;  // by address
  std::vector<Port> hidden_;  // values with memory of their own that the caller does not see
  bool is_bound_ = false;     // whether `Port::given` holds the addresses of an earlier run
  RowCounts all_rows_{};      // the rows of the instance's shape
  RowCounts rows_{};          // the rows of the latest run

  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::unique_ptr<CpuExecutor> executor_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_INSTANCE_H_
