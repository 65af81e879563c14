// What a problem's calls leave behind: by the definition, by a backend, and where they differ.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/half.h"
#include "kernels/page_codec.h"
#include "kernels/ref/ref_selection.h"
#include "kernels/testing/selection_problem.h"

namespace headway {
namespace {

template <typename T>
const T* At(const std::vector<std::byte>& memory, int64_t offset) {
  return reinterpret_cast<const T*>(memory.data() + offset);
}

bool HasInfinity(const std::vector<double>& row) {
  return std::any_of(row.begin(), row.end(), [](double x) { return std::isinf(x); });
}

class HostMemory : public SelectionHost {
 public:
  std::byte* Put(const std::vector<std::byte>& bytes) override {
    constexpr std::align_val_t kAlignment{256};
    copies_.emplace_back(static_cast<std::byte*>(::operator new(bytes.size(), kAlignment)));
    std::copy(bytes.begin(), bytes.end(), copies_.back().get());
    return copies_.back().get();
  }
  std::vector<std::byte> Get(const std::byte* at, size_t size) override { return {at, at + size}; }

 private:
  struct Free {
    void operator()(std::byte* at) const { ::operator delete (at, std::align_val_t{256}); }
  };
  std::vector<std::unique_ptr<std::byte, Free>> copies_;
};

}  // namespace

std::unique_ptr<SelectionHost> NewSelectionHost() { return std::make_unique<HostMemory>(); }

const std::vector<std::byte>& SelectionProblem::Expected() {
  if (!expected_.empty()) return expected_;
  expected_ = working;
  const SelectionMemory memory = {pages.data(), expected_.data()};
  const std::vector<SegmentPlace> segments = Segments(memory);
  ref::Summarize(plain_format_, spec.summary, SummarizeItems(memory));
  const SelectItem select = Select(memory, segments, DType::kF32);
  ref::SelectBlocks(spec.format, spec.summary, spec.group, spec.scale, {&select, 1});
  const AttendBlocksItem attend = Attend(memory, segments, DType::kF32);
  ref::AttendBlocks(spec.format, spec.summary, spec.group, spec.scale, {&attend, 1});
  return expected_;
}

StateReach SelectionProblem::ReachOfPart(int64_t head, int64_t member, int64_t part,
                                         const int32_t* list, int64_t count) const {
  const int64_t dim = spec.format.head_dim;
  const int64_t slots = spec.summary.block_slots;
  const int64_t part_blocks = spec.split / slots;
  const float* q = At<float>(working, floats_) + (head * spec.group + member) * dim;
  StateReach reach;
  for (int64_t i = part * part_blocks; i < std::min(count, (part + 1) * part_blocks); ++i) {
    for (int64_t slot = list[i] * slots; slot < (list[i] + 1) * slots; ++slot) {
      const auto row = [&](bool of_keys) { return RowReach(head, slot, of_keys); };
      const std::vector<double> k = row(true), v = row(false);
      if (HasInfinity(k)) reach.logits = std::numeric_limits<double>::infinity();
      double sum = 0;
      for (int64_t j = 0; j < dim; ++j) {
        const auto at = static_cast<size_t>(j);
        sum += std::abs(double{q[j]}) * k[at];
        reach.values = std::max(reach.values, v[at]);
      }
      reach.logits = std::max(reach.logits, std::abs(double{spec.scale}) * sum);
      ++reach.keys;
    }
  }
  return reach;
}

std::vector<double> SelectionProblem::RowReach(int64_t head, int64_t slot, bool of_keys) const {
  std::vector<double> row(static_cast<size_t>(spec.format.head_dim));
  if (!encoded()) {
    const std::byte* at = pages.data() + PlainAt(head, slot) + (of_keys ? 0 : plain_.v_offset);
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = std::abs(LoadAsFloat(at, static_cast<int64_t>(i), spec.format.dtype));
    }
    return row;
  }
  const int64_t segment = head / spec.group_heads * group_segments() + slot / segment_slots();
  const int64_t page = slot % segment_slots() / spec.format.page_slots;
  const int64_t in_group = head % spec.group_heads;
  const std::byte* slab = pages.data() + closed_slabs_[static_cast<size_t>(segment)];
  const std::byte* codes = slab + in_group * closed_.head_stride + page * closed_.page_stride +
                           (of_keys ? 0 : closed_.v_offset);
  const std::byte* params = slab + closed_.params_offset + in_group * closed_.params_head_stride +
                            page * closed_.params_page_stride;
  const int64_t in_page = slot % spec.format.page_slots;
  (of_keys ? DecodeKeyRow : DecodeValueRow)(spec.format, codes, params, in_page, row.data());
  return CodesReach(spec.format, params, in_page, of_keys, std::move(row));
}

std::string SelectionProblem::StateDisagreement(const AttentionPrecision& precision,
                                                const std::vector<std::byte>& actual, int64_t part,
                                                int64_t row) {
  const int64_t head = row / spec.group;
  const int32_t* list = At<int32_t>(expected_, lists_) + head * capacity_;
  const StateReach reach =
      ReachOfPart(head, row % spec.group, part, list, At<int32_t>(expected_, counts_)[head]);
  // Logits that are infinite are added up in any order: to infinity, or to NaN.
  if (std::isinf(reach.logits)) return "";
  const auto lse_at = static_cast<size_t>(part * lse_part_stride_ + row);
  const float lse = At<float>(expected_, lse_)[lse_at];
  const StateTolerance allowed =
      ToleranceOf(precision, spec.format.head_dim, 0.0f, reach, double{lse});
  std::string wrong =
      CompareNumbers("lse", lse_at, double{lse}, At<float>(actual, lse_)[lse_at], allowed.lse);
  const auto o_at = static_cast<size_t>(part * o_part_stride_ + row * spec.format.head_dim);
  for (size_t i = o_at; i < o_at + static_cast<size_t>(spec.format.head_dim) && wrong.empty();
       ++i) {
    wrong =
        CompareNumbers("o", i, At<float>(expected_, o_)[i], At<float>(actual, o_)[i], allowed.o);
  }
  if (wrong.empty()) return "";
  return "part " + std::to_string(part) + " query head " + std::to_string(row) + ": " + wrong;
}

