#include "engine/eval/tasks/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "base/random.h"
#include "engine/eval/tasks/facts.h"
#include "engine/eval/tasks/haystack.h"
#include "engine/eval/tasks/hidden_facts.h"
#include "engine/eval/tasks/word_lists.h"

namespace headway::eval {
namespace {

constexpr int64_t kShortestContext = 256;
constexpr int64_t kLongestContext = int64_t{1} << 24;
constexpr int64_t kMaxCount = 100'000;
// Of a document that is no prose: its prompt may be shorter than asked for by a part of it.
constexpr int64_t kSlackPart = 256;

Status Check(const RetrievalRequest& request) {
  if (request.count < 1 || request.count > kMaxCount) {
    return RefusedTask(
        {fmt::format("{} lines; 1 to {} can be generated", request.count, kMaxCount)});
  }
  for (const int64_t length : request.lengths) {
    if (length >= kShortestContext && length <= kLongestContext) continue;
    return RefusedTask({"a ", Option::kPromptLength,
                        fmt::format(" of {} tokens; {} to {} are possible", length,
                                    kShortestContext, kLongestContext)});
  }
  if (request.tasks.empty() || request.lengths.empty()) {
    return RefusedTask({"no retrieval task or no length"});
  }
  if (std::ranges::count(request.tasks, RetrievalTask::kQuestions) > 0 &&
      request.passages.empty()) {
    return RefusedTask({"the task qa needs texts with questions"});
  }
  return OkStatus();
}

// Lines of one length.
class Generator {
 public:
  Generator(const RetrievalRequest& request, int64_t length, const TextMeasure& measure)
      : request_(request), length_(length), measure_(measure), root_(request.seed) {}

  Result<std::vector<RetrievalLine>> Run();

 private:
  Result<RetrievalLine> Make(RetrievalTask task, std::optional<double> depth, Random& random);
  Result<RetrievalLine> MakeFacts(RetrievalTask task, std::optional<double> depth, Random& random);
  Result<RetrievalLine> MakeWords(RetrievalTask task, Random& random);
  Result<RetrievalLine> MakeQuestion(Random& random);
  Result<RetrievalLine> MakeFull(RetrievalTask task, std::optional<double> depth, Random& random);
  Result<RetrievalLine> Hide(const Draft& draft, size_t start);
  Status TakeProse(Random& random);
  Status MeasureHaystack(int64_t enough);
  // Of made-up pieces: few tokens join over their ends, so that twice the length is enough.
  int64_t EnoughTokens() const { return 2 * length_; }
  size_t DrawStart(Random& random) const;

