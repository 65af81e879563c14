// The share of the attention to far keys that is found where blocks are chosen by summaries of
// several kinds and sizes, as `headway eval recall` counts it, in plain float arithmetic: keys,
// queries and weights of a model on a text. Each window is read once for all ways and budgets, and
// the engine's own lists, of 16 keys by codes of 8 bits, are counted beside them.
//
//   summary_recall MODEL FILE [WINDOWS [CONTEXT [TOKENS]]]      by default 3 8192 128
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "block_summaries.h"
#include "engine/eval/divergence.h"
#include "engine/eval/perplexity.h"
#include "engine/eval/recall.h"
#include "headway/engine.h"
#include "kernels/ref/ref_selection.h"
#include "kernels/ref/ref_selection_keys.h"
#include "kv/policy/selection.h"
#include "model/model.h"
#include "model/rope.h"
#include "support/forwarding_kernels.h"
#include "support/step_harness.h"
#include "unwrap.h"

namespace headway::bench {
namespace {

constexpr int64_t kSink = 64;
constexpr int64_t kRecent = 256;
constexpr std::array<int64_t, 3> kShares = {16, 8, 4};  // one of so many keys is read
constexpr size_t kChecked = 1;                          // of these, by the engine, too
constexpr int kEngineBlock = 16;

std::vector<Way> WaysToChoose() {
  constexpr BudgetShare kOwn = BudgetShare::kHead;
  std::vector<Way> ways;
  for (const int block : {8, 16, 32, 64}) {
    ways.push_back({"oracle", Kept::kMasses, block});
    ways.push_back({"mean, variance, 8 bits", Kept::kMoments, block});
    ways.push_back({"least, greatest, 8 bits", Kept::kBoxes, block, 8, kOwn});
  }
  ways.push_back({"mean, variance, floats", Kept::kMoments, 16, 0});
  ways.push_back({"mean, variance, 16 bits", Kept::kMoments, 16, 16});
  for (const int block : {8, 16}) {
    ways.push_back({"mean, variance, 4 bits", Kept::kMoments, block, 4});
    ways.push_back({"mean, deviation, 4 bits", Kept::kDeviations, block, 4});
  }
  ways.push_back({"mean alone, 8 bits", Kept::kMeans, 16});
  for (const Encoding encoding : {Encoding::kInt8, Encoding::kInt4}) {
    const std::string name = encoding == Encoding::kInt8 ? "int8 parameters" : "int4 parameters";
    ways.push_back({name + ", as boxes", Kept::kEncodedBoxes, 64, 0, kOwn, encoding});
    ways.push_back(
        {name + ", as moments", Kept::kEncodedMoments, 64, 0, BudgetShare::kLayer, encoding});
    ways.push_back(
        {name + " and a mean", Kept::kMeansInPages, 16, 8, BudgetShare::kLayer, encoding});
  }
  return ways;
}

kv::SelectionPolicy PolicyOf(SummaryFormat summary, int64_t context, int64_t share) {
  kv::SelectionPolicy policy;
  policy.summary = summary;
  policy.keys = context / share - kSink - kRecent;
  policy.sink = kSink;
  policy.recent = kRecent;
  return policy;
}

struct Found {
  double listed = 0.0;
  double far = 0.0;
};

// Shares of a softmax over the scores are added to `worth`.
void AddShares(std::span<const float> scores, std::vector<double>& worth) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (const float score : scores) sum += std::exp(score - largest);
  for (size_t i = 0; i < scores.size(); ++i) worth[i] += std::exp(scores[i] - largest) / sum;
}

// A far block of a head.
struct Candidate {
  double worth = 0.0;
  double mass = 0.0;
};

// The mass of the `count` candidates that are worth most.
double MassOfBest(std::vector<Candidate> candidates, int64_t count) {
  const auto end = candidates.begin() + std::min<ptrdiff_t>(count, std::ssize(candidates));
  std::nth_element(candidates.begin(), end, candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.worth > b.worth; });
  double sum = 0.0;
  for (auto each = candidates.begin(); each != end; ++each) sum += each->mass;
  return sum;
}

