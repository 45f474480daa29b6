#ifndef RUNTIME_MODEL_TAR_H_
#define RUNTIME_MODEL_TAR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "runtime/model/file.h"

namespace tvm_interop {

// A file in the tar.
struct Member {
  uint64_t offset = 0;  // where its data begins in the tar, in bytes; a multiple of 512
  uint64_t nbytes = 0;
  std::string sha256;  // in hexadecimal
  std::string data;    // empty if the data was not kept
};

// Reads a tar file forwards, once. `most_bytes` returns the largest allowed size of a member whose
// data is kept, by the member's name. It returns -1 if the data is not kept. `sha256` is the digest
// that the whole file must have, in hexadecimal, or "" for any.
//
// Only plain headers and plain files are allowed. Sparse files, links, and headers that hold long
// names are refused, because a few bytes of such a header can claim terabytes.
//
// Throws ArtifactError if the file is truncated, is not a tar file or has another digest. Also
// throws it if a member is not a plain file, is there twice or is too large.
std::map<std::string, Member> ReadTar(const Source& source,
                                      const std::function<int64_t(const std::string&)>& most_bytes,
                                      const std::string& sha256);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_TAR_H_
