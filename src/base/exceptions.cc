#include "base/exceptions.h"

#include <exception>
#include <new>
#include <string>
#include <system_error>

namespace headway {
namespace {

Status Translate() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kIo,
                  "the system has no more memory to give; lower the budgets, or raise the limit "
                  "that this process runs under (ulimit -v, -d)");
  } catch (const std::system_error& error) {
    return Status(StatusCode::kIo, std::string(error.what()) +
                                       "; raise the limits on threads and memory that this process "
                                       "runs under (ulimit -u, -v)");
  } catch (const std::exception& error) {
    return Status(StatusCode::kInternal, std::string("unexpected: ") + error.what());
  } catch (...) {
    return Status(StatusCode::kInternal, "unexpected: an exception of unknown type");
  }
}

}  // namespace

Status StatusOfException() noexcept {
  try {
    return Translate();
  } catch (...) {
    return Status(StatusCode::kIo, "out of memory");  // so short that it takes none
  }
}

}  // namespace headway
