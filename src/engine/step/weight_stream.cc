#include "engine/step/weight_stream.h"

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

std::vector<int> DiskLayers(const std::vector<int>& streamed, int count) {
  const int total = static_cast<int>(streamed.size());
  std::vector<int> layers;
  for (const int i : StreamedLayers(total, total - count)) {
    layers.push_back(streamed[static_cast<size_t>(i)]);
  }
  return layers;
}

Result<std::unique_ptr<WeightStream>> WeightStream::Create(const Model& model, Device& device,
                                                           Lanes& lanes, Budget& budget,
                                                           Budget& host_budget, int buffers) {
  std::unique_ptr<WeightStream> made(new WeightStream(model, lanes));
  int64_t largest = 0;
  for (int layer = 0; layer < model.shape().layers; ++layer) {
    if (!model.Streams(layer)) continue;
    made->device_.layers.push_back(layer);
    if (model.BlockOnDisk(layer) != nullptr) made->bounce_.layers.push_back(layer);
    largest = std::max(largest, model.BlockBytes(layer));
  }
  const auto fill = [buffers](Ring* ring, const auto& allocate) {
    ring->slots.resize(std::min(ring->layers.size(), static_cast<size_t>(buffers)));
    for (Slot& slot : ring->slots) {
      Result<std::unique_ptr<Buffer>> memory = allocate();
      if (!memory.ok()) return memory.status();
      slot.memory = std::move(*memory);
    }
    return OkStatus();
  };
  Status status = fill(&made->device_, [&] {
    return device.Allocate(budget, static_cast<size_t>(largest), "weight buffers");
  });
  if (!status.ok()) return status;
  const auto read = static_cast<size_t>(model.weight_bytes().layer_read);
  status = fill(&made->bounce_,
                [&] { return device.AllocateHost(host_budget, read, "weight bounce buffers"); });
  if (!status.ok()) return status;
  return made;
}

WeightStream::~WeightStream() {
  if (held_ != nullptr) Release();
  for (const Ring* ring : {&device_, &bounce_}) {
    for (const Slot& slot : ring->slots) {
      lanes_.HostWait(slot.ready);
      lanes_.HostWait(slot.used);
    }
  }
}

const std::byte* WeightStream::Acquire(int layer) {
  if (held_ != nullptr) Release();  // the step was given up
  const std::vector<int>& layers = device_.layers;
  if (layers.empty()) return nullptr;
  const auto at = std::lower_bound(layers.begin(), layers.end(), layer);
  device_.next = at == layers.end() ? 0 : static_cast<size_t>(at - layers.begin());
  if (device_.Ahead(0) != layer) return nullptr;
  Slot* slot = device_.Find(layer);
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
  for (size_t i = 0; i < device_.slots.size(); ++i) {
    const int layer = device_.Ahead(i);
    if (device_.Find(layer) == nullptr) Load(layer);
  }
  ReadAhead();
}

bool WeightStream::Ring::IsNear(int layer) const {
  for (size_t i = 0; i < slots.size(); ++i) {
    if (Ahead(i) == layer) return true;
  }
  return false;
}

WeightStream::Slot* WeightStream::Ring::Find(int layer) {
  const auto found = std::find_if(slots.begin(), slots.end(),
                                  [&](const Slot& slot) { return slot.layer == layer; });
  return found == slots.end() ? nullptr : &*found;
}

WeightStream::Slot* WeightStream::Ring::Free() {
  const auto free = std::find_if(slots.begin(), slots.end(),
                                 [&](const Slot& slot) { return !IsNear(slot.layer); });
  HEADWAY_CHECK(free != slots.end());
  return &*free;
}

WeightStream::Slot* WeightStream::Load(int layer) {
  Slot* const free = device_.Free();
  HEADWAY_CHECK(free != held_);
  lanes_.Wait(Lane::kHostToDevice, free->used);
  const std::span<const std::byte> block = model_.HostBlock(layer);
  if (block.empty()) {
    CopyFromDisk(layer, free->memory->data());
  } else {
    lanes_.stream(Lane::kHostToDevice).Copy(free->memory->data(), block.data(), block.size());
  }
  free->layer = layer;
  free->ready = {};
  free->ready.Add(Lane::kHostToDevice, lanes_.Mark(Lane::kHostToDevice));
  return free;
}

void WeightStream::CopyFromDisk(int layer, std::byte* to) {
  const std::vector<int>& layers = bounce_.layers;
  const auto at = std::lower_bound(layers.begin(), layers.end(), layer);
  bounce_.next = static_cast<size_t>(at - layers.begin());
  Slot* bounce = bounce_.Find(layer);
  if (bounce == nullptr) bounce = ReadDisk(layer);
  lanes_.Wait(Lane::kHostToDevice, bounce->ready);
  for (const DiskBlock::Copy& copy : model_.BlockOnDisk(layer)->copies()) {
    lanes_.stream(Lane::kHostToDevice)
        .Copy(to + copy.to, bounce->memory->data() + copy.from, static_cast<size_t>(copy.bytes));
  }
  // Another layer may come there once that is done.
  bounce->used = {};
  bounce->used.Add(Lane::kHostToDevice, lanes_.Mark(Lane::kHostToDevice));
  bounce->layer = -1;
  bounce_.next = (bounce_.next + 1) % layers.size();
}

// An error stays with the lane: tokens were computed, and pages filled, with what is in the buffer.
WeightStream::Slot* WeightStream::ReadDisk(int layer) {
  Slot* const free = bounce_.Free();
  const DiskBlock* const block = model_.BlockOnDisk(layer);
  std::byte* const to = free->memory->data();
  lanes_.Wait(Lane::kDiskWeights, free->used);
  lanes_.stream(Lane::kDiskWeights)
      .HostWork(WorkCost{"read weights", block->read_bytes(), 0},
                [block, to] { return block->Read(to); });
  free->layer = layer;
  free->ready = {};
  free->ready.Add(Lane::kDiskWeights, lanes_.Mark(Lane::kDiskWeights));
  return free;
}

void WeightStream::ReadAhead() {
  for (size_t i = 0; i < bounce_.slots.size(); ++i) {
    const int layer = bounce_.Ahead(i);
    if (bounce_.Find(layer) == nullptr) ReadDisk(layer);
  }
}

}  // namespace headway
