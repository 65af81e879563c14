#include "engine/step/hidden_states.h"

#include <utility>

#include "base/check.h"

namespace headway {
namespace {

int64_t BytesOf(int64_t rows, int64_t d_model) { return rows * d_model * int64_t{sizeof(float)}; }

}  // namespace

int64_t HiddenStates::DeviceBytes(const ModelShape& shape, const ExecutorLimits& limits) {
  if (limits.stretch_tokens == 0) return 0;
  return (kPlaces - 1) * BytesOf(limits.step_tokens, shape.d_model);
}

int64_t HiddenStates::HostBytes(const ModelShape& shape, const ExecutorLimits& limits) {
  return BytesOf(limits.stretch_tokens, shape.d_model);
}

Result<std::unique_ptr<HiddenStates>> HiddenStates::Create(const Parts& parts,
                                                           const ModelShape& shape,
                                                           const ExecutorLimits& limits) {
  std::unique_ptr<HiddenStates> made(new HiddenStates(parts, shape.d_model));
  Result<std::unique_ptr<Buffer>> memory = parts.device.Allocate(
      parts.budget, static_cast<size_t>(DeviceBytes(shape, limits)), "activations");
  if (!memory.ok()) return memory.status();
  made->others_ = std::move(*memory);
  memory = parts.device.AllocateHost(
      parts.host_budget, static_cast<size_t>(HostBytes(shape, limits)), "prompts between layers");
  if (!memory.ok()) return memory.status();
  made->memory_ = std::move(*memory);
  return made;
}

HiddenStates::~HiddenStates() {
  for (const Place& place : places_) {
    lanes_.HostWait(place.ready);
    lanes_.HostWait(place.free);
  }
}

void HiddenStates::Begin(std::span<const int64_t> rows, int layers, float* x) {
  HEADWAY_CHECK(rows.size() > 1);
  parts_.clear();
  int64_t first = 0;
  for (const int64_t count : rows) {
    parts_.push_back({first, count, {}});
    first += count;
  }
  HEADWAY_CHECK(BytesOf(first, d_model_) <= static_cast<int64_t>(memory_->size()));
  places_[0].data = x;
  const size_t each = others_->size() / (kPlaces - 1);
  for (size_t i = 1; i < kPlaces; ++i) {
    places_[i].data = reinterpret_cast<float*>(others_->data() + (i - 1) * each);
  }
  turns_ = std::ssize(rows) * layers;
  turn_ = 0;
  loaded_ = std::ssize(rows);  // what there is of the first layer is made where it is acquired
}

float* HiddenStates::Acquire() {
  HEADWAY_CHECK(turn_ < turns_);
  if (loaded_ <= turn_) Load(turn_);
  const Place& place = PlaceAt(turn_);
  lanes_.Wait(Lane::kCompute, IsFirstLayer(turn_) ? place.free : place.ready);
  return place.data;
}

void HiddenStates::Prefetch() {
  if (turn_ + 1 < turns_ && loaded_ <= turn_ + 1) Load(turn_ + 1);
}

void HiddenStates::Load(int64_t turn) {
  Place& place = PlaceAt(turn);
  const Part& part = PartAt(turn);
  lanes_.Wait(Lane::kHostToDevice, place.free);
  lanes_.Wait(Lane::kHostToDevice, part.down);
  lanes_.stream(Lane::kHostToDevice)
      .Copy(reinterpret_cast<std::byte*>(place.data),
            memory_->data() + BytesOf(part.first_row, d_model_),
            static_cast<size_t>(BytesOf(part.rows, d_model_)));
  place.ready = {};
  place.ready.Add(Lane::kHostToDevice, lanes_.Mark(Lane::kHostToDevice));
  loaded_ = turn + 1;
}

void HiddenStates::Release() {
  Place& place = PlaceAt(turn_);
  Fence computed;
  computed.Add(Lane::kCompute, lanes_.Mark(Lane::kCompute));
  const bool last_layer = turn_ + std::ssize(parts_) >= turns_;
  if (last_layer) {
    place.free = computed;
  } else {
    Part& part = PartAt(turn_);
    lanes_.Wait(Lane::kDeviceToHost, computed);
    lanes_.stream(Lane::kDeviceToHost)
        .Copy(memory_->data() + BytesOf(part.first_row, d_model_),
              reinterpret_cast<const std::byte*>(place.data),
              static_cast<size_t>(BytesOf(part.rows, d_model_)));
    part.down = {};
    part.down.Add(Lane::kDeviceToHost, lanes_.Mark(Lane::kDeviceToHost));
    place.free = part.down;
  }
  ++turn_;
}

void HiddenStates::End() {
  for (const Place& place : places_) {
    lanes_.Wait(Lane::kCompute, place.ready);
    lanes_.Wait(Lane::kCompute, place.free);
  }
}

}  // namespace headway
