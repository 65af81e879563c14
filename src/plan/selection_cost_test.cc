#include "plan/selection_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "plan/plan_testing.h"
#include "support/test_machines.h"

namespace headway::plan {
namespace {

TEST(SelectionCost, AChoiceReadsSummariesAtItsOwnRate) {
  Subject subject = Choosing();
  MachineProfile machine = Simple();
  machine.launch_seconds = 1e-6;
  EXPECT_NEAR(ChoiceSeconds(machine, subject, 1e6), 10e6 / 1e12 + 5e-6, 1e-12);
  machine.selection = {{{1.0, 1e11}}};
  EXPECT_NEAR(ChoiceSeconds(machine, subject, 1e6), 10e6 / 1e11, 1e-12);
  // A second look reads the candidates' part of a cache of any length.
  subject.selection.sketch_bytes = 2e6;
  EXPECT_NEAR(ChoiceSeconds(machine, subject, 1e6), 10e6 / 1e11 + 2e6 / 1e12 + 5e-6, 1e-12);
  machine.second_look = {{{1.0, 1e10}}};
  EXPECT_NEAR(ChoiceSeconds(machine, subject, 1e6), 10e6 / 1e11 + 2e6 / 1e10, 1e-12);
  // One search of all summaries for four choices among the candidates', which take what as many
  // bytes take of a search, and the launches of a choice.
  subject.selection.sketch_bytes = 0.0;
  subject.selection.candidate_bytes = 2e6;
  subject.selection.choices = 4.0;
  EXPECT_NEAR(ChoiceSeconds(machine, subject, 1e6), 10e6 / 1e11 / 4.0 + 2e6 / 1e11 + 5e-6, 1e-12);
}

// What is read of sketches in host memory comes by the bus, at the rate of reads in place.
TEST(SelectionCost, SketchesInHostMemoryCrossTheBus) {
  Subject subject = Choosing();
  subject.selection.summary_bytes = 0.0;
  subject.selection.sketch_bytes = 3e6;
  subject.selection.sketch_bits = 2e6;
  MachineProfile machine = Simple();
  machine.second_look = {{{1.0, 1e10}}};
  machine.read_in_place = 5e9;
  machine.own_memory = true;
  EXPECT_NEAR(ChoiceSeconds(machine, subject, 1e6), 3e6 / 1e10, 1e-12);
  EXPECT_EQ(SketchBusSeconds(machine, subject), 0.0);
  subject.selection.sketches = Tier::kHost;
  EXPECT_NEAR(SketchBusSeconds(machine, subject), 2e6 / 5e9, 1e-12);
  EXPECT_NEAR(ChoiceSeconds(machine, subject, 1e6), 1e6 / 1e10 + 2e6 / 5e9, 1e-12);
  // Of a decode step, once for each choice.
  const std::vector<int64_t> lengths = {1'000'000, 1'000'000};
  const auto bus = [&] {
    const StepTime step = PredictDecode(machine, subject, {}, lengths);
    return step.busy[static_cast<size_t>(CostLane::kHostToDevice)];
  };
  EXPECT_NEAR(bus(), 2.0 * 2e6 / 5e9, 1e-12);
  subject.selection.refresh = 4.0;
  EXPECT_NEAR(bus(), 2.0 * 2e6 / 5e9 / 4.0, 1e-12);
  machine.own_memory = false;
  EXPECT_EQ(bus(), 0.0);
  EXPECT_NEAR(ChoiceSeconds(machine, subject, 1e6), 3e6 / 1e10, 1e-12);
}

TEST(SelectionCost, APromptScoresBlocksByPooledQueries) {
  Subject subject = Choosing();
  MachineProfile machine = Simple();
  machine.launch_seconds = 1e-6;
  // 128 tokens are 16 pooled queries of each of two heads, a million keys are 62,500 blocks.
  const double scores = 16.0 * 2.0 * 62500.0;
  EXPECT_NEAR(PromptChoiceSeconds(machine, subject, {}, 1e6, 128.0),
              scores * 400.0 / 1e14 + 10e6 / 1e12 + 5e-6, 1e-12);
  machine.prompt_scores = 1e9;
  EXPECT_NEAR(PromptChoiceSeconds(machine, subject, {}, 1e6, 128.0), scores / 1e9, 1e-12);
  // Two looks: two queries of all blocks, and 16 of a tenth of them.
  subject.selection.prompt_candidates = 1e5;
  subject.selection.search_tokens = 64.0;
  EXPECT_NEAR(PromptChoiceSeconds(machine, subject, {}, 1e6, 128.0), scores * (0.125 + 0.1) / 1e9,
              1e-12);
  subject.selection.prompt_candidates = 6e5;
  EXPECT_NEAR(PromptChoiceSeconds(machine, subject, {}, 1e6, 128.0), scores / 1e9, 1e-12);
  // Half of the blocks.
  subject.selection.block_keys = 32.0;
  EXPECT_NEAR(PromptChoiceSeconds(machine, subject, {}, 1e6, 128.0), scores / 2e9, 1e-12);
}

TEST(SelectionCost, APromptScoresKeysWhereTheyLie) {
  Subject subject = Choosing();
  subject.selection.summary_bytes = 0.0;
  subject.selection.key_bytes = 10.0;
  subject.selection.survivor_bytes = subject.selection.prompt_survivor_bytes = 2e6;
  MachineProfile machine = Simple();
  machine.launch_seconds = 1e-6;
  machine.own_memory = false;
  Execution run;
  run.split = {.resident = 0.25, .stream = 0.75};
  // Two lists, each key of which is multiplied with all of a list's queries.
  EXPECT_NEAR(PromptChoiceSeconds(machine, subject, run, 1e6, 128.0),
              38.0 * 2.0 * 12e6 / 1e12 + 5e-6, 1e-12);
  machine.own_memory = true;
  machine.read_in_place = 1e10;
  EXPECT_NEAR(PromptChoiceSeconds(machine, subject, run, 1e6, 128.0),
              2.2 * 2.0 * 0.75 * 12e6 / 1e10 + 5e-6, 1e-12);
}

// Kept tokens of 1,000, and the best 512 of the others where these lie, on the host.
TEST(SelectionCost, ChoosingWhatWasLetGoAddsToAStep) {
  MachineProfile machine = Simple();
  machine.selection = {{{1.0, 1e11}}};
  machine.read_in_place = 5e10;
  PlanRequest request = OnDevice(20000, kGiB);
  request.machine = &machine;
  request.kept.lengths = request.lengths;
  request.kept.count = [](int64_t) { return 1512; };
  request.kept.on_host = [](int64_t) { return 512; };
  request.kept.by_cores = 0.0;
  const Result<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const double before = DecodeAt(machine, request, *plan, request.lengths).seconds;
  request.kept.best_of = [](int64_t length) { return length - 1000; };
  request.kept.summary_bytes = 10.0;
  request.kept.refresh = 2.0;
  const double choosing = 4 * 19000 * 10.0 / 1e11 / 2.0;
  const double reading = 512 * 4 * 2 * 64 * 2 / 5e10;
  EXPECT_NEAR(DecodeAt(machine, request, *plan, request.lengths).seconds,
              before + 8 * (choosing + reading), 1e-12);
}

// Kept tokens of 1,000 of which 400 are not encoded: in pages of half their bytes they are as many
// more.
TEST(SelectionCost, KeptTokensThatAreNotEncodedTakeMore) {
  const MachineProfile machine = Simple();
  PlanRequest request = OnDevice(20000, kGiB);
  request.machine = &machine;
  request.kept.lengths = request.lengths;
  int64_t read = 1000, on_host = 0;
  request.kept.count = [&](int64_t) { return read; };
  request.kept.on_host = [&](int64_t) { return on_host; };
  request.kept.closed_bytes = 2.0 * 64;  // in 16 bits heads of 64 elements take twice as many
  const Result<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto seconds = [&] { return DecodeAt(machine, request, *plan, request.lengths).seconds; };
  for (const bool host : {false, true}) {
    request.kept.plain = nullptr;
    read = 1400;
    on_host = host ? 800 : 0;
    const double expected = seconds();
    read = 1000;
    on_host = host ? 400 : 0;
    EXPECT_LT(seconds(), expected);
    request.kept.plain = [](int64_t) { return 400; };
    EXPECT_DOUBLE_EQ(seconds(), expected);
    request.kept.closed_bytes = 2.0 * 2.0 * 64 * 2.0;  // pages with padding
    const double padded = seconds();
    request.kept.plain = nullptr;
    EXPECT_DOUBLE_EQ(seconds(), padded);
    request.kept.closed_bytes = 2.0 * 64;
  }
}

TEST(SelectionCost, AttentionToListedKeysHasItsOwnRate) {
  Subject subject = Choosing();
  MachineProfile machine = Simple();
  const auto seconds = [&](double tokens) {
    return ListedAttentionSeconds(machine, subject, 1000.0, tokens);
  };
  const double flops = 4.0 * 1000.0 * 128.0 * 2.0 * 100.0;
  EXPECT_NEAR(seconds(128.0), flops / 1e14, 1e-12);
  machine.listed_attention = 1e11;
  machine.moved_attention = 1e10;
  EXPECT_NEAR(seconds(128.0), flops / 1e11, 1e-12);
  subject.selection.moved = true;
  EXPECT_NEAR(seconds(128.0), flops / 1e10, 1e-12);
  // Of encoded pages, where that was measured, another.
  subject.closed_bytes = HeadBytes(subject) / 2.0;
  EXPECT_NEAR(seconds(128.0), flops / 1e10, 1e-12);
  machine.coded_moved_attention = 4e9;
  machine.coded_listed_attention = 5e9;
  EXPECT_NEAR(seconds(128.0), flops / 4e9, 1e-12);
  subject.selection.moved = false;
  EXPECT_NEAR(seconds(128.0), flops / 5e9, 1e-12);
  subject.closed_bytes = 0.0;
  // A few queries take as long as their keys take to be read.
  machine.decode_attention = {{{1.0, 1e9}}};
  EXPECT_NEAR(seconds(1.0), 400e3 / 1e9, 1e-12);
}

// Of a decode step at a million tokens.
double BusSeconds(const MachineProfile& machine, const Subject& subject, const Execution& run) {
  const int64_t length = 1'000'000;
  const StepTime time = PredictDecode(machine, subject, run, {&length, 1});
  return time.busy[static_cast<int>(CostLane::kHostToDevice)];
}

// Stages read keys at rates of their own where these were measured, more slowly where the keys'
// rotation is undone; selectors without stages read them as weights are read.
TEST(SelectionCost, KeysThatAreReadToChooseHaveTheirOwnRate) {
  Subject subject = Choosing();
  KeySelection& selection = subject.selection;
  selection.summary_bytes = 0.0;
  selection.key_bytes = 10.0;
  MachineProfile machine = Simple();
  const int64_t length = 1'000'000;
  const auto step = [&] { return PredictDecode(machine, subject, {}, {&length, 1}).attention; };
  const double by_weights = step();
  machine.key_choice = {{{1.0, 2e9}, {64.0, 5e8}}};
  machine.turned_key_choice = {{{1.0, 5e8}, {64.0, 1e8}}};
  EXPECT_EQ(KeyChoiceRate(machine, selection, 1.0), 1e12);
  EXPECT_EQ(step(), by_weights);
  selection.survivor_bytes = selection.prompt_survivor_bytes = 2e6;
  EXPECT_NEAR(step() - by_weights, 12e6 / 2e9 - 10e6 / 1e12, 1e-9);
  EXPECT_NEAR(PromptChoiceSeconds(machine, subject, {}, 1e6, 128.0), 2.0 * 12e6 / 5e8, 1e-9);
  selection.moved = true;
  EXPECT_NEAR(step() - by_weights, 12e6 / 5e8 - 10e6 / 1e12, 1e-9);
  EXPECT_NEAR(PromptChoiceSeconds(machine, subject, {}, 1e6, 128.0), 2.0 * 12e6 / 1e8, 1e-9);
  machine.turned_key_choice = {};
  EXPECT_EQ(KeyChoiceRate(machine, selection, 64.0), 1e12 / 38.0);
}

TEST(SelectionCost, WhatIsReadInPlaceHasItsOwnRate) {
  const Subject subject = Choosing();
  MachineProfile machine = Simple();
  Execution run;
  run.split = {.resident = 0, .stream = 1};
  const auto bus = [&] { return BusSeconds(machine, subject, run); };
  EXPECT_NEAR(bus(), 400e3 / 1e10, 1e-12);
  machine.read_in_place = 5e9;
  EXPECT_NEAR(bus(), 400e3 / 5e9, 1e-12);
}

// A page cache keeps keys from the bus, and a choice for some steps keeps the rest of them from it.
TEST(SelectionCost, WhatIsKeptDoesNotCrossTheBus) {
  EXPECT_EQ(AssumedShare(0.0), 0.0);
  EXPECT_NEAR(AssumedShare(3.0), (0.592 + 0.862) / 2, 1e-12);
  EXPECT_EQ(AssumedShare(100.0), 0.988);
  Subject subject = Choosing();
  const MachineProfile machine = Simple();
  Execution run;
  run.split = {.resident = 0, .stream = 1};
  const auto bus = [&] { return BusSeconds(machine, subject, run); };
  const double all = bus();
  subject.selection.refresh = 4.0;
  EXPECT_NEAR(bus(), all, 1e-15);  // the same keys, from the bus
  run.page_cache_steps = 2.0;
  EXPECT_NEAR(bus(), all * (1.0 - 0.592) / 4.0, 1e-12);
  subject.selection.refresh = 1.0;
  EXPECT_NEAR(bus(), all * (1.0 - 0.592), 1e-12);
}

// What earlier runs found replaces what is assumed the more tokens it stands on.
TEST(SelectionCost, WhatEarlierRunsFoundIsWeighed) {
  Subject subject = Choosing();
  subject.selection.refresh = 4.0;
  const MachineProfile machine = Simple();
  Execution run;
  run.split = {.resident = 0, .stream = 1};
  run.page_cache_steps = 2.0;
  const auto missed = [&](double tokens) {
    run.found = {0.5, tokens, 2.0};
    EXPECT_NEAR(BusSeconds(machine, subject, run),
                400e3 / 1e10 * (1.0 - FoundShare(subject.selection, run)), 1e-15);
    return 1.0 - FoundShare(subject.selection, run);
  };
  const double assumed = (1.0 - 0.592) / 4.0;
  EXPECT_NEAR(missed(0.0), assumed, 1e-12);
  EXPECT_LT(missed(8.0), assumed + 0.035 * (0.5 - assumed));  // a few tell little
  EXPECT_NEAR(missed(256.0), (assumed + 0.5) / 2.0, 1e-12);
  EXPECT_NEAR(missed(1e6), 0.5, 1e-3);
}

TEST(SelectionCost, WhatWasFoundIsOfACacheOfItsSize) {
  const FoundBefore found = {0.9, 1000.0, 8.0};
  EXPECT_TRUE(IsOfCache(found, 8.0));
  EXPECT_TRUE(IsOfCache(found, 9.4));
  EXPECT_TRUE(IsOfCache(found, 6.8));
  EXPECT_FALSE(IsOfCache(found, 9.6));
  EXPECT_FALSE(IsOfCache(found, 6.6));
  EXPECT_FALSE(IsOfCache({0.9, 0.0, 8.0}, 8.0));
}

// Of a prompt's lists each key crosses the bus once a chunk, and not at all if the chunk before
// left it behind.
TEST(SelectionCost, KeysThatListsShareCrossTheBusOnce) {
  const KeysAway away = {100.0, 1000.0};
  const ChunkLists lists = {32.0, 8.0, 8.0};
  const auto brought = [&](double steps) { return PromptKeysOverBus(away, lists, 1000.0, steps); };
  EXPECT_EQ(brought(0.0), 32.0 * 1100.0);  // no cache
  const double keys = 100.0 + 1000.0 * std::pow(32.0, 0.375);
  EXPECT_NEAR(brought(0.5 * keys / 8000.0), 0.5 * keys + 0.5 * 32.0 * 1100.0, 1e-6);
  EXPECT_NEAR(brought(keys / 8000.0), keys, 1e-6);
  EXPECT_NEAR(brought(0.7 * keys / 1000.0), keys, 1e-6);
  EXPECT_NEAR(brought(1.9 * keys / 1000.0), 0.19 * keys, 1e-6);
  EXPECT_NEAR(brought(100.0), 0.15 * keys, 1e-6);
  EXPECT_EQ(PromptKeysOverBus({}, lists, 1000.0, 8.0), 0.0);
  EXPECT_EQ(PromptKeysOverBus(away, {1.0, 8.0, 8.0}, 1000.0, 0.0), 1100.0);

  // In a stretch the next chunk of the layer finds the lines that all layers share.
  const ChunkLists alone = {32.0, 8.0, 1.0};
  for (const double steps : {0.0, 0.5 * keys / 8000.0}) {
    EXPECT_EQ(PromptKeysOverBus(away, alone, 1000.0, steps), brought(steps));
  }
  EXPECT_NEAR(PromptKeysOverBus(away, alone, 1000.0, 1.9 * keys / 8000.0), 0.19 * keys, 1e-6);
}

TEST(SelectionCost, ASelectingChunkBringsKeysBeforeItAttendsToThem) {
  Subject subject = Choosing();
  subject.selection.prompts = KeySelection::Prompts::kSelected;
  const MachineProfile machine = Simple();
  const SequenceStep chunk{1'000'000, 128};
  Execution run;
  run.split = {.resident = 0, .stream = 1};
  const auto step = [&] {
    return PredictStep(machine, subject, run, {&chunk, 1}, LogitsWanted::kNo);
  };
  const StepTime alone = step();
  const auto bus = static_cast<size_t>(CostLane::kHostToDevice);
  EXPECT_NEAR(alone.busy[bus], 2.0 * 400e3 / 1e10, 1e-12);  // two lists
  run.page_cache_steps = 100.0;
  const StepTime cached = step();
  EXPECT_NEAR(cached.busy[bus], 0.15 * std::pow(2.0, 0.375) * 400e3 / 1e10, 1e-12);
  EXPECT_LT(cached.attention, alone.attention);
}

TEST(SelectionCost, BytesReadAreThoseOfSummariesAndChosenKeys) {
  Subject subject = Choosing();
  const std::vector<int64_t> lengths = {1'000'000, 900};
  // The short one has no more keys than are read.
  EXPECT_EQ(CacheBytesRead(subject, lengths), 10e6 + 400e3 + 900.0 * 400.0);
  subject.selection.sketch_bytes = 5.0;
  EXPECT_EQ(CacheBytesRead(subject, lengths), 10e6 + 400e3 + 5.0 + 900.0 * 400.0);
  // One search of all summaries for four choices among candidates, each choice for two steps.
  subject.selection.sketch_bytes = 0.0;
  subject.selection.candidate_bytes = 7.0;
  subject.selection.choices = 4.0;
  subject.selection.refresh = 2.0;
  EXPECT_EQ(CacheBytesRead(subject, lengths), (10e6 / 4.0 + 7.0) / 2.0 + 400e3 + 900.0 * 400.0);
  // The same by keys.
  std::swap(subject.selection.key_bytes, subject.selection.summary_bytes);
  std::swap(subject.selection.candidate_bytes, subject.selection.survivor_bytes);
  EXPECT_EQ(CacheBytesRead(subject, lengths), (10e6 / 4.0 + 7.0) / 2.0 + 400e3 + 900.0 * 400.0);
  subject.selection.from = 1'000'001;
  EXPECT_EQ(CacheBytesRead(subject, lengths), 1'000'900.0 * 400.0);
  subject.selection = {};
  EXPECT_EQ(CacheBytesRead(subject, lengths), 1'000'900.0 * 400.0);
  // A window is read whole, of which no query chooses.
  subject = Choosing();
  subject.window = {5000};
  EXPECT_EQ(CacheBytesRead(subject, lengths), 5900.0 * 400.0);
}

// Of 1,000 recent keys tokens have those of their chunk before them.
TEST(SelectionCost, RecentKeysOfAChunkAreNotListed) {
  KeySelection selection;
  EXPECT_EQ(RecentInChunk(selection, 512.0), 0.0);
  selection.prompt_recent = 1000.0;
  for (const int tokens : {1, 100, 1000, 1001, 4000}) {
    double sum = 0.0;
    for (int before = 0; before < tokens; ++before) sum += std::min(before, 1000);
    EXPECT_NEAR(RecentInChunk(selection, tokens), sum / tokens, 0.5) << tokens;
  }
}

// Two layers of a step that chooses, beside one of its exact part alone.
TEST(SelectionCost, ASelectingChunkChoosesAttendsAndReadsItself) {
  Subject subject = Choosing();
  subject.selection.prompts = KeySelection::Prompts::kSelected;
  subject.selection.sketch_bytes = 1e9;  // prompts look once
  MachineProfile machine = Simple();
  machine.prompt_scores = 1e9;
  machine.listed_attention = 1e11;
  const SequenceStep chunk{1'000'000, 128};
  const StepTime time = PredictStep(machine, subject, {}, {&chunk, 1}, LogitsWanted::kNo);
  const double own = 4.0 * 129.0 / 2.0 * 128.0 * 2.0 * 100.0 / 1e14;
  const double merge = 128.0 * 2.0 * 100.0 * 16.0 / 1e12;
  EXPECT_NEAR(time.attention,
              16.0 * 2.0 * 62500.0 / 1e9 + 4.0 * 1000.0 * 128.0 * 200.0 / 1e11 + merge + own, 1e-9);
}

// Dense rows read all keys of a chunk that chooses, over the bus where they do not lie here.
TEST(SelectionCost, DenseRowsReadAllKeysOnceAChunk) {
  Subject subject = Choosing();
  subject.selection.prompts = KeySelection::Prompts::kSelected;
  const MachineProfile machine = Simple();
  const SequenceStep chunk{1'000'000, 128};
  Execution run;
  run.split = {.resident = 0, .stream = 1};
  run.page_cache_steps = 100.0;
  const auto step = [&](double every) {
    subject.selection.dense_every = every;
    return PredictStep(machine, subject, run, {&chunk, 1}, LogitsWanted::kNo);
  };
  const auto bus = static_cast<size_t>(CostLane::kHostToDevice);
  const StepTime none = step(0.0);
  const StepTime some = step(64.0);
  subject.selection = {};
  const StepTime exact = PredictStep(machine, subject, run, {&chunk, 1}, LogitsWanted::kNo);
  EXPECT_NEAR(some.busy[bus] - none.busy[bus], exact.busy[bus], 1e-9);
  EXPECT_GT(some.attention, none.attention);
  EXPECT_LT(some.attention, exact.attention);
}

TEST(SelectionCost, SequencesOfADecodeChooseOneAfterTheOther) {
  Subject subject = Choosing();
  MachineProfile machine = Simple();
  machine.selection = {{{1e6, 1e11}, {1e8, 1e12}}};
  machine.decode_attention = {{{1e3, 1e10}, {1e8, 1e12}}};
  const std::vector<int64_t> lengths = {1'000'000, 1'000'000};
  const Execution run;
  const double one = PredictDecode(machine, subject, run, {lengths.data(), 1}).attention;
  EXPECT_NEAR(one, machine.selection.Seconds(10e6) + machine.decode_attention.Seconds(400e3),
              1e-12);
  EXPECT_NEAR(PredictDecode(machine, subject, run, lengths).attention, 2.0 * one, 1e-12);
  // Keys that no page holds yet are a launch more.
  subject.selection.open_keys = 32.0;
  EXPECT_NEAR(PredictDecode(machine, subject, run, {lengths.data(), 1}).attention,
              one + machine.decode_attention.Seconds(32.0 * 400.0), 1e-12);
}

TEST(SelectionCost, ListedKeysOfADecodeHaveARateOfTheirOwn) {
  MachineProfile machine = Simple();
  EXPECT_EQ(ListedDecodeSeconds(machine, Choosing(), 1000.0, 3e-6), 3e-6);
  machine.listed_decode = 1e9;
  EXPECT_NEAR(ListedDecodeSeconds(machine, Choosing(), 1000.0, 3e-6), 400e3 / 1e9, 1e-12);
}

TEST(SelectionCost, ExplainingSaysWhatChoosingIsWorth) {
  MachineProfile machine = Shipped("h200");
  PlanRequest request = Demo(16'384);
  request.machine = &machine;
  const auto said = [&] {
    const Result<Plan> plan = MakePlan(request);
    EXPECT_TRUE(plan.ok());
    return ExplainSpeed(request, *plan).front();
  };
  EXPECT_THAT(said(), testing::Not(testing::HasSubstr("choosing keys")));
  // 8 layers of 4 heads read 1,024 keys of 256 bytes, and 16,384 summaries of 8.5; all keys are 16
  // times as many bytes as the former.
  request.selection = {.keys = 1024.0, .summary_bytes = 8.5};
  EXPECT_THAT(said(),
              testing::StartsWith("choosing keys, beside this plan with all of them: decode"));
  EXPECT_THAT(said(),
              testing::EndsWith("a token of a decode reads 12.2 MiB instead of 128.0 MiB of "
                                "the cache"));
  EXPECT_THAT(said(), testing::Not(testing::HasSubstr("prefill")));
  // It may take longer.
  machine.selection = {{{1.0, 1e6}}};
  EXPECT_THAT(said(),
              testing::ContainsRegex(
                  "decode [0-9.]+ instead of [0-9.]+ tokens a second \\(-[0-9]+ %\\); a token"));
  // Sequences as short as these are read whole.
  request.selection.from = 20'000;
  EXPECT_THAT(said(), testing::HasSubstr("decode as fast; a token"));
  EXPECT_THAT(said(), testing::EndsWith("128.0 MiB instead of 128.0 MiB of the cache"));
}

// docs/BENCHMARKS.md, Selection: Llama-3-8B, 128K, all resident; tokens a second.
TEST(SelectionCost, IsNearWhatAnH200Takes) {
  const MachineProfile machine = Shipped("h200");
  Subject subject{kLlama8B, {}, 1.0};
  subject.selection = {.keys = 2048.0 + 256.0 + 1024.0, .summary_bytes = 264.0 / 16.0};
  subject.selection.open_keys = 32.0;
  Execution run;
  run.chunk = 2048;
  run.group_heads = 8;
  run.segment_tokens = 131072;
  const int64_t length = 131072;
  const auto decode = [&] {
    return 1.0 / PredictDecode(machine, subject, run, {&length, 1}).seconds;
  };
  EXPECT_NEAR(decode(), 181.5, 0.1 * 181.5);
  // 1,104 candidates of 16 keys, whose sketches have 2 bits a channel.
  subject.selection.sketch_bytes = 1104.0 * (264.0 + 512.0);
  EXPECT_NEAR(decode(), 143.8, 0.1 * 143.8);
  subject.selection.prompts = KeySelection::Prompts::kSelected;
  subject.selection.pool_tokens = 8.0;
  subject.selection.list_tokens = 64.0;
  subject.selection.search_tokens = 64.0;
  subject.selection.block_keys = 16.0;
  subject.selection.prompt_candidates = 8.0 * 2048.0 + 256.0 + 1024.0;
  subject.selection.prompt_recent = 1024.0;
  const auto prefill = [&] {
    return 16384.0 / PredictPrefill(machine, subject, run, 114688, 16384).seconds;
  };
  EXPECT_NEAR(prefill(), 33973.0, 0.1 * 33973.0);
  subject.selection = {};
  EXPECT_NEAR(decode(), 122.0, 0.05 * 122.0);
  EXPECT_NEAR(prefill(), 7567.0, 0.1 * 7567.0);
}

}  // namespace
}  // namespace headway::plan
