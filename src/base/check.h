// HEADWAY_CHECK: for what only a bug can make false. Never for user input: that is a Status.
#ifndef HEADWAY_BASE_CHECK_H_
#define HEADWAY_BASE_CHECK_H_

namespace headway {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace headway

#define HEADWAY_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::headway::CheckFailed(__FILE__, __LINE__, #condition))

#endif  // HEADWAY_BASE_CHECK_H_
