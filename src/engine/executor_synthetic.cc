// Random keys and values, for measuring steps over long contexts without computing them.
#include <algorithm>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "engine/executor.h"

namespace headway {
namespace {

// Of synthetic keys and values, that differ from each other.
constexpr int64_t kSyntheticRows = 64;

}  // namespace

Status Executor::AppendSynthetic(kv::SequenceId sequence, int64_t tokens, uint64_t seed) {
  Random random(seed);
  const int64_t chunk = std::min(tokens, limits_.step_tokens);
  const int64_t width = int64_t{shape_.kv_heads} * shape_.head_dim;
  std::vector<std::byte> rows(static_cast<size_t>(ActivationBytes(chunk * width)));
  // Drawing takes longer than all else here: rows come again.
  const int64_t drawn = std::min(chunk, kSyntheticRows);
  for (void* to : {act_.k, act_.v}) {
    for (int64_t i = 0; i < drawn * width; ++i) {
      StoreFloat(rows.data(), i, limits_.activation_dtype, random.Normal());
    }
    const auto row_bytes = static_cast<size_t>(ActivationBytes(width));
    for (int64_t row = drawn; row < chunk; ++row) {
      std::copy_n(rows.data() + static_cast<size_t>(row - drawn) * row_bytes, row_bytes,
                  rows.data() + static_cast<size_t>(row) * row_bytes);
    }
    compute_.Copy2D(static_cast<std::byte*>(to),
                    static_cast<size_t>(ActivationBytes(act_.qkv_stride)), rows.data(), row_bytes,
                    row_bytes, static_cast<size_t>(chunk));
    if (Status s = compute_.Synchronize(); !s.ok()) return s;
  }
  if (recomputes()) {
    // Any numbers do: the values again, over and over.
    const int64_t bytes = ActivationBytes(chunk * shape_.d_model);
    for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(rows.size())) {
      compute_.Copy(static_cast<std::byte*>(act_.normed) + at, rows.data(),
                    std::min(rows.size(), static_cast<size_t>(bytes - at)));
    }
    if (Status s = compute_.Synchronize(); !s.ok()) return s;
  }
  const std::vector<TokenId> ids(static_cast<size_t>(chunk), 0);
  for (int64_t at = 0; at < tokens; at += chunk) {
    const int64_t n = std::min(chunk, tokens - at);
    const StepInput input{sequence, std::span(ids).first(static_cast<size_t>(n)), nullptr,
                          LogitsMode::kNone};
    BeginEntries({&input, 1});
    const kv::StepEntry entry{sequence, n};
    if (Status s = store_.BeginStep({&entry, 1}); !s.ok()) return s;
    Status status = store_.BeginReads({});
    for (int layer = 0; status.ok() && layer < shape_.layers; ++layer) {
      FindNew(layer);
      for (const RopeStoreItem& item : store_items_) {
        kernels_.StoreKv(compute_, format_, {&item.kv, 1});
      }
      if (recomputes()) KeepX(layer);
      store_.CloseLayer(layer);
    }
    if (status.ok()) status = store_.EndStep();
    if (!status.ok()) {
      store_.AbortStep();
      return status;
    }
  }
  store_.Drain();  // what is measured next starts with idle lanes
  return OkStatus();
}

}  // namespace headway
