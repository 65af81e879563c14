#include "model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <utility>
#include <vector>

#include "base/fault_env.h"
#include "base/half.h"
#include "base/test_dir.h"
#include "device/cpu/cpu_device.h"
#include "kernels/ref/ref_kernels.h"
#include "model/weights/open_weights.h"
#include "model/weights/safetensors.h"

namespace headway {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

const std::string kGolden = HEADWAY_SOURCE_DIR "/tests/golden/models/";

std::unique_ptr<Model> LoadGood(const std::string& folder) {
  Result<std::unique_ptr<Model>> model = Model::Load(Env::Default(), folder);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? std::move(*model) : nullptr;
}

// A copy of a golden model that a test may damage.
class ModelTest : public testing::Test {
 protected:
  std::string Copy(const std::string& name) {
    const fs::path to = fs::path(dir_.path()) / name;
    fs::copy(kGolden + name, to);
    return to;
  }

  // Replaces text in a file by text of the same length; true when it was there.
  static bool Patch(const std::string& path, const std::string& from, const std::string& to) {
    std::string content = *Env::Default()->ReadFile(path);
    const size_t at = content.find(from);
    if (at == std::string::npos || from.size() != to.size()) return false;
    content.replace(at, from.size(), to);
    std::ofstream(path, std::ios::binary) << content;
    return true;
  }

  // Replaces text in the header of model.safetensors; how often.
  static size_t Rename(const std::string& folder, const std::string& from, const std::string& to) {
    const std::string path = folder + "/model.safetensors";
    const std::string file = *Env::Default()->ReadFile(path);
    uint64_t bytes = 0;
    std::memcpy(&bytes, file.data(), sizeof(bytes));
    std::string header = file.substr(sizeof(bytes), bytes);
    size_t count = 0;
    for (size_t at = 0; (at = header.find(from, at)) != std::string::npos; ++count) {
      header.replace(at, from.size(), to);
      at += to.size();
    }
    const uint64_t renamed = header.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&renamed), sizeof(renamed));
    out << header << file.substr(sizeof(bytes) + bytes);
    return count;
  }

  // Overwrites the element at `index` of a tensor in model.safetensors.
  static void Poke(const std::string& folder, const std::string& tensor, int64_t index, DType dtype,
                   float value) {
    const std::string path = folder + "/model.safetensors";
    std::string content = *Env::Default()->ReadFile(path);
    Result<TensorMap> tensors = ParseSafetensors(std::as_bytes(std::span(content)), path);
    ASSERT_TRUE(tensors.ok());
    StoreFloat(content.data() + tensors->at(tensor).begin, index, dtype, value);
    std::ofstream(path, std::ios::binary) << content;
  }

  Status LoadError(const std::string& folder) {
    Result<std::unique_ptr<Model>> model = Model::Load(Env::Default(), folder);
    EXPECT_FALSE(model.ok());
    return model.status();
  }

  TestDir dir_;
};

TEST_F(ModelTest, CountsWeightBytes) {
  for (const char* name : {"llama31", "llama32-tied", "qwen3-bf16", "llama-f16", "qwen2", "opt",
                           "opt-projected", "opt-plain"}) {
    const std::unique_ptr<Model> model = LoadGood(kGolden + name);
    ASSERT_NE(model, nullptr);
    const WeightBytes counted = CountWeightBytes(model->config());
    EXPECT_EQ(counted.matrices, model->weight_bytes().matrices) << name;
    EXPECT_EQ(counted.vectors, model->weight_bytes().vectors) << name;
    const auto files = OpenWeights(*Env::Default(), kGolden + name);
    ASSERT_TRUE(files.ok());
    EXPECT_LT(counted.matrices, (*files)->file_bytes());
    EXPECT_GT(counted.matrices, (*files)->file_bytes() * 8 / 10);
  }
}

TEST_F(ModelTest, TakesItsDTypeFromTheWeights) {
  const std::string folder = Copy("llama-f16");
  ASSERT_TRUE(Patch(folder + "/config.json", "\"float16\"", "\"float32\""));
  EXPECT_EQ(LoadGood(folder)->shape().dtype, DType::kF16);
}

