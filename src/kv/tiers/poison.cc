#include "kv/tiers/poison.h"

#include <cstring>
#include <utility>

#include "base/check.h"

namespace headway::kv {

Result<std::unique_ptr<Poison>> Poison::Create(Device* device, Lanes* lanes, int64_t bytes) {
  std::unique_ptr<Poison> poison(new Poison(lanes));
  Result<std::unique_ptr<Buffer>> source =
      device->AllocateHost(poison->budget_, static_cast<size_t>(bytes), "poison");
  if (!source.ok()) return source.status();
  poison->source_ = std::move(*source);
  std::memset(poison->source_->data(), 0xFF, static_cast<size_t>(bytes));
  return poison;
}

void Poison::Fill(std::byte* memory, int64_t bytes, Fence* used) {
  HEADWAY_CHECK(bytes <= static_cast<int64_t>(source_->size()));
  lanes_->Wait(Lane::kHostToDevice, *used);
  lanes_->stream(Lane::kHostToDevice).Copy(memory, source_->data(), static_cast<size_t>(bytes));
  used->Add(Lane::kHostToDevice, lanes_->Soon(Lane::kHostToDevice));
}

}  // namespace headway::kv