// Watches the decode steps of a sequence: of each layer's choice the queries and the closed keys,
// and behind its attention what that is normalised by.
class Watcher : public testing::ForwardingKernels {
 public:
  Watcher(std::unique_ptr<Kernels> inner, const ModelShape& shape, int64_t context,
          std::span<const Way> ways, std::vector<std::vector<Found>>* found)
      : ForwardingKernels(std::move(inner)),
        shape_(shape),
        context_(context),
        ways_(ways),
        found_(*found) {
    for (int i = 0; i < shape.layers * shape.kv_heads; ++i) {
      heads_.emplace_back(ways, shape.head_dim);
    }
  }

  void BeginStep(int64_t position) { position_ = position, layer_ = 0; }

  void SelectBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const SelectItem> items) override {
    const SelectItem& item = items.front();
    const auto* q = static_cast<const float*>(item.q);
    queries_.assign(q, q + shape_.query_heads * shape_.head_dim);
    scale_ = scale;
    chosen_ = true;
    for (int head = 0; head < shape_.kv_heads; ++head) AppendClosed(format, item.keys, head);
    ForwardingKernels::SelectBlocks(stream, format, summary, group, scale, items);
  }

  void Merge(Stream& stream, int head_dim, std::span<const MergeItem> items) override {
    ForwardingKernels::Merge(stream, head_dim, items);
    if (!std::exchange(chosen_, false)) return;
    std::vector<double> lse;
    for (const MergeItem& item : items) {
      for (int64_t row = 0; row < item.rows; ++row) {
        double sum = 0.0;
        for (int part = 0; part < item.AllParts(); ++part) {
          sum += std::exp(static_cast<double>(item.PartLse(part)[row]));
        }
        lse.push_back(std::log(sum));
      }
    }
    if (std::ssize(lse) != shape_.query_heads) {
      Require(Status(StatusCode::kInternal, "heads are merged in parts"));
    }
    AddLayer(lse);
    ++layer_;
  }

 private:
  HeadSummaries& HeadAt(int head) {
    return heads_[static_cast<size_t>(layer_ * shape_.kv_heads + head)];
  }
  std::span<const float> QueryOf(int q_head) const {
    return std::span(queries_).subspan(static_cast<size_t>(q_head * shape_.head_dim),
                                       static_cast<size_t>(shape_.head_dim));
  }

  void AppendClosed(const PageFormat& format, const BlockedKeys& keys, int head) {
    std::vector<float> closed;
    for (int64_t key = HeadAt(head).count(); key < keys.blocks * kEngineBlock; ++key) {
      const ref::BlockPlace place = ref::PlaceOf(keys, head, key / kEngineBlock);
      const int64_t slot = place.block * kEngineBlock + key % kEngineBlock;
      const std::byte* page = place.segment->slab + place.head * keys.head_stride +
                              slot / format.page_slots * keys.page_stride;
      const std::vector<float> numbers =
          ref::NumbersOf(format, {page, nullptr, slot % format.page_slots});
      closed.insert(closed.end(), numbers.begin(), numbers.end());
    }
    HeadAt(head).Append(closed);
  }

  // Of each query head and closed key, the share of the attention [query_heads][keys].
  std::vector<std::vector<double>> KeyMasses(std::span<const double> lse) {
    std::vector<std::vector<double>> masses;
    for (int q_head = 0; q_head < shape_.query_heads; ++q_head) {
      const HeadSummaries& head = HeadAt(q_head / shape_.group());
      const std::span<const float> q = QueryOf(q_head);
      std::vector<double>& of_head = masses.emplace_back();
      for (int64_t key = 0; key < head.count(); ++key) {
        const double logit = double{scale_} * double{head.Product(q, key)};
        of_head.push_back(std::exp(logit - lse[static_cast<size_t>(q_head)]));
      }
    }
    return masses;
  }

  // Of each KV head and block, the mean over its query heads of the share of their attention.
  std::vector<std::vector<double>> BlockMasses(const std::vector<std::vector<double>>& keys,
                                               int block) const {
    std::vector<std::vector<double>> masses;
    for (int head = 0; head < shape_.kv_heads; ++head) {
      std::vector<double>& of_head = masses.emplace_back(keys.front().size() / block, 0.0);
      for (int i = 0; i < shape_.group(); ++i) {
        const std::vector<double>& of_keys = keys[static_cast<size_t>(head * shape_.group() + i)];
        for (size_t key = 0; key < of_keys.size(); ++key) {
          of_head[key / static_cast<size_t>(block)] += of_keys[key] / shape_.group();
        }
      }
    }
    return masses;
  }

  // The worth of a head's blocks, which of the oracle is their mass among closed keys.
  std::vector<double> WorthOf(size_t way, int head, const std::vector<std::vector<double>>& keys) {
    const auto block = static_cast<size_t>(ways_[way].block);
    std::vector<double> worth(keys.front().size() / block, 0.0);
    for (int q_head = head * shape_.group(); q_head < (head + 1) * shape_.group(); ++q_head) {
      if (ways_[way].kept != Kept::kMasses) {
        AddShares(HeadAt(head).Scores(way, QueryOf(q_head), scale_), worth);
        continue;
      }
      const std::vector<double>& of_keys = keys[static_cast<size_t>(q_head)];
      const double closed = std::accumulate(of_keys.begin(), of_keys.end(), 0.0);
      for (size_t key = 0; key < of_keys.size(); ++key) worth[key / block] += of_keys[key] / closed;
    }
    return worth;
  }

  void AddLayer(std::span<const double> lse) {
    const std::vector<std::vector<double>> keys = KeyMasses(lse);
    for (size_t w = 0; w < ways_.size(); ++w) {
      const std::vector<std::vector<double>> masses = BlockMasses(keys, ways_[w].block);
      std::vector<std::vector<double>> worth;
      for (int head = 0; head < shape_.kv_heads; ++head) worth.push_back(WorthOf(w, head, keys));
      for (size_t i = 0; i < kShares.size(); ++i) {
        const kv::SelectionPolicy policy =
            PolicyOf({SummaryKind::kMoments, ways_[w].block}, context_, kShares[i]);
        const kv::BlockSpan span = {0, std::ssize(worth.front())};
        AddChosen(ways_[w].share, kv::BudgetOf(policy, {&span, 1}, position_), worth, masses,
                  found_[w][i]);
      }
    }
  }

  static void AddChosen(BudgetShare share, const SelectionBudget& budget,
                        const std::vector<std::vector<double>>& worth,
                        const std::vector<std::vector<double>>& masses, Found& found) {
    std::vector<Candidate> candidates;
    for (size_t head = 0; head < worth.size(); ++head) {
      for (auto block = static_cast<size_t>(budget.far_begin);
           block < static_cast<size_t>(budget.far_end); ++block) {
        candidates.push_back({worth[head][block], masses[head][block]});
        found.far += masses[head][block];
      }
      if (share == BudgetShare::kLayer) continue;
      found.listed += MassOfBest(std::exchange(candidates, {}), budget.far_blocks);
    }
    found.listed += MassOfBest(std::move(candidates), budget.far_blocks * std::ssize(worth));
  }

  const ModelShape& shape_;
  const int64_t context_;
  const std::span<const Way> ways_;
  std::vector<std::vector<Found>>& found_;  // [ways][budgets]
  std::vector<HeadSummaries> heads_;        // [layers, KV heads]
  int64_t position_ = 0;
  // Of the layer at hand:
  int layer_ = 0;
  bool chosen_ = false;
  float scale_ = 0.0f;
  std::vector<float> queries_;  // [query_heads, head_dim]
};

