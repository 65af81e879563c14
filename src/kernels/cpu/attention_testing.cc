#include "kernels/cpu/attention_testing.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/half.h"
#include "base/thread_pool.h"
#include "kernels/cpu/attention_tiles.h"

namespace headway {
namespace {

class PoisonedScratch {
 public:
  PoisonedScratch(const KernelLimits& limits, int threads)
      : bytes_(static_cast<size_t>(cpu::AttentionScratchBytes(limits, threads))),
        data_(static_cast<std::byte*>(::operator new(bytes_, std::align_val_t(64)))) {
    scratch_ = {.data = data_, .limits = limits, .threads = threads};
    std::memset(data_, 0xFF, bytes_);
  }
  ~PoisonedScratch() { ::operator delete(data_, std::align_val_t(64)); }
  PoisonedScratch(const PoisonedScratch&) = delete;
  PoisonedScratch& operator=(const PoisonedScratch&) = delete;
  const cpu::AttentionScratch& get() const { return scratch_; }

 private:
  size_t bytes_;
  std::byte* data_;
  cpu::AttentionScratch scratch_;
};

}  // namespace

std::vector<NamedCode> AllCodes() {
  std::vector<NamedCode> codes;
  for (Isa isa : SupportedIsas()) {
    codes.push_back({IsaName(isa), cpu::AttentionCodeFor(isa), isa == Isa::kAmx});
    if (isa == Isa::kAvx512) {
      codes.push_back({"emulated amx", cpu::AttentionCodeFor(isa), true});
      codes.back().code.tiles = &cpu::AttentionEmulatedAmxOps();
      codes.back().code.few_on_tiles = &cpu::AttentionEmulatedAmxFewOps();
    }
  }
  return codes;
}

OnTiles TilesOf(const NamedCode& code, const AttentionCase& c) {
  if (!code.has_tiles || !cpu::HoldsBF16(c.format) || c.rotary_dim != 0 || c.key_mass) {
    return OnTiles::kNot;
  }
  if (c.tokens * c.group > cpu::kFewRowsMax || c.params.softcap != 0) return OnTiles::kMany;
  const bool takes =
      c.tokens * c.group > cpu::kFewOffTilesMax && c.format.head_dim % cpu::kFewChunk == 0;
  return takes ? OnTiles::kFew : OnTiles::kNot;
}

AttentionPrecision PrecisionOf(OnTiles on_tiles) {
  AttentionPrecision precision;
  // Weights in bf16, whose rounded values are summed, or in two parts, which are not.
  if (on_tiles == OnTiles::kMany) precision.weight = 2 * (0x1p-8 + 9e-5);
  if (on_tiles == OnTiles::kFew) {
    precision.weight = 0x1p-16;
    precision.weight_in_sum = false;
  }
  return precision;
}

std::vector<float> QueriesOf(const NamedCode& code, const AttentionCase& c,
                             const std::vector<float>& q) {
  if (TilesOf(code, c) != OnTiles::kMany) return q;
  const float scale = cpu::LogitScale(c.params).q;
  std::vector<float> rounded;
  for (float value : q) rounded.push_back(ToFloat(ToBF16(value * scale)) / scale);
  return rounded;
}

void RunOn(const NamedCode& code, int threads, const AttentionCase& c,
           std::span<const AttentionItem> items) {
  int64_t rows = 0;
  for (const AttentionItem& item : items) rows = std::max(rows, item.tokens);
  ThreadPool pool(threads);
  PoisonedScratch scratch({.rows = rows, .head_dim = c.format.head_dim, .group = c.group}, threads);
  cpu::AttendWith(code.code, pool, {c.format, c.group, c.params, items}, scratch.get());
}

}  // namespace headway