TEST_F(ModelTest, NamesATensorOfTheWrongShape) {
  const std::string folder = Copy("llama2");
  ASSERT_TRUE(
      Patch(folder + "/config.json", "\"intermediate_size\": 48", "\"intermediate_size\": 47"));
  const Status status = LoadError(folder);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_THAT(status.message(), HasSubstr("[48, 32]"));
  EXPECT_THAT(status.message(), HasSubstr("[47, 32]"));
}

TEST_F(ModelTest, NamesAMissingTensor) {
  const std::string folder = Copy("llama2");
  ASSERT_TRUE(Patch(folder + "/model.safetensors", "lm_head.weight", "lm_foot.weight"));
  const Status status = LoadError(folder);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("'lm_head.weight'"));
}

TEST_F(ModelTest, NamesWhatAnOptLacks) {
  const char* const names[] = {
      "model.decoder.embed_positions.weight", "model.decoder.project_in.weight",
      "model.decoder.project_out.weight", "model.decoder.layers.1.fc1.bias",
      "model.decoder.layers.0.final_layer_norm.bias"};
  for (const std::string name : names) {
    const std::string folder = Copy("opt-projected");
    std::string other = name;
    other[15] = '#';
    ASSERT_TRUE(Patch(folder + "/model.safetensors", name, other));
    const Status status = LoadError(folder);
    EXPECT_EQ(status.code(), StatusCode::kNotFound) << name;
    EXPECT_THAT(status.message(), HasSubstr("'" + name + "'"));
    fs::remove_all(folder);
  }
  const std::string folder = Copy("opt-projected");
  ASSERT_TRUE(Patch(folder + "/config.json", "\"max_position_embeddings\": 200",
                    "\"max_position_embeddings\": 201"));
  EXPECT_THAT(LoadError(folder).message(),
              HasSubstr("embed_positions.weight' has shape [202, 32]"));
}

// Some published files hold the model without its head, and names without the prefix.
TEST_F(ModelTest, LoadsAModelSavedWithoutItsHead) {
  for (const std::string name : {"opt", "llama32-tied"}) {
    const std::string folder = Copy(name);
    ASSERT_GT(Rename(folder, "\"model.", "\""), 10u);
    const std::string config = *Env::Default()->ReadFile(folder + "/config.json");
    std::ofstream(folder + "/config.json")
        << std::regex_replace(config, std::regex("ForCausalLM"), "Model");
    const std::unique_ptr<Model> bare = LoadGood(folder);
    const std::unique_ptr<Model> whole = LoadGood(kGolden + name);
    ASSERT_TRUE(bare != nullptr && whole != nullptr);
    EXPECT_EQ(bare->weight_bytes().total(), whole->weight_bytes().total());
  }
  // Not tied, and no head: there is nothing to make tokens with.
  const std::string folder = Copy("llama2");
  ASSERT_GT(Rename(folder, "\"model.", "\""), 10u);
  EXPECT_NE(LoadGood(folder), nullptr);
  ASSERT_EQ(Rename(folder, "lm_head.weight", "lm_foot.weight"), 1u);
  EXPECT_THAT(LoadError(folder).message(),
              HasSubstr("no tensor 'lm_head.weight' in its weights: they are the model without"));
}

TEST_F(ModelTest, SaysThatWeightsAreQuantised) {
  for (const std::string what : {"qweight", "qzeros", "scales"}) {
    const std::string folder = Copy("llama2");
    const std::string stem = "model.layers.1.mlp.up_proj.";
    ASSERT_EQ(Rename(folder, stem + "weight", stem + what), 1u);
    EXPECT_EQ(LoadError(folder).code(), StatusCode::kUnsupported);
    EXPECT_THAT(LoadError(folder).message(),
                HasSubstr("quantised weights (tensor '" + stem + what + "')"));
    fs::remove_all(folder);
  }
}