// Adds the last `compared` tokens of a window, read one a step behind an exact prompt.
void AddWindow(Model& model, std::span<const TokenId> tokens, int64_t compared,
               std::span<const Way> ways, std::vector<std::vector<Found>>* found,
               SelectionRecall* engine) {
  const auto context = std::ssize(tokens);
  Watcher* watcher = nullptr;
  testing::HarnessConfig config;
  config.chunk = 2048;
  config.page_slots = kPageKeys;
  config.segment_pages = 16;
  config.selection = PolicyOf({SummaryKind::kMoments, kEngineBlock}, context, kShares[kChecked]);
  config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
    auto wrapped =
        std::make_unique<Watcher>(std::move(kernels), model.shape(), context, ways, found);
    watcher = wrapped.get();
    return wrapped;
  };
  const auto harness = Unwrap(testing::StepHarness::Create(model, config, 1, context));
  const RopeFrequencies rope = ComputeRope(model.config().rope, model.shape().head_dim, context);
  const kv::SequenceId sequence = Unwrap(harness->NewSequence());
  for (int64_t at = 0; at < context - compared; at += config.chunk) {
    const int64_t count = std::min(config.chunk, context - compared - at);
    const StepInput input{sequence,
                          tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(count)),
                          &rope, LogitsMode::kNone};
    Require(harness->executor().Step({&input, 1}, {}, nullptr));
  }
  for (int64_t at = context - compared; at < context; ++at) {
    watcher->BeginStep(at);
    const StepInput input{sequence, tokens.subspan(static_cast<size_t>(at), 1), &rope,
                          LogitsMode::kNone};
    Require(harness->executor().StepWithRecall(input, engine));
  }
}

