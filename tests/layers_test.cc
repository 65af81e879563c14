// Holds the include lines of src/ to the table of rooms in ARCHITECTURE.md, and to the order of
// the parts of a room.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "support/sources.h"

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
    {"parallel", {"base", "device", "kernels"}},
    {"engine",
     {"base", "device", "kernels", "kv", "text", "model", "hardware", "plan", "parallel"}},
    {"engine/eval", {"base"}},
    {"cli", {"base"}},
};
// Single folders that a room may use beside.
const std::map<std::string, std::set<std::string>> kMayIncludeFolder = {
    {"cli", {"engine/eval", "engine/eval/files", "engine/eval/tasks"}}};

// A part of a room: folders, and files by their path without extension. The longest path that
// leads to a file says which part it is in.
using Part = std::vector<std::string>;
// The parts of a room, lowest first: a file includes those of its own part and of lower levels.
// Parts of one level know nothing of each other.
const std::map<std::string, std::vector<std::vector<Part>>> kOrder = {
    {"base", {{{"base"}}, {{"base/json"}}}},
    {"device", {{{"device"}}, {{"device/cpu"}, {"device/cuda"}}}},
    {"kernels",
     {{{"kernels"}}, {{"kernels/ref"}, {"kernels/cpu"}, {"kernels/cuda"}}, {{"kernels/backend"}}}},
    {"kv",
     {{{"kv/policy"}},
      {{"kv/pages"}},
      {{"kv/session"}},
      {{"kv/tiers"}},
      {{"kv/step"}},
      {{"kv/store"}}}},
    {"text", {{{"text/unicode"}}, {{"text/tokenizer"}, {"text/template"}}}},
    // A configuration names its family, and a family reads its part of the configuration.
    {"model",
     {{{"model/config", "model/config_reader", "model/foreign", "model/rope_config", "model/arch"}},
      {{"model/weights"}},
      {{"model"}}}},
    {"parallel",
     {{{"parallel"}},
      {{"parallel/thread"}, {"parallel/mpi"}},
      {{"parallel/peer"}, {"parallel/nccl"}},
      {{"parallel/local"}}}},
    {"engine", {{{"engine/step"}, {"engine/drafts"}}, {{"engine/paths"}}, {{"engine"}}}},
    {"engine/eval", {{{"engine/eval"}}, {{"engine/eval/files"}, {"engine/eval/tasks"}}}},
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

// What only tests and fuzzers use.
bool IsForTests(const std::string& path) {
  const std::string stem = fs::path(path).stem().string();
  return path.find("/testing/") != std::string::npos || path.starts_with("support/") ||
         stem.ends_with("_test") || stem.ends_with("_testing") || stem.ends_with("_fuzz");
}

// Where a file stands in the order of its room.
struct Place {
  int level = -1;  // none
  int part = -1;

  bool operator==(const Place&) const = default;
};

Place PlaceOf(const std::string& file) {
  const auto order = kOrder.find(RoomOf(file));
  if (order == kOrder.end()) return {};
  Place place;
  size_t longest = 0;
  for (size_t level = 0; level < order->second.size(); ++level) {
    for (size_t part = 0; part < order->second[level].size(); ++part) {
      for (const std::string& path : order->second[level][part]) {
        const bool leads =
            file.starts_with(path) && (file[path.size()] == '/' || file[path.size()] == '.');
        if (!leads || path.size() <= longest) continue;
        longest = path.size();
        place = {static_cast<int>(level), static_cast<int>(part)};
      }
    }
  }
  EXPECT_GE(place.level, 0) << file << " is in no part of its room's order";
  return place;
}

// Whether an include within a room goes to a lower level, or stays in its part.
bool InOrder(const std::string& from, const std::string& to) {
  if (RoomOf(from) != RoomOf(to)) return true;
  const Place above = PlaceOf(from), below = PlaceOf(to);
  return below.level < above.level || below == above;
}

// A source of src/ -> what it includes in quotes, both from src/ on.
std::map<std::string, std::vector<std::string>> Includes() {
  const std::regex include("^\\s*#\\s*include\\s+\"([^\"]+)\"");
  std::map<std::string, std::vector<std::string>> includes;
  for (const std::string& path : testing::SourceFiles({"src"})) {
    std::vector<std::string>& targets = includes[path.substr(std::string("src/").size())];
    std::ifstream in(testing::SourcePath(path));
    std::smatch match;
    for (std::string line; std::getline(in, line);) {
      if (!std::regex_search(line, match, include)) continue;
      const std::string target = match[1];
      // Highway wants its headers in quotes.
      if (!target.starts_with("hwy/")) targets.push_back(target);
    }
  }
  return includes;
}

TEST(Layers, IncludesFollowTheTable) {
  size_t edges = 0;
  for (const auto& [file, targets] : Includes()) {
    // A test stands above its room: it may use support/ and any implementation to test against.
    if (IsForTests(file)) continue;
    ASSERT_TRUE(kMayInclude.count(RoomOf(file)) > 0) << file << " is in no room of the table";
    edges += targets.size();
    for (const std::string& target : targets) {
      if (target.find('/') == std::string::npos) {
        ADD_FAILURE() << file << ": include \"" << target << "\" without its room";
        continue;
      }
      EXPECT_TRUE(Allowed(file, target)) << file << " may not include " << target;
      EXPECT_FALSE(IsForTests(target)) << file << " includes " << target << ", made for tests";
      if (!IsForTests(target)) {
        EXPECT_TRUE(InOrder(file, target)) << file << " is not above " << target;
      }
    }
  }
  EXPECT_GT(edges, 1000u) << "the check read too few include lines to mean anything";
}

// What is made for tests keeps to the table, too, but for the room's order.
TEST(Layers, HelpersOfTestsFollowTheTable) {
  for (const auto& [file, targets] : Includes()) {
    if (!IsForTests(file) || fs::path(file).stem().string().ends_with("_test")) continue;
    for (const std::string& target : targets) {
      if (target.starts_with("support/")) continue;
      EXPECT_TRUE(Allowed(file, target)) << file << " may not include " << target;
    }
  }
}

// Looks for a way from `file` back to one of `way`.
using Graph = std::map<std::string, std::vector<std::string>>;
bool FindCycle(const Graph& graph, const std::string& file, std::set<std::string>* done,
               std::vector<std::string>* way) {
  if (std::find(way->begin(), way->end(), file) != way->end()) {
    way->push_back(file);
    return true;
  }
  const auto found = graph.find(file);
  if (found == graph.end() || !done->insert(file).second) return false;
  way->push_back(file);
  for (const std::string& target : found->second) {
    if (FindCycle(graph, target, done, way)) return true;
  }
  way->pop_back();
  return false;
}

std::vector<std::string> CycleOf(const Graph& graph) {
  std::set<std::string> done;
  for (const auto& [file, targets] : graph) {
    std::vector<std::string> way;
    if (FindCycle(graph, file, &done, &way)) return way;
  }
  return {};
}

TEST(Layers, NoFileIncludesItself) {
  EXPECT_EQ(CycleOf(Includes()), std::vector<std::string>());
  EXPECT_EQ(CycleOf({{"a", {"b", "c"}}, {"b", {"c"}}, {"c", {"d"}}}), std::vector<std::string>());
  EXPECT_EQ(CycleOf({{"a", {"b"}}, {"b", {"d", "c"}}, {"c", {"b"}}}),
            (std::vector<std::string>{"a", "b", "c", "b"}));
}

TEST(Layers, CudaHeadersStayInTheirFolders) {
  const std::regex include("#\\s*include\\s+<(cuda|cublas|cudnn|nccl)[^>]*>");
  const std::string folders[] = {"cuda/", "parallel/peer/", "parallel/nccl/"};
  for (const std::string& file : testing::SourceFiles({"src"})) {
    if (std::any_of(std::begin(folders), std::end(folders), [&](const std::string& folder) {
          return file.find(folder) != std::string::npos;
        })) {
      continue;
    }
    std::ifstream in(testing::SourcePath(file));
    for (std::string line; std::getline(in, line);) {
      EXPECT_FALSE(std::regex_search(line, include)) << file << ": " << line;
    }
  }
}

TEST(Layers, TheTableForbids) {
  EXPECT_FALSE(Allowed("plan/plan.cc", "kernels/kernels.h"));
  EXPECT_FALSE(Allowed("kv/store/store.cc", "model/model.h"));
  EXPECT_FALSE(Allowed("plan/cost.cc", "hardware/profiles.h"));
  EXPECT_FALSE(Allowed("parallel/communicator.h", "plan/assignment.h"));
  EXPECT_FALSE(Allowed("model/model.cc", "parallel/communicator.h"));
  EXPECT_FALSE(Allowed("hardware/meter.cc", "engine/paths/host_attention.h"));
  EXPECT_FALSE(Allowed("base/env.cc", "device/device.h"));
  EXPECT_FALSE(Allowed("text/tokenizer/bpe.cc", "model/config.h"));
  EXPECT_FALSE(Allowed("model/config.cc", "text/tokenizer/tokenizer.h"));
  EXPECT_FALSE(Allowed("cli/main.cc", "engine/executor.h"));
  EXPECT_TRUE(Allowed("cli/main.cc", "headway/engine.h"));
}

TEST(Layers, TheOrderForbids) {
  EXPECT_FALSE(InOrder("kv/pages/format.h", "kv/tiers/slabs.h"));
  EXPECT_TRUE(InOrder("kv/tiers/slabs.h", "kv/pages/format.h"));
  EXPECT_TRUE(InOrder("engine/blueprint.h", "kv/store/store.h"));
  EXPECT_FALSE(InOrder("engine/step/board.h", "engine/paths/path.h"));
  EXPECT_FALSE(InOrder("engine/paths/host.cc", "engine/executor.h"));
  EXPECT_TRUE(InOrder("engine/executor.cc", "engine/paths/path.h"));
  EXPECT_FALSE(InOrder("text/template/lexer.cc", "text/tokenizer/text.h"));
  EXPECT_FALSE(InOrder("kernels/kernels.h", "kernels/ref/ref_kernels.h"));
  EXPECT_FALSE(InOrder("kernels/cuda/gemm.cu", "kernels/cpu/cpu_kernels.h"));
  EXPECT_TRUE(InOrder("kernels/backend/backend.cc", "kernels/cpu/cpu_kernels.h"));
  EXPECT_TRUE(InOrder("model/arch/family.h", "model/config.h"));
  EXPECT_FALSE(InOrder("model/arch/family.h", "model/config_identity.h"));
  EXPECT_FALSE(InOrder("model/arch/run.cc", "model/weights/shard.h"));
  EXPECT_TRUE(IsForTests("kv/testing/memory_env.h"));
  EXPECT_TRUE(IsForTests("kernels/cpu/linear_testing.h"));
  EXPECT_FALSE(IsForTests("kernels/kernels.h"));
}

}  // namespace
}  // namespace headway
