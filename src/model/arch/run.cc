#include "model/arch/run.h"

#include <vector>

#include "base/check.h"

namespace headway::arch {

namespace {

class Runner {
 public:
  Runner(Kernels& kernels, Stream& stream, const Frame& frame)
      : kernels_(kernels), stream_(stream), frame_(frame) {}

  void Make(const Call& call) {
    switch (call.kind) {
      case CallKind::kEmbed:
        return Embed(call.embed);
      case CallKind::kNorm:
        return kernels_.Norm(stream_, Residual(), View(call.norm), frame_.rows, Width(call),
                             frame_[Slot::kNormed]);
      case CallKind::kNormInPlace:
        return kernels_.NormInPlace(stream_, View(call.norm), frame_.rows, frame_.shape->d_model,
                                    Residual());
      case CallKind::kHeadNorm:
        return HeadNorm(call);
      case CallKind::kLinear:
      case CallKind::kNormLinear:
      case CallKind::kGatedLinear:
      case CallKind::kNormGatedLinear:
        return Products(call);
    }
  }

 private:
  float* Residual() const { return static_cast<float*>(frame_[Slot::kResidual]); }

  NormView View(const Norm& norm) const {
    return {.kind = norm.kind,
            .weight = frame_.tensors.Vector(norm.weight),
            .bias = frame_.tensors.Vector(norm.bias),
            .eps = norm.eps};
  }

  int64_t Width(const Call& call) const {
    return call.width_of == kNoTensor ? frame_.shape->d_model
                                      : frame_.tensors.Matrix(call.width_of).in;
  }

  void Embed(const EmbedStep& step) {
    const WeightView table = frame_.tensors.Matrix(step.table);
    if (step.by == RowBy::kId) {
      return kernels_.Embed(stream_, table, frame_.ids, EmbedResult::kWrite, Residual());
    }
    std::vector<TokenId> rows;
    for (const int32_t position : frame_.positions) {
      rows.push_back(static_cast<TokenId>(position + step.first_row));
    }
    kernels_.Embed(stream_, table, rows, EmbedResult::kAdd, Residual());
  }

  void HeadNorm(const Call& call) {
    const ModelShape& shape = *frame_.shape;
    const int heads = call.at == Slot::kQuery ? shape.query_heads : shape.kv_heads;
    kernels_.HeadNorm(stream_, frame_.tensors.Vector(call.norm.weight), call.norm.eps,
                      {.x = frame_[call.at],
                       .tokens = frame_.rows,
                       .heads = heads,
                       .head_dim = shape.head_dim,
                       .stride = frame_.qkv_stride});
  }

  LinearOp Op(const Call::Output& output) const {
    const WeightView weight = frame_.tensors.Matrix(output.linear.weight);
    const bool head =
        output.to == Slot::kQuery || output.to == Slot::kKey || output.to == Slot::kValue;
    return {.weight = weight,
            .bias = frame_.tensors.Vector(output.linear.bias),
            .y = frame_[output.to],
            .y_stride = head                         ? frame_.qkv_stride
                        : output.to == Slot::kLogits ? frame_.shape->vocab
                                                     : weight.out,
            .result = output.result};
  }

  void Products(const Call& call) {
    std::array<LinearOp, Call::kMostOutputs> ops;
    for (size_t i = 0; i < static_cast<size_t>(call.outputs); ++i) ops[i] = Op(call.output[i]);
    const std::span<const LinearOp> used(ops.data(), static_cast<size_t>(call.outputs));
    const void* const from = frame_[call.at];
    const int64_t rows = frame_.rows;
    const NormedInput input = {
        .x = Residual(), .norm = View(call.norm), .rows = rows, .normed = frame_[Slot::kNormed]};
    switch (call.kind) {
      case CallKind::kLinear:
        return kernels_.Linear(stream_, from, rows, used);
      case CallKind::kGatedLinear:
        return kernels_.GatedLinear(stream_, from, rows, ops[0], ops[1]);
      case CallKind::kNormLinear:
        return kernels_.NormLinear(stream_, input, used);
      default:
        return kernels_.NormGatedLinear(stream_, input, ops[0], ops[1]);
    }
  }

  Kernels& kernels_;
  Stream& stream_;
  const Frame& frame_;
};

// Rows [begin, end) of what a layer's calls work on.
Frame RowsOf(const Frame& frame, DType activation, int64_t begin, int64_t end) {
  const ModelShape& shape = *frame.shape;
  const int64_t element = static_cast<int64_t>(DTypeBytes(activation));
  Frame rows = frame;
  rows.rows = end - begin;
  const auto behind = [&](Slot slot, int64_t row_bytes) {
    if (frame[slot] != nullptr)
      rows[slot] = static_cast<std::byte*>(frame[slot]) + begin * row_bytes;
  };
  behind(Slot::kResidual, shape.d_model * static_cast<int64_t>(sizeof(float)));
  behind(Slot::kNormed, shape.d_model * element);
  for (const Slot slot : {Slot::kQuery, Slot::kKey, Slot::kValue}) {
    behind(slot, frame.qkv_stride * element);
  }
  behind(Slot::kAttended, int64_t{shape.query_heads} * shape.head_dim * element);
  behind(Slot::kInner, shape.d_ff * element);
  behind(Slot::kUp, shape.d_ff * element);
  return rows;
}

}  // namespace

void Run(Kernels& kernels, Stream& stream, std::span<const Call> calls, const Frame& frame,
         int pieces) {
  std::vector<Frame> frames;
  for (int piece = 0; pieces > 1 && piece < pieces; ++piece) {
    frames.push_back(RowsOf(frame, kernels.ActivationDType(frame.shape->dtype),
                            frame.rows * piece / pieces, frame.rows * (piece + 1) / pieces));
  }
  const std::span<const Frame> all =
      frames.empty() ? std::span<const Frame>(&frame, 1) : std::span<const Frame>(frames);
  for (size_t first = 0, end = 0; first < calls.size(); first = end) {
    while (end < calls.size() && !calls[end].sums) ++end;
    const bool sums = end < calls.size();
    if (sums) ++end;
    HEADWAY_CHECK(!sums || frame.sum != nullptr);
    for (size_t piece = 0; piece < all.size(); ++piece) {
      if (frame.sum != nullptr) frame.sum->Await(static_cast<int>(piece));
      Runner runner(kernels, stream, all[piece]);
      for (size_t i = first; i < end; ++i) runner.Make(calls[i]);
      if (!sums) continue;
      frame.sum->Begin(static_cast<int>(piece), static_cast<float*>(all[piece][Slot::kResidual]),
                       all[piece].rows * frame.shape->d_model);
    }
  }
}

void RunBehindSums(Kernels& kernels, Stream& stream, std::span<const Call> calls,
                   const Frame& frame, int pieces) {
  const DType activation = kernels.ActivationDType(frame.shape->dtype);
  const int64_t last = frame.rows * (pieces - 1) / pieces;
  for (int piece = 0; piece < pieces; ++piece) {
    frame.sum->Await(piece);
    if (piece + 2 < pieces) continue;
    const bool is_last = piece + 1 == pieces;
    const Frame rows = RowsOf(frame, activation, is_last ? last : 0, is_last ? frame.rows : last);
    Runner runner(kernels, stream, rows);
    for (const Call& call : calls) runner.Make(call);
  }
}

}  // namespace headway::arch
