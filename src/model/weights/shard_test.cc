#include "model/weights/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "device/cpu/cpu_device.h"
#include "kernels/ref/ref_kernels.h"
#include "model/arch/family.h"
#include "model/model.h"
#include "model/testing/memory_source.h"

namespace headway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Source = testing::MemorySource;

ModelConfig Config() {
  ModelConfig config;
  config.shape = {2, 24, 8, 4, 6, 20, 50, DType::kBF16, true};
  config.windows = {0, 0};
  config.qkv_bias = config.o_bias = config.mlp_bias = config.qk_norm = true;
  return config;
}

// One whose queries, keys and values are one tensor of its files.
ModelConfig FusedConfig() {
  ModelConfig config;
  config.family = &arch::kGptNeoX;
  config.shape = {2, 24, 4, 4, 6, 20, 50, DType::kBF16, false};
  config.windows = {0, 0};
  config.layer_norm = config.parallel_residual = true;
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
  return config;
}

// Elements that differ from tensor to tensor and from place to place.
std::unique_ptr<Source> MakeSource(const ModelConfig& config) {
  auto source = std::make_unique<Source>();
  Random random(2);
  const auto add = [&](const arch::TensorList& tensors, const std::string& prefix) {
    for (const arch::TensorSpec& spec : tensors.specs) {
      if (spec.fused.at > 0) continue;
      std::vector<float> values;
      std::vector<int64_t> shape = {spec.rows * spec.fused.tensors};
      const int64_t count = shape[0] * std::max<int64_t>(spec.columns, 1);
      for (int64_t i = 0; i < count; ++i) values.push_back(random.Normal());
      if (spec.columns != 0) shape.push_back(spec.columns);
      source->Add(spec.has_prefix ? prefix + spec.name : spec.name, shape, values,
                  WeightType::kBF16);
    }
  };
  const arch::Program program = config.family->build(config);
  add(program.tensors, program.prefix);
  for (size_t i = 0; i < program.layers.size(); ++i) {
    add(program.layers[i].tensors, program.prefix + "layers." + std::to_string(i) + ".");
  }
  return source;
}

// Two heads apart from one another, and the two others; cuts of d_ff and of the vocabulary that
// divide nothing.
const Shard kFirst = {{{{0, 2}}, {{0, 2}}}, 2, {0, 7}, {0, 31}, arch::SumRole::kFirst};
const Shard kSecond = {{{{1, 3}}, {{1, 3}}}, 2, {7, 20}, {31, 50}, arch::SumRole::kOther};
// One whose layers have unequal numbers of heads, with zeros in the place of the others, and what
// it leaves, more than it can: the second layer's last head is nobody's.
const Shard kUneven = {{{{0, 1, 3}}, {}}, 3, {0, 7}, {0, 31}, arch::SumRole::kFirst};
const Shard kUnevenRest = {{{{2}}, {{0, 1, 2}}}, 3, {7, 20}, {31, 50}, arch::SumRole::kOther};

struct Loaded {
  std::unique_ptr<Model> model;
  const Source* source = nullptr;
};

Loaded Load(const Shard* shard, const ModelConfig& config = Config()) {
  std::unique_ptr<Source> source = MakeSource(config);
  const Source* const seen = source.get();
  Result<std::unique_ptr<Model>> model =
      Model::Load(Env::Default(), config, std::move(source), shard);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return {std::move(*model), seen};
}

// The elements of a part by their row and column in the whole.
std::map<std::pair<int64_t, int64_t>, float> Elements(const Model& model, const WeightPart& part) {
  std::map<std::pair<int64_t, int64_t>, float> elements;
  const arch::TensorViews views = model.weights().Views(part.layer, nullptr);
  const std::vector<Interval> whole = {{0, std::max<int64_t>(part.file_columns, 1)}};
  int64_t index = 0;
  const auto next = [&] {
    const int64_t at = index++;
    return part.is_matrix() ? LoadAsFloat(views.Matrix(part.id).data, at, part.dtype())
                            : views.Vector(part.id)[at];
  };
  for (const Interval& rows : part.slice.rows) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (const Interval& columns : part.slice.columns.empty() ? whole : part.slice.columns) {
        for (int64_t column = columns.begin; column < columns.end; ++column) {
          elements[{row, column}] = next();
        }
      }
      for (int64_t i = 0; i < part.zero_columns; ++i) EXPECT_EQ(next(), 0.0f) << part.name;
    }
  }
  for (int64_t i = 0; i < part.zero_rows * std::max<int64_t>(part.columns, 1); ++i) {
    EXPECT_EQ(next(), 0.0f) << part.name;
  }
  EXPECT_EQ(index, part.count()) << part.name;
  return elements;
}

