#include "runtime/cpu/affinity.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <future>
#include <system_error>
#include <thread>
#include <utility>

namespace tvm_interop {
namespace {

bool Get(pid_t thread, cpu_set_t* cpus) {
  CPU_ZERO(cpus);
  return sched_getaffinity(thread, sizeof(*cpus), cpus) == 0;
}

bool IsCpu(int cpu) { return cpu >= 0 && cpu < CPU_SETSIZE; }

}  // namespace

pid_t StartWitness() {
  // It takes no signal that another thread waits for.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
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
    // Then changes are seen where the narrowed thread itself has another mask.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
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
  HasChoice();  // The user may have set masks since this looked.
}

bool Affinity::KeepOn(int cpu) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!HasChoice() || !IsCpu(cpu) || !CPU_ISSET(cpu, &allowed_)) return false;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(cpu, &only);
  return Set(only) && HasChoice();
}

// Looks at the masks that there are: one that this did not set is the user's.
bool Affinity::HasChoice() {
  cpu_set_t now, witness;
  if (thread_ == 0 || !Get(thread_, &now)) return false;
  if (!CPU_EQUAL(&now, &set_)) allowed_ = set_ = now;
  if (witness_ != 0 && Get(witness_, &witness) && !CPU_EQUAL(&witness, &seen_)) {
    allowed_ = seen_ = witness;
    // One that this set while the user was at it would stay: `taskset -ap` comes to the witness
    // before it comes to the threads that are narrowed, which are younger.
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
  // Where somebody has set another mask meanwhile, that stays.
  if (is_confined_ && Get(0, &now) && CPU_EQUAL(&now, &only_)) {
    sched_setaffinity(0, sizeof(before_), &before_);
  }
}

}  // namespace tvm_interop
