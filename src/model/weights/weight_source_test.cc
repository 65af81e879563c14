#include "model/weights/weight_source.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/test_dir.h"
#include "model/testing/memory_source.h"
#include "model/weights/safetensors.h"

namespace headway {
namespace {

// Up to three intervals of [0, extent), some of them empty.
std::vector<Interval> Intervals(int64_t extent, Random& random) {
  std::vector<Interval> intervals;
  int64_t at = 0;
  for (int64_t i = 1 + random.Below(3); i > 0; --i) {
    const int64_t begin = at + random.Below(extent - at + 1);
    at = begin + random.Below(extent - begin + 1);
    intervals.push_back({begin, at});
  }
  return intervals;
}

bool IsIn(const std::vector<Interval>& intervals, int64_t at) {
  for (const Interval& interval : intervals) {
    if (interval.begin <= at && at < interval.end) return true;
  }
  return false;
}

// The offsets of the slice's bytes in the whole tensor, element by element.
std::vector<int64_t> OffsetsOf(const SourceTensor& tensor, const Slice& slice) {
  const int64_t columns = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
  const int64_t width = RowBytes(tensor.type, 1);
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i < tensor.bytes; ++i) {
    const int64_t element = i / width;
    if (!IsIn(slice.rows, element / columns)) continue;
    if (slice.columns.empty() || IsIn(slice.columns, element % columns)) offsets.push_back(i);
  }
  return offsets;
}

// A file with one tensor behind another, so that nothing is aligned.
void WriteFile(const std::string& path, const std::string& dtype, const std::vector<int64_t>& shape,
               std::span<const std::byte> bytes) {
  std::string extents;
  for (const int64_t extent : shape)
    extents += (extents.empty() ? "" : ",") + std::to_string(extent);
  const std::string header =
      R"({"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"t":{"dtype":")" + dtype +
      R"(","shape":[)" + extents + R"(],"data_offsets":[3,)" + std::to_string(3 + bytes.size()) +
      "]}}";
  const uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << header << "xxx";
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

TEST(WeightSourceTest, ReadsRowsAndColumnsAsTheWholeHasThem) {
  const TestDir dir;
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    const WeightType type = random.Below(2) == 0 ? WeightType::kF32 : WeightType::kBF16;
    std::vector<int64_t> shape = {1 + random.Below(20)};
    if (random.Below(4) != 0) shape.push_back(1 + random.Below(30));
    const bool is_matrix = shape.size() == 2;
    std::vector<float> values;
    for (int64_t i = 0; i < shape[0] * (is_matrix ? shape[1] : 1); ++i) {
      values.push_back(random.Normal());
    }
    testing::MemorySource memory;
    memory.Add("t", shape, values, type);
    const std::span<const std::byte> whole = memory.file(0).bytes();
    WriteFile(dir.File("model.safetensors"), type == WeightType::kF32 ? "F32" : "BF16", shape,
              whole);
    const Result<Safetensors> files = Safetensors::Open(*Env::Default(), dir.path());
    ASSERT_TRUE(files.ok()) << files.status().message();
    Slice slice = {Intervals(shape[0], random), {}};
    if (is_matrix && random.Below(3) != 0) slice.columns = Intervals(shape[1], random);

    const std::vector<int64_t> offsets = OffsetsOf(*memory.Find("t"), slice);
    std::vector<std::byte> expected;
    for (const int64_t offset : offsets) expected.push_back(whole[static_cast<size_t>(offset)]);
    std::vector<std::byte> got(expected.size());
    ASSERT_TRUE(files->Read(*files->Find("t"), slice, got.data()).ok());
    ASSERT_EQ(got, expected);
    got.assign(got.size(), std::byte{0});
    ASSERT_TRUE(memory.Read(*memory.Find("t"), slice, got.data()).ok());
    ASSERT_EQ(got, expected);
    ASSERT_EQ(memory.touched("t"), std::set<int64_t>(offsets.begin(), offsets.end()));
  }
}

TEST(WeightSourceTest, RefusesRowsAndColumnsThatAreNotThere) {
  testing::MemorySource source;
  source.Add("m", {4, 6}, std::vector<float>(24), WeightType::kF32);
  source.Add("v", {4}, std::vector<float>(4), WeightType::kF32);
  source.Add("cube", {2, 2, 2}, std::vector<float>(8), WeightType::kF32);
  struct Case {
    const char* name;
    Slice slice;
    const char* message;
  };
  for (const Case& c : {
           Case{"m", {{{0, 5}}, {}}, "memory: a tensor of shape [4, 6] has no rows [0, 5)"},
           Case{"m", {{{-1, 2}}, {}}, "memory: a tensor of shape [4, 6] has no rows [-1, 2)"},
           Case{"m", {{{3, 2}}, {}}, "memory: a tensor of shape [4, 6] has no rows [3, 2)"},
           Case{"m", {{{2, 3}, {1, 2}}, {}}, "memory: a tensor of shape [4, 6] has no rows [1, 2)"},
           Case{
               "m", {{{0, 4}}, {{2, 7}}}, "memory: a tensor of shape [4, 6] has no columns [2, 7)"},
           Case{"v", {{{0, 4}}, {{0, 1}}}, "memory: a tensor of shape [4] has no columns [0, 1)"},
           Case{"cube", {{{0, 1}}, {}}, "memory: a tensor of shape [2, 2, 2] has no rows [0, 1)"},
       }) {
    std::byte to[96] = {};
    const Status status = source.Read(*source.Find(c.name), c.slice, to);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), c.message);
    EXPECT_TRUE(source.touched(c.name).empty());
  }
}

}  // namespace
}  // namespace headway