TEST(ShardTest, SlicesAreIntervalsOfHeads) {
  const ModelShape shape = Config().shape;
  const Shard shard = {{{{0, 1, 3}}, {{2}}}, 3, {5, 9}, {10, 20}};
  const arch::TensorSpec spec = {.rows = 48, .columns = 24, .split = arch::Split::kQueryRows};
  const auto slice = [&](arch::Split split) {
    arch::TensorSpec other = spec;
    other.split = split;
    return PartOf(other, shape, shard, 0).slice;
  };
  EXPECT_THAT(slice(arch::Split::kQueryRows).rows, ElementsAre(Interval{0, 24}, Interval{36, 48}));
  EXPECT_THAT(slice(arch::Split::kKvRows).rows, ElementsAre(Interval{0, 12}, Interval{18, 24}));
  EXPECT_THAT(slice(arch::Split::kInnerRows).rows, ElementsAre(Interval{5, 9}));
  EXPECT_THAT(slice(arch::Split::kQueryColumns).columns,
              ElementsAre(Interval{0, 24}, Interval{36, 48}));
  EXPECT_THAT(slice(arch::Split::kInnerColumns).columns, ElementsAre(Interval{5, 9}));
  EXPECT_THAT(slice(arch::Split::kWhole).rows, ElementsAre(Interval{0, 48}));
  EXPECT_TRUE(slice(arch::Split::kWhole).columns.empty());
  EXPECT_THAT(slice(arch::Split::kVocabRows).rows, ElementsAre(Interval{10, 20}));
  const ModelShape part = ShardShape(shape, shard);
  EXPECT_EQ(part.kv_heads, 3);
  EXPECT_EQ(part.query_heads, 6);
  EXPECT_EQ(part.d_ff, 4);
}

// How many of the parts of a model the two shards have a part each.
size_t ExpectTogetherToBeTheWhole(const ModelConfig& config) {
  const Loaded whole = Load(nullptr, config), first = Load(&kFirst, config),
               second = Load(&kSecond, config);
  EXPECT_EQ(first.model->shape().kv_heads, 2);
  EXPECT_EQ(second.model->shape().d_ff, 13);
  EXPECT_LT(first.model->BlockBytes(0), whole.model->BlockBytes(0));
  size_t split = 0;
  for (size_t i = 0; i < whole.model->weights().parts().size(); ++i) {
    const WeightPart& part = whole.model->weights().parts()[i];
    const auto all = Elements(*whole.model, part);
    auto joined = Elements(*first.model, first.model->weights().parts()[i]);
    const auto rest = Elements(*second.model, second.model->weights().parts()[i]);
    split += joined.size() < all.size() ? 1 : 0;
    // Nothing of what is split is held twice.
    if (joined.size() < all.size()) {
      EXPECT_EQ(joined.size() + rest.size(), all.size()) << part.name;
    }
    joined.insert(rest.begin(), rest.end());
    EXPECT_EQ(joined, all) << part.name;
  }
  return split;
}

TEST(ShardTest, TogetherTheyAreTheWhole) {
  // q, k, v, o, gate, up, down; biases of all but o and down; the head
  EXPECT_EQ(ExpectTogetherToBeTheWhole(Config()), 2u * 12u + 1);
  // q, k, v, o and both of the MLP; biases of all but o and the second; the head
  EXPECT_EQ(ExpectTogetherToBeTheWhole(FusedConfig()), 2u * 10u + 1);
}

// Where a layer has fewer heads than others its tensors end with zeros, wherever they are.
TEST(ShardTest, HeadsThatALayerHasNotAreZeros) {
  for (const ModelConfig& config : {Config(), FusedConfig()}) {
    const Loaded whole = Load(nullptr, config);
    for (const Shard& shard : {kUneven, kUnevenRest}) {
      const Loaded loaded = Load(&shard, config);
      const auto device = NewCpuDevice(Env::Default(), nullptr);
      Budget budget("memory", int64_t{1} << 40);
      for (const bool moved : {false, true}) {
        if (moved) {
          const WeightPlacement to = {.device_budget = &budget, .host_budget = &budget};
          ASSERT_TRUE(loaded.model->MoveTo(*device, to).ok());
        }
        for (size_t i = 0; i < whole.model->weights().parts().size(); ++i) {
          const WeightPart& part = loaded.model->weights().parts()[i];
          const auto all = Elements(*whole.model, whole.model->weights().parts()[i]);
          for (const auto& [place, value] : Elements(*loaded.model, part)) {
            EXPECT_EQ(value, all.at(place)) << part.name;
          }
        }
      }
    }
  }
}

