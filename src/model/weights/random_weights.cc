// Weights that are drawn, and come from no file.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/random.h"
#include "model/weights/chunks.h"
#include "model/weights/model_weights.h"
#include "model/weights/normal_table.h"

namespace headway {
namespace {

constexpr float kDeviation = 0.02f;
constexpr int64_t kChunk = int64_t{1} << 18;  // elements with a generator of their own

// Of a part whose rows and columns all lie behind one another.
void ClearZeros(const WeightPart& part, std::byte* at) {
  const int64_t row = RowBytes(part.type, part.columns);
  const int64_t zeros = RowBytes(part.type, part.zero_columns);
  for (int64_t i = 0; zeros > 0 && i < part.rows; ++i) {
    std::memset(at + (i + 1) * row - zeros, 0, static_cast<size_t>(zeros));
  }
  const int64_t rows = part.zero_rows;
  std::memset(at + (part.rows - rows) * row, 0, static_cast<size_t>(rows * row));
}

}  // namespace

Result<std::unique_ptr<ModelWeights>> ModelWeights::Random(Env* env, const ModelConfig& config,
                                                           const arch::Program& program,
                                                           uint64_t seed, ThreadPool* pool,
                                                           const Shard* shard) {
  WeightTable table(config, program, /*source=*/nullptr);
  if (shard != nullptr) table.Cut(program, config.shape, *shard);
  std::unique_ptr<ModelWeights> weights(new ModelWeights(env, nullptr, std::move(table)));
  if (Status s = weights->Draw(config, seed, pool, shard); !s.ok()) return s;
  return weights;
}

Status ModelWeights::Draw(const ModelConfig& config, uint64_t seed, ThreadPool* pool,
                          const Shard* shard) {
  const ModelShape& shape = config.shape;
  seed_ = seed;
  int64_t rest = 0;  // what is in no layer's block
  for (WeightPart& part : table_.parts()) {
    part.type = WeightTypeOf(shape.dtype);
    if (!part.InLayerBlock()) rest += RoundUp(part.bytes(), kWeightAlignment);
  }
  table_.LayOutBlocks();
  bytes_ = table_.Count();
  Result<std::byte*> memory = Own(rest, kNoLayer);
  if (!memory.ok()) return memory.status();
  std::byte* next_of_rest = *memory;
  // Each layer by itself, so that MoveTo can give them back one by one.
  std::vector<std::byte*> next_of_layer;
  for (int layer = 0; layer < shape.layers; ++layer) {
    memory = Own(RoundUp(BlockBytes(layer), int64_t{kDirectAlignment}), layer);
    if (!memory.ok()) return memory.status();
    next_of_layer.push_back(*memory);
  }

  const NormalTable table(shape.dtype, kDeviation);
  headway::Random seeds(seed);
  // A run of layers has the matrices that the whole model has there.
  int64_t before = config.first_layer * std::ranges::count(table_.parts(), 0, &WeightPart::layer);
  for (WeightPart& part : table_.parts()) {
    for (; part.layer == 0 && before > 0; --before) seeds.Next();
    uint64_t part_seed = seeds.Next();
    // Shards have other parts of a matrix, or all of it.
    const bool cut = part.count() < part.file_rows * part.file_columns || part.zero_rows > 0 ||
                     part.zero_columns > 0;
    if (shard != nullptr && cut) {
      part_seed += static_cast<uint64_t>(shard->inner.begin) << 32;
    }
    std::byte*& next =
        part.InLayerBlock() ? next_of_layer[static_cast<size_t>(part.layer)] : next_of_rest;
    std::byte* const at = std::exchange(next, next + RoundUp(part.bytes(), kWeightAlignment));
    if (part.is_matrix()) {
      const auto width = static_cast<int64_t>(DTypeBytes(shape.dtype));
      ForEachChunk(pool, part.count(), kChunk, [&](int64_t begin, int64_t end) {
        table.Fill(part_seed + static_cast<uint64_t>(begin), at + begin * width, end - begin);
      });
      ClearZeros(part, at);
    } else {
      // Norms of one and biases of zero leave activations as a trained model has them.
      std::fill_n(reinterpret_cast<float*>(at), part.rows,
                  part.use == arch::Use::kNormWeight ? 1.0f : 0.0f);
    }
    part.on_host = at;
    table_.Point(part, at);
  }
  return OkStatus();
}

}  // namespace headway
