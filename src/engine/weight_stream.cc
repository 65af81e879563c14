#include "engine/weight_stream.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace headway {

std::vector<int> StreamedLayers(int layers, int resident) {
  const int64_t streamed = std::max(layers - resident, 0);
  std::vector<int> indices;
  for (int64_t i = 0; i < layers; ++i) {
    if ((i + 1) * streamed / layers > i * streamed / layers) indices.push_back(static_cast<int>(i));
  }
  return indices;
}

Result<std::unique_ptr<WeightStream>> WeightStream::Create(const Model& model, Device& device,
                                                           kv::Lanes& lanes, Budget& budget,
                                                           int buffers) {
  std::vector<int> layers;
  size_t largest = 0;
  for (int layer = 0; layer < model.shape().layers; ++layer) {
    const size_t bytes = model.HostBlock(layer).size();
    if (bytes == 0) continue;
    layers.push_back(layer);
    largest = std::max(largest, bytes);
  }
  std::vector<Slot> slots(std::min(layers.size(), static_cast<size_t>(buffers)));
  for (Slot& slot : slots) {
    Result<std::unique_ptr<Buffer>> memory = device.Allocate(budget, largest, "weight buffers");
    if (!memory.ok()) return memory.status();
    slot.memory = std::move(*memory);
  }
  return std::unique_ptr<WeightStream>(
      new WeightStream(model, lanes, std::move(layers), std::move(slots)));
}

WeightStream::WeightStream(const Model& model, kv::Lanes& lanes, std::vector<int> layers,
                           std::vector<Slot> slots)
    : model_(model), lanes_(lanes), layers_(std::move(layers)), slots_(std::move(slots)) {}

WeightStream::~WeightStream() {
  if (held_ != nullptr) Release();
  for (const Slot& slot : slots_) {
    lanes_.HostWait(slot.ready);
    lanes_.HostWait(slot.used);
  }
}

const std::byte* WeightStream::Acquire(int layer) {
  if (held_ != nullptr) Release();  // the step was given up
  if (layers_.empty()) return nullptr;
  const auto at = std::lower_bound(layers_.begin(), layers_.end(), layer);
  next_ = at == layers_.end() ? 0 : static_cast<size_t>(at - layers_.begin());
  if (layers_[next_] != layer) return nullptr;
  Slot* slot = Find(layer);
  if (slot == nullptr) slot = Load(layer);
  lanes_.Wait(Lane::kCompute, slot->ready);
  held_ = slot;
  return slot->memory->data();
}

void WeightStream::Release() {
  if (held_ == nullptr) return;
  held_->used.Add(Lane::kCompute, lanes_.Mark(Lane::kCompute));
  held_ = nullptr;
}

void WeightStream::Prefetch() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    const int layer = layers_[(next_ + i) % layers_.size()];
    if (Find(layer) == nullptr) Load(layer);
  }
}

bool WeightStream::IsNear(int layer) const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (layers_[(next_ + i) % layers_.size()] == layer) return true;
  }
  return false;
}

WeightStream::Slot* WeightStream::Find(int layer) {
  for (Slot& slot : slots_) {
    if (slot.layer == layer) return &slot;
  }
  return nullptr;
}

// Into a slot whose layer is not wanted soon: there is one, since `layer` is, and in none.
WeightStream::Slot* WeightStream::Load(int layer) {
  const auto free = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& slot) { return !IsNear(slot.layer); });
  HEADWAY_CHECK(free != slots_.end() && &*free != held_);
  const std::span<const std::byte> block = model_.HostBlock(layer);
  lanes_.Wait(Lane::kHostToDevice, free->used);
  lanes_.stream(Lane::kHostToDevice).Copy(free->memory->data(), block.data(), block.size());
  free->layer = layer;
  free->ready = {};
  free->ready.Add(Lane::kHostToDevice, lanes_.Mark(Lane::kHostToDevice));
  return &*free;
}

}  // namespace headway
