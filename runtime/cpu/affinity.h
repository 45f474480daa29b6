#ifndef RUNTIME_CPU_AFFINITY_H_
#define RUNTIME_CPU_AFFINITY_H_

#include <sched.h>

#include <mutex>

namespace tvm_interop {

// Starts the witness, a thread that sleeps forever. This library never changes the witness's
// affinity mask. So this mask shows which CPUs the user of the process allows. If the user later
// changes the masks of all threads, for example with `taskset -ap`, the mask of the witness shows
// this too. Returns the witness's thread id, or 0 if the system refuses to start a thread.
pid_t StartWitness();

// The affinity mask of one thread, which this class narrows for a while. The mask never becomes
// wider than the user allows. The user may set another mask on the thread, or on the thread that
// `StartWitness` started. From then on, this class keeps the thread within the user's mask. The
// functions are safe to call from any thread while the narrowed thread lives.
class Affinity {
 public:
  // From now on, this object narrows the mask of the calling thread. `witness` is the result of
  // `StartWitness`. Must be called before any other function.
  void Adopt(pid_t witness);
  // Allows the thread to run on all allowed CPUs except `cpu`. Does nothing if the user allows only
  // one CPU. A negative `cpu` excludes no CPU.
  void KeepOff(int cpu);
  // Confines the thread to `cpu`. Returns false if the thread may not run on `cpu`, if the user
  // allows only one CPU, or if the system refuses.
  bool KeepOn(int cpu);

 private:
  bool HasChoice();
  bool Set(const cpu_set_t& cpus);

  std::mutex mutex_;
  pid_t thread_ = 0, witness_ = 0;
  cpu_set_t allowed_{};  // The CPUs that the user allows.
  cpu_set_t set_{};      // The thread's mask as this object last set it.
  cpu_set_t seen_{};     // The witness's mask when this object last read it.
};

// Confines the calling thread to the CPU `cpu` while this object lives. Does nothing if the thread
// may run on only one CPU, or if `cpu` is negative.
class Confined {
 public:
  explicit Confined(int cpu);
  ~Confined();
  Confined(const Confined&) = delete;
  Confined& operator=(const Confined&) = delete;

 private:
  cpu_set_t before_{}, only_{};
  bool is_confined_ = false;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_AFFINITY_H_