  const RetrievalRequest& request_;
  const int64_t length_;
  const TextMeasure& measure_;
  Random root_;
  Haystack haystack_;
  bool given_ = false;  // it is the request's
  std::vector<int64_t> piece_tokens_;
  std::vector<int64_t> paragraph_tokens_;
};

// The given text once, or new prose for each line.
Status Generator::TakeProse(Random& random) {
  if (!request_.haystack.empty()) {
    if (given_) return OkStatus();
    given_ = true;
    haystack_ = Haystack::FromText(request_.haystack);
    return MeasureHaystack(kMaxLength);
  }
  // English has some 4 to 5 bytes a token; 8 is enough for any tokenizer that deserves the name.
  haystack_ = Haystack::Generate(length_ * 8, random.Next());
  return MeasureHaystack(EnoughTokens());
}

// The tokens of its pieces, up to so many.
Status Generator::MeasureHaystack(int64_t enough) {
  piece_tokens_.clear();
  int64_t sum = 0;
  for (const std::string& piece : haystack_.pieces()) {
    if (sum > enough) break;
    const Result<int64_t> tokens = measure_.tokens(piece);
    if (!tokens.ok()) return tokens.status();
    piece_tokens_.push_back(*tokens);
    sum += *tokens;
  }
  return OkStatus();
}

// A piece to begin with, such that enough tokens are left behind it.
size_t Generator::DrawStart(Random& random) const {
  int64_t behind = 0;
  size_t last = piece_tokens_.size();
  while (last > 0 && behind < length_ + 64) behind += piece_tokens_[--last];
  return static_cast<size_t>(random.Below(static_cast<int64_t>(last) + 1));
}

Result<RetrievalLine> Generator::MakeFacts(RetrievalTask task, std::optional<double> depth,
                                           Random& random) {
  if (IsAmongFacts(task)) return MakeFull(task, depth, random);
  if (Status s = TakeProse(random); !s.ok()) return s;
  const Draft draft = DraftFacts(task, depth, random);
  return Hide(draft, request_.haystack.empty() ? 0 : DrawStart(random));
}

Result<RetrievalLine> Generator::MakeFull(RetrievalTask task, std::optional<double> depth,
                                          Random& random) {
  const Draft draft = DraftFacts(task, depth, random);
  constexpr int64_t kFactTokens = 8;  // at least, whatever the tokenizer
  haystack_ = Haystack::FromPieces(OtherFacts(draft, length_ / kFactTokens, random));
  given_ = false;
  if (Status s = MeasureHaystack(EnoughTokens()); !s.ok()) return s;
  return Hide(draft, 0);
}

// In the haystack's pieces from `start` on.
Result<RetrievalLine> Generator::Hide(const Draft& draft, size_t start) {
  const auto pieces = std::span(haystack_.pieces()).subspan(start);
  Pieces of_line;
  of_line.tokens = std::span(piece_tokens_).subspan(start);
  of_line.assemble = [&](int64_t count) { return HideFacts(draft, pieces, count, measure_); };
  of_line.too_few = {"take a shorter ", Option::kPromptLength, " or a longer ", Option::kHaystack};
  return Fit(of_line, length_, measure_);
}

Result<RetrievalLine> Generator::MakeWords(RetrievalTask task, Random& random) {
  const uint64_t seed = random.Next();
  const auto list = task == RetrievalTask::kCommonWords ? ListCommonWords : ListFrequentWords;
  constexpr int64_t kSample = 128;  // words, for the first guess
  const Result<RetrievalLine> sample = list(kSample, seed);
  if (!sample.ok()) return sample.status();
  const Result<int64_t> tokens = measure_.tokens(sample->context);
  if (!tokens.ok()) return tokens.status();
  const std::vector<int64_t> each(static_cast<size_t>(length_),
                                  std::max<int64_t>(1, *tokens / kSample));
  Pieces words;
  words.tokens = each;
  words.assemble = [&](int64_t count) { return list(count, seed); };
  words.slack = length_ / kSlackPart;
  return Fit(words, length_, measure_);
}

Result<RetrievalLine> Generator::MakeQuestion(Random& random) {
  const Passages& passages = request_.passages;
  if (paragraph_tokens_.empty()) {
    Result<std::vector<int64_t>> measured = MeasurePieces(passages.paragraphs, measure_);
    if (!measured.ok()) return measured.status();
    paragraph_tokens_ = std::move(*measured);
  }
  const auto& asked =
      passages.questions[static_cast<size_t>(random.Below(std::ssize(passages.questions)))];
  const uint64_t seed = random.Next();
  const std::vector<size_t> order = PassageOrder(passages, asked, seed);
  constexpr int64_t kHeadTokens = 4;  // "Document 12:"
  std::vector<int64_t> tokens;
  for (const size_t paragraph : order) {
    tokens.push_back(paragraph_tokens_[paragraph] + kHeadTokens);
  }
  Pieces paragraphs;
  paragraphs.tokens = tokens;
  paragraphs.assemble = [&](int64_t count) -> Result<RetrievalLine> {
    return AskAboutPassages(passages, asked, order, count, seed);
  };
  paragraphs.slack = length_ / kSlackPart;
  paragraphs.too_few = {"take a shorter ", Option::kPromptLength, " or a larger file of questions"};
  return Fit(paragraphs, length_, measure_);
}

Result<RetrievalLine> Generator::Make(RetrievalTask task, std::optional<double> depth,
                                      Random& random) {
  if (task == RetrievalTask::kQuestions) return MakeQuestion(random);
  if (task == RetrievalTask::kCommonWords || task == RetrievalTask::kFrequentWords) {
    return MakeWords(task, random);
  }
  return MakeFacts(task, depth, random);
}

Result<std::vector<RetrievalLine>> Generator::Run() {
  std::vector<RetrievalLine> lines;
  size_t with_depth = 0;
  for (int64_t i = 0; i < request_.count; ++i) {
    Random random(root_.Next());
    const RetrievalTask task = request_.tasks[static_cast<size_t>(i) % request_.tasks.size()];
    std::optional<double> depth;
    if (HasDepth(task) && !request_.depths.empty()) {
      depth = request_.depths[with_depth++ % request_.depths.size()];
    }
    Result<RetrievalLine> line = Make(task, depth, random);
    if (!line.ok()) return line.status();
    const TaskTraits& traits = TraitsOf(task);
    line->id = fmt::format("{}-{}", traits.name, i);
    if (request_.lengths.size() > 1) line->id += fmt::format("-{}", length_);
    line->metric = traits.metric;
    line->max_tokens = traits.max_tokens;
    line->labels = {{"task", traits.name}, {"length", std::to_string(length_)}};
    if (depth.has_value()) line->labels.emplace_back("depth", fmt::format("{:g} %", 100 * *depth));
    lines.push_back(std::move(*line));
  }
  return lines;
}

}  // namespace

Result<std::vector<RetrievalLine>> GenerateRetrieval(const RetrievalRequest& request,
                                                     const TextMeasure& measure) {
  if (Status s = Check(request); !s.ok()) return s;
  std::vector<RetrievalLine> lines;
  for (const int64_t length : request.lengths) {
    Result<std::vector<RetrievalLine>> of_length = Generator(request, length, measure).Run();
    if (!of_length.ok()) return of_length.status();
    std::move(of_length->begin(), of_length->end(), std::back_inserter(lines));
  }
  return lines;
}

}  // namespace headway::eval
