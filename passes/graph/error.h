#ifndef PASSES_GRAPH_ERROR_H_
#define PASSES_GRAPH_ERROR_H_

#include <stdexcept>
#include <string>

namespace tvm_interop {

// What the algorithms throw. `kind` is the name of the Python class that the bindings raise:
// GraphError, ScheduleError, LatencyError or PlanError.
class PassError : public std::runtime_error {
 public:
  PassError(const char* kind, const std::string& message)
      : std::runtime_error(message), kind_(kind) {}
  const char* kind() const { return kind_; }

 private:
  const char* kind_;
};

inline PassError GraphError(const std::string& message) { return {"GraphError", message}; }
inline PassError ScheduleError(const std::string& message) { return {"ScheduleError", message}; }
inline PassError LatencyError(const std::string& message) { return {"LatencyError", message}; }
inline PassError PlanError(const std::string& message) { return {"PlanError", message}; }

}  // namespace tvm_interop

#endif  // PASSES_GRAPH_ERROR_H_