std::string SelectionProblem::Disagreement(const AttentionPrecision& precision,
                                           const std::vector<std::byte>& actual) {
  const std::vector<std::byte>& expected = Expected();
  std::vector<bool> agrees(static_cast<size_t>(parts_ * query_heads()), false);
  const auto state_bytes = [&](int64_t stride) { return parts_ * stride * int64_t{sizeof(float)}; };
  for (int64_t at = 0; at < std::ssize(expected); ++at) {
    const auto within = [&](int64_t begin, int64_t bytes) {
      return at >= begin && at < begin + bytes;
    };
    if (expected[static_cast<size_t>(at)] == actual[static_cast<size_t>(at)] ||
        within(scratch_, scratch_bytes_)) {
      continue;
    }
    const bool is_o = within(o_, state_bytes(o_part_stride_));
    const bool is_lse = within(lse_, state_bytes(lse_part_stride_));
    const int64_t element = (at - (is_o ? o_ : lse_)) / int64_t{sizeof(float)};
    const int64_t stride = is_o ? o_part_stride_ : lse_part_stride_;
    const int64_t row_elements = is_o ? spec.format.head_dim : 1;
    const int64_t row = (is_o || is_lse) ? element % stride / row_elements : query_heads();
    if (row < query_heads()) {
      const auto state = static_cast<size_t>(element / stride * query_heads() + row);
      if (agrees[state]) continue;
      const std::string wrong = StateDisagreement(precision, actual, element / stride, row);
      if (!wrong.empty()) return wrong;
      agrees[state] = true;
      continue;
    }
    const char* what = within(lists_, spec.heads * capacity_ * int64_t{sizeof(int32_t)}) ? "a list"
                       : within(counts_, spec.heads * int64_t{sizeof(int32_t)})          ? "a count"
                       : at < q_ ? "a summary"
                                 : "what no result owns";
    return std::string(what) + " differs at byte " + std::to_string(at);
  }
  return "";
}

SelectionOutputs SelectionProblem::Outputs(const std::vector<std::byte>& memory) const {
  SelectionOutputs outputs;
  const int64_t code_bytes = spec.summary.code_bytes(spec.format.head_dim);
  const int64_t sketch_bytes = spec.summary.sketch_bytes(spec.format.head_dim);
  for (int64_t head = 0; head < spec.heads; ++head) {
    for (int64_t block = 0; block < spec.blocks(); ++block) {
      const int64_t segment_blocks = spec.segment_pages * spec.page_blocks();
      const int64_t summary_at = summaries_[static_cast<size_t>(
          head / spec.group_heads * group_segments() + block / segment_blocks)];
      const std::byte* codes = memory.data() + summary_at +
                               head % spec.group_heads * codes_head_stride_ +
                               block % segment_blocks * code_bytes;
      outputs.summaries.insert(outputs.summaries.end(), codes, codes + code_bytes);
      const std::byte* sketch = memory.data() + summary_at + sketch_offset_ +
                                head % spec.group_heads * sketch_head_stride_ +
                                block % segment_blocks * sketch_bytes;
      outputs.summaries.insert(outputs.summaries.end(), sketch, sketch + sketch_bytes);
    }
    const int32_t count = At<int32_t>(memory, counts_)[head];
    const int32_t* list = At<int32_t>(memory, lists_) + head * capacity_;
    outputs.counts.push_back(count);
    outputs.lists.insert(outputs.lists.end(), list, list + count);
    for (int64_t row = head * spec.group; row < (head + 1) * spec.group; ++row) {
      for (int64_t part = 0; part * spec.split < count * spec.summary.block_slots; ++part) {
        const float* o = At<float>(memory, o_) + part * o_part_stride_ + row * spec.format.head_dim;
        for (int64_t i = 0; i < spec.format.head_dim; ++i) {
          outputs.states.push_back(std::bit_cast<uint32_t>(o[i]));
        }
        const float lse = At<float>(memory, lse_)[part * lse_part_stride_ + row];
        outputs.states.push_back(std::bit_cast<uint32_t>(lse));
      }
    }
  }
  return outputs;
}

std::vector<std::byte> RunSelection(const SelectionProblem& problem, Kernels& kernels,
                                    Stream& stream, SelectionHost& host) {
  const SelectionCase& c = problem.spec;
  PageFormat plain = c.format;
  plain.encoding = Encoding::kNone;
  const SelectionMemory memory = {host.Put(problem.pages), host.Put(problem.working)};
  const std::vector<SegmentPlace> segments = problem.Segments(memory);
  kernels.Summarize(stream, plain, c.summary, problem.SummarizeItems(memory));
  const DType activation = kernels.ActivationDType(c.activation);
  const SelectItem select = problem.Select(memory, segments, activation);
  kernels.SelectBlocks(stream, c.format, c.summary, c.group, c.scale, {&select, 1});
  const AttendBlocksItem attend = problem.Attend(memory, segments, activation);
  kernels.AttendBlocks(stream, c.format, c.summary, c.group, c.scale, {&attend, 1});
  HEADWAY_CHECK(stream.Synchronize().ok());
  return host.Get(memory.working, problem.working.size());
}

}  // namespace headway
