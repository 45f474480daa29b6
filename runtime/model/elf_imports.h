#ifndef RUNTIME_MODEL_ELF_IMPORTS_H_
#define RUNTIME_MODEL_ELF_IMPORTS_H_

#include <string>
#include <vector>

namespace tvm_interop {

// Returns the names of the functions and variables that a shared library imports, in the order of
// its symbol table. `code` has the bytes of the library's file. Throws std::runtime_error if they
// are not a shared library for this kind of processor.
std::vector<std::string> ImportsOf(const std::string& code);

// Marks the imports `names` as weak, so that the library loads even if nothing provides them.
void MakeWeak(std::string* code, const std::vector<std::string>& names);

// Makes the loaded library call `function` wherever it imports `name`. `handle` is the library's
// handle from `dlopen`. Does nothing if the library does not import `name`. Throws
// std::runtime_error if the system does not allow it.
void SetImport(void* handle, const std::string& name, void* function);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_ELF_IMPORTS_H_