TEST_F(ModelTest, CountsWhatAStepReads) {
  const int64_t table = 160 * 32 * 4;
  const auto skipped = [](const Model& model) { return model.weight_bytes().row_tables; };
  EXPECT_EQ(skipped(*LoadGood(kGolden + "llama2")), table);
  EXPECT_EQ(skipped(*LoadGood(kGolden + "llama32-tied")), 0);
  EXPECT_EQ(skipped(*LoadGood(kGolden + "opt")), 202 * 32 * 4);
  EXPECT_EQ(skipped(*LoadGood(kGolden + "opt-plain")), table + 202 * 32 * 4);
}

TEST_F(ModelTest, NamesATensorOfAnUnknownDType) {
  const std::string folder = Copy("qwen3-bf16");
  ASSERT_TRUE(Patch(folder + "/model.safetensors", "\"BF16\"", "\"U16\" "));
  EXPECT_EQ(LoadError(folder).code(), StatusCode::kUnsupported);
  EXPECT_THAT(LoadError(folder).message(), HasSubstr("has dtype U16"));
}

TEST_F(ModelTest, RefusesAFolderWithoutAModel) {
  EXPECT_EQ(LoadError(dir_.path()).code(), StatusCode::kNotFound);
  EXPECT_THAT(LoadError(dir_.path()).message(), HasSubstr("no config.json"));
  std::ofstream(dir_.File("small-q4.gguf")) << "GGUF";
  EXPECT_EQ(LoadError(dir_.path()).code(), StatusCode::kUnsupported);
  EXPECT_THAT(LoadError(dir_.path()).message(),
              HasSubstr("small-q4.gguf: GGUF, which Headway does not read yet; get the model's"));
  const std::string folder = Copy("llama2");
  fs::resize_file(folder + "/model.safetensors", 5000);
  EXPECT_EQ(LoadError(folder).code(), StatusCode::kCorrupt);
  EXPECT_THAT(LoadError(folder).message(), HasSubstr("truncated"));
  EXPECT_THAT(LoadError(folder).message(), HasSubstr("download it again"));
}

TEST_F(ModelTest, FindsTheFirstTensorThatIsNotFinite) {
  ThreadPool pool(2);
  EXPECT_TRUE(LoadGood(kGolden + "llama2")->CheckFinite(&pool).ok());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  struct Case {
    const char* model;
    DType dtype;
    const char* tensor;
    int64_t index;
    float value;
  };
  for (const Case& c : std::vector<Case>{
           {"llama2", DType::kF32, "model.layers.1.mlp.up_proj.weight", 48 * 32 - 1, nan},
           {"llama-f16", DType::kF16, "lm_head.weight", 0, -infinity},
           {"qwen3-bf16", DType::kBF16, "model.embed_tokens.weight", 77, infinity},
           {"qwen3", DType::kF32, "model.layers.0.self_attn.q_norm.weight", 3, nan}}) {
    const std::string folder = Copy(c.model);
    Poke(folder, c.tensor, c.index, c.dtype, c.value);
    for (ThreadPool* used : {static_cast<ThreadPool*>(nullptr), &pool}) {
      const Status status = LoadGood(folder)->CheckFinite(used);
      EXPECT_EQ(status.code(), StatusCode::kCorrupt);
      EXPECT_THAT(status.message(), HasSubstr(std::string("'") + c.tensor + "'"));
    }
    fs::remove_all(folder);
  }
}

// What the files hold as one is copied out of them, and given back where the device has it.
TEST_F(ModelTest, FindsWhatIsNotFiniteInCopiesThatWereMoved) {
  const std::string folder = Copy("neox");
  const char* const name = "gpt_neox.layers.1.attention.query_key_value.weight";
  Poke(folder, name, 96 * 32 - 1, DType::kF32, std::numeric_limits<float>::infinity());
  const auto device = NewCpuDevice(Env::Default(), nullptr);
  Budget budget("memory", int64_t{1} << 30);
  const std::unique_ptr<Model> model = LoadGood(folder);
  EXPECT_THAT(model->CheckFinite(nullptr).message(), HasSubstr(name));
  ASSERT_TRUE(model->MoveTo(*device, {.device_budget = &budget}).ok());
  EXPECT_THAT(model->CheckFinite(nullptr).message(), HasSubstr(name));
}

