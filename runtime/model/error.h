#ifndef RUNTIME_MODEL_ERROR_H_
#define RUNTIME_MODEL_ERROR_H_

#include <stdexcept>
#include <string>

namespace tvm_interop {

// The kinds of errors. The numbers are those of `tvi_status` in the C interface.
enum class ErrorCode {
  kInvalidArgument = 1,  // an argument of the caller is wrong
  kArtifact = 2,         // the file is not an artifact, is damaged, or its plan is unsafe
  kUnsupported = 3,      // the artifact is right, but this machine or library cannot run it
  kExecution = 4,        // an operator failed while it ran
  kOutOfMemory = 5,
  kInternal = 6,  // a mistake of this library
};

// An error for the caller of the runtime library. The text names what is at fault and says what to
// do.
class ModelError : public std::runtime_error {
 public:
  ModelError(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// What a user can do about an artifact that is truncated, or is a file of another kind.
constexpr const char* kCopyAgain =
    "copy the file again, or make an artifact with `tvm-interop compile`";

// The error for an artifact that is damaged or malformed, or whose plan is unsafe. `advice` says
// what the user can do, and follows the text.
class ArtifactError : public ModelError {
 public:
  explicit ArtifactError(const std::string& text,
                         const std::string& advice = "compile the model again")
      : ModelError(ErrorCode::kArtifact, text + "; " + advice) {}
};

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_ERROR_H_
