#include "kernels/kernels.h"

#include <array>

#include "base/check.h"
#include "kernels/cost.h"
#include "kernels/weight_code.h"

namespace headway {
namespace {

// What SupportsSelection has its own.
void RefuseSelection(Stream& stream) {
  stream.HostWork({},
                  [] { return Status(StatusCode::kUnsupported, "blocks are not selected here"); });
}

void RefuseEviction(Stream& stream) {
  stream.HostWork({},
                  [] { return Status(StatusCode::kUnsupported, "tokens are not evicted here"); });
}

}  // namespace

void Kernels::ExpandWeights(Stream& stream, const std::byte* code, int64_t bytes, std::byte* to) {
  stream.HostWork(ExpandWeightsCost(bytes), [=] {
    DecodeWeights(WeightCode(bytes), code, to);
    return OkStatus();
  });
}

void Kernels::RopeStoreKv(Stream& stream, const PageFormat& format,
                          std::span<const RopeStoreItem> items) {
  for (const RopeStoreItem& item : items) {
    Rope(stream, item.table, QueryRows(format, item));
    Rope(stream, item.table, KeyRows(format, item));
    StoreKv(stream, format, {&item.kv, 1});
  }
}

void Kernels::EncodePages(Stream& stream, const PageFormat&, std::span<const EncodePagesItem>) {
  // What takes an encoding has its own.
  stream.HostWork({},
                  [] { return Status(StatusCode::kUnsupported, "pages are not encoded here"); });
}

void Kernels::Summarize(Stream& stream, const PageFormat&, const SummaryFormat&,
                        std::span<const SummarizeItem>) {
  RefuseSelection(stream);
}

void Kernels::SelectBlocks(Stream& stream, const PageFormat&, const SummaryFormat&, int, float,
                           std::span<const SelectItem>) {
  RefuseSelection(stream);
}

void Kernels::AttendBlocks(Stream& stream, const PageFormat&, const SummaryFormat&, int, float,
                           std::span<const AttendBlocksItem>) {
  RefuseSelection(stream);
}

void Kernels::KeyLogits(Stream& stream, const PageFormat&, int, float,
                        std::span<const KeyLogitsItem>) {
  RefuseEviction(stream);
}

void Kernels::KeyWeights(Stream& stream, std::span<const KeyWeightsItem>) {
  RefuseEviction(stream);
}

void Kernels::GatherSlots(Stream& stream, const PageFormat&, std::span<const GatherSlotsItem>) {
  RefuseEviction(stream);
}

void Kernels::QueryMoments(Stream& stream, const PageFormat&, int,
                           std::span<const QueryMomentsItem>) {
  RefuseEviction(stream);
}

void Kernels::ExpectedLogits(Stream& stream, const PageFormat&, int, float,
                             std::span<const ExpectedLogitsItem>) {
  RefuseEviction(stream);
}

void Kernels::ValueNorms(Stream& stream, const PageFormat&, std::span<const ValueNormsItem>) {
  RefuseEviction(stream);
}

void Kernels::ProjectedNorms(Stream& stream, const PageFormat&, int,
                             std::span<const ProjectedNormsItem>) {
  RefuseEviction(stream);
}

void Kernels::NormLinear(Stream& stream, const NormedInput& input, std::span<const LinearOp> ops) {
  Norm(stream, input.x, input.norm, input.rows, ops.front().weight.in, input.normed);
  Linear(stream, input.normed, input.rows, ops);
}

void Kernels::Convert(Stream& stream, const ConvertItem& item) {
  HEADWAY_CHECK(item.from_dtype == item.to_dtype);
  const auto bytes = [&](int64_t count) {
    return static_cast<size_t>(count) * DTypeBytes(item.to_dtype);
  };
  stream.Copy2D(static_cast<std::byte*>(item.to), bytes(item.to_stride),
                static_cast<const std::byte*>(item.from), bytes(item.from_stride),
                bytes(item.width), static_cast<size_t>(item.rows));
}

void Kernels::NormGatedLinear(Stream& stream, const NormedInput& input, const LinearOp& gate,
                              const LinearOp& up) {
  Norm(stream, input.x, input.norm, input.rows, gate.weight.in, input.normed);
  GatedLinear(stream, input.normed, input.rows, gate, up);
}

void Kernels::GatedLinear(Stream& stream, const void* x, int64_t rows, const LinearOp& gate,
                          const LinearOp& up) {
  const std::array<LinearOp, 2> ops = {gate, up};
  Linear(stream, x, rows, ops);
  SwiGlu(stream, gate.y, up.y, rows * gate.weight.out, gate.y);
}

}  // namespace headway
