// Random problems of selection, run on any backend and compared with kernels/ref, the definition:
// summaries and lists byte by byte, states within a derived tolerance, and all memory around them.
#ifndef HEADWAY_KERNELS_TESTING_SELECTION_PROBLEM_H_
#define HEADWAY_KERNELS_TESTING_SELECTION_PROBLEM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "kernels/kernels.h"
#include "kernels/testing/attention_problem.h"

namespace headway {

struct SelectionCase {
  PageFormat format;
  SummaryFormat summary;
  int heads = 1;
  int group_heads = 1;
  int group = 1;
  int segment_pages = 1;
  int64_t pages = 0;  // closed ones of a head
  SelectionBudget budget;
  // Of two looks: the candidates are those of an earlier query, whose far blocks ended so many
  // blocks before these do; -1: they are the query's own.
  int64_t candidates_from = -1;
  bool by_pages = false;  // and they are listed by summaries of whole pages
  // Of stages: what survives those before is that of an earlier query.
  int first_stage = 0;
  int64_t split = 0;
  float scale = 1.0f;
  float key_size = 1.0f;
  bool of_codes = false;     // summaries are made of pages in the encoding, which there is
  bool bad_numbers = false;  // NaN and infinity in some keys and queries
  int64_t rows = 1;          // of queries; with more than one, split is 0
  int turn_dim = 0;          // elements of a head that turn back in keys, and on in queries
  KeyPositions positions = KeyPositions::kOne;  // of stages: where keys that turn back count
  int move_dim = 0;                             // that rotate with blocks that are moved
  bool together = false;                        // moved blocks but the last one come to one place
  bool merge = false;                           // states of rows are merged into others
  DType activation = DType::kF32;               // of the queries, whose numbers are rounded to it

  int64_t blocks() const { return pages * page_blocks(); }
  int64_t page_blocks() const { return format.page_slots / summary.block_slots; }
  std::string Name() const;
  // With or without sketches of keys, as far as the format can have them, and one look or two, at
  // candidates of this query or of an earlier one.
  void MayLookTwice(Random& random);
  // With a fixed budget, or one that is a share of all worth.
  void MayTakeTopP(Random& random);
};

// Any dtype, encoding, shape and budget, of decode. Pages, heads and parameters lie as a GPU wants
// them.
SelectionCase RandomSelectionCase(Random& random);
// The same with a bound of what is left out.
SelectionCase RandomBoundedCase(Random& random);
// Any with summaries and queries that are turned, and blocks that are moved.
SelectionCase RandomMovedCase(Random& random);
// Scores that are there for comparison, in decode alone: pairs of keys, or all keys, or stages.
SelectionCase RandomOtherCase(Random& random);
// Stages, of decode or of a prefill, with keys and queries that are turned, and blocks that are
// moved.
SelectionCase RandomStagedCase(Random& random);
// Queries of a prefill, turned and moved or not.
SelectionCase RandomPrefillCase(Random& random);

// Where the pieces of a problem's memory lie: the pages, which kernels read alone; sketches; and
// all else that they work on.
struct SelectionMemory {
  std::byte* pages = nullptr;
  std::byte* working = nullptr;
  std::byte* sketches = nullptr;  // a piece of their own, or the begin of the working memory
};
class SelectionHost;

// What is chosen and computed, without the places where it lies.
struct SelectionOutputs {
  std::vector<std::byte> summaries;
  std::vector<int32_t> lists;    // of each block of rows and head in order
  std::vector<int32_t> counts;   // [row blocks, heads]
  std::vector<uint32_t> states;  // bits of o and lse of each part, or row, and query head

  bool operator==(const SelectionOutputs& other) const = default;
};

// One sequence and layer in host memory, poisoned where no number of the problem lies. A backend
// gets copies of both pieces. Where things lie in them depends on `places` alone.
class SelectionProblem {
 public:
  SelectionProblem(const SelectionCase& c, Random& random, Random& places);

  // Copies of the pieces on a host, and what they are once the stream has passed all calls: as the
  // working memory has it.
  SelectionMemory PutOn(SelectionHost& host) const;
  std::vector<std::byte> WorkingOn(SelectionHost& host, const SelectionMemory& memory) const;

