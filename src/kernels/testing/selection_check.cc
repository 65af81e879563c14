// What a problem's calls leave behind: by the definition, by a backend, and where they differ.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
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
  std::byte* Put(Piece, const std::vector<std::byte>& bytes) override {
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

std::vector<std::byte> SelectionProblem::SketchPiece() const {
  return {working.begin(), working.begin() + sketches_end_};
}

SelectionMemory SelectionProblem::PutOn(SelectionHost& host) const {
  using Piece = SelectionHost::Piece;
  return {host.Put(Piece::kPages, pages), host.Put(Piece::kWorking, working),
          host.Put(Piece::kSketches, SketchPiece())};
}

std::vector<std::byte> SelectionProblem::WorkingOn(SelectionHost& host,
                                                   const SelectionMemory& memory) const {
  std::vector<std::byte> all = host.Get(memory.working, working.size());
  const std::vector<std::byte> sketches =
      host.Get(memory.sketches, static_cast<size_t>(sketches_end_));
  std::copy(sketches.begin(), sketches.end(), all.begin());
  return all;
}

const std::vector<std::byte>& SelectionProblem::Expected() {
  if (!expected_.empty()) return expected_;
  expected_ = working;
  const SelectionMemory memory = {pages.data(), expected_.data(), expected_.data()};
  const std::vector<SegmentPlace> segments = Segments(memory);
  for (const auto& [summary, items] : Summaries(memory)) {
    ref::Summarize(spec.format, summary, items);
  }
  for (const auto& [summary, choice] : Choices(memory, segments, DType::kF32)) {
    ref::SelectBlocks(spec.format, summary, spec.group, spec.scale, {&choice, 1});
  }
  const AttendBlocksItem attend = Attend(memory, segments, DType::kF32);
  ref::AttendBlocks(spec.format, spec.summary, spec.group, spec.scale, {&attend, 1});
  return expected_;
}

const std::vector<SelectionProblem::KeyReach>& SelectionProblem::ReachOfList(int64_t row_block,
                                                                             int64_t head) {
  const int64_t list = row_block * spec.heads + head;
  const auto [found, fresh] = reaches_.try_emplace(list);
  if (!fresh) return found->second;
  const int64_t slots = spec.summary.block_slots;
  const int32_t* blocks = At<int32_t>(Expected(), lists_) + list * capacity_;
  for (int64_t i = 0; i < At<int32_t>(Expected(), counts_)[list]; ++i) {
    for (int64_t slot = blocks[i] * slots; slot < (blocks[i] + 1) * slots; ++slot) {
      found->second.push_back({RowReach(head, slot, true), RowReach(head, slot, false)});
    }
  }
  return found->second;
}

StateReach SelectionProblem::ReachOf(int64_t state, int64_t q_head) {
  const bool decode = spec.rows == 1;
  const int64_t row = decode ? 0 : state;
  const std::vector<KeyReach>& all = ReachOfList(row / kSelectRows, q_head / spec.group);
  const auto first = static_cast<size_t>(decode ? state * spec.split : 0);
  const size_t end =
      decode ? std::min(all.size(), first + static_cast<size_t>(spec.split)) : all.size();
  const float* q = At<float>(working, floats_) + row * q_stride_ + q_head * spec.format.head_dim;
  StateReach reach;
  if (spec.merge) reach.values = 6;  // of the states that are merged into
  for (size_t key = first; key < end; ++key) {
    if (HasInfinity(all[key].k)) reach.logits = std::numeric_limits<double>::infinity();
    double sum = 0, q_squares = 0, k_squares = 0;
    for (size_t i = 0; i < all[key].k.size(); ++i) {
      const double k = all[key].k[i];
      sum += std::abs(double{q[i]}) * k;
      q_squares += double{q[i]} * double{q[i]};
      k_squares += k * k;
      reach.values = std::max(reach.values, all[key].v[i]);
    }
    // A moved key has the same norm, its elements are others.
    if (spec.move_dim > 0) sum = std::sqrt(q_squares * k_squares);
    reach.logits = std::max(reach.logits, std::abs(double{spec.scale}) * sum);
    ++reach.keys;
  }
  return reach;
}

StateReach SelectionProblem::ReachOfLists(int64_t q_head) {
  StateReach all;
  for (int64_t part = 0; part < parts_; ++part) {
    const StateReach reach = ReachOf(part, q_head);
    all.logits = std::max(all.logits, reach.logits);
    all.values = std::max(all.values, reach.values);
    all.keys += reach.keys;
  }
  return all;
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
                                                const std::vector<std::byte>& actual, int64_t state,
                                                int64_t q_head) {
  const StateReach reach = ReachOf(state, q_head);
  // Logits that are infinite are added up in any order: to infinity, or to NaN.
  if (std::isinf(reach.logits)) return "";
  const auto lse_at = static_cast<size_t>(state * lse_stride_ + q_head);
  const float lse = At<float>(expected_, lse_)[lse_at];
  const StateTolerance allowed =
      ToleranceOf(precision, spec.format.head_dim, 0.0f, reach, double{lse});
  std::string wrong =
      CompareNumbers("lse", lse_at, double{lse}, At<float>(actual, lse_)[lse_at], allowed.lse);
  const auto o_at = static_cast<size_t>(state * o_stride_ + q_head * spec.format.head_dim);
  for (size_t i = o_at; i < o_at + static_cast<size_t>(spec.format.head_dim) && wrong.empty();
       ++i) {
    wrong =
        CompareNumbers("o", i, At<float>(expected_, o_)[i], At<float>(actual, o_)[i], allowed.o);
  }
  if (wrong.empty()) return "";
  return std::string(spec.rows == 1 ? "part " : "row ") + std::to_string(state) + " query head " +
         std::to_string(q_head) + ": " + wrong;
}

std::string SelectionProblem::NameAt(int64_t at) const {
  const auto within = [&](int64_t begin, int64_t count) {
    return at >= begin && at < begin + row_blocks() * count * int64_t{sizeof(int32_t)};
  };
  const char* what = within(lists_, spec.heads * capacity_) ? "a list"
                     : within(counts_, spec.heads)          ? "a count"
                     : at >= listed_ && at < o_             ? "the sum of counts"
                     : at >= candidates_ && at < lists_     ? "a candidate or survivor"
                     : at < q_                              ? "a summary"
                                                            : "what no result owns";
  return std::string(what) + " differs at byte " + std::to_string(at);
}

bool SelectionProblem::SameBits(const std::vector<std::byte>& one,
                                const std::vector<std::byte>& other) const {
  const auto begin = static_cast<ptrdiff_t>(scratch_);
  const auto end = static_cast<ptrdiff_t>(scratch_ + scratch_bytes_);
  return one.size() == other.size() &&
         std::equal(one.begin(), one.begin() + begin, other.begin()) &&
         std::equal(one.begin() + end, one.end(), other.begin() + end);
}

std::string SelectionProblem::Disagreement(const AttentionPrecision& precision,
                                           const std::vector<std::byte>& actual) {
  const std::vector<std::byte>& expected = Expected();
  std::vector<bool> agrees(static_cast<size_t>(states() * query_heads()), false);
  const auto state_bytes = [&](int64_t stride) {
    return states() * stride * int64_t{sizeof(float)};
  };
  for (int64_t at = 0; at < std::ssize(expected); ++at) {
    const auto within = [&](int64_t begin, int64_t bytes) {
      return at >= begin && at < begin + bytes;
    };
    if (expected[static_cast<size_t>(at)] == actual[static_cast<size_t>(at)] ||
        within(scratch_, scratch_bytes_)) {
      continue;
    }
    const bool is_o = within(o_, state_bytes(o_stride_));
    const bool is_lse = within(lse_, state_bytes(lse_stride_));
    const int64_t element = (at - (is_o ? o_ : lse_)) / int64_t{sizeof(float)};
    const int64_t stride = is_o ? o_stride_ : lse_stride_;
    const int64_t head_elements = is_o ? spec.format.head_dim : 1;
    const int64_t head = (is_o || is_lse) ? element % stride / head_elements : query_heads();
    if (head >= query_heads()) return NameAt(at);
    const auto state = static_cast<size_t>(element / stride * query_heads() + head);
    if (agrees[state]) continue;
    const std::string wrong = StateDisagreement(precision, actual, element / stride, head);
    if (!wrong.empty()) return wrong;
    agrees[state] = true;
  }
  return "";
}

SelectionOutputs SelectionProblem::Outputs(const std::vector<std::byte>& memory) const {
  SelectionOutputs outputs;
  const int64_t code_bytes = spec.summary.code_bytes(spec.format.head_dim);
  const int64_t sketch_bytes = spec.summary.sketch_bytes(spec.format.head_dim);
  const int64_t segment_blocks = spec.segment_pages * spec.page_blocks();
  for (int64_t head = 0; head < spec.heads; ++head) {
    for (int64_t block = 0; block < spec.blocks(); ++block) {
      const auto segment =
          static_cast<size_t>(head / spec.group_heads * group_segments() + block / segment_blocks);
      const std::byte* summary = memory.data() + summaries_[segment];
      const std::byte* codes = summary + head % spec.group_heads * codes_head_stride_ +
                               block % segment_blocks * code_bytes;
      outputs.summaries.insert(outputs.summaries.end(), codes, codes + code_bytes);
      const std::byte* sketch = memory.data() + sketches_[segment] +
                                head % spec.group_heads * sketch_head_stride_ +
                                block % segment_blocks * sketch_bytes;
      outputs.summaries.insert(outputs.summaries.end(), sketch, sketch + sketch_bytes);
    }
  }
  for (int64_t i = 0; i < row_blocks() * spec.heads; ++i) {
    const int32_t* list = At<int32_t>(memory, lists_) + i * capacity_;
    outputs.counts.push_back(At<int32_t>(memory, counts_)[i]);
    outputs.lists.insert(outputs.lists.end(), list, list + outputs.counts.back());
  }
  for (int64_t head = 0; head < query_heads(); ++head) {
    const int64_t listed =
        int64_t{outputs.counts[static_cast<size_t>(head / spec.group)]} * spec.summary.block_slots;
    const int64_t filled = spec.rows > 1 ? spec.rows : CeilDiv(listed, spec.split);
    for (int64_t state = 0; state < filled; ++state) {
      const float* o = At<float>(memory, o_) + state * o_stride_ + head * spec.format.head_dim;
      for (int64_t i = 0; i < spec.format.head_dim; ++i) {
        outputs.states.push_back(std::bit_cast<uint32_t>(o[i]));
      }
      outputs.states.push_back(
          std::bit_cast<uint32_t>(At<float>(memory, lse_)[state * lse_stride_ + head]));
    }
  }
  return outputs;
}

std::vector<std::byte> RunSelection(const SelectionProblem& problem, Kernels& kernels,
                                    Stream& stream, SelectionHost& host, BlockCache cache) {
  const SelectionCase& c = problem.spec;
  const SelectionMemory memory = problem.PutOn(host);
  std::vector<SegmentPlace> segments = problem.Segments(memory);
  if (cache.lines != nullptr) {
    uint32_t version = 0;
    for (SegmentPlace& segment : segments) segment.version = ++version;
  }
  for (const auto& [summary, items] : problem.Summaries(memory)) {
    kernels.Summarize(stream, c.format, summary, items);
  }
  const DType activation = kernels.ActivationDType(c.activation);
  for (const auto& [summary, choice] : problem.Choices(memory, segments, activation)) {
    kernels.SelectBlocks(stream, c.format, summary, c.group, c.scale, {&choice, 1});
  }
  AttendBlocksItem attend = problem.Attend(memory, segments, activation);
  attend.cache = cache;
  if (cache.lines != nullptr) {
    // The first steps' states go elsewhere: those of the last one may be merged into what is there.
    const SelectionMemory before = problem.PutOn(host);
    const AttendBlocksItem spare = problem.Attend(before, segments, activation);
    AttendBlocksItem early = attend;
    early.o = spare.o;
    early.lse = spare.lse;
    for (int step = 1; step < kCachedSteps; ++step) {
      kernels.AttendBlocks(stream, c.format, c.summary, c.group, c.scale, {&early, 1});
      ++early.cache.step;
    }
    attend.cache = early.cache;
  }
  kernels.AttendBlocks(stream, c.format, c.summary, c.group, c.scale, {&attend, 1});
  HEADWAY_CHECK(stream.Synchronize().ok());
  return problem.WorkingOn(host, memory);
}

}  // namespace headway