// Rows that do not lie one after the other are copied where the host computes with them, and
// nowhere else: they may be a quarter of a model.
TEST_F(ModelTest, GathersRowsOnlyWhereTheHostComputes) {
  FaultEnv env(Env::Default());
  const auto device = NewCpuDevice(Env::Default(), nullptr);
  Budget budget("memory", int64_t{1} << 30);
  const auto map = [&] {
    return std::move(*Model::Map(&env, *ReadModelConfig(env, kGolden + "neox"),
                                 std::move(*OpenWeights(env, kGolden + "neox"))));
  };
  std::unique_ptr<Model> model = map();
  const int64_t vectors = env.LiveAllocations();
  ASSERT_TRUE(model->Gather().ok() && model->Gather().ok());
  EXPECT_EQ(env.LiveAllocations(), vectors + 2 * 3);  // q, k and v of two layers
  const std::vector<int> both = {0, 1}, last = {1};
  ASSERT_TRUE(
      model->MoveTo(*device, {.host_budget = &budget, .streamed = both, .on_disk = last}).ok());
  EXPECT_EQ(env.LiveAllocations(), vectors);
  model = map();
  ASSERT_TRUE(model->MoveTo(*device, {.host_budget = &budget, .streamed = last}).ok());
  EXPECT_EQ(env.LiveAllocations(), vectors + 3);
  model = map();
  ASSERT_TRUE(model->MoveTo(*device, {.device_budget = &budget}).ok());
  EXPECT_TRUE(model->Gather().ok());
  EXPECT_EQ(env.LiveAllocations(), vectors);
}

// The head of a tied model, the embedding, and a head that is stored beside it all give the logits
// of x; where both are stored the head is the stored one.
TEST_F(ModelTest, TiedHeads) {
  const std::string folder = Copy("llama2");
  const std::unique_ptr<Model> untied = LoadGood(folder);
  ASSERT_TRUE(Patch(folder + "/config.json", "\"tie_word_embeddings\": false",
                    "\"tie_word_embeddings\": true "));
  const std::unique_ptr<Model> tied = LoadGood(folder);
  const std::string header_only = Copy("llama32-tied");
  ASSERT_TRUE(Patch(header_only + "/model.safetensors", "\"model.embed_tokens.weight\"",
                    "           \"lm_head.weight\""));
  const std::unique_ptr<Model> head_is_embedding = LoadGood(header_only);
  const std::unique_ptr<Model> normal = LoadGood(kGolden + "llama32-tied");

  const auto device = NewCpuDevice(Env::Default(), nullptr);
  const auto stream = *device->NewStream(Lane::kCompute);
  const auto kernels = NewRefKernels();
  auto logits_of = [&](const Model& model, TokenId id) {
    std::vector<float> x(static_cast<size_t>(model.shape().d_model), NAN);
    std::vector<float> logits(static_cast<size_t>(model.shape().vocab), NAN);
    std::vector<std::byte> scratch(
        static_cast<size_t>(HeadScratchBytes(model.shape(), DType::kF32, 1)));
    Activations a;
    a.x = x.data();
    model.Embed(*kernels, *stream, {&id, 1}, {}, a);
    model.Head(*kernels, *stream, 1, x.data(), scratch.data(), logits.data());
    EXPECT_TRUE(stream->Synchronize().ok());
    return logits;
  };
  EXPECT_EQ(logits_of(*untied, 5), logits_of(*tied, 5));
  EXPECT_EQ(logits_of(*head_is_embedding, 5), logits_of(*normal, 5));
  EXPECT_NE(logits_of(*normal, 5), logits_of(*normal, 6));
}

