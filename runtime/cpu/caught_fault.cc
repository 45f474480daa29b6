#include "runtime/cpu/caught_fault.h"

#include <setjmp.h>
#include <signal.h>

#include <array>
#include <mutex>

namespace tvm_interop {
namespace {

constexpr std::array<int, 3> kSignals = {SIGSEGV, SIGBUS, SIGFPE};

// While the calling thread runs code whose faults are caught, `landing` points to the place at
// which the thread continues after a fault. Otherwise it is null.
struct Landing {
  sigjmp_buf state;
  Fault fault;
};
thread_local Landing* landing = nullptr;

std::array<struct sigaction, kSignals.size()> before;

void Handle(int signal, siginfo_t* info, void*) {
  if (Landing* const here = landing; here != nullptr) {
    here->fault = {signal, info->si_addr};
    siglongjmp(here->state, 1);
  }
  // Faults of this thread must not be caught now. So restore the earlier handler. The fault then
  // occurs again at once, and the earlier handler receives it.
  for (size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] == signal) sigaction(signal, &before[i], nullptr);
  }
}

// Keeps our signal handlers installed while any thread needs them. The mutex guards the number of
// these threads. `before` holds the handlers that were installed before ours. Our handlers read it
// without a lock. This is safe, because it is written only while our handlers are not installed.
class Handlers {
 public:
  Handlers() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (users_++ > 0) return;
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &before[i]);
    struct sigaction ours = {};
    ours.sa_sigaction = Handle;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    for (const int signal : kSignals) sigaction(signal, &ours, nullptr);
  }

  ~Handlers() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--users_ > 0) return;
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before[i], nullptr);
  }

 private:
  static std::mutex mutex_;
  static int users_;
};

std::mutex Handlers::mutex_;
int Handlers::users_ = 0;

// Sets `landing` while this object lives, and restores its earlier value at the end.
class AtLanding {
 public:
  explicit AtLanding(Landing* here) : before_(landing) { landing = here; }
  ~AtLanding() { landing = before_; }

 private:
  Landing* before_;
};

}  // namespace

std::optional<Fault> RunCatchingFaults(const std::function<void()>& body) {
  const Handlers handlers;
  Landing here;
  const AtLanding at_landing(&here);
  // The system blocks the signal while its handler runs. Jumping out of the handler restores the
  // signal mask that is saved here.
  if (sigsetjmp(here.state, 1) != 0) return here.fault;
  body();
  return std::nullopt;
}

}  // namespace tvm_interop
