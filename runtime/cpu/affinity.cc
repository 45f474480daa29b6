#include "runtime/cpu/affinity.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/cpu/blocked_signals.h"

namespace tvm_interop {
namespace {

bool Get(pid_t thread, cpu_set_t* cpus) {
  CPU_ZERO(cpus);
  return sched_getaffinity(thread, sizeof(*cpus), cpus) == 0;
}

bool IsCpu(int cpu) { return cpu >= 0 && cpu < CPU_SETSIZE; }

}  // namespace

pid_t StartWitness() {
  const BlockedSignals blocked;
  std::promise<pid_t> number;
  std::future<pid_t> known = number.get_future();
  pid_t witness = 0;
  try {
    std::thread([number = std::move(number)]() mutable {
      number.set_value(static_cast<pid_t>(syscall(SYS_gettid)));
      while (true) pause();
    }).detach();
    witness = known.get();
  } catch (const std::system_error&) {
    // If there is no witness thread (see `StartWitness`), `Affinity` notices only masks that the
    // user sets on the narrowed thread itself.
  }
  return witness;
}

void Affinity::Adopt(pid_t witness) {
  const std::lock_guard<std::mutex> lock(mutex_);
  thread_ = static_cast<pid_t>(syscall(SYS_gettid));
  Get(thread_, &allowed_);
  set_ = allowed_;
  if (witness != 0 && Get(witness, &seen_)) witness_ = witness;
}

void Affinity::KeepOff(int cpu) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!HasChoice()) return;
  cpu_set_t others = allowed_;
  if (IsCpu(cpu)) CPU_CLR(cpu, &others);
  Set(others);
  HasChoice();  // Applies a mask that the user has set since the first call.
}

bool Affinity::KeepOn(int cpu) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!HasChoice() || !IsCpu(cpu) || !CPU_ISSET(cpu, &allowed_)) return false;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(cpu, &only);
  return Set(only) && HasChoice();
}

// Reads the masks of the thread and of the witness. A mask that this object did not set comes from
// the user. Returns whether the user allows more than one CPU.
bool Affinity::HasChoice() {
  cpu_set_t now, witness;
  if (thread_ == 0 || !Get(thread_, &now)) return false;
  if (!CPU_EQUAL(&now, &set_)) allowed_ = set_ = now;
  if (witness_ != 0 && Get(witness_, &witness) && !CPU_EQUAL(&witness, &seen_)) {
    allowed_ = seen_ = witness;
    // The user may have set a mask on all threads just before this object narrowed its thread. The
    // narrow mask then replaced the user's mask, so set the user's mask again. The witness has the
    // user's mask already: `taskset -ap` changes the witness first, because the witness is older
    // than the narrowed threads.
    if (!CPU_EQUAL(&now, &allowed_)) Set(allowed_);
  }
  return CPU_COUNT(&allowed_) > 1;
}

bool Affinity::Set(const cpu_set_t& cpus) {
  if (sched_setaffinity(thread_, sizeof(cpus), &cpus) != 0) return false;
  set_ = cpus;
  return true;
}

Confined::Confined(int cpu) {
  if (!IsCpu(cpu) || !Get(0, &before_) || CPU_COUNT(&before_) < 2) return;
  CPU_SET(cpu, &only_);
  is_confined_ = sched_setaffinity(0, sizeof(only_), &only_) == 0;
}

Confined::~Confined() {
  cpu_set_t now;
  // If somebody else has set a mask while this object lived, leave that mask as it is.
  if (is_confined_ && Get(0, &now) && CPU_EQUAL(&now, &only_)) {
    sched_setaffinity(0, sizeof(before_), &before_);
  }
}

}  // namespace tvm_interop
