#ifndef PASSES_GRAPH_ERROR_H_
#define PASSES_GRAPH_ERROR_H_

#include <stdexcept>
#include <string>

namespace tvm_interop {

// The exception that the algorithms throw. The bindings raise a Python error for it. `kind` is the
// name under which Python registers the class of the error: GraphError, ScheduleError, LatencyError
// or PlanError.
class PassError : public std::runtime_error {
 public:
  PassError(const char* kind, const std::string& message)
      : std::runtime_error(message), kind_(kind) {}
  const char* kind() const { return kind_; }

 private:
  const char* kind_;
};

inline PassError GraphError(const std::string& message) { return {"GraphError", message}; }
// TVM has its own error that is registered as `ScheduleError`. So our error is registered under
// another name.
inline PassError ScheduleError(const std::string& message) {
  return {"InterOpScheduleError", message};
}
inline PassError LatencyError(const std::string& message) { return {"LatencyError", message}; }
inline PassError PlanError(const std::string& message) { return {"PlanError", message}; }

}  // namespace tvm_interop

#endif  // PASSES_GRAPH_ERROR_H_
