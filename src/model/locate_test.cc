#include "model/locate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/test_dir.h"

namespace headway {
namespace {

using testing::HasSubstr;

GetEnvironment FakeEnvironment(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> std::optional<std::string> {
    auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return found->second;
  };
}

TEST(HubCacheFolderTest, FollowsTheVariablesOfHuggingFace) {
  std::map<std::string, std::string> values = {{"HOME", "/home/me"}};
  EXPECT_EQ(HubCacheFolder(FakeEnvironment(values)), "/home/me/.cache/huggingface/hub");
  values["XDG_CACHE_HOME"] = "/cache";
  EXPECT_EQ(HubCacheFolder(FakeEnvironment(values)), "/cache/huggingface/hub");
  values["HF_HOME"] = "/hf";
  EXPECT_EQ(HubCacheFolder(FakeEnvironment(values)), "/hf/hub");
  values["HF_HUB_CACHE"] = "/hub";
  EXPECT_EQ(HubCacheFolder(FakeEnvironment(values)), "/hub");
}

class LocateTest : public testing::Test {
 protected:
  LocateTest() {
    const std::filesystem::path repository =
        std::filesystem::path(dir_.path()) / "models--org--na.me";
    for (const char* folder : {"refs/refs/pr", "snapshots/abc123", "snapshots/def456"}) {
      std::filesystem::create_directories(repository / folder);
    }
    std::ofstream(repository / "refs/main") << "abc123";
    std::ofstream(repository / "refs/refs/pr/1") << "def456\n";
    std::ofstream(repository / "refs/gone") << "777";
    std::ofstream(repository / "refs/bad") << "../../..";
    snapshots_ = (repository / "snapshots").string() + "/";
  }
  Result<std::string> Locate(const std::string& model) {
    return LocateModel(*Env::Default(), model, FakeEnvironment({{"HF_HUB_CACHE", dir_.path()}}));
  }
  Status Error(const std::string& model) {
    Result<std::string> found = Locate(model);
    EXPECT_FALSE(found.ok()) << model;
    return found.status();
  }

  TestDir dir_;
  std::string snapshots_;
};

TEST_F(LocateTest, TakesAFolderAsItIs) { EXPECT_EQ(*Locate(dir_.path()), dir_.path()); }

TEST_F(LocateTest, FindsRevisionsInTheCache) {
  EXPECT_EQ(*Locate("org/na.me"), snapshots_ + "abc123");
  EXPECT_EQ(*Locate("org/na.me@main"), snapshots_ + "abc123");
  EXPECT_EQ(*Locate("org/na.me@refs/pr/1"), snapshots_ + "def456");
  EXPECT_EQ(*Locate("org/na.me@def456"), snapshots_ + "def456");
}

TEST_F(LocateTest, SaysWhereItLooked) {
  EXPECT_THAT(Error("org/other").message(), HasSubstr(dir_.path() + "/models--org--other"));
  EXPECT_THAT(Error("org/na.me@v2").message(), HasSubstr("refs/v2"));
  EXPECT_THAT(Error("org/na.me@gone").message(), HasSubstr("snapshots/777"));
  EXPECT_EQ(Error("org/na.me@bad").code(), StatusCode::kCorrupt);
  EXPECT_EQ(Error("").code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Error(snapshots_ + "../refs/main").message(), HasSubstr("a file"));
  std::ofstream(dir_.File("small.gguf")) << "GGUF";
  EXPECT_EQ(Error(dir_.File("small.gguf")).code(), StatusCode::kUnsupported);
  EXPECT_THAT(Error(dir_.File("small.gguf")).message(), HasSubstr("GGUF, which Headway does not"));
}

TEST_F(LocateTest, NeverWalksOutOfTheCache) {
  for (const char* model :
       {"nothing", "a/b/c", "../x", "org/..", "./gone", "org/na.me@../main", "org/na.me@",
        "org/na.me@/main", "org/na.me@a//b", "or g/name", "org/na\nme"}) {
    EXPECT_THAT(Error(model).message(), HasSubstr("no such folder")) << model;
  }
  EXPECT_THAT(Error(std::string(10000, 'x') + "/y").message(), HasSubstr("no such folder"));
}

}  // namespace
}  // namespace headway