void Print(std::span<const Way> ways, int head_dim, const std::vector<std::vector<Found>>& found,
           const SelectionRecall& engine) {
  std::printf("%-28s %5s %8s %7s", "chosen by", "block", "B a key", "shared");
  for (const int64_t share : kShares) std::printf("   1/%-2lld ", static_cast<long long>(share));
  std::printf("\n");
  for (size_t w = 0; w < ways.size(); ++w) {
    std::printf("%-28s %5d %8.1f %7s", ways[w].name.c_str(), ways[w].block,
                BytesPerKey(ways[w], head_dim),
                ways[w].share == BudgetShare::kLayer ? "layer" : "head");
    for (const Found& each : found[w]) std::printf(" %7.4f", each.listed / each.far);
    std::printf("\n");
  }
  const eval::RecallShares shares = eval::SharesOf(engine.heads, engine.steps);
  std::printf("the engine's lists at 1/%lld, of %d keys: %.4f, the best there are: %.4f\n",
              static_cast<long long>(kShares[kChecked]), kEngineBlock, shares.listed,
              shares.best_of_layer);
}

}  // namespace
}  // namespace headway::bench

int main(int argc, char** argv) {
  using namespace headway;
  using namespace headway::bench;
  const auto number = [&](int at, int64_t otherwise) {
    return argc > at ? std::atoll(argv[at]) : otherwise;
  };
  const eval::SpreadWindows::Shape shape = {number(4, 8192), number(3, 3), number(5, 128)};
  if (argc < 3 || argc > 6 || shape.count < 1 || shape.compared < 1 ||
      shape.length / kShares.front() <= kSink + kRecent || shape.compared >= shape.length) {
    std::fprintf(stderr, "usage: summary_recall MODEL FILE [WINDOWS [CONTEXT [TOKENS]]]\n");
    return 2;
  }
  const std::string text = Unwrap(Env::Default()->ReadFile(argv[2]));
  std::vector<TokenId> tokens;
  std::optional<TokenId> bos;
  {
    const std::unique_ptr<Engine> engine = Unwrap(Engine::Open(argv[1], {}));
    tokens = Unwrap(engine->Encode(text, {.add_special_tokens = false, .parse_special = true}));
    bos = Unwrap(eval::TokenizerBos(*engine));
  }
  const auto windows = Unwrap(eval::SpreadWindows::Over(tokens, bos, shape));
  const std::unique_ptr<Model> model = Unwrap(Model::Load(Env::Default(), argv[1]));
  const std::vector<Way> ways = WaysToChoose();
  std::vector<std::vector<Found>> found(ways.size(), std::vector<Found>(kShares.size()));
  SelectionRecall engine;
  engine.heads.resize(static_cast<size_t>(model->shape().layers * model->shape().kv_heads));
  for (int64_t window = 0; window < shape.count; ++window) {
    AddWindow(*model, windows.Window(window), shape.compared, ways, &found, &engine);
  }
  Print(ways, model->shape().head_dim, found, engine);
  return 0;
}
