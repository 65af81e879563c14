#include "plan/cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/test_machines.h"

namespace headway::plan {
namespace {

// --- By hand

// One layer, one KV head of 100 elements and one query head, two bytes an element: 400 bytes of K
// and V a token; W_K and W_V 2 * 1000 * 100 * 2 bytes.
ModelShape Small() { return {1, 1000, 1, 1, 100, 2000, 5000, DType::kBF16}; }

TEST(Cost, WorkOfARangeByPath) {
  const ModelShape shape = Small();
  RangeWork work = WorkOf(RangePath::kResident, {shape}, 1, 1000, 1);
  EXPECT_EQ(work.device_bytes, 400e3);
  EXPECT_EQ(work.flops, 400e3);  // 2 products of 100 elements, twice an operation, a key
  EXPECT_EQ(work.bus_bytes, 0);
  work = WorkOf(RangePath::kStream, {shape}, 1, 1000, 8);
  EXPECT_EQ(work.bus_bytes, 400e3);
  EXPECT_EQ(work.flops, 8 * 400e3);
  work = WorkOf(RangePath::kRecompute, {shape}, 1, 1000, 1);
  EXPECT_EQ(work.bus_bytes, 2e6);  // X: 1000 elements a token
  EXPECT_EQ(work.product_flops, 1000.0 * 2 * 1000 * 200);
  work = WorkOf(RangePath::kHost, {shape}, 1, 1000, 1);
  EXPECT_EQ(work.host_bytes, 400e3);
  EXPECT_EQ(work.device_bytes, 0);
  EXPECT_EQ(work.bus_bytes, 100 * 2 + 100 * 4 + 4);  // q, o in f32, lse
  const LayerWeights weights = WeightsOf(shape);
  EXPECT_EQ(weights.kv, 400e3);
  EXPECT_EQ(weights.qo, 400e3);
  EXPECT_EQ(weights.mlp, 12e6);
}

// Of Small()'s products at 1e12 bytes a second: one row.
constexpr double kProducts = (2.0 * 1000 * 300 + 2.0 * 100 * 1000 + 12e6) / 1e12;
constexpr double kHead = 2.0 * 5000 * 1000 / 1e12;

TEST(Cost, ResidentDecodeIsItsBytes) {
  const int64_t length = 1'000'000;
  const StepTime time = PredictDecode(Simple(), {Small(), {}, 1.0}, {}, {&length, 1});
  EXPECT_NEAR(time.seconds, kProducts + kHead + 400e6 / 1e12, 1e-12);
  EXPECT_EQ(time.limit(), CostLane::kDevice);
  EXPECT_EQ(time.busy[static_cast<int>(CostLane::kHostToDevice)], 0.0);
}

TEST(Cost, StreamedDecodeIsTheBusAndItsLastPiece) {
  Execution run;
  run.segment_tokens = 100'000;
  run.split = {.resident = 0, .stream = 1};
  const int64_t length = 1'000'000;
  const StepTime time = PredictDecode(Simple(), {Small(), {}, 1.0}, run, {&length, 1});
  // Ten pieces of 40 MB follow one another on the bus; behind the last come its attention, that of
  // the new token, and the products after attention.
  const double last = 40e6 / 1e12 + 400.0 / 1e12;
  const double after = (2.0 * 100 * 1000 + 12e6) / 1e12 + kHead;
  EXPECT_NEAR(time.seconds, 400e6 / 1e10 + last + after, 1e-9);
  EXPECT_EQ(time.limit(), CostLane::kHostToDevice);
  EXPECT_NEAR(time.busy[static_cast<int>(CostLane::kHostToDevice)], 0.04, 1e-12);
}

TEST(Cost, ADecodeThatSelectsReadsSummariesAndWhatItChooses) {
  const int64_t length = 1'000'000;
  Subject subject{Small(), {}, 1.0};
  subject.selection = {1000.0, 10.0};
  const StepTime resident = PredictDecode(Simple(), subject, {}, {&length, 1});
  // Summaries of 10 MB, and 1,000 keys of 400 bytes.
  EXPECT_NEAR(resident.seconds, kProducts + kHead + 10e6 / 1e12 + 400e3 / 1e12, 1e-9);
  subject.selection.sketch_bytes = 2e6;
  EXPECT_NEAR(PredictDecode(Simple(), subject, {}, {&length, 1}).seconds,
              resident.seconds + 2e6 / 1e12, 1e-9);
  subject.selection.sketch_bytes = 0.0;
  Execution run;
  run.split = {.resident = 0, .stream = 1};
  const StepTime away = PredictDecode(Simple(), subject, run, {&length, 1});
  EXPECT_NEAR(away.seconds, kProducts + kHead + 10e6 / 1e12 + 400e3 / 1e10, 1e-9);
  EXPECT_NEAR(away.busy[static_cast<int>(CostLane::kHostToDevice)], 400e3 / 1e10, 1e-12);
  // Keys that are scored themselves are read where they lie.
  subject.selection.summary_bytes = 0.0;
  subject.selection.key_bytes = 200.0;
  EXPECT_NEAR(PredictDecode(Simple(), subject, {}, {&length, 1}).seconds,
              kProducts + kHead + 200e6 / 1e12 + 400e3 / 1e12, 1e-9);
  EXPECT_NEAR(PredictDecode(Simple(), subject, run, {&length, 1}).seconds,
              kProducts + kHead + 200e6 / 1e10 + 400e3 / 1e10, 1e-9);
  // What a budget holds is read whole, and prefill always is.
  const int64_t few = 900;
  EXPECT_EQ(PredictDecode(Simple(), subject, run, {&few, 1}).seconds,
            PredictDecode(Simple(), {Small(), {}, 1.0}, run, {&few, 1}).seconds);
  EXPECT_EQ(PredictPrefill(Simple(), subject, run, 0, 10'000).seconds,
            PredictPrefill(Simple(), {Small(), {}, 1.0}, run, 0, 10'000).seconds);
}

TEST(Cost, ADecodeThatSelectsReadsRecentKeysOnTheDeviceWhereTheyLieThere) {
  const int64_t length = 1'000'000;
  Subject subject{Small(), {}, 1.0};
  subject.selection = {1000.0, 10.0};
  Execution run;
  const auto away = [&](double resident) {
    run.split = {.resident = resident, .stream = 1.0 - resident};
    const StepTime time = PredictDecode(Simple(), subject, run, {&length, 1});
    return time.busy[static_cast<int>(CostLane::kHostToDevice)] * 1e10 / 400.0;  // keys
  };
  EXPECT_NEAR(away(0.25), 750.0, 1e-6);
  subject.selection.sink = 100.0;
  subject.selection.recent = 400.0;
  EXPECT_NEAR(away(1.0), 0.0, 1e-6);
  // Far keys, by the share of them that lies on the device.
  EXPECT_NEAR(away(0.25), 500.0 * (1.0 - (250e3 - 500.0) / (1e6 - 500.0)), 1e-6);
  // The device holds less than they take: the sink's slab first.
  EXPECT_NEAR(away(0.0), 1000.0, 1e-6);
  EXPECT_NEAR(away(0.001), 900.0 - 500.0 * 900.0 / (1e6 - 500.0), 1e-6);
  EXPECT_NEAR(away(0.0013), 900.0 - 276.0 - 500.0 * (1300.0 - 376.0) / (1e6 - 500.0), 1e-6);
  // One slab has all keys.
  run.segment_tokens = length;
  EXPECT_NEAR(away(1.0), 0.0, 1e-6);
  EXPECT_NEAR(away(0.5), 400.0 + 500.0 * (1.0 - (500e3 - 100.0) / (1e6 - 500.0)), 1e-6);
}

TEST(Cost, OneStagingBufferTakesTurnsWithAttention) {
  MachineProfile machine = Simple();
  machine.decode_attention = {{{1.0, 1e10}}};  // as slow as the bus
  Execution run;
  run.segment_tokens = 100'000;
  run.split = {.resident = 0, .stream = 1};
  run.staging_slabs = 1;
  const int64_t length = 1'000'000;
  const Subject subject{Small(), {}, 1.0};
  const double one = PredictDecode(machine, subject, run, {&length, 1}).seconds;
  run.staging_slabs = 2;
  const double two = PredictDecode(machine, subject, run, {&length, 1}).seconds;
  EXPECT_NEAR(one, 0.08, 1e-4);   // copy and attention by turns
  EXPECT_NEAR(two, 0.044, 1e-4);  // at once, but for the first copy
}

TEST(Cost, HostAndBusShareTheKeys) {
  Execution run;
  run.segment_tokens = 10'000;
  run.split = {.resident = 0, .stream = 0.1, .host = 0.9};
  const int64_t length = 1'000'000;
  const Subject subject{Small(), {}, 1.0};
  const StepTime time = PredictDecode(Simple(), subject, run, {&length, 1});
  // 360 MB at 90 GB/s of the cores and 40 MB at 10 GB/s of the bus both take 4 ms. The cores wait
  // for q.
  const double qkv = 2.0 * 1000 * 300 / 1e12;
  EXPECT_NEAR(time.seconds, qkv + 0.004 + (2.0 * 100 * 1000 + 12e6) / 1e12 + kHead, 1e-5);
  EXPECT_NEAR(time.busy[static_cast<int>(CostLane::kHost)], 0.004, 1e-12);
  EXPECT_NEAR(BalancedHostShare(Simple()), 0.9, 1e-12);
  // A prefill has no use for the cores: all of it crosses the bus.
  const SequenceStep chunk{1'000'000, 64};
  const StepTime prefill = PredictStep(Simple(), subject, run, {&chunk, 1}, LogitsWanted::kNo);
  EXPECT_EQ(prefill.busy[static_cast<int>(CostLane::kHost)], 0.0);
  EXPECT_NEAR(prefill.busy[static_cast<int>(CostLane::kHostToDevice)], 0.04, 1e-12);
}

TEST(Cost, LanesThatShareWiresOrMemoryAreSlower) {
  const auto busy = [](const StepTime& time, CostLane lane) {
    return time.busy[static_cast<size_t>(lane)];
  };
  MachineProfile machine = Simple();
  machine.host_to_device_reading = 5e9;
  machine.both_directions = 2e9;
  const Subject subject{Small(), {}, 1.0};
  const int64_t length = 1'000'000;
  Execution run;
  run.segment_tokens = 10'000;
  // Copies beside cores that read, cores beside copies, and cores alone.
  run.split = {.resident = 0, .stream = 0.1, .host = 0.9};
  StepTime time = PredictDecode(machine, subject, run, {&length, 1});
  EXPECT_NEAR(busy(time, CostLane::kHostToDevice), 40e6 / 5e9, 1e-12);
  EXPECT_NEAR(busy(time, CostLane::kHost), 360e6 / 90e9, 1e-12);
  run.split = {.resident = 0, .host = 1};
  time = PredictDecode(machine, subject, run, {&length, 1});
  EXPECT_NEAR(busy(time, CostLane::kHost), 400e6 / 100e9, 1e-12);
  // Copies up beside those of what a prefill adds; a decode step adds next to nothing.
  run.split = {.resident = 0, .stream = 1};
  time = PredictDecode(machine, subject, run, {&length, 1});
  EXPECT_NEAR(busy(time, CostLane::kHostToDevice), 400e6 / 1e10, 1e-12);
  const SequenceStep chunk{1'000'000, 64};
  time = PredictStep(machine, subject, run, {&chunk, 1}, LogitsWanted::kNo);
  EXPECT_NEAR(busy(time, CostLane::kHostToDevice), 400e6 / 2e9, 1e-12);
}

TEST(Cost, APrefillWritesWhatTheDiskKeeps) {
  Execution run;
  run.split = {.resident = 0, .disk = 1};
  const SequenceStep chunk{0, 1000};
  const StepTime time =
      PredictStep(Simple(), {Small(), {}, 1.0}, run, {&chunk, 1}, LogitsWanted::kNo);
  EXPECT_NEAR(time.busy[static_cast<size_t>(CostLane::kDisk)], 400e3 / 1e9, 1e-12);
  EXPECT_GE(time.seconds, 400e3 / 1e9);
}

// A quarter of the bytes, and 0.7 of the time.
TEST(Cost, CodesAreReadMoreSlowlyThanTheyAreSmall) {
  const int64_t length = 1'000'000;
  Subject subject{Small(), {}, 1.0};
  subject.closed_bytes = 100.0;
  const StepTime time = PredictDecode(Simple(), subject, {}, {&length, 1});
  EXPECT_NEAR(time.attention, 0.7 * 400e6 / 1e12, 1e-9);
}

TEST(Cost, StreamedWeightsComeWhileTheLayerBeforeComputes) {
  ModelShape shape = Small();
  shape.layers = 8;
  // A layer's 12.8 MB cross the bus in 1.28 ms; its products of 10,000 rows take as long.
  const SequenceStep chunk{0, 10'000};
  Execution run;
  const double resident =
      PredictStep(Simple(), {shape, {}, 1.0}, run, {&chunk, 1}, LogitsWanted::kNo).seconds;
  run.weights_streamed = 1.0;
  const double streamed =
      PredictStep(Simple(), {shape, {}, 1.0}, run, {&chunk, 1}, LogitsWanted::kNo).seconds;
  EXPECT_GT(resident, 8 * 1.28e-3);
  EXPECT_LT(streamed, resident + 1.29e-3);  // but for the first layer
}

TEST(Cost, TiersFillOneAfterTheOther) {
  const CacheSplit split = {.resident = 0.1, .stream = 0.2, .disk = 0.5, .host = 0.2};
  const auto expect = [&](double keys, double resident, double stream, double host, double disk) {
    const CacheSplit at = SplitAt(split, 1000, keys);
    EXPECT_NEAR(at.resident, resident, 1e-12);
    EXPECT_NEAR(at.stream, stream, 1e-12);
    EXPECT_NEAR(at.host, host, 1e-12);
    EXPECT_NEAR(at.disk, disk, 1e-12);
  };
  expect(1000, 0.1, 0.2, 0.2, 0.5);
  expect(800, 0.125, 0.25, 0.25, 0.375);
  expect(400, 0.25, 0.375, 0.375, 0);
  expect(50, 1, 0, 0, 0);
}

TEST(Cost, RecomputingReadsXAndWaitsForIt) {
  ModelShape shape = Small();
  shape.d_model = 100;  // X has half the bytes of K and V
  Execution run;
  run.split = {.resident = 0, .recompute = 1};
  const int64_t length = 1'000'000;
  const StepTime time = PredictDecode(Simple(), {shape, {}, 1.0}, run, {&length, 1});
  EXPECT_NEAR(time.busy[static_cast<int>(CostLane::kHostToDevice)], 200e6 / 1e10, 1e-12);
  const double product = 2.0 * 1e6 * 100 * 200 / 1e14;  // and as long as its bytes are read
  EXPECT_GT(time.seconds, 0.02 + product);
  EXPECT_LT(time.seconds, 0.02 + product + 0.0025);
}

TEST(Cost, PrefillIsItsFlopsAndSendsDownWhatIsNotResident) {
  const ModelShape shape = {2, 1000, 10, 10, 100, 3000, 1000, DType::kBF16};
  Execution run;
  run.chunk = 1000;
  run.segment_tokens = 1000;
  run.group_heads = 10;
  const Subject subject{shape, {}, 1.0};
  MachineProfile machine = Simple();
  machine.device_read = 1e14;  // so that only FLOPs count
  machine.decode_attention = {{{1.0, 1e14}}};
  const double layer = 1000.0 * 3000 + 1000.0 * 1000 + 3 * 1000.0 * 3000;
  const double flops = 2.0 * 10'000 * layer * 2;
  const double attention = 2.0 * 4 * 10 * 100 * 10'000 * 5'000.5;
  StepTime time = PredictPrefill(machine, subject, run, 0, 10'000);
  EXPECT_NEAR(time.products, (flops + 2.0 * 1e6) / 1e14, 1e-3 * time.products);
  EXPECT_NEAR(time.attention, attention / 1e14, 0.03 * time.attention);  // and merges
  EXPECT_EQ(time.busy[static_cast<int>(CostLane::kDeviceToHost)], 0.0);
  run.split = {.resident = 0, .stream = 1};
  time = PredictPrefill(machine, subject, run, 0, 10'000);
  // Each token's K and V go down once; chunk i reads i chunks back.
  EXPECT_NEAR(time.busy[static_cast<int>(CostLane::kDeviceToHost)], 10'000 * 8000 / 1e10, 1e-9);
  EXPECT_NEAR(time.busy[static_cast<int>(CostLane::kHostToDevice)], 45'000 * 8000 / 1e10, 1e-9);
}

// FlexGen's columns are a larger step.
TEST(Cost, AStepReadsStreamedWeightsOnceForAllSequences) {
  Execution run;
  run.weights_streamed = 1.0;
  const Subject subject{{4, 1000, 10, 10, 100, 3000, 1000, DType::kBF16}, {}, 1.0};
  const StepTime one = PredictDecode(Simple(), subject, run, std::vector<int64_t>(8, 1000));
  const StepTime eight = PredictDecode(Simple(), subject, run, std::vector<int64_t>(64, 1000));
  const int bus = static_cast<int>(CostLane::kHostToDevice);
  EXPECT_NEAR(one.busy[bus], 4 * WeightsOf(subject.shape).total() / 1e10, 1e-9);
  EXPECT_EQ(one.busy[bus], eight.busy[bus]);
  EXPECT_LT(eight.seconds, 2 * one.seconds);
}

// A step that reads half of its weights from a disk at 1e9 bytes a second takes as long as that,
// and what of the last layer comes behind: its copy at 1e10 and its products.
TEST(Cost, WeightsOnDiskAreTheDisk) {
  Execution run;
  run.weights_streamed = 1.0;
  run.weights_on_disk = 0.5;
  MachineProfile machine = Simple();
  machine.disk_read = 1e9;
  const Subject subject{{20, 1000, 10, 10, 100, 3000, 1000, DType::kBF16}, {}, 1.0};
  const int64_t length = 100;
  const double layer = WeightsOf(subject.shape).total();
  const StepTime time = PredictDecode(machine, subject, run, {&length, 1});
  EXPECT_NEAR(time.busy[static_cast<int>(CostLane::kDisk)], 20 * 0.5 * layer / 1e9, 1e-9);
  EXPECT_NEAR(time.busy[static_cast<int>(CostLane::kHostToDevice)], 20 * layer / 1e10, 1e-9);
  EXPECT_EQ(time.limit(), CostLane::kDisk);
  EXPECT_GT(time.seconds, 20 * 0.5 * layer / 1e9 + layer / 1e10);
  EXPECT_LT(time.seconds, 20 * 0.5 * layer / 1e9 + 1.2 * layer / 1e10);
  // A disk that is fast enough costs nothing beside the bus but its first layer.
  machine.disk_read = 1e10;
  const StepTime fast = PredictDecode(machine, subject, run, {&length, 1});
  EXPECT_EQ(fast.limit(), CostLane::kHostToDevice);
  run.weights_on_disk = 0.0;
  const StepTime none = PredictDecode(machine, subject, run, {&length, 1});
  EXPECT_NEAR(fast.seconds, none.seconds + 0.5 * layer / 1e10, 0.05 * layer / 1e10);
}

TEST(Cost, WindowsAndStreamingHeadsReadLess) {
  Execution run;
  run.split = {.resident = 0, .stream = 1};
  const int64_t length = 1'000'000;
  const int bus = static_cast<int>(CostLane::kHostToDevice);
  EXPECT_NEAR(PredictDecode(Simple(), {Small(), {1000}, 1.0}, run, {&length, 1}).busy[bus],
              400e3 / 1e10, 1e-12);
  EXPECT_NEAR(PredictDecode(Simple(), {Small(), {}, 0.5}, run, {&length, 1}).busy[bus], 0.02,
              1e-12);
}

TEST(Cost, TheClosedFormIsTheLeastOfKvprsSum) {
  Random random(4);
  for (int i = 0; i < 200; ++i) {
    ModelShape shape = kOpt67B;
    shape.kv_heads = static_cast<int>(1 + random.Below(32));
    const double bus = 1e9 * static_cast<double>(1 + random.Below(100));
    const double flops = 1e12 * static_cast<double>(1 + random.Below(1000));
    const double keys = 100'000;
    const auto total = [&](double l) {
      const RangeWork x = WorkOf(RangePath::kRecompute, {shape}, shape.kv_heads, l, 1);
      const RangeWork kv = WorkOf(RangePath::kStream, {shape}, shape.kv_heads, keys - l, 1);
      return x.bus_bytes / bus + std::max(x.product_flops / flops, kv.bus_bytes / bus);
    };
    double least = total(0);
    for (double l = 0; l <= keys; l += keys / 1000) least = std::min(least, total(l));
    const double split = RecomputeSplit(shape, keys, bus, flops);
    EXPECT_LE(total(split), least * (1 + 1e-9)) << split;
  }
  // Llama-3-8B: X is as large as two K and V of its heads.
  EXPECT_EQ(RecomputeSplit(kLlama8B, 1000, 1e10, 1e14), 0.0);
}

TEST(Cost, NoMachineAndNoShapeMakeTimesThatAreNotTimes) {
  Random random(5);
  for (int i = 0; i < 300; ++i) {
    const MachineProfile machine = RandomMachine(random);
    Subject subject{kLlama8B, {}, 1.0};
    subject.shape.layers = static_cast<int>(1 + random.Below(80));
    subject.shape.kv_heads = 1 << random.Below(6);
    Execution run;
    run.chunk = 1 + static_cast<int64_t>(random.Below(16384));
    run.segment_tokens = 64 << random.Below(12);
    run.group_heads = 1 + static_cast<int>(random.Below(8));
    const double resident = static_cast<double>(random.Below(101)) * 0.01;
    run.split = {resident, 1.0 - resident};
    const auto length = static_cast<int64_t>(random.Below(1 << 22));
    const StepTime decode = PredictDecode(machine, subject, run, {&length, 1});
    const StepTime prefill = PredictPrefill(machine, subject, run, 0, length);
    for (const StepTime& time : {decode, prefill}) {
      ASSERT_TRUE(std::isfinite(time.seconds));
      for (double busy : time.busy) EXPECT_LE(busy, time.seconds * (1 + 1e-9));
    }
    // What is resident is never slower.
    run.split = {};
    EXPECT_LE(PredictDecode(machine, subject, run, {&length, 1}).seconds,
              decode.seconds * (1 + 1e-9));
  }
}

// --- As measured

struct Figure {
  const char* what;
  int64_t prefix, tokens;  // tokens 0: a decode step behind `prefix`
  bool offloaded;
  int group;
  double tokens_per_second;  // docs/BENCHMARKS.md
};

// Llama-3-8B shape on machine C of docs/BENCHMARKS.md.
constexpr Figure kMeasured[] = {
    {"decode 1K", 1024, 0, false, 8, 245.8},
    {"decode 8K", 8192, 0, false, 8, 232.2},
    {"decode 32K", 32768, 0, false, 8, 185.8},
    {"decode 128K", 131072, 0, false, 8, 116.8},
    {"decode 32K offloaded", 32768, 0, true, 8, 12.82},
    {"decode 128K offloaded", 131072, 0, true, 8, 3.22},
    {"decode 512K offloaded", 524288, 0, true, 8, 0.81},
    {"decode 1M offloaded", 1048576, 0, true, 8, 0.40},
    {"decode 2M offloaded", 2097152, 0, true, 8, 0.20},
    {"decode 4M offloaded", 4194304, 0, true, 8, 0.10},
    {"prefill 8K", 0, 8192, false, 8, 38700},
    {"prefill 32K", 0, 32768, false, 8, 26300},
    {"prefill 128K", 0, 131072, false, 8, 12060},
    {"last chunk of 128K", 122880, 8192, false, 8, 7314},
    {"last chunk of 512K", 516096, 8192, false, 8, 2058},
    {"prefill 128K offloaded", 0, 131072, true, 8, 12093},
    {"last chunk of 128K offloaded", 122880, 8192, true, 8, 7259},
    {"last chunk of 512K offloaded", 516096, 8192, true, 8, 2062},
    {"last chunk of 1M offloaded", 1040384, 8192, true, 8, 1060},
    {"prefill 1M offloaded", 0, 1048576, true, 8, 2024},
    // By head group, one segment.
    {"decode 10K, group 1", 10000, 0, true, 1, 38.2},
    {"decode 10K, group 2", 10000, 0, true, 2, 40.1},
    {"decode 10K, group 4", 10000, 0, true, 4, 40.8},
    {"decode 10K, group 8", 10000, 0, true, 8, 41.2},
    {"decode 40K, group 1", 40000, 0, true, 1, 10.18},
    {"decode 40K, group 8", 40000, 0, true, 8, 10.50},
    {"decode 100K, group 1", 100000, 0, true, 1, 4.12},
    {"decode 100K, group 8", 100000, 0, true, 8, 4.21},
    {"decode 400K, group 1", 400000, 0, true, 1, 1.04},
    {"prefill 40K, group 4", 0, 40000, true, 4, 22702},
    {"prefill 100K, group 4", 0, 100000, true, 4, 14477},
    {"prefill 200K, group 1", 0, 200000, true, 1, 8803},
    {"prefill 200K, group 4", 0, 200000, true, 4, 8871},
};

// As the planner cuts a context on a GPU.
int64_t SegmentOf(int64_t length) {
  int64_t segment = 131072;
  while (segment > 32768 && segment * 2 > length) segment /= 2;
  return segment;
}

TEST(Cost, PredictsWhatWasMeasured) {
  const MachineProfile h200 = Shipped("h200");
  std::vector<double> errors;
  for (const Figure& figure : kMeasured) {
    Execution run;
    run.chunk = 8192;
    run.group_heads = figure.group;
    run.segment_tokens = SegmentOf(figure.prefix + figure.tokens);
    if (figure.offloaded) run.split = {.resident = 0, .stream = 1};
    const Subject subject{kLlama8B, {}, 1.0};
    const StepTime time = figure.tokens > 0
                              ? PredictPrefill(h200, subject, run, figure.prefix, figure.tokens)
                              : PredictDecode(h200, subject, run, {&figure.prefix, 1});
    const double speed = static_cast<double>(std::max<int64_t>(figure.tokens, 1)) / time.seconds;
    const double error = speed / figure.tokens_per_second - 1.0;
    EXPECT_LT(std::abs(error), 0.12) << figure.what << ": " << speed << " tokens a second";
    errors.push_back(std::abs(error));
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LT(errors[errors.size() / 2], 0.03);
}

}  // namespace
}  // namespace headway::plan