  // The calls' items over copies of the memory. q is read in `activation`.
  struct SummaryCall {
    SummaryFormat summary;
    std::vector<SummarizeItem> items;
  };
  std::vector<SummaryCall> Summaries(const SelectionMemory& memory) const;
  std::vector<SegmentPlace> Segments(const SelectionMemory& memory) const;
  // One call behind the other: an earlier query, or a choice of pages, may list the candidates of
  // the last, or what survives its first stages.
  struct ChoiceCall {
    SummaryFormat summary;
    SelectItem item;
  };
  std::vector<ChoiceCall> Choices(const SelectionMemory& memory,
                                  std::span<const SegmentPlace> segments, DType activation) const;
  AttendBlocksItem Attend(const SelectionMemory& memory, std::span<const SegmentPlace> segments,
                          DType activation) const;

  // The working memory as the definition leaves it after all three calls.
  const std::vector<std::byte>& Expected();
  // Whether two runs left the same bytes everywhere but in the scratch.
  bool SameBits(const std::vector<std::byte>& one, const std::vector<std::byte>& other) const;
  // The first difference of `actual` beyond what `precision` allows, in words, or empty.
  std::string Disagreement(const AttentionPrecision& precision,
                           const std::vector<std::byte>& actual);
  SelectionOutputs Outputs(const std::vector<std::byte>& working) const;
  // What the error of a query head's attention to all that it lists depends on, in decode.
  StateReach ReachOfLists(int64_t q_head);

  SelectionCase spec;
  std::vector<std::byte> pages;
  std::vector<std::byte> working;

 private:
  // Hands out offsets of a piece of memory, with gaps between them.
  class Arena;
  // How pages of one kind lie in a slab.
  struct SlabLayout {
    int64_t page_stride = 0, head_stride = 0, v_offset = 0;
    int64_t params_offset = 0, params_page_stride = 0, params_head_stride = 0;
    int64_t bytes = 0;
  };

  void LayOut(Random& places);
  SlabLayout LayoutOf(const PageFormat& format, Random& places) const;
  void FillKeys(Random& random);
  std::vector<float> BlockOfKeys(int64_t block, const std::vector<float>& offsets,
                                 const std::vector<float>& center, Random& random) const;
  void SpoilKeys(Random& random);
  void FillQueries(Random& random);
  void FillTurns(Random& random);
  void FillStates(Random& random);
  void Encode();
  // Of a slab, from slot `slot` of its pages on.
  PageRun RunOf(const SlabLayout& layout, std::byte* slab, int64_t slot, int64_t count) const;
  int64_t PlainAt(int64_t head, int64_t slot) const;  // of K's row
  BlockedKeys Keys(std::span<const SegmentPlace> segments) const;
  // The part of a segment whose keys are `keys`, from slot `slot` on.
  SummarizeItem SummaryOf(const SummaryFormat& summary, const SelectionMemory& memory,
                          size_t segment, int64_t slot) const;
  std::vector<std::byte> SketchPiece() const;
  SummaryFormat page_summary() const { return {spec.summary.kind, spec.format.page_slots}; }
  // What is listed by pages for `item`.
  SelectItem SearchOf(SelectItem item) const;
  int search_run() const { return spec.by_pages ? static_cast<int>(spec.page_blocks()) : 1; }
  // How large what is added up for each element of a row of K or V can be.
  std::vector<double> RowReach(int64_t head, int64_t slot, bool of_keys) const;
  struct KeyReach {
    std::vector<double> k, v;
  };
  const std::vector<KeyReach>& ReachOfList(int64_t row_block, int64_t head);
  StateReach ReachOf(int64_t state, int64_t q_head);
  std::string StateDisagreement(const AttentionPrecision& precision,
                                const std::vector<std::byte>& actual, int64_t state,
                                int64_t q_head);
  // What lies at a byte of the working memory that is no state's, in words.
  std::string NameAt(int64_t at) const;