TEST(ShardTest, CutsCoverAllAndTheFirstIsTheLargest) {
  ModelShape shape = Config().shape;
  for (const int d_ff : {5, 20, 1024, 14336, 27648}) {
    shape.d_ff = d_ff;
    for (const int ranks : {1, 2, 3, 5}) {
      const std::vector<std::vector<HeadSet>> heads(static_cast<size_t>(ranks),
                                                    {HeadSet{{0}}, HeadSet{}});
      const std::vector<Shard> shards = CutShards(shape, heads);
      ASSERT_EQ(std::ssize(shards), ranks);
      int64_t inner = 0, vocab = 0;
      for (const Shard& shard : shards) {
        EXPECT_EQ(shard.inner.begin, inner);
        EXPECT_EQ(shard.vocab.begin, vocab);
        EXPECT_GT(shard.inner.size(), 0);
        EXPECT_GT(shard.vocab.size(), 0);
        EXPECT_LE(shard.inner.size(), shards[0].inner.size());
        EXPECT_LE(shard.vocab.size(), shards[0].vocab.size());
        inner = shard.inner.end;
        vocab = shard.vocab.end;
      }
      EXPECT_EQ(inner, d_ff);
      EXPECT_EQ(vocab, shape.vocab);
    }
  }
}

// The head's rows, of a table that is the embedding, too.
TEST(ShardTest, TiedHeadsAreRowsOfTheEmbedding) {
  ModelConfig config = Config();
  config.tied_embeddings = true;
  for (const bool stores_head : {false, true}) {
    std::unique_ptr<Source> source = MakeSource(config);
    source->Rename(stores_head ? "model.embed_tokens.weight" : "lm_head.weight", "unused");
    Result<std::unique_ptr<Model>> model =
        Model::Load(Env::Default(), config, std::move(source), &kSecond);
    ASSERT_TRUE(model.ok()) << model.status().message();
    const arch::TensorViews views = (*model)->weights().Views(kNoLayer, nullptr);
    const arch::Program program = config.family->build(config);
    const WeightView table = views.Matrix(program.embedding), head = views.Matrix(program.head);
    EXPECT_EQ(table.out, 50);
    EXPECT_EQ(head.out, 19);
    EXPECT_EQ(head.data, table.data + 31 * 24 * 2);
  }
}

// Head by head the rows of q, of k and of v, as GPT-NeoX has them.
TEST(ShardTest, TensorsThatFilesHoldAsOneAreTakenApart) {
  const Loaded loaded = Load(nullptr, FusedConfig());
  std::set<int64_t> rows;
  int parts = 0;
  for (const WeightPart& part : loaded.model->weights().parts()) {
    if (part.name != "gpt_neox.layers.1.attention.query_key_value.weight") continue;
    EXPECT_EQ(part.file_rows, 3 * 24);
    EXPECT_EQ(part.rows, 24);
    ASSERT_EQ(part.slice.rows.size(), 4u);
    EXPECT_EQ(part.slice.rows[2], (Interval{(2 * 3 + parts) * 6, (2 * 3 + parts + 1) * 6}));
    for (const Interval& of_head : part.slice.rows) {
      for (int64_t row = of_head.begin; row < of_head.end; ++row) rows.insert(row);
    }
    ++parts;
  }
  EXPECT_EQ(parts, 3);
  EXPECT_EQ(rows.size(), 3u * 24u);
}

// The bytes of a tensor that a slice consists of.
std::set<int64_t> BytesOf(const WeightPart& part) {
  std::set<int64_t> bytes;
  const int64_t width = part.is_matrix() ? part.file_columns : 1;
  const std::vector<Interval> whole = {{0, width}};
  for (const Interval& rows : part.slice.rows) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (const Interval& columns : part.slice.columns.empty() ? whole : part.slice.columns) {
        for (int64_t i = (row * width + columns.begin) * 2; i < (row * width + columns.end) * 2;
             ++i) {
          bytes.insert(i);
        }
      }
    }
  }
  return bytes;
}

TEST(ShardTest, NothingElseIsTouched) {
  for (const Shard& shard : {kFirst, kSecond}) {
    for (const ModelConfig& config : {Config(), FusedConfig()}) {
      const Loaded loaded = Load(&shard, config);
      std::map<std::string, std::set<int64_t>> wanted;
      for (const WeightPart& part : loaded.model->weights().parts()) {
        wanted[part.name].merge(BytesOf(part));
      }
      // Rows that do not follow one another, and columns, are copied; runs of rows are mapped.
      for (const auto& [name, bytes] : wanted) {
        EXPECT_TRUE(loaded.source->touched(name) == bytes) << name;
      }
    }
  }
  // A bias of a sum belongs to one of them.
  const Loaded loaded = Load(&kSecond);
  EXPECT_TRUE(loaded.source->touched("model.layers.0.mlp.down_proj.bias").empty());
  EXPECT_FALSE(loaded.source->touched("model.layers.0.mlp.up_proj.bias").empty());
}

