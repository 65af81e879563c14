#include "engine/step/weight_stream.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/weight_code.h"

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

Result<std::unique_ptr<WeightStream>> WeightStream::Create(const Parts& parts, int buffers) {
  std::unique_ptr<WeightStream> made(new WeightStream(parts));
  if (Status s = made->TakeBuffers(parts, buffers); !s.ok()) return s;
  return made;
}

Status WeightStream::TakeBuffers(const Parts& parts, int buffers) {
  int64_t largest = 0;   // of what is copied
  int64_t expanded = 0;  // of what is expanded
  for (int layer = 0; layer < model_.shape().layers; ++layer) {
    if (!model_.Streams(layer)) continue;
    device_.layers.push_back(layer);
    if (model_.BlockOnDisk(layer) != nullptr) bounce_.layers.push_back(layer);
    const int64_t bytes = model_.BlockBytes(layer);
    largest = std::max(largest, IsCode(layer) ? WeightCode(bytes).bytes() : bytes);
    if (IsCode(layer)) expanded = std::max(expanded, bytes);
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
  const auto allocate = [&](int64_t bytes) {
    return parts.device.Allocate(parts.budget, static_cast<size_t>(bytes), "weight buffers");
  };
  if (Status s = fill(&device_, [&] { return allocate(largest); }); !s.ok()) return s;
  if (expanded > 0) {
    Result<std::unique_ptr<Buffer>> memory = allocate(expanded);
    if (!memory.ok()) return memory.status();
    expanded_ = std::move(*memory);
  }
  const auto read = static_cast<size_t>(model_.weight_bytes().layer_read);
  return fill(&bounce_, [&] {
    return parts.device.AllocateHost(parts.host_budget, read, "weight bounce buffers");
  });
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
  if (slot == nullptr) slot = Begin(layer);
  Bring(slot, slot->left);
  lanes_.Wait(Lane::kCompute, slot->ready);
  held_ = slot;
  if (!IsCode(layer)) return slot->memory->data();
  if (std::exchange(expanded_layer_, layer) != layer) {
    kernels_.ExpandWeights(lanes_.stream(Lane::kCompute), slot->memory->data(),
                           model_.BlockBytes(layer), expanded_->data());
  }
  Release();  // the kernels read what was expanded
  return expanded_->data();
}

void WeightStream::Release() {
  if (held_ == nullptr) return;
  held_->used.Add(Lane::kCompute, lanes_.Mark(Lane::kCompute));
  held_ = nullptr;
}

void WeightStream::Prefetch(int64_t pieces) {
  for (size_t i = 0; i < device_.slots.size(); ++i) {
    const int layer = device_.Ahead(i);
    Slot* slot = device_.Find(layer);
    if (slot == nullptr) slot = Begin(layer);
    if (slot->left == 0) continue;
    const auto all = static_cast<int64_t>(model_.HostBlock(layer).size());
    Bring(slot, std::min(slot->left, static_cast<size_t>(CeilDiv(all, pieces))));
    if (pieces > 1) break;
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

WeightStream::Slot* WeightStream::Begin(int layer) {
  Slot* const free = device_.Free();
  HEADWAY_CHECK(free != held_);
  lanes_.Wait(Lane::kHostToDevice, free->used);
  free->layer = layer;
  free->left = model_.HostBlock(layer).size();
  free->ready = {};
  if (free->left > 0) return free;
  CopyFromDisk(layer, free->memory->data());
  free->ready.Add(Lane::kHostToDevice, lanes_.Mark(Lane::kHostToDevice));
  return free;
}

void WeightStream::Bring(Slot* slot, size_t bytes) {
  if (bytes == 0) return;
  const std::span<const std::byte> block = model_.HostBlock(slot->layer);
  const size_t at = block.size() - slot->left;
  lanes_.stream(Lane::kHostToDevice).Copy(slot->memory->data() + at, block.data() + at, bytes);
  slot->left -= bytes;
  slot->ready.Add(Lane::kHostToDevice, lanes_.Mark(Lane::kHostToDevice));
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