TEST_F(ModelTest, PlacesActivationsApart) {
  ModelShape shape;
  shape.d_model = 24;
  shape.query_heads = 6;
  shape.kv_heads = 2;
  shape.head_dim = 10;
  for (int d_ff : {3, 1000}) {
    shape.d_ff = d_ff;
    const int64_t tokens = 7;
    const int64_t bytes = Activations::Bytes(shape, DType::kF32, tokens);
    auto* base = reinterpret_cast<std::byte*>(uintptr_t{4096});
    const Activations a = Activations::Place(shape, DType::kF32, tokens, base);
    // Parts that are alive together, each with its floats.
    using Part = std::pair<const void*, int64_t>;
    const Part always[] = {{a.x, 24}, {a.normed, 24}, {a.cos, 5}, {a.sin, 5}};
    const Part attention[] = {{a.q, a.qkv_stride}, {a.o, 60}};
    EXPECT_EQ(a.qkv_stride, 100);
    EXPECT_EQ(static_cast<float*>(a.q) + 60, a.k);
    EXPECT_EQ(static_cast<float*>(a.k) + 20, a.v);
    const Part mlp[] = {{a.gate, d_ff}, {a.up, d_ff}};
    for (std::span<const Part> phase :
         {std::span<const Part>(attention), std::span<const Part>(mlp)}) {
      std::vector<Part> parts(std::begin(always), std::end(always));
      parts.insert(parts.end(), phase.begin(), phase.end());
      std::sort(parts.begin(), parts.end());
      int64_t end = 4096;
      for (const auto& [data, width] : parts) {
        const auto begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data));
        EXPECT_GE(begin, end);
        EXPECT_EQ(begin % 64, 0);
        end = begin + tokens * width * 4;
      }
      EXPECT_LE(end, 4096 + bytes);
    }
  }
}

// A run of layers is drawn as the whole model has it, each layer other than the one before.
TEST_F(ModelTest, RandomRunsHaveTheLayersOfTheWhole) {
  const ModelConfig config = LoadGood(kGolden + "qwen3-bf16")->config();
  using Drawn = std::map<std::pair<int, arch::TensorId>, std::vector<std::byte>>;
  const auto draw = [](const ModelConfig& of) {
    Drawn drawn;
    Result<std::unique_ptr<Model>> model = Model::Random(Env::Default(), of, 1, nullptr);
    EXPECT_TRUE(model.ok()) << model.status().message();
    for (const WeightPart& part : (*model)->weights().parts()) {
      if (!part.InLayerBlock()) continue;
      drawn[{of.first_layer + part.layer, part.id}].assign(part.on_host,
                                                           part.on_host + part.bytes());
    }
    return drawn;
  };
  const Drawn whole = draw(config);
  for (int begin = 0; begin < config.shape.layers; ++begin) {
    const Drawn run = draw(LayersOf(config, begin, config.shape.layers - begin));
    EXPECT_FALSE(run.empty());
    for (const auto& [place, bytes] : run) {
      EXPECT_EQ(bytes, whole.at(place)) << place.first << " " << place.second;
      if (place.first == 0) continue;
      EXPECT_NE(bytes, whole.at({place.first - 1, place.second}));
    }
  }
}

// A shard is drawn by itself: with the embedding that all have, other matrices than another shard,
// and zeros in the place of heads that it lacks.
TEST_F(ModelTest, RandomShardsHaveOneEmbedding) {
  const ModelConfig config = LoadGood(kGolden + "qwen3-bf16")->config();
  const int layers = config.shape.layers, heads = config.shape.kv_heads;
  std::vector<std::vector<HeadSet>> placement(2, std::vector<HeadSet>(static_cast<size_t>(layers)));
  for (int layer = 0; layer < layers; ++layer) {
    for (int head = 0; head < heads; ++head) {
      placement[layer == 0 ? 0 : head % 2][static_cast<size_t>(layer)].heads.push_back(head);
    }
  }
  std::vector<std::vector<std::byte>> embeddings, queries;
  for (const Shard& shard : CutShards(config.shape, placement)) {
    Result<std::unique_ptr<Model>> model =
        Model::Random(Env::Default(), config, 1, nullptr, &shard);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ((*model)->weight_bytes().total(), CountWeightBytes(config, &shard).total());
    for (const WeightPart& part : (*model)->weights().parts()) {
      const auto rows = static_cast<size_t>(part.rows);
      const std::vector<std::byte> bytes(part.on_host, part.on_host + part.bytes());
      const size_t row = rows == 0 ? 0 : bytes.size() / rows;
      const auto zeros = static_cast<size_t>(part.zero_rows) * row;
      EXPECT_EQ(std::count(bytes.end() - static_cast<ptrdiff_t>(zeros), bytes.end(), std::byte{}),
                static_cast<ptrdiff_t>(zeros));
      if (part.layer == kNoLayer && part.is_matrix()) embeddings.push_back(bytes);
      if (part.layer == 1 && part.is_matrix() && queries.size() < embeddings.size()) {
        queries.push_back(bytes);
      }
    }
  }
  ASSERT_EQ(embeddings.size(), 2u);
  ASSERT_EQ(queries.size(), 2u);
  EXPECT_EQ(embeddings[0], embeddings[1]);
  EXPECT_NE(queries[0], queries[1]);
}

