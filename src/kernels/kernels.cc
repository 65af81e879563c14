#include "kernels/kernels.h"

#include <array>

namespace headway {

void Kernels::RopeStoreKv(Stream& stream, const PageFormat& format,
                          std::span<const RopeStoreItem> items) {
  for (const RopeStoreItem& item : items) {
    Rope(stream, item.table, item.kv.to.count, item.query_heads, format.head_dim, item.q,
         item.q_stride);
    Rope(stream, item.table, item.kv.to.count, item.kv.heads, format.head_dim,
         const_cast<void*>(item.kv.k), item.kv.kv_stride);
    StoreKv(stream, format, {&item.kv, 1});
  }
}

void Kernels::GatedLinear(Stream& stream, const void* x, int64_t rows, const LinearOp& gate,
                          const LinearOp& up) {
  const std::array<LinearOp, 2> ops = {gate, up};
  Linear(stream, x, rows, ops);
  SwiGlu(stream, gate.y, up.y, rows * gate.weight.out, gate.y);
}

}  // namespace headway
