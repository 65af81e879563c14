#include "model/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/fault_env.h"
#include "base/random.h"
#include "base/test_dir.h"

namespace headway {
namespace {

using testing::HasSubstr;

// A file with this header, whatever it says, and `data_bytes` bytes 0, 1, 2, ... behind it.
std::string MakeFile(const std::string& header, size_t data_bytes) {
  std::string file(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  file += header;
  for (size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

Result<TensorMap> Parse(const std::string& file) {
  return ParseSafetensors(std::as_bytes(std::span(file)), "file");
}

void Write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

const char kTwoTensors[] = R"({"__metadata__":{"format":"pt"},)"
                           R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
                           R"("a":{"shape":[2],"data_offsets":[0,4],"dtype":"BF16"}})";

TEST(SafetensorsTest, ReadsAHeader) {
  const std::string file = MakeFile(kTwoTensors, 28);
  Result<TensorMap> tensors = Parse(file);
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  ASSERT_EQ(tensors->size(), 2u);
  const auto data = static_cast<int64_t>(file.size() - 28);
  EXPECT_EQ(tensors->at("a").dtype, "BF16");
  EXPECT_EQ(tensors->at("a").begin, data);
  EXPECT_EQ(tensors->at("a").end, data + 4);
  EXPECT_EQ(tensors->at("b").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(tensors->at("b").end, data + 28);
}

TEST(SafetensorsTest, ReadsOddButLegalHeaders) {
  for (const auto& [header, bytes] : std::vector<std::pair<std::string, size_t>>{
           {"{}", 0},
           {"{}      ", 0},  // padded, as writers do for alignment
           {R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4},
           {R"({"e":{"dtype":"F16","shape":[0,5],"data_offsets":[0,0]},)"
            R"("f":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})",
            2},
           {R"({"four bits":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]}})", 3},
           {R"({"from later":{"dtype":"X9","shape":[3],"data_offsets":[0,5]}})", 5},
       }) {
    Result<TensorMap> tensors = Parse(MakeFile(header, bytes));
    EXPECT_TRUE(tensors.ok()) << header << ": " << tensors.status().message();
  }
}

TEST(SafetensorsTest, RefusesLyingHeaders) {
  struct Case {
    std::string header;
    size_t data_bytes;
    std::string message;
  };
  auto one = [](const std::string& fields) { return R"({"t":{)" + fields + "}}"; };
  const std::vector<Case> cases = {
      {"", 0, "not a JSON object"},
      {"[]", 0, "not a JSON object"},
      {" {}", 0, "not a JSON object"},
      {"{", 0, "not valid JSON"},
      {"{}x", 0, "not valid JSON"},
      {"{\"\xff\":{}}", 0, "not valid JSON"},
      {R"({"t":3})", 0, "tensor 't': a number"},
      {R"({"t":null})", 0, "tensor 't': a null"},
      {R"({"t":[]})", 0, "tensor 't': a list"},
      {R"({"t":{}})", 0, "tensor 't': needs dtype"},
      {one(R"("dtype":"F32","shape":[1])"), 4, "needs dtype"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1)"), 4, "unknown key 'more'"},
      {one(R"("dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4])"), 4, "twice"},
      {one(R"("dtype":{},"shape":[1],"data_offsets":[0,4])"), 4, "an object"},
      {one(R"("dtype":["F32"],"shape":[1],"data_offsets":[0,4])"), 4, "a list"},
      {one(R"("dtype":"F32","shape":"1","data_offsets":[0,4])"), 4, "'shape' is not a list"},
      {one(R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])"), 4, "a list"},
      {one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4, "negative"},
      {one(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4, "whole"},
      {one(R"("dtype":"F32","shape":[true],"data_offsets":[0,4])"), 4, "boolean"},
      {one(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4])"), 4, "too large"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), 4, "two numbers"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,2,4])"), 4, "two numbers"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4, "lies at"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 3, "lies at"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[9223372036854775807,9223372036854775807])"),
       4, "lies at"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4, "shape [2] do not"},
      {one(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])"), 2, "do not"},
      // 2^31 * 2^31 * 32 bits wrap to 0 in 64 bits.
      {one(R"("dtype":"F32","shape":[2147483648,2147483648,4],"data_offsets":[0,0])"), 0, "do not"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 8, "4 bytes behind the last"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), 8, "hole"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       6, "overlaps"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       8, "tensor 'a': listed twice"},
      {R"({"__metadata__":{"a":1}})", 0, "number"},
      {R"({"__metadata__":{"a":{}}})", 0, "an object"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", 0, "twice"},
  };
  for (const Case& c : cases) {
    Result<TensorMap> tensors = Parse(MakeFile(c.header, c.data_bytes));
    ASSERT_FALSE(tensors.ok()) << c.header;
    EXPECT_EQ(tensors.status().code(), StatusCode::kCorrupt) << c.header;
    EXPECT_THAT(tensors.status().message(), HasSubstr(c.message)) << c.header;
    EXPECT_EQ(tensors.status().message().find('\n'), std::string::npos);
  }
}

TEST(SafetensorsTest, RefusesALyingHeaderLength) {
  const std::string file = MakeFile(kTwoTensors, 28);
  for (uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{file.size() - 7},
                          uint64_t{100'000'001}, ~uint64_t{0}, uint64_t{1} << 63}) {
    std::string lying = file;
    std::memcpy(lying.data(), &length, 8);
    EXPECT_FALSE(Parse(lying).ok()) << length;
  }
}

TEST(SafetensorsTest, KnowsAGitLfsPointer) {
  const auto tensors = Parse("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n");
  ASSERT_FALSE(tensors.ok());
  EXPECT_THAT(tensors.status().message(), HasSubstr("git lfs pull"));
}

TEST(SafetensorsTest, RefusesEveryTruncation) {
  const std::string file = MakeFile(kTwoTensors, 28);
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(Parse(file.substr(0, size)).ok()) << size;
  }
}

TEST(SafetensorsTest, StaysInsideOfDamagedFiles) {
  const std::string file = MakeFile(kTwoTensors, 28);
  const uint64_t seed = 4;
  SCOPED_TRACE(seed);
  Random random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = file;
    for (int64_t flips = 1 + random.Below(3); flips > 0; --flips) {
      damaged[static_cast<size_t>(random.Below(static_cast<int64_t>(file.size())))] =
          static_cast<char>(random.Next());
    }
    Result<TensorMap> tensors = Parse(damaged);
    if (!tensors.ok()) continue;
    for (const auto& [name, tensor] : *tensors) {
      EXPECT_LE(tensor.begin, tensor.end);
      EXPECT_LE(tensor.end, static_cast<int64_t>(damaged.size()));
    }
  }
}

class SafetensorsFolderTest : public testing::Test {
 protected:
  // Two shards, of tensors "a" and "b", and the index over them.
  void WriteShards() {
    const std::string a = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    const std::string b = R"({"b":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})";
    Write(dir_.File("one.safetensors"), MakeFile(a, 4));
    Write(dir_.File("two.safetensors"), MakeFile(b, 8));
    WriteIndex(R"({"a":"one.safetensors","b":"two.safetensors"})");
  }
  void WriteIndex(const std::string& map) {
    Write(dir_.File("model.safetensors.index.json"),
          R"({"metadata":{"total_size":12},"weight_map":)" + map + "}");
  }
  Status OpenError() {
    Result<Safetensors> weights = Safetensors::Open(*Env::Default(), dir_.path());
    EXPECT_FALSE(weights.ok());
    return weights.status();
  }

