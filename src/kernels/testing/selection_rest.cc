#include "kernels/testing/selection_rest.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "base/check.h"
#include "base/half.h"
#include "kernels/decode_rest.h"
#include "kernels/ref/ref_attention.h"
#include "kernels/ref/ref_selection.h"

namespace headway {

RestProblem::RestProblem(SelectionProblem& problem, Random& random) : problem_(problem) {
  const SelectionCase& c = problem.spec;
  HEADWAY_CHECK(c.rows == 1 && !c.bad_numbers);
  PageFormat plain = c.format;
  plain.encoding = Encoding::kNone;
  row_stride_ = RoundUp(static_cast<int64_t>(plain.bytes()), int64_t{16}) + 16 * random.Below(4);
  count_ = 1 + random.Below(c.format.page_slots);
  open_ = Poison(2 * c.heads * row_stride_);
  for (int64_t row = 0; row < int64_t{2} * c.heads; ++row) {
    for (int64_t i = 0; i < count_ * c.format.head_dim; ++i) {
      StoreFloat(open_.data() + row * row_stride_, i, c.format.dtype, random.Normal());
    }
  }
}

std::vector<std::byte> RestProblem::Poison(int64_t bytes) const {
  return std::vector<std::byte>(static_cast<size_t>(bytes), std::byte{0xFF});
}

int64_t RestProblem::StateBytes(const AttendBlocksItem& item) const {
  return (item.parts + 1) * (item.o_part_stride + item.lse_part_stride) * int64_t{sizeof(float)};
}

int64_t RestProblem::ResultBytes(DType activation) const {
  return query_heads() * problem_.spec.format.head_dim *
         static_cast<int64_t>(DTypeBytes(activation));
}

void RestProblem::Point(const Places& places, AttendBlocksItem* item) const {
  item->o = reinterpret_cast<float*>(places.states);
  item->lse = item->o + (item->parts + 1) * item->o_part_stride;
  item->rest = {places.result, places.open, row_stride_, count_};
}

std::vector<float> RestProblem::Run(Kernels& kernels, Stream& stream, SelectionHost& host,
                                    BlockCache cache, Rest rest) const {
  const SelectionCase& c = problem_.spec;
  using Piece = SelectionHost::Piece;
  const SelectionMemory memory = problem_.PutOn(host);
  std::vector<SegmentPlace> segments = problem_.Segments(memory);
  if (cache.lines != nullptr) {
    uint32_t version = 0;
    for (SegmentPlace& segment : segments) segment.version = ++version;
  }
  for (const auto& [summary, items] : problem_.Summaries(memory)) {
    kernels.Summarize(stream, c.format, summary, items);
  }
  const DType activation = kernels.ActivationDType(c.activation);
  for (const auto& [summary, choice] : problem_.Choices(memory, segments, activation)) {
    kernels.SelectBlocks(stream, c.format, summary, c.group, c.scale, {&choice, 1});
  }
  AttendBlocksItem attend = problem_.Attend(memory, segments, activation);
  const int64_t bytes = ResultBytes(activation);
  const Places places = {host.Put(Piece::kWorking, open_),
                         host.Put(Piece::kWorking, Poison(StateBytes(attend))),
                         host.Put(Piece::kWorking, Poison(bytes))};
  Point(places, &attend);
  for (int step = 0; step < (cache.lines == nullptr ? 1 : kCachedSteps); ++step) {
    attend.cache = cache;
    attend.cache.step = cache.step + static_cast<uint32_t>(step);
    if (rest == Rest::kBehindAttention) {
      AttendBlocksItem before = attend;
      before.rest = {};
      kernels.AttendBlocks(stream, c.format, c.summary, c.group, c.scale, {&before, 1});
      attend.attended = true;
    }
    kernels.AttendBlocks(stream, c.format, c.summary, c.group, c.scale, {&attend, 1});
  }
  HEADWAY_CHECK(stream.Synchronize().ok());
  const std::vector<std::byte> result = host.Get(places.result, static_cast<size_t>(bytes));
  std::vector<float> numbers;
  for (int64_t i = 0; i < query_heads() * c.format.head_dim; ++i) {
    numbers.push_back(LoadAsFloat(result.data(), i, activation));
  }
  return numbers;
}

std::vector<float> RestProblem::Expected() {
  const SelectionCase& c = problem_.spec;
  std::vector<std::byte> working = problem_.Expected();
  const SelectionMemory memory = {problem_.pages.data(), working.data(), working.data()};
  const std::vector<SegmentPlace> segments = problem_.Segments(memory);
  AttendBlocksItem attend = problem_.Attend(memory, segments, DType::kF32);
  std::vector<float> states(static_cast<size_t>(StateBytes(attend)) / sizeof(float));
  std::vector<float> result(static_cast<size_t>(query_heads() * c.format.head_dim));
  Point({open_.data(), reinterpret_cast<std::byte*>(states.data()),
         reinterpret_cast<std::byte*>(result.data())},
        &attend);
  ref::AttendBlocks(c.format, c.summary, c.group, c.scale, {&attend, 1});
  const RestCalls rest = RestOf(c.format, c.group, {&attend, 1});
  ref::Attend(c.format, c.group, {.scale = c.scale}, rest.attend);
  ref::Merge(c.format.head_dim, rest.merge);
  return result;
}

int64_t RestProblem::RowOf(int head, bool of_keys) const {
  const SelectionCase& c = problem_.spec;
  const int in_group = head % c.group_heads;
  const int first = head - in_group;
  return 2 * first + in_group + (of_keys ? 0 : std::min(c.group_heads, c.heads - first));
}

StateReach RestProblem::Reach(int64_t q_head) {
  const SelectionCase& c = problem_.spec;
  StateReach reach = problem_.ReachOfLists(q_head);
  const SelectionMemory memory = {problem_.pages.data(), problem_.working.data(), nullptr};
  const auto* q = static_cast<const float*>(problem_.Attend(memory, {}, DType::kF32).q) +
                  q_head * c.format.head_dim;
  const auto head = static_cast<int>(q_head / c.group);
  const std::byte* k = open_.data() + RowOf(head, true) * row_stride_;
  const std::byte* v = open_.data() + RowOf(head, false) * row_stride_;
  for (int64_t key = 0; key < count_; ++key) {
    double sum = 0;
    for (int64_t i = 0; i < c.format.head_dim; ++i) {
      const int64_t at = key * c.format.head_dim + i;
      sum += std::abs(double{q[i]} * double{LoadAsFloat(k, at, c.format.dtype)});
      reach.values = std::max(reach.values, std::abs(double{LoadAsFloat(v, at, c.format.dtype)}));
    }
    reach.logits = std::max(reach.logits, std::abs(double{c.scale}) * sum);
  }
  reach.keys += count_;
  return reach;
}

std::string RestProblem::Disagreement(const AttentionPrecision& precision,
                                      const std::vector<float>& actual) {
  const auto dim = static_cast<size_t>(problem_.spec.format.head_dim);
  const std::vector<float> expected = Expected();
  for (size_t q_head = 0; q_head < static_cast<size_t>(query_heads()); ++q_head) {
    const StateReach reach = Reach(static_cast<int64_t>(q_head));
    const StateTolerance allowed =
        ToleranceOf(precision, problem_.spec.format.head_dim, 0.0f, reach, 0.0);
    for (size_t i = q_head * dim; i < (q_head + 1) * dim; ++i) {
      const double tolerance = allowed.o + precision.result * std::abs(double{expected[i]}) + 1e-7;
      std::string wrong =
          CompareNumbers("result", i, double{expected[i]}, double{actual[i]}, tolerance);
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

}  // namespace headway