  int64_t head_groups() const { return CeilDiv(spec.heads, spec.group_heads); }
  int64_t group_segments() const { return CeilDiv(spec.pages, spec.segment_pages); }
  int64_t segment_slots() const { return int64_t{spec.segment_pages} * spec.format.page_slots; }
  int64_t query_heads() const { return int64_t{spec.heads} * spec.group; }
  int64_t row_blocks() const { return CeilDiv(spec.rows, kSelectRows); }
  int64_t states() const { return spec.rows == 1 ? parts_ : spec.rows; }
  bool has_earlier_query() const { return spec.candidates_from >= 0 || spec.first_stage > 0; }
  SelectionBudget EarlierBudget() const;
  int64_t ScratchBytes() const;
  bool encoded() const { return spec.format.encoding != Encoding::kNone; }
  const std::vector<int64_t>& slabs() const { return encoded() ? closed_slabs_ : plain_slabs_; }

  PageFormat plain_format_;
  SlabLayout plain_, closed_;         // the same without an encoding
  std::vector<int64_t> plain_slabs_;  // offsets in pages [head groups, segments]
  std::vector<int64_t> closed_slabs_;
  // Of a summary, and offsets of all in working memory.
  int64_t codes_head_stride_ = 0, scales_offset_ = 0, scales_head_stride_ = 0;
  int64_t sketch_head_stride_ = 0;
  // The same of whole pages.
  int64_t page_codes_offset_ = 0, page_codes_head_stride_ = 0;
  int64_t page_scales_offset_ = 0, page_scales_head_stride_ = 0;
  std::vector<int64_t> summaries_, sketches_;  // [head groups, segments]
  int64_t sketches_end_ = 0;                   // they come first
  int64_t q_ = 0, floats_ = 0;                 // queries in the activations' dtype, and in f32
  int64_t candidates_ = 0, candidate_counts_ = 0, candidate_capacity_ = 0;
  std::array<int64_t, kChunkStages> survivors_ = {}, survivor_counts_ = {};
  std::array<int64_t, kChunkStages> survivor_capacity_ = {};
  int64_t lists_ = 0, counts_ = 0, listed_ = 0, o_ = 0, lse_ = 0, scratch_ = 0, scratch_bytes_ = 0;
  // Angles of slots, of rows, and the frequencies of moves and of keys that are turned back.
  int64_t slot_cos_ = 0, slot_sin_ = 0, row_cos_ = 0, row_sin_ = 0, inv_freq_ = 0, turn_freq_ = 0;
  int64_t capacity_ = 0, q_stride_ = 0;
  int64_t o_stride_ = 0, lse_stride_ = 0;  // between states: parts in decode, or rows
  int parts_ = 0;
  std::vector<int64_t> positions_;  // [group segments]
  int64_t end_ = 0;
  int64_t cut_ = 0;  // pages of a segment that the first of its two items of Summarize covers
  std::vector<std::byte> expected_;
  std::map<int64_t, std::vector<KeyReach>> reaches_;  // of lists
};

// Memory of a backend.
class SelectionHost {
 public:
  virtual ~SelectionHost() = default;
  // A copy of the bytes, aligned to 256, where kernels reach it; it lives as long as this does.
  enum class Piece { kPages, kSketches, kWorking };
  virtual std::byte* Put(Piece piece, const std::vector<std::byte>& bytes) = 0;
  // What lies at `at` once the stream has passed all calls.
  virtual std::vector<std::byte> Get(const std::byte* at, size_t size) = 0;
};

// Memory of this machine.
std::unique_ptr<SelectionHost> NewSelectionHost();

// Runs the three calls on copies of the problem's memory; returns the working memory afterwards.
// With a cache, attention runs in kCachedSteps steps, whose pages may be kept.
inline constexpr int kCachedSteps = 3;
std::vector<std::byte> RunSelection(const SelectionProblem& problem, Kernels& kernels,
                                    Stream& stream, SelectionHost& host, BlockCache cache = {});

}  // namespace headway

#endif  // HEADWAY_KERNELS_TESTING_SELECTION_PROBLEM_H_
