#include <gtest/gtest.h>

#include <vector>

#include "plan/plan_testing.h"
#include "plan/selection_cost.h"
#include "support/test_machines.h"

namespace headway::plan {
namespace {

// Which reads listed pages of 100 keys from disk.
Subject ChoosingPages() {
  Subject subject = Choosing();
  subject.selection.page_keys = 100.0;
  return subject;
}

// One layer and head: 62.5 blocks of 16 keys are listed, in 10,000 pages of 100 keys.
TEST(SelectionCost, ListedPagesComeFromDisk) {
  Subject subject = ChoosingPages();
  MachineProfile machine = Simple();
  const int64_t length = 1'000'000;
  Execution run;
  const auto step = [&] { return PredictDecode(machine, subject, run, {&length, 1}); };
  const auto disk = static_cast<size_t>(CostLane::kDisk);
  const auto bus = static_cast<size_t>(CostLane::kHostToDevice);
  const StepTime none = step();
  EXPECT_EQ(none.busy[disk], 0.0);
  const double pages = 1e4 * (1.0 - std::exp(-62.5 / 1e4));
  run.split = {.resident = 0.0, .disk = 1.0};
  EXPECT_NEAR(ListedPageBytes(subject, run, 1e6, {0.0, 1000.0}), pages * 100.0 * 400.0, 1e-3);
  EXPECT_NEAR(step().busy[disk], pages * 40e3 / 1e9, 1e-9);
  EXPECT_NEAR(step().busy[bus], 400e3 / 1e10, 1e-12);  // of the pages what is listed
  EXPECT_GT(step().seconds, step().busy[disk]);
  const double found = 62.5e-7;  // by the host
  EXPECT_LT(step().seconds, step().busy[disk] + step().busy[bus] + found + none.seconds);
  // Lines hold nothing that comes from disk. The oldest keys lie there, and neither the sink's nor
  // recent ones.
  run.page_cache_steps = 8.0;
  EXPECT_NEAR(step().busy[bus], 400e3 / 1e10, 1e-12);
  run.split = {.resident = 0.5, .disk = 0.5};
  subject.selection.sink = subject.selection.recent = 200.0;
  const double share = 5e5 / (1e6 - 400.0);
  EXPECT_NEAR(step().busy[disk], ListedPageBytes(subject, run, 1e6, {0.0, 600.0 * share}) / 1e9,
              1e-9);
  EXPECT_NEAR(step().busy[bus], 600.0 * share * 400.0 / 1e10, 1e-9);
  // Or these, too, where all do: side by side.
  const double far = 600.0 / 16.0, far_pages = (1e6 - 400.0) / 100.0;
  run.split = {.resident = 0.0, .disk = 1.0};
  EXPECT_NEAR(step().busy[disk],
              (4.0 + far_pages * (1.0 - std::exp(-far / far_pages))) * 40e3 / 1e9, 1e-9);
  EXPECT_NEAR(step().busy[bus], 400e3 / 1e10, 1e-12);
  run.split = {.resident = 0.5, .disk = 0.5};
  // The heads of a group have pages together: where they want others, more is read.
  subject.shape = {1, 1000, 16, 8, 100, 2000, 5000, DType::kBF16};
  const double one_head = ListedPageBytes(subject, run, 1e9, {0.0, 1000.0});
  run.group_heads = 8;
  EXPECT_NEAR(ListedPageBytes(subject, run, 1e9, {0.0, 1000.0}) / one_head, 8.0, 1e-3);
  // A machine without a bus reads them likewise.
  machine.own_memory = false;
  EXPECT_NEAR(step().busy[disk], ListedPageBytes(subject, run, 1e6, {0.0, 600.0 * share}) / 1e9,
              1e-9);
  EXPECT_EQ(step().busy[bus], 0.0);
}

// Keys of a page are 20,000 bytes, and so are its values. A profile without the rate of such reads
// has that of long ones.
TEST(SelectionCost, PagesFromDiskComeAtTheRateOfSmallReads) {
  Subject subject = ChoosingPages();
  MachineProfile machine = Simple();
  Execution run;
  run.split = {.resident = 0.0, .disk = 1.0};
  const ListedOnDisk listed = {1e6, {0.0, 1000.0}};
  const double bytes = ListedPageBytes(subject, run, listed.keys, listed.listed);
  EXPECT_NEAR(ListedPageSeconds(machine, subject, run, listed), bytes / 1e9, 1e-12);
  machine.disk_pieces = {{{10e3, 5e7}, {30e3, 1e8}}};
  const double piece = 2e-4 + 0.5 * (3e-4 - 2e-4);
  EXPECT_NEAR(ListedPageSeconds(machine, subject, run, listed), bytes / 20e3 * piece, 1e-12);
  const SequenceStep token{1'000'000, 1}, chunk{1'000'000, 128};
  const auto reads = [&](const SequenceStep& entry) {
    return PredictStep(machine, subject, run, {&entry, 1}, LogitsWanted::kNo)
        .busy[static_cast<size_t>(CostLane::kDisk)];
  };
  EXPECT_NEAR(reads(token), bytes / 20e3 * piece, 1e-9);
  const double whole = reads(chunk);  // long reads
  machine.disk_pieces = {};
  EXPECT_EQ(reads(chunk), whole);
}

// Pages that an earlier step listed are read again only where they found no room to stay.
TEST(SelectionCost, PagesThatStayAreNotReadAgain) {
  Subject subject = ChoosingPages();
  const MachineProfile machine = Simple();
  Execution run;
  run.split = {.resident = 0.0, .disk = 1.0};
  const ListedOnDisk listed = {1e6, {0.0, 1000.0}};
  const auto seconds = [&](double steps) {
    run.listed_steps = steps;
    return ListedPageSeconds(machine, subject, run, listed);
  };
  const double all = seconds(0.0);
  EXPECT_EQ(seconds(0.4), all);  // what is listed first has gone when it is listed again
  EXPECT_NEAR(seconds(1.0), 0.1 * all, 1e-12);
  EXPECT_NEAR(seconds(2.0), 0.023 * all, 1e-12);
  EXPECT_EQ(seconds(20.0), seconds(2.0));
  subject.selection.refresh = 4.0;  // of what a step of four chooses anew
  EXPECT_NEAR(seconds(2.0), 0.023 / 4.0 * all, 1e-12);
}

// Nothing of a layer goes on before the pages that its lists have are there.
TEST(SelectionCost, ListedPagesAreWaitedFor) {
  Subject subject = ChoosingPages();
  MachineProfile machine = Simple();
  Execution run;
  run.split = {.resident = 0.0, .disk = 1.0};
  const SequenceStep token{1'000'000, 1};
  const auto step = [&] {
    return PredictStep(machine, subject, run, {&token, 1}, LogitsWanted::kNo);
  };
  const StepTime fast = step();
  machine.disk_read /= 3.0;
  const StepTime slow = step();
  const auto disk = static_cast<size_t>(CostLane::kDisk);
  EXPECT_NEAR(slow.busy[disk], 3.0 * fast.busy[disk], 1e-9);
  EXPECT_NEAR(slow.seconds - fast.seconds, slow.busy[disk] - fast.busy[disk], 1e-9);
}

// To choose by keys, and in prompts, slabs on disk are read whole.
TEST(SelectionCost, WhatIsNotListedOnDiskIsReadWhole) {
  Subject subject = Choosing();
  const MachineProfile machine = Simple();
  const SequenceStep token{1'000'000, 1}, chunk{1'000'000, 128};
  Execution run;
  run.split = {.resident = 0.25, .disk = 0.75};
  const auto reads = [&](const SequenceStep& entry) {
    return PredictStep(machine, subject, run, {&entry, 1}, LogitsWanted::kNo)
        .busy[static_cast<size_t>(CostLane::kDisk)];
  };
  EXPECT_NEAR(reads(token), 0.75 * 400e6 / 1e9, 1e-9);
  subject.selection.page_keys = 64.0;
  EXPECT_LT(reads(token), 0.01 * 400e6 / 1e9);
  const double exact = reads(chunk);
  subject.selection.prompts = KeySelection::Prompts::kSelected;
  EXPECT_NEAR(reads(chunk), exact, 1e-9);
}

}  // namespace
}  // namespace headway::plan