TEST_F(ModelTest, RandomModelsAreNormalAndDependOnTheSeedOnly) {
  ModelConfig config = LoadGood(kGolden + "qwen3-bf16")->config();
  config.shape.vocab = 5000;
  ThreadPool pool(2);
  Budget budget("memory", int64_t{1} << 40);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    config.shape.dtype = dtype;
    auto make = [&](uint64_t seed, ThreadPool* used) {
      Result<std::unique_ptr<Model>> model = Model::Random(Env::Default(), config, seed, used);
      EXPECT_TRUE(model.ok()) << model.status().message();
      return std::move(*model);
    };
    const auto device = NewCpuDevice(Env::Default(), nullptr);
    const auto stream = *device->NewStream(Lane::kCompute);
    std::vector<TokenId> ids(5000);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>(i);
    const auto embeddings = [&](const Model& model) {
      std::vector<float> x(ids.size() * 32, NAN);
      Activations a;
      a.x = x.data();
      model.Embed(*NewRefKernels(), *stream, ids, {}, a);
      EXPECT_TRUE(stream->Synchronize().ok());
      return x;
    };
    // The matrices of its last layer.
    const auto block = [&](Model& model) {
      const int last = config.shape.layers - 1;
      EXPECT_TRUE(model.MoveTo(*device, {.host_budget = &budget, .streamed = {&last, 1}}).ok());
      const std::span<const std::byte> bytes = model.HostBlock(last);
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    const std::unique_ptr<Model> model = make(1, nullptr);
    const std::vector<float> x = embeddings(*model);
    EXPECT_EQ(x, embeddings(*make(1, &pool)));
    EXPECT_NE(x, embeddings(*make(2, &pool)));
    EXPECT_EQ(block(*make(1, nullptr)), block(*make(1, &pool)));
    EXPECT_NE(block(*make(1, nullptr)), block(*make(2, &pool)));
    EXPECT_EQ(model->weight_bytes().total(), CountWeightBytes(config).total());
    EXPECT_TRUE(model->CheckFinite(&pool).ok());

    double sum = 0.0;
    double squares = 0.0;
    for (float value : x) {
      sum += value;
      squares += double{value} * value;
    }
    const auto n = static_cast<double>(x.size());
    const double deviation = std::sqrt(squares / n);
    // The table behind them has 2^16 entries: its own mean and deviation are off by 1 / 256.
    EXPECT_NEAR(sum / n, 0.0, 5 * 0.02 / 256);
    EXPECT_NEAR(deviation, 0.02, 5 * 0.02 / 256);
  }
}

TEST_F(ModelTest, SurvivesEveryFault) {
  FaultEnv env(Env::Default());
  for (int64_t n = 1;; ++n) {
    ASSERT_LT(n, 100);
    env.FailAt(n);
    Result<std::unique_ptr<Model>> model = Model::Load(&env, kGolden + "llama31");
    if (env.faults() == 0) {
      ASSERT_TRUE(model.ok());
      const ModelConfig config = (*model)->config();
      env.FailAt(1);
      EXPECT_EQ(Model::Random(&env, config, 1, nullptr).status().code(), StatusCode::kIo);
      break;
    }
    EXPECT_EQ(model.status().code(), StatusCode::kIo);
    EXPECT_EQ(env.LiveMaps() + env.LiveAllocations(), 0);
  }
  EXPECT_EQ(env.LiveMaps() + env.LiveAllocations(), 0);
}

}  // namespace
}  // namespace headway
