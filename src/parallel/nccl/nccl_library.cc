#include "parallel/nccl/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <type_traits>

namespace headway::nccl {
namespace {

// 2.18, the first version that knows GPUs of compute capability 9.0, as it numbers itself.
constexpr int kOldest = 21800;

// What keeps the library from being used; empty: nothing.
std::string Open(Library* library) {
  void* handle = nullptr;
  std::string first_error;
  // The second is where CUDA's installers put it, for loaders that do not look there.
  for (const char* name : {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"}) {
    handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
    if (first_error.empty()) first_error = dlerror();
  }
  if (handle == nullptr) return "NCCL is not installed (" + first_error + ")";
  std::string missing;
  const auto find = [&](auto* function, const char* name) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(handle, name));
    if (*function == nullptr && missing.empty()) missing = name;
  };
  find(&library->GetVersion, "ncclGetVersion");
  find(&library->GetUniqueId, "ncclGetUniqueId");
  find(&library->CommInitRank, "ncclCommInitRank");
  find(&library->CommGetAsyncError, "ncclCommGetAsyncError");
  find(&library->CommAbort, "ncclCommAbort");
  find(&library->GetErrorString, "ncclGetErrorString");
  find(&library->AllReduce, "ncclAllReduce");
  find(&library->Broadcast, "ncclBroadcast");
  if (!missing.empty()) return "the NCCL that is installed has no " + missing;
  int version = 0;
  library->GetVersion(&version);
  return version < kOldest ? "the NCCL that is installed is too old" : "";
}

}  // namespace

Result<const Library*> LoadLibrary() {
  static Library library;
  static const std::string error = [] {
    // Connections are made at the start, in which ranks wait for each other a limited time, and not
    // in the first call of a kind, which nothing could end.
    setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/0);
    return Open(&library);
  }();
  if (error.empty()) return &library;
  return Status(StatusCode::kUnsupported,
                error +
                    ": ranks in processes need NCCL 2.18 or newer on GPUs; put the folder of "
                    "libnccl.so.2 in LD_LIBRARY_PATH");
}

Status StatusOf(const Library& library, int error, const std::string& what) {
  if (error == kSuccess) return OkStatus();
  return Status(StatusCode::kInternal, "NCCL, " + what + ": " + library.GetErrorString(error));
}

}  // namespace headway::nccl
