// Each test program has a cache folder of its own, as have the programs that it starts: what a
// user's `headway probe` or `run` has kept would change the plans that tests compare.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace headway::testing {
namespace {

class OwnCache : public ::testing::EmptyTestEventListener {
  void OnTestProgramStart(const ::testing::UnitTest&) override {
    std::error_code error;
    folder_ = (std::filesystem::temp_directory_path(error) / "headway-cache-XXXXXX").string();
    if (mkdtemp(folder_.data()) == nullptr) folder_.clear();
  }
  void OnTestSuiteStart(const ::testing::TestSuite&) override { Use(); }
  // Tests of what is kept have folders of their own, and leave none behind.
  void OnTestStart(const ::testing::TestInfo&) override { Use(); }
  void OnTestProgramEnd(const ::testing::UnitTest&) override {
    std::error_code error;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, error);
  }

  void Use() const {
    setenv("XDG_CACHE_HOME", folder_.empty() ? "/proc/nothing" : folder_.c_str(), 1);
  }

  std::string folder_;
};

const bool appended = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new OwnCache);  // which owns it
  return true;
}();

}  // namespace
}  // namespace headway::testing
