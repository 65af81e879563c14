// Holds the include lines of src/ to the table of rooms in ARCHITECTURE.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace headway {
namespace {

namespace fs = std::filesystem;

// room -> rooms that it may include. A name with a slash overrides its room.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"base", {}},
    {"device", {"base"}},
    {"kernels", {"base", "device"}},
    {"kv", {"base", "device", "kernels"}},
    {"text", {"base"}},
    {"model", {"base", "device", "kernels"}},
    {"hardware", {"base", "device", "kernels"}},
    {"plan", {"base"}},
    {"engine", {"base", "device", "kernels", "kv", "text", "model", "hardware", "plan"}},
    {"engine/eval", {"base"}},
    {"cli", {"base"}},
};
// Single folders that a room may use beside.
const std::map<std::string, std::set<std::string>> kMayIncludeFolder = {{"cli", {"engine/eval"}}};

// The folders of a room, lowest first: a file includes only those below and its own.
const std::map<std::string, std::vector<std::string>> kFolderOrder = {
    {"kv", {"policy", "pages", "session", "tiers", "step", "store", "testing"}},
};

// "engine/eval" for engine/eval/x.h where the table has it, else "engine".
std::string RoomOf(const std::string& path) {
  const size_t first = path.find('/');
  if (first == std::string::npos) return path;
  const size_t second = path.find('/', first + 1);
  if (second != std::string::npos && kMayInclude.count(path.substr(0, second)) > 0) {
    return path.substr(0, second);
  }
  return path.substr(0, first);
}

std::string FolderOf(const std::string& path) { return fs::path(path).parent_path().string(); }

bool Allowed(const std::string& from, const std::string& to) {
  const std::string from_room = RoomOf(from), to_room = RoomOf(to);
  if (from_room == to_room || to_room == "headway") return true;
  if (kMayInclude.at(from_room).count(to_room) > 0) return true;
  const auto folders = kMayIncludeFolder.find(from_room);
  return folders != kMayIncludeFolder.end() && folders->second.count(FolderOf(to)) > 0;
}

// Where a file's folder stands in the order of its room; -1 where the room has none.
int RankOf(const std::string& path) {
  const auto order = kFolderOrder.find(RoomOf(path));
  if (order == kFolderOrder.end()) return -1;
  const std::vector<std::string>& folders = order->second;
  const auto at = std::find(folders.begin(), folders.end(), fs::path(FolderOf(path)).filename());
  EXPECT_NE(at, folders.end()) << path << " is in no folder of its room's order";
  return static_cast<int>(at - folders.begin());
}

bool Upward(const std::string& from, const std::string& to) {
  return RoomOf(from) == RoomOf(to) && RankOf(to) > RankOf(from);
}

TEST(Layers, IncludesFollowTheTable) {
  const fs::path src = fs::path(HEADWAY_SOURCE_DIR) / "src";
  const std::regex include("^\\s*#\\s*include\\s+\"([^\"]+)\"");
  int edges = 0;
  for (const auto& entry : fs::recursive_directory_iterator(src)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cc") continue;
    const std::string file = fs::relative(entry.path(), src).generic_string();
    // A test stands above its room: it may use support/ and any implementation to test against.
    if (file.ends_with("_test.cc")) continue;
    ASSERT_TRUE(kMayInclude.count(RoomOf(file)) > 0) << file << " is in no room of the table";
    std::ifstream in(entry.path());
    std::string line;
    std::smatch match;
    while (std::getline(in, line)) {
      if (!std::regex_search(line, match, include)) continue;
      const std::string target = match[1];
      if (target.starts_with("hwy/")) continue;  // Highway wants its headers in quotes
      ++edges;
      if (target.find('/') == std::string::npos) {
        ADD_FAILURE() << file << ": include \"" << target << "\" without its room";
        continue;
      }
      EXPECT_TRUE(Allowed(file, target)) << file << " may not include " << target;
      EXPECT_FALSE(Upward(file, target)) << file << " is below " << target;
    }
  }
  EXPECT_GT(edges, 100) << "the check read too few include lines to mean anything";
}

TEST(Layers, CudaHeadersStayInTheirFolders) {
  const fs::path src = fs::path(HEADWAY_SOURCE_DIR) / "src";
  const std::regex include("#\\s*include\\s+<(cuda|cublas|cudnn|nccl)[^>]*>");
  for (const auto& entry : fs::recursive_directory_iterator(src)) {
    if (!entry.is_regular_file()) continue;
    const std::string file = fs::relative(entry.path(), src).generic_string();
    if (file.find("cuda/") != std::string::npos || file.find("nccl/") != std::string::npos)
      continue;
    std::ifstream in(entry.path());
    std::string line;
    while (std::getline(in, line)) {
      EXPECT_FALSE(std::regex_search(line, include)) << file << ": " << line;
    }
  }
}

TEST(Layers, TheTableForbids) {
  EXPECT_FALSE(Allowed("plan/plan.cc", "kernels/kernels.h"));
  EXPECT_FALSE(Allowed("kv/store/store.cc", "model/model.h"));
  EXPECT_FALSE(Allowed("plan/cost.cc", "hardware/profiles.h"));
  EXPECT_FALSE(Allowed("hardware/meter.cc", "engine/paths/host_attention.h"));
  EXPECT_FALSE(Allowed("base/env.cc", "device/device.h"));
  EXPECT_FALSE(Allowed("text/tokenizer/bpe.cc", "model/config.h"));
  EXPECT_FALSE(Allowed("model/config.cc", "text/tokenizer/tokenizer.h"));
  EXPECT_FALSE(Allowed("cli/main.cc", "engine/executor.h"));
  EXPECT_TRUE(Allowed("cli/main.cc", "headway/engine.h"));
  EXPECT_TRUE(Upward("kv/pages/format.h", "kv/tiers/slabs.h"));
  EXPECT_TRUE(Upward("kv/store/store.cc", "kv/testing/memory_env.h"));
  EXPECT_FALSE(Upward("kv/tiers/slabs.h", "kv/pages/format.h"));
  EXPECT_FALSE(Upward("engine/blueprint.h", "kv/store/store.h"));
}

}  // namespace
}  // namespace headway
