#include "base/exceptions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

namespace headway {
namespace {

using ::testing::HasSubstr;

TEST(Exceptions, BecomeStatuses) {
  const Status memory = Guarded([]() -> Status { throw std::bad_alloc(); });
  EXPECT_EQ(memory.code(), StatusCode::kIo);
  EXPECT_THAT(memory.message(), HasSubstr("no more memory"));

  const Status thread = Guarded([]() -> Status {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  });
  EXPECT_EQ(thread.code(), StatusCode::kIo);
  EXPECT_THAT(thread.message(), HasSubstr("Resource temporarily unavailable"));

  const Result<int> library = Guarded([]() -> Result<int> { throw std::runtime_error("odd"); });
  EXPECT_EQ(library.status().code(), StatusCode::kInternal);
  EXPECT_THAT(library.status().message(), HasSubstr("odd"));

  EXPECT_EQ(Guarded([]() -> Status { throw 3; }).code(), StatusCode::kInternal);
  EXPECT_EQ(*Guarded([]() -> Result<int> { return 7; }), 7);
}

}  // namespace
}  // namespace headway