  TestDir dir_;
};

TEST_F(SafetensorsFolderTest, FindsUnalignedTensors) {
  // A header of odd length puts every tensor at an odd address.
  std::string header = kTwoTensors;
  if (header.size() % 2 == 0) header += " ";
  Write(dir_.File("model.safetensors"), MakeFile(header, 28));
  Result<Safetensors> weights = Safetensors::Open(*Env::Default(), dir_.path());
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->Names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(weights->Has("a"));
  EXPECT_FALSE(weights->Has("c"));
  Result<SourceTensor> b = weights->Find("b");
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->type, WeightType::kF32);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{2, 3}));
  const std::span<const std::byte> bytes = weights->AllBytes(*b);
  ASSERT_EQ(bytes.size(), 24u);
  EXPECT_EQ(std::to_integer<int>(bytes[0]), 4);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % 2, 1u);
  const std::span<const std::byte> some = weights->Bytes(*b, 5, 7);
  EXPECT_EQ(some.data(), bytes.data() + 5);
  EXPECT_EQ(some.size(), 7u);
  EXPECT_EQ(weights->Find("c").status().code(), StatusCode::kNotFound);
}

TEST_F(SafetensorsFolderTest, FindsTensorsInShards) {
  WriteShards();
  Result<Safetensors> weights = Safetensors::Open(*Env::Default(), dir_.path());
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_TRUE(weights->Find("a").ok());
  const Status b = weights->Find("b").status();
  EXPECT_EQ(b.code(), StatusCode::kUnsupported);
  EXPECT_THAT(b.message(), HasSubstr("tensor 'b' has dtype I64"));
}

