// Each test program has a cache folder of its own, as have the programs that it starts: what a
// user's `headway probe` or `run` has kept would change the plans that tests compare.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <optional>

#include "base/test_dir.h"

namespace headway::testing {
namespace {

class OwnCache : public ::testing::EmptyTestEventListener {
  void OnTestProgramStart(const ::testing::UnitTest&) override { folder_.emplace(); }
  void OnTestSuiteStart(const ::testing::TestSuite&) override { Use(); }
  // Tests of what is kept have folders of their own, and leave none behind.
  void OnTestStart(const ::testing::TestInfo&) override { Use(); }
  void OnTestProgramEnd(const ::testing::UnitTest&) override { folder_.reset(); }

  void Use() const { setenv("XDG_CACHE_HOME", folder_->path().c_str(), 1); }

  std::optional<TestDir> folder_;
};

const bool appended = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new OwnCache);  // which owns it
  return true;
}();

}  // namespace
}  // namespace headway::testing
