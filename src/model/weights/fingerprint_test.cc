#include "model/weights/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/test_dir.h"
#include "device/budget.h"
#include "device/cpu/cpu_device.h"
#include "model/model.h"
#include "model/weights/open_weights.h"

namespace headway {
namespace {

using testing::HasSubstr;

class Bytes : public MappedFile {
 public:
  explicit Bytes(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes() const override { return bytes_; }
  const FileIdentity& identity() const override { return identity_; }
  void Forget(std::span<const std::byte>) const override {}

 private:
  const std::span<const std::byte> bytes_;
  const FileIdentity identity_;
};

// Tensors of several pieces, of a part of one, and of none; one byte anywhere counts.
TEST(Fingerprint, CoversEveryByteWithAnyNumberOfThreads) {
  std::vector<std::byte> data((size_t{9} << 20) + 12345);
  Random random(4);
  for (size_t i = 0; i < data.size(); i += 97) data[i] = static_cast<std::byte>(random.Next());
  const Bytes file(data);
  const std::span<const std::byte> all(data);
  const std::vector<UsedTensor> tensors = {{"a", &file, all.first(size_t{9} << 20)},
                                           {"b", &file, {}},
                                           {"c", &file, all.subspan(size_t{9} << 20)}};
  const uint64_t original = HashTensors(tensors, nullptr);
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(HashTensors(tensors, &pool), original);
  }
  for (int i = 0; i < 40; ++i) {
    const auto at = static_cast<size_t>(random.Below(static_cast<int64_t>(data.size())));
    data[at] ^= std::byte{1};
    EXPECT_NE(HashTensors(tensors, nullptr), original) << at;
    data[at] ^= std::byte{1};
  }
  std::vector<UsedTensor> other = tensors;
  other[1].header = "B";
  EXPECT_NE(HashTensors(other, nullptr), original);
  std::swap(other[0].bytes, other[2].bytes);
  other[1].header = "b";
  EXPECT_NE(HashTensors(other, nullptr), original);
  EXPECT_EQ(HashTensors(tensors, nullptr), original);
}

class ModelFingerprint : public testing::Test {
 protected:
  std::unique_ptr<Model> Load() {
    Result<std::unique_ptr<Model>> model = Model::Load(env_, folder_);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.ok() ? std::move(*model) : nullptr;
  }
  void SetUp() override {
    folder_ = dir_.File("model");
    std::filesystem::copy(HEADWAY_SOURCE_DIR "/tests/golden/models/llama2", folder_);
    file_ = folder_ + "/model.safetensors";
  }
  void Flip(int64_t at) { FlipBit(file_, at); }

  Env* const env_ = Env::Default();
  TestDir dir_;
  std::string folder_, file_;
};

TEST_F(ModelFingerprint, AFlippedByteOfAnyTensorCounts) {
  const uint64_t original = Load()->Fingerprint(nullptr);
  const Result<std::unique_ptr<WeightSource>> weights = OpenWeights(*env_, folder_);
  ASSERT_TRUE(weights.ok());
  Random random(5);
  for (const std::string& name : (*weights)->Names()) {
    const SourceTensor tensor = *(*weights)->Find(name);
    const int64_t at = tensor.offset + random.Below(tensor.bytes);
    Flip(at);
    EXPECT_NE(Load()->Fingerprint(nullptr), original) << name << " at " << at;
    Flip(at);
  }
  EXPECT_EQ(Load()->Fingerprint(nullptr), original);
}

TEST_F(ModelFingerprint, IsTheSameWhereverTheWeightsAre) {
  const auto device = NewCpuDevice(env_, nullptr);
  Budget budget("memory", int64_t{1} << 40);
  const std::unique_ptr<Model> model = Load();
  const uint64_t original = model->Fingerprint(nullptr);
  const std::vector<int> streamed = {0, 1};
  const std::vector<int> on_disk = {1};
  const Status moved = model->MoveTo(
      *device,
      {.device_budget = &budget, .host_budget = &budget, .streamed = streamed, .on_disk = on_disk});
  ASSERT_TRUE(moved.ok()) << moved.message();
  EXPECT_EQ(model->Fingerprint(nullptr), original);
}

TEST_F(ModelFingerprint, TheKeyFollowsTheFilesAndTheTensorsInUse) {
  const std::unique_ptr<Model> model = Load();
  const std::string key = model->FilesKey();
  EXPECT_EQ(Load()->FilesKey(), key);
  EXPECT_TRUE(model->CheckFilesUnchanged().ok());
  // Another byte, and the old times: what a careful patch leaves.
  const auto modified = std::filesystem::last_write_time(file_);
  Flip(10000);
  std::filesystem::last_write_time(file_, modified);
  EXPECT_NE(Load()->FilesKey(), key);
  const Status status = model->CheckFilesUnchanged();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_THAT(status.message(), HasSubstr(file_ + " was changed"));
  // Another file in its place.
  const std::unique_ptr<Model> before = Load();
  std::filesystem::copy_file(file_, file_ + ".new");
  std::filesystem::rename(file_ + ".new", file_);
  EXPECT_FALSE(before->CheckFilesUnchanged().ok());
  EXPECT_NE(Load()->FilesKey(), before->FilesKey());
  std::filesystem::remove(file_);
  EXPECT_FALSE(before->CheckFilesUnchanged().ok());
  EXPECT_NE(before->Fingerprint(nullptr), 0u);  // it is still mapped
}

TEST_F(ModelFingerprint, OfRandomWeightsIsThatOfTheSeed) {
  ModelConfig config = Load()->config();
  const auto make = [&](uint64_t seed) {
    return std::move(*Model::Random(env_, config, seed, nullptr));
  };
  const std::unique_ptr<Model> model = make(1);
  EXPECT_EQ(model->FilesKey(), "");
  EXPECT_TRUE(model->CheckFilesUnchanged().ok());
  EXPECT_EQ(model->Fingerprint(nullptr), make(1)->Fingerprint(nullptr));
  EXPECT_NE(model->Fingerprint(nullptr), make(2)->Fingerprint(nullptr));
  ++config.shape.vocab;
  EXPECT_NE(model->Fingerprint(nullptr), make(1)->Fingerprint(nullptr));
}

}  // namespace
}  // namespace headway