TEST(ShardTest, RunsOfRowsAreMapped) {
  const Shard shard = {{{{1, 2}}, {{1, 2}}}, 2, {3, 9}, {0, 50}};
  const Loaded loaded = Load(&shard);
  int mapped = 0;
  for (const WeightPart& part : loaded.model->weights().parts()) {
    if (part.InLayerBlock()) mapped += part.mapped ? 1 : 0;
  }
  EXPECT_EQ(mapped, 2 * 5);  // all but o and down
}

// The queries, keys and values of a shard's heads are, bit for bit, those of the whole model,
// wherever its weights are.
void ExpectHeadsToComputeWhatTheyDoInTheWhole(const ModelConfig& config) {
  const auto device = NewCpuDevice(Env::Default(), nullptr);
  const auto stream = *device->NewStream(Lane::kCompute);
  const auto kernels = NewRefKernels();
  Budget budget("memory", int64_t{1} << 40);
  const std::vector<TokenId> ids = {4, 49, 0};
  const auto tokens = static_cast<int64_t>(ids.size());
  // [T, heads, head_dim] of q, k and v.
  const auto run = [&](const Model& model, const std::byte* block) {
    const ModelShape& shape = model.shape();
    std::vector<float> memory(
        static_cast<size_t>(Activations::Bytes(shape, DType::kF32, tokens) / 4 + 16),
        std::numeric_limits<float>::quiet_NaN());
    void* start = memory.data();
    size_t space = memory.size() * sizeof(float);
    EXPECT_NE(std::align(64, space - 64, start, space), nullptr);
    const Activations a =
        Activations::Place(shape, DType::kF32, tokens, static_cast<std::byte*>(start));
    model.Embed(*kernels, *stream, ids, {}, a);
    model.Qkv(*kernels, *stream, {1, tokens, block}, a, Normed::kDropped);
    EXPECT_TRUE(stream->Synchronize().ok());
    const auto* qkv = static_cast<const float*>(a.q);
    return std::vector<float>(qkv, qkv + tokens * a.qkv_stride);
  };
  const std::vector<float> all = run(*Load(nullptr, config).model, nullptr);
  const ModelShape whole = config.shape;
  const size_t dim = static_cast<size_t>(whole.head_dim),
               group = static_cast<size_t>(whole.group());
  const size_t width = all.size() / static_cast<size_t>(tokens);
  for (const Shard& shard : {kFirst, kSecond}) {
    std::vector<size_t> heads;  // of the whole's q, k and v side by side
    const auto kv_heads = static_cast<size_t>(whole.kv_heads);
    for (const int head : shard.kv_heads[1].heads) {
      for (size_t i = 0; i < group; ++i) heads.push_back(static_cast<size_t>(head) * group + i);
    }
    for (size_t part : {group * kv_heads, (group + 1) * kv_heads}) {
      for (const int head : shard.kv_heads[1].heads)
        heads.push_back(part + static_cast<size_t>(head));
    }
    std::vector<float> expected;
    for (size_t t = 0; t < ids.size(); ++t) {
      for (const size_t head : heads) {
        const auto from = all.begin() + static_cast<ptrdiff_t>(t * width + head * dim);
        expected.insert(expected.end(), from, from + static_cast<ptrdiff_t>(dim));
      }
    }
    const Loaded loaded = Load(&shard, config);
    EXPECT_EQ(run(*loaded.model, nullptr), expected);
    const int streamed = 1;
    ASSERT_TRUE(
        loaded.model
            ->MoveTo(*device,
                     {.device_budget = &budget, .host_budget = &budget, .streamed = {&streamed, 1}})
            .ok());
    EXPECT_EQ(run(*loaded.model, loaded.model->HostBlock(1).data()), expected);
    EXPECT_TRUE(loaded.model->CheckFinite(nullptr).ok());
  }
}

TEST(ShardTest, HeadsComputeWhatTheyDoInTheWhole) {
  ExpectHeadsToComputeWhatTheyDoInTheWhole(Config());
  ExpectHeadsToComputeWhatTheyDoInTheWhole(FusedConfig());
}

// A session belongs to the model, however many ranks hold it.
TEST(ShardTest, FingerprintsAreThoseOfTheWhole) {
  const uint64_t whole = Load(nullptr).model->Fingerprint(nullptr);
  EXPECT_EQ(Load(&kFirst).model->Fingerprint(nullptr), whole);
  EXPECT_EQ(Load(&kSecond).model->Fingerprint(nullptr), whole);
  EXPECT_EQ(Load(&kFirst, FusedConfig()).model->Fingerprint(nullptr),
            Load(nullptr, FusedConfig()).model->Fingerprint(nullptr));
}

}  // namespace
}  // namespace headway
