# find_package(tvm_interop): the target tvm_interop::tvm_interop_runtime.
include("${CMAKE_CURRENT_LIST_DIR}/tvm_interopTargets.cmake")
