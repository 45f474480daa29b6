#ifndef RUNTIME_CPU_AFFINITY_H_
#define RUNTIME_CPU_AFFINITY_H_

#include <sched.h>

#include <mutex>

namespace tvm_interop {

// A thread that sleeps for good and that nobody here narrows: its mask is what the user of this
// process allows, also where that was said for each thread since (`taskset -ap`). Its number; 0
// where the system refuses a thread.
pid_t StartWitness();

// What a thread may run on, narrowed for a while by whoever knows better, and never widened beyond
// what its user allows: where somebody else has set another mask since, its own or the witness's,
// that is what it may run on from then on. Safe from any thread while the narrowed one lives.
class Affinity {
 public:
  // Takes the calling thread for the one to narrow; before any other call.
  void Adopt(pid_t witness);
  // Anywhere but on `cpu`, if that leaves something; anywhere, where `cpu` is none.
  void KeepOff(int cpu);
  // On `cpu` alone. False where it may not run there, or may run nowhere else anyway.
  bool KeepOn(int cpu);

 private:
  bool HasChoice();
  bool Set(const cpu_set_t& cpus);

  std::mutex mutex_;
  pid_t thread_ = 0, witness_ = 0;
  cpu_set_t allowed_{};  // by its user
  cpu_set_t set_{};      // by this
  cpu_set_t seen_{};     // of the witness
};

// Confines the calling thread to one core while this lives; does nothing where it has but one.
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
