#include "model/weights/weight_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "kernels/weight_code.h"
#include "model/weights/disk_block.h"

namespace headway {

namespace {

const arch::TensorSpec& SpecOf(const arch::Program& program, const WeightPart& part) {
  const arch::TensorList& list = part.layer == kNoLayer
                                     ? program.tensors
                                     : program.layers[static_cast<size_t>(part.layer)].tensors;
  return list.specs[static_cast<size_t>(part.id)];
}

}  // namespace

bool WeightPart::MatchesShape(const std::vector<int64_t>& shape) const {
  return is_matrix() ? shape == std::vector<int64_t>{file_rows, file_columns}
                     : shape == std::vector<int64_t>{file_rows};
}

WeightTable::WeightTable(const ModelConfig& config, const arch::Program& program,
                         const WeightSource* source)
    : embedding_(program.embedding), head_(program.head) {
  const auto spec = [&](arch::TensorId id) -> const arch::TensorSpec& {
    return program.tensors.specs[static_cast<size_t>(id)];
  };
  const auto has = [&](const std::string& name) { return source != nullptr && source->Has(name); };
  const bool bare = has(program.bare_prefix + spec(embedding_).name);
  const std::string& prefix = bare ? program.bare_prefix : program.prefix;
  // A folder may hold both tables though the config ties them. Then the head is the one that is
  // called so: where the two are equal it makes no difference, and where not, Transformers does not
  // tie them either. It may also hold the head alone, which then is the embedding, too.
  const bool stores_head = has(spec(head_).name);
  const bool tied = config.tied_embeddings;
  has_head_ = stores_head || !tied;
  has_embedding_ = has(prefix + spec(embedding_).name) || !stores_head || !tied;

  lists_.resize(program.layers.size() + 1);
  AddParts(program.tensors, kNoLayer, prefix);
  const auto behind = std::partition_point(
      parts_.begin(), parts_.end(),
      [&](const WeightPart& part) { return static_cast<size_t>(part.id) < program.front; });
  std::vector<WeightPart> last(std::make_move_iterator(behind),
                               std::make_move_iterator(parts_.end()));
  parts_.erase(behind, parts_.end());
  for (size_t i = 0; i < program.layers.size(); ++i) {
    const auto layer = static_cast<int>(i);
    AddParts(program.layers[i].tensors, layer,
             fmt::format("{}{}{}.", prefix, program.layer_prefix, config.first_layer + layer));
  }
  std::move(last.begin(), last.end(), std::back_inserter(parts_));
}

void WeightTable::AddParts(const arch::TensorList& tensors, int layer, const std::string& prefix) {
  List& list = ListOf(layer);
  list.matrices.resize(tensors.specs.size());
  list.vectors.resize(tensors.specs.size());
  list.in_block.resize(tensors.specs.size());
  for (size_t i = 0; i < tensors.specs.size(); ++i) {
    const arch::TensorSpec& spec = tensors.specs[i];
    const auto id = static_cast<arch::TensorId>(i);
    if (layer == kNoLayer && id == embedding_ && !has_embedding_) continue;
    if (layer == kNoLayer && id == head_ && !has_head_) continue;
    parts_.push_back({.name = spec.has_prefix ? prefix + spec.name : spec.name,
                      .layer = layer,
                      .id = id,
                      .use = spec.use,
                      .first_of_file = spec.fused.at == 0,
                      .file_rows = spec.rows * spec.fused.tensors,
                      .file_columns = spec.columns,
                      .slice = WholeSlice(spec),
                      .rows = spec.rows,
                      .columns = spec.columns});
  }
}

void WeightTable::Cut(const arch::Program& program, const ModelShape& whole, const Shard& shard) {
  head_rows_ = shard.vocab;
  for (WeightPart& part : parts_) {
    if (IsBoth(part)) continue;  // rows of ids are looked up in it
    HeldPart held = part.use == arch::Use::kRowTable && !shard.embeds
                        ? HeldPart{.columns = part.columns}
                        : PartOf(SpecOf(program, part), whole, shard, part.layer);
    part.rows = held.rows();
    part.columns = held.columns;
    part.zero_rows = held.zero_rows;
    part.zero_columns = held.zero_columns;
    part.slice = std::move(held.slice);
  }
}

bool WeightTable::IsBoth(const WeightPart& part) const {
  if (part.layer != kNoLayer) return false;
  return (part.id == embedding_ && !has_head_) || (part.id == head_ && !has_embedding_);
}

WeightView WeightTable::HeadOf(const WeightView& whole) const {
  if (head_rows_.size() == 0) return whole;
  WeightView rows = whole;
  rows.data =
      whole.data + head_rows_.begin * whole.in * static_cast<int64_t>(DTypeBytes(whole.dtype));
  rows.out = head_rows_.size();
  return rows;
}

void WeightTable::Point(const WeightPart& part, const std::byte* data) {
  if (part.count() == 0) return;
  List& list = ListOf(part.layer);
  const auto id = static_cast<size_t>(part.id);
  if (!part.is_matrix()) {
    list.vectors[id] = reinterpret_cast<const float*>(data);
    return;
  }
  const WeightView view = {data, part.dtype(), part.rows, part.columns};
  list.matrices[id] = view;
  if (!IsBoth(part)) return;
  list.matrices[static_cast<size_t>(embedding_)] = view;
  list.matrices[static_cast<size_t>(head_)] = HeadOf(view);
}

void WeightTable::LayOutBlocks() {
  int layer = kNoLayer;
  int64_t at = 0;
  for (const WeightPart& part : parts_) {
    if (!part.InLayerBlock()) continue;
    if (std::exchange(layer, part.layer) != part.layer) at = 0;
    ListOf(part.layer).in_block[static_cast<size_t>(part.id)] = at;
    at += RoundUp(part.bytes(), kWeightAlignment);
  }
}

arch::TensorViews WeightTable::Views(int layer, const std::byte* block) const {
  const List& list = lists_[static_cast<size_t>(layer + 1)];
  return {list.matrices, list.vectors, block, list.in_block};
}

int64_t WeightTable::BlockBytes(int layer) const {
  int64_t bytes = 0;
  for (const WeightPart& part : parts_) {
    if (part.InLayerBlock() && part.layer == layer) {
      bytes += RoundUp(part.bytes(), kWeightAlignment);
    }
  }
  return bytes;
}

WeightBytes WeightTable::Count() const {
  WeightBytes bytes;
  std::vector<int64_t> layers(lists_.size() - 1), pieces = layers, apart = layers;
  bool encodes = true;
  for (const WeightPart& part : parts_) {
    if (!part.is_matrix()) {
      bytes.vectors += RoundUp(part.bytes(), kWeightAlignment);
      continue;
    }
    bytes.matrices += part.bytes();
    if (part.use == arch::Use::kRowTable) bytes.row_tables += part.bytes();
    if (!part.InLayerBlock()) continue;
    layers[static_cast<size_t>(part.layer)] += RoundUp(part.bytes(), kWeightAlignment);
    if (part.IsApart()) {
      ++pieces[static_cast<size_t>(part.layer)];
      apart[static_cast<size_t>(part.layer)] += RoundUp(part.bytes(), int64_t{kDirectAlignment});
    } else {
      pieces[static_cast<size_t>(part.layer)] += std::ssize(part.slice.rows);
    }
    encodes = encodes && part.dtype() == kWeightPage.dtype;
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    bytes.layer = std::max(bytes.layer, layers[i]);
    bytes.layer_read = std::max(bytes.layer_read, DiskBlock::MostReadBytes(layers[i], pieces[i]));
    bytes.layer_apart = std::max(bytes.layer_apart, apart[i]);
  }
  if (encodes) bytes.layer_code = WeightCode(bytes.layer).bytes();
  return bytes;
}

}  // namespace headway
