#include "cli/roofline.h"

#include <gtest/gtest.h>

#include <vector>

namespace headway::cli {
namespace {

ModelInfo SmallModel() {
  ModelInfo info;
  info.dtype = "bf16";
  info.layers = 2;
  info.d_model = 8;
  info.query_heads = 4;
  info.head_dim = 3;
  info.vocab = 10;
  info.step_weight_bytes = 2 * (100 + 80);  // 100 weights of layers, 80 of the head
  info.kv_bytes_per_token = 16;
  return info;
}

TEST(Roofline, CountsAPrefill) {
  const std::vector<int64_t> lengths = {1, 3};
  const std::vector<int64_t> none = {0, 0};
  const Work work = PrefillWork(SmallModel(), lengths, none, {});
  EXPECT_EQ(work.bytes, 360 + 4 * 16);
  // 4 tokens through 100 weights, 2 through the head, 1 + (1 + 2 + 3) keys of 2 layers, 4 heads.
  EXPECT_EQ(work.flops, 4 * 200 + 2 * 160);
  EXPECT_EQ(work.attention_flops, 7 * (2 * 4 * 3 * 4));
}

TEST(Roofline, CountsWhatFollowsAPrefix) {
  const std::vector<int64_t> lengths = {5};
  const std::vector<int64_t> prefixes = {3};
  const Work work = PrefillWork(SmallModel(), lengths, prefixes, {});
  EXPECT_EQ(work.bytes, 360 + 2 * 16);
  EXPECT_EQ(work.flops, 2 * 200 + 160);
  EXPECT_EQ(work.attention_flops, (4 + 5) * (2 * 4 * 3 * 4));
}

// 100 tokens behind 100, in chunks of 64: each token sees its chunk up to itself and 24 keys of the
// pages before the chunk.
TEST(Roofline, CountsAPrefillThatSelects) {
  ModelInfo info = SmallModel();
  info.kv_heads = 2;
  PlanReport plan;
  plan.chunk = 64;
  SelectionReport selection;
  selection.keys = 16;
  selection.sink = selection.recent = 4;
  selection.block = 4;
  selection.scored_bytes = 3.5;
  selection.pool = 8;
  plan.selection = selection;
  const std::vector<int64_t> lengths = {200};
  const std::vector<int64_t> prefixes = {100};
  // Prompts are exact unless the plan says otherwise.
  const Work exact = PrefillWork(info, lengths, prefixes, {});
  EXPECT_EQ(PrefillWork(info, lengths, prefixes, plan).attention_flops, exact.attention_flops);
  plan.selection->prompts = true;
  const Work work = PrefillWork(info, lengths, prefixes, plan);
  const double own = 64 * 65 / 2 + 36 * 37 / 2;
  // 8 and 5 pooled queries score the 25 and 41 blocks before their chunks.
  const double scores = 8 * 25 + 5 * 41;
  EXPECT_EQ(work.attention_flops, (own + 100 * 24 + scores) * (2 * 4 * 3 * 4));
  EXPECT_EQ(work.bytes, exact.bytes + (100 + 164) * 2 * 2 * 3.5);
  EXPECT_EQ(work.flops, exact.flops);
  // Two looks at the chunk that has twice as many keys before it as there are candidates: 5 pooled
  // queries score 20 of the 41 blocks, one more scores all.
  plan.selection->prompt_candidates = 80;
  plan.selection->search = 64;
  EXPECT_EQ(PrefillWork(info, lengths, prefixes, plan).attention_flops,
            (own + 100 * 24 + 8 * 25 + 5 * 20 + 41) * (2 * 4 * 3 * 4));
  // What is read whole costs what it does in an exact prefill.
  plan.selection->from = 200;
  EXPECT_EQ(PrefillWork(info, lengths, prefixes, plan).attention_flops, exact.attention_flops);
  EXPECT_EQ(PrefillWork(info, lengths, prefixes, plan).bytes, exact.bytes);
}

TEST(Roofline, CountsADecode) {
  const std::vector<int64_t> lengths = {5, 7};
  const Work work = DecodeWork(SmallModel(), lengths, 2, std::nullopt);
  // Step 1 sees 6 and 8 keys, step 2 sees 7 and 9.
  EXPECT_EQ(work.bytes, 2 * 360 + 30 * 16);
  EXPECT_EQ(work.flops, 4 * (200 + 160));
  EXPECT_EQ(work.attention_flops, 30 * (2 * 4 * 3 * 4));
}

TEST(Roofline, CountsADecodeThatSelects) {
  ModelInfo info = SmallModel();
  info.kv_heads = 2;
  const std::vector<int64_t> lengths = {100};
  SelectionReport selection;
  selection.keys = 5;
  selection.sink = 1;
  selection.recent = 2;
  selection.block = 4;
  selection.scored_bytes = (2 * 3 + 8) / 4.0;
  const Work work = DecodeWork(info, lengths, 2, selection);
  // Summaries of 101 and of 102 keys, 2 x 2 x (2 x 3 + 8) bytes for 4 of them; 8 keys a step.
  EXPECT_EQ(work.bytes, 2 * 360 + 203 * 56 / 4 + 16 * 16);
  EXPECT_EQ(work.attention_flops, 16 * (2 * 4 * 3 * 4));
  // A second look at 20 keys: half of the summaries of 5 blocks, and 2 bits of each number.
  selection.candidates = 20;
  selection.looks = 2;
  EXPECT_EQ(DecodeWork(info, lengths, 2, selection).bytes,
            work.bytes + 2 * (5 * 56 / 2 + 20 * 2 * 2 * 3 / 4));
  // One choice for two steps.
  selection.refresh = 2;
  EXPECT_EQ(DecodeWork(info, lengths, 2, selection).bytes,
            2 * 360 + 16 * 16 + (203 * 56 / 4 + 2 * (5 * 56 / 2 + 20 * 2 * 2 * 3 / 4)) / 2.0);
  // One search of all summaries for three choices among the candidates' summaries.
  selection.looks = 1;
  selection.refresh = 1;
  selection.candidates_refresh = 3;
  EXPECT_DOUBLE_EQ(DecodeWork(info, lengths, 2, selection).bytes,
                   2 * 360 + 16 * 16 + 203 * 56 / 4 / 3.0 + 2 * 5 * 56);
  // Few keys are all read.
  const std::vector<int64_t> few = {7};
  EXPECT_EQ(DecodeWork(info, few, 2, selection).bytes,
            DecodeWork(info, few, 2, std::nullopt).bytes);
  selection.from = 101;
  EXPECT_EQ(DecodeWork(info, lengths, 2, selection).bytes,
            DecodeWork(info, lengths, 2, std::nullopt).bytes);
}

// Cores of the host are the same, whoever waits for them.
TEST(Roofline, GpusAddUp) {
  MachinePeaks peaks;
  peaks.read_bytes_per_second = 10.0;
  peaks.host_to_device_bytes_per_second = 4.0;
  peaks.shared_host_to_device_bytes_per_second = 3.0;
  peaks.host_read_bytes_per_second = 5.0;
  const MachinePeaks all = PeaksOfGpus(peaks, 3);
  EXPECT_EQ(FloorSeconds({.bytes = 60.0}, all), 2.0);
  EXPECT_EQ(FloorSeconds({.bus_bytes = 28.0}, all), 2.0);
  EXPECT_EQ(FloorSeconds({.weight_bytes = 24.0}, all), 2.0);
  EXPECT_EQ(PeaksOfGpus(peaks, 1).read_bytes_per_second, 10.0);
}

TEST(Roofline, TakesTheLongest) {
  MachinePeaks peaks;
  peaks.read_bytes_per_second = 10.0;
  peaks.gemm_flops_per_second = 100.0;
  peaks.host_to_device_bytes_per_second = 4.0;
  peaks.disk_read_bytes_per_second = 5.0;
  EXPECT_EQ(FloorSeconds({.bytes = 20.0, .flops = 100.0}, peaks), 2.0);
  EXPECT_EQ(FloorSeconds({.bytes = 20.0, .flops = 1000.0}, peaks), 10.0);
  // Products and attention are computed one after the other.
  EXPECT_EQ(FloorSeconds({.flops = 300.0, .attention_flops = 200.0}, peaks), 5.0);
  peaks.attention_flops_per_second = 50.0;
  EXPECT_EQ(FloorSeconds({.flops = 300.0, .attention_flops = 200.0}, peaks), 7.0);
  EXPECT_EQ(FloorSeconds({.bytes = 20.0, .disk_bytes = 15.0}, peaks), 3.0);
  EXPECT_EQ(FloorSeconds({.bytes = 20.0, .bus_bytes = 16.0}, peaks), 4.0);
  peaks.host_read_bytes_per_second = 5.0;
  peaks.shared_host_to_device_bytes_per_second = 3.0;
  EXPECT_EQ(FloorSeconds({.bytes = 10.0, .bus_bytes = 16.0}, peaks), 2.0);
  EXPECT_EQ(FloorSeconds({.bytes = 10.0, .bus_bytes = 16.0, .weight_bytes = 12.0}, peaks), 3.0);
  EXPECT_EQ(FloorSeconds({.bytes = 20.0, .flops = 1000.0, .disk_bytes = 15.0}, {}), 0.0);
}

}  // namespace
}  // namespace headway::cli