TEST_F(SafetensorsFolderTest, NamesMissingShards) {
  WriteShards();
  ASSERT_TRUE(Env::Default()->Remove(dir_.File("two.safetensors")).ok());
  const Status status = OpenError();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("1 of 2 shards missing: two.safetensors"));
}

TEST_F(SafetensorsFolderTest, RefusesAnIndexThatLies) {
  WriteShards();
  WriteIndex(R"({"a":"one.safetensors","c":"two.safetensors"})");
  EXPECT_THAT(OpenError().message(), HasSubstr("two.safetensors: tensor 'c' is not in it"));
  for (const char* name : {"../one.safetensors", "/etc/passwd", "..", ".", "", "a\\\\b"}) {
    WriteIndex(std::string(R"({"a":")") + name + R"("})");
    EXPECT_THAT(OpenError().message(), HasSubstr("not the name of a file beside it")) << name;
  }
  for (const char* map : {"{}", "[]", "3", R"({"a":1})"}) {
    WriteIndex(map);
    EXPECT_EQ(OpenError().code(), StatusCode::kCorrupt) << map;
  }
  Write(dir_.File("model.safetensors.index.json"), "{");
  EXPECT_THAT(OpenError().message(), HasSubstr("not valid JSON"));
}

TEST_F(SafetensorsFolderTest, SaysWhyAFolderHasNoWeights) {
  EXPECT_EQ(OpenError().code(), StatusCode::kNotFound);
  EXPECT_THAT(OpenError().message(), HasSubstr("download the model's weights"));
  const std::pair<const char*, const char*> cases[] = {
      {"pytorch_model.bin", "save them as safetensors"},
      {"pytorch_model-00001-of-00002.bin", "save them as safetensors"},
      {"consolidated.safetensors", "the publisher's own format"},
      {"consolidated.00.pth", "get the model's Hugging Face folder"},
      {"adapter_model.safetensors", "an adapter, not a model"},
      {"name.Q4_K_M.gguf", "GGUF, which Headway does not read yet"}};
  for (const auto& [file, message] : cases) {
    Write(dir_.File(file), "");
    const Status status = OpenError();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << file;
    EXPECT_THAT(status.message(), HasSubstr(dir_.File(file) + ": "));
    EXPECT_THAT(status.message(), HasSubstr(message));
    ASSERT_TRUE(Env::Default()->Remove(dir_.File(file)).ok());
  }
  Write(dir_.File("consolidated.safetensors"), "");
  Write(dir_.File("model-00001-of-00002.safetensors"), "");
  Write(dir_.File("model-00002-of-00002.safetensors"), "");
  EXPECT_EQ(OpenError().code(), StatusCode::kNotFound);
  EXPECT_THAT(OpenError().message(),
              HasSubstr("has model-00001-of-00002.safetensors, model-00002-of-00002.safetensors "
                        "without model.safetensors.index.json"));
}

TEST_F(SafetensorsFolderTest, ReportsAFailedListing) {
  FaultEnv env(Env::Default());
  env.FailAt(1);
  EXPECT_EQ(Safetensors::Open(env, dir_.path()).status().code(), StatusCode::kIo);
}

TEST_F(SafetensorsFolderTest, SurvivesEveryFault) {
  WriteShards();
  FaultEnv env(Env::Default());
  for (int64_t n = 1;; ++n) {
    ASSERT_LT(n, 100);
    env.FailAt(n);
    Result<Safetensors> weights = Safetensors::Open(env, dir_.path());
    if (env.faults() == 0) {
      EXPECT_TRUE(weights.ok());
      break;
    }
    EXPECT_EQ(weights.status().code(), StatusCode::kIo);
    EXPECT_EQ(env.LiveMaps(), 0);
  }
}

}  // namespace
}  // namespace headway
