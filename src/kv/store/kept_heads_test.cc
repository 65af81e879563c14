// Sequences whose heads have let go of tokens: what each head has then is what was given to it,
// wherever slabs lie, and what comes behind follows.
#include "kv/store/kept_heads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "device/cpu/cpu_device.h"
#include "device/trace.h"
#include "kv/store/store.h"
#include "kv/testing/memory_env.h"
#include "kv/testing/slab_test_util.h"

namespace headway::kv {
namespace {

constexpr int kSlots = 4, kDim = 8, kLayers = 2, kHeads = 3;

// A store on the CPU device in which the K and V of every token are a number of their own.
class KeptHeadsTest : public testing::Test {
 protected:
  void SetUp() override {
    device_ = NewCpuDevice(&env_, &trace_);
    compute_ = std::move(*device_->NewStream(Lane::kCompute));
    lanes_ = std::move(*Lanes::Create(device_.get(), compute_.get()));
  }

  static CacheFormat FormatOf(int group_heads) {
    CacheFormat format;
    format.layers = kLayers;
    format.kv_heads = kHeads;
    format.page = {DType::kF32, kSlots, kDim, Encoding::kNone};
    format.group_heads = group_heads;
    format.segment_pages = 2;
    return format;
  }

  // A store of what heads keep with a session.
  std::unique_ptr<Store> OpenStore() {
    Result<std::unique_ptr<SlabFile>> file =
        env_.Exists(path_) ? OpenSessionAt(&env_, path_, &disk_)
                           : CreateSessionAt(&env_, path_, FormatOf(1), &disk_);
    EXPECT_TRUE(file.ok()) << file.status().message();
    return NewStore(1, PageTables::Sharing::kGroup, 1 << 24, 1 << 24, std::move(*file));
  }

  std::unique_ptr<Store> NewStore(int group_heads, PageTables::Sharing tables,
                                  int64_t device_bytes = 1 << 24, int64_t host_bytes = 1 << 24,
                                  std::unique_ptr<SlabFile> session = nullptr) {
    StoreOptions options;
    options.format = FormatOf(group_heads);
    options.max_sequences = 2;
    options.max_step_tokens = 64;
    options.bounce_slabs = session == nullptr ? 0 : 1;
    options.disk_budget = &disk_;
    options.tables = tables;
    options.poison_freed = true;
    for (const auto& [name, bytes] : {std::pair("device", device_bytes), {"host", host_bytes}}) {
      budgets_.push_back(std::make_unique<Budget>(name, bytes));
    }
    options.device_budget = budgets_[budgets_.size() - 2].get();
    options.host_budget = budgets_.back().get();
    Result<std::unique_ptr<Store>> store =
        Store::Create(options, &env_, device_.get(), lanes_.get(), std::move(session));
    EXPECT_TRUE(store.ok()) << store.status().message();
    return store.ok() ? std::move(*store) : nullptr;
  }

  static float NumberOf(int layer, int head, int64_t position, bool value) {
    return static_cast<float>(((position * kLayers + layer) * kHeads + head) * 2 + (value ? 1 : 0));
  }
  static void Fill(const PageRun& run, int index, int64_t slot, float number, bool value) {
    const int64_t at = run.first_slot + slot;
    std::byte* page =
        (value ? run.v : run.k) + index * run.head_stride + at / kSlots * run.page_stride;
    std::fill_n(reinterpret_cast<float*>(page) + at % kSlots * kDim, kDim, number);
  }
  static float At(const PageRun& run, int64_t slot, bool value) {
    const int64_t at = run.first_slot + slot;
    const std::byte* page = (value ? run.v : run.k) + at / kSlots * run.page_stride;
    const float* numbers = reinterpret_cast<const float*>(page) + at % kSlots * kDim;
    EXPECT_EQ(std::count(numbers, numbers + kDim, *numbers), kDim);
    return *numbers;
  }

  // A step that appends tokens, without looking at keys.
  void Append(Store& store, SequenceId id, int64_t tokens) {
    const int64_t before = store.Length(id);
    const StepEntry entry{id, tokens, {}};
    ASSERT_TRUE(store.step().Begin({&entry, 1}).ok());
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int group = 0; group < store.format().head_groups(layer); ++group) {
        const PageRun target = store.step().Target(0, layer, group);
        for (const HeadRun& run : store.format().Runs(layer, group)) {
          for (int64_t i = 0; i < tokens * run.heads; ++i) {
            const int head = static_cast<int>(i % run.heads);
            for (const bool value : {false, true}) {
              Fill(target, run.index + head, i / run.heads,
                   NumberOf(layer, run.head + head, before + i / run.heads, value), value);
            }
          }
        }
      }
      store.step().CloseLayer(layer);
    }
    ASSERT_TRUE(store.step().End().ok());
  }

  // The same, and the positions that it has then, of each table.
  void Grow(Store& store, SequenceId id, int64_t tokens, std::vector<std::vector<int32_t>>* kept) {
    Append(store, id, tokens);
    for (size_t table = 0; table < kept->size(); ++table) {
      for (int64_t i = store.Length(id) - tokens; grows_[table] && i < store.Length(id); ++i) {
        (*kept)[table].push_back(static_cast<int32_t>(i));
      }
    }
  }

  // The sequence's keys are those of `positions` of each table, [layers * kHeads], in order.
  void Check(Store& store, SequenceId id, const std::vector<std::vector<int32_t>>& positions) {
    for (int table = 0; table < kLayers * kHeads; ++table) {
      const int layer = table / kHeads, head = table % kHeads;
      Result<std::vector<KeyRun>> keys = store.KeysOf(id, layer, head);
      ASSERT_TRUE(keys.ok());
      lanes_->Drain();
      auto next = positions[static_cast<size_t>(table)].begin();
      const auto end = positions[static_cast<size_t>(table)].end();
      for (const KeyRun& run : *keys) {
        for (int64_t i = 0; i < run.pages.count; ++i, ++next) {
          ASSERT_NE(next, end);
          EXPECT_LE(run.position + i, *next);  // no mask hides it
          for (const bool value : {false, true}) {
            EXPECT_EQ(At(run.pages, i, value), NumberOf(layer, head, *next, value));
          }
        }
      }
      EXPECT_EQ(next, end);
      store.FinishKeys(id, layer, head);
    }
  }

  static std::vector<int32_t> Every(int64_t from, int64_t to) {
    std::vector<int32_t> all(static_cast<size_t>(to - from));
    std::iota(all.begin(), all.end(), static_cast<int32_t>(from));
    return all;
  }

  // Gives a sequence of `store` some tokens of `prompt`, different ones for each head, and returns
  // their positions, the tail's among them.
  std::vector<std::vector<int32_t>> KeepSome(Store& from, SequenceId prompt, Store& store,
                                             SequenceId id, Random& random) {
    const int64_t length = from.Length(prompt), closed = length - length % kSlots;
    std::vector<std::vector<int32_t>> kept;
    std::vector<std::byte> rows(2 * static_cast<size_t>(closed / kSlots) * 4096);
    const auto stride = static_cast<int64_t>(rows.size() / 2);
    for (int table = 0; table < kLayers * kHeads; ++table) {
      const int layer = table / kHeads, head = table % kHeads;
      std::vector<int32_t> positions = Every(0, closed);
      for (size_t i = positions.size(); i > 1; --i) {
        std::swap(positions[i - 1],
                  positions[static_cast<size_t>(random.Below(static_cast<int64_t>(i)))]);
      }
      positions.resize(static_cast<size_t>(kSlots * random.Below(closed / kSlots + 1)));
      std::sort(positions.begin(), positions.end());
      PageRun run{.k = rows.data(), .v = rows.data() + stride, .page_stride = 4096};
      for (size_t i = 0; i < positions.size(); ++i) {
        for (const bool value : {false, true}) {
          Fill(run, 0, static_cast<int64_t>(i), NumberOf(layer, head, positions[i], value), value);
        }
      }
      EXPECT_TRUE(store
                      .Keep(id, layer, head, {positions, grows_[static_cast<size_t>(table)]},
                            {rows.data(), stride, nullptr})
                      .ok());
      lanes_->Drain();  // the rows are written to from here
      const PageRun open = store.OpenPageOf(id, layer, head);
      for (int64_t position = closed; position < length; ++position) {
        if (!grows_[static_cast<size_t>(table)]) break;
        positions.push_back(static_cast<int32_t>(position));
        for (const bool value : {false, true}) {
          Fill(open, 0, position - closed, NumberOf(layer, head, position, value), value);
        }
      }
      kept.push_back(positions);
    }
    return kept;
  }

  static Manifest MetaOf(int64_t from) {
    Manifest meta;
    meta.kept.emplace();
    meta.kept->policy = "some";
    meta.kept->from = from;
    return meta;
  }
  static Status Save(Store& store, SequenceId id, int64_t from) {
    const std::vector<TokenId> tokens(static_cast<size_t>(store.Length(id)), 7);
    return store.Save(id, tokens, MetaOf(from));
  }
  // What the session holds, in memory.
  static SequenceId Restored(Store& store) {
    const Result<SequenceId> id = store.Restore();
    EXPECT_TRUE(id.ok()) << id.status().message();
    const Status up =
        store.BringUp(*id, {}, WithoutRoom::kFails, [](int64_t, int64_t) { return true; });
    EXPECT_TRUE(up.ok()) << up.message();
    return *id;
  }

  std::vector<bool> grows_ = std::vector<bool>(kLayers * kHeads, true);  // by table
  std::string path_ = "/disk/session";
  MemoryEnv env_;
  Budget disk_{"disk", kUnlimited};
  Trace trace_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Lanes> lanes_;
  std::vector<std::unique_ptr<Budget>> budgets_;
};

TEST_F(KeptHeadsTest, HeadsHaveWhatTheyWereGivenAndWhatCameBehind) {
  for (uint64_t seed = 1; seed <= 20 && !HasFailure(); ++seed) {
    Random random(seed);
    std::unique_ptr<Store> prompts = NewStore(2, PageTables::Sharing::kLayer);
    const SequenceId prompt = *prompts->CreateSequence();
    Append(*prompts, prompt, 1 + random.Below(60));
    const int64_t length = prompts->Length(prompt);
    std::vector<std::vector<int32_t>> all(kLayers * kHeads, Every(0, length));
    Check(*prompts, prompt, all);

    // Sometimes only a few slabs are on the device.
    std::unique_ptr<Store> store =
        NewStore(1, PageTables::Sharing::kGroup, random.Below(2) == 0 ? 1 << 24 : 1400 << 10);
    Result<SequenceId> id = store->CreateKept(length);
    ASSERT_TRUE(id.ok());
    std::vector<std::vector<int32_t>> kept = KeepSome(*prompts, prompt, *store, *id, random);
    Check(*store, *id, kept);
    Result<SequenceId> fork = store->Fork(*id);
    ASSERT_TRUE(fork.ok());
    const std::vector<std::vector<int32_t>> before = kept;
    for (int64_t tokens : {int64_t{1}, 1 + random.Below(20), int64_t{1}, int64_t{1}}) {
      Grow(*store, *id, tokens, &kept);
      Check(*store, *id, kept);
    }
    Check(*store, *fork, before);
  }
}

// Of a head whose tokens several ranks divide what comes behind a prompt is with one of them.
TEST_F(KeptHeadsTest, SomeHeadsHaveNothingOfWhatCameBehind) {
  for (uint64_t seed = 1; seed <= 10 && !HasFailure(); ++seed) {
    Random random(seed);
    for (size_t table = 0; table < grows_.size(); ++table) grows_[table] = random.Below(2) == 0;
    std::unique_ptr<Store> prompts = NewStore(2, PageTables::Sharing::kLayer);
    const SequenceId prompt = *prompts->CreateSequence();
    Append(*prompts, prompt, 1 + random.Below(60));
    std::unique_ptr<Store> store = NewStore(1, PageTables::Sharing::kGroup);
    const SequenceId id = *store->CreateKept(prompts->Length(prompt));
    std::vector<std::vector<int32_t>> kept = KeepSome(*prompts, prompt, *store, id, random);
    Check(*store, id, kept);
    const int64_t slabs = store->Usage(Tier::kDevice).slabs;
    const std::vector<std::vector<int32_t>> before = kept;
    for (int64_t tokens : {int64_t{1}, 1 + random.Below(40), int64_t{1}, int64_t{1}}) {
      Grow(*store, id, tokens, &kept);
      Check(*store, id, kept);
    }
    const SequenceId fork = *store->Fork(id);
    Check(*store, fork, kept);
    store->Drop(fork);
    // Back at the prompt's end all are as they were, but for the open pages.
    const int64_t length = prompts->Length(prompt);
    ASSERT_EQ(*store->Truncate(id, length), length - length % kSlots);
    kept = before;
    for (size_t table = 0; table < kept.size(); ++table) {
      if (grows_[table]) kept[table].resize(kept[table].size() - length % kSlots);
    }
    Check(*store, id, kept);
    EXPECT_LE(store->Usage(Tier::kDevice).slabs, slabs);
    ASSERT_EQ(*store->Truncate(id, 0), 0);
    Append(*store, id, 9);
    Check(*store, id, std::vector<std::vector<int32_t>>(kLayers * kHeads, Every(0, 9)));
  }
}

TEST_F(KeptHeadsTest, OneCanGoBackToThePromptsEndAndNoFurther) {
  Random random(5);
  std::unique_ptr<Store> prompts = NewStore(3, PageTables::Sharing::kLayer);
  const SequenceId prompt = *prompts->CreateSequence();
  Append(*prompts, prompt, 42);
  std::unique_ptr<Store> store = NewStore(1, PageTables::Sharing::kGroup);
  const SequenceId id = *store->CreateKept(42);
  std::vector<std::vector<int32_t>> kept = KeepSome(*prompts, prompt, *store, id, random);
  Append(*store, id, 17);
  const Result<int64_t> back = store->Truncate(id, 39);
  EXPECT_EQ(back.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store->Length(id), 59);
  ASSERT_EQ(*store->Truncate(id, 55), 52);
  ASSERT_EQ(*store->Truncate(id, 42), 40);
  for (std::vector<int32_t>& positions : kept) positions.resize(positions.size() - 2);
  Check(*store, id, kept);
  ASSERT_EQ(*store->Truncate(id, 0), 0);
  Append(*store, id, 9);
  Check(*store, id, std::vector<std::vector<int32_t>>(kLayers * kHeads, Every(0, 9)));
  store->Drop(id);
  EXPECT_EQ(store->Usage(Tier::kDevice).slabs, 0);
}

// Also what lies in open pages, which are not whole.
TEST_F(KeptHeadsTest, ASessionHoldsWhatHeadsKeep) {
  for (uint64_t seed = 1; seed <= 12 && !HasFailure(); ++seed) {
    Random random(seed);
    path_ = "/disk/session" + std::to_string(seed);
    std::unique_ptr<Store> prompts = NewStore(3, PageTables::Sharing::kLayer);
    const SequenceId prompt = *prompts->CreateSequence();
    const int64_t length = 1 + random.Below(60);
    Append(*prompts, prompt, length);
    std::vector<std::vector<int32_t>> kept;
    {
      std::unique_ptr<Store> store = OpenStore();
      const SequenceId id = *store->CreateKept(length);
      kept = KeepSome(*prompts, prompt, *store, id, random);
      ASSERT_TRUE(Save(*store, id, length).ok());
      Grow(*store, id, 1 + random.Below(3), &kept);
      ASSERT_TRUE(Save(*store, id, length).ok());
      std::vector<std::vector<int32_t>> lost = kept;
      Grow(*store, id, 1 + random.Below(9), &lost);  // not saved
    }
    for (int life = 0; life < 3; ++life) {
      std::unique_ptr<Store> store = OpenStore();
      const SequenceId id = Restored(*store);
      Check(*store, id, kept);
      if (length >= 2 * kSlots) {
        const Result<int64_t> cut = store->Truncate(id, length / kSlots * kSlots - 1);
        EXPECT_EQ(cut.status().code(), StatusCode::kNotFound);
      }
      Grow(*store, id, 1 + random.Below(12), &kept);
      Check(*store, id, kept);
      ASSERT_TRUE(Save(*store, id, length).ok());
    }
  }
}

TEST_F(KeptHeadsTest, SessionsOfOtherStoresAreRefused) {
  Random random(3);
  std::unique_ptr<Store> prompts = NewStore(3, PageTables::Sharing::kLayer);
  const SequenceId prompt = *prompts->CreateSequence();
  Append(*prompts, prompt, 30);
  {
    std::unique_ptr<Store> store = OpenStore();
    const SequenceId id = *store->CreateKept(30);
    KeepSome(*prompts, prompt, *store, id, random);
    const std::vector<TokenId> tokens(30, 7);
    EXPECT_EQ(store->Save(id, tokens, Manifest()).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(Save(*store, id, 24).code(), StatusCode::kInvalidArgument);  // of another prompt
    EXPECT_EQ(store->Save(id, std::span(tokens).first(29), MetaOf(30)).code(),
              StatusCode::kInvalidArgument);
    ASSERT_TRUE(Save(*store, id, 30).ok());
  }
  std::unique_ptr<Store> whole = NewStore(1, PageTables::Sharing::kLayer, 1 << 24, 1 << 24,
                                          std::move(*OpenSessionAt(&env_, path_, &disk_)));
  EXPECT_EQ(whole->Restore().status().code(), StatusCode::kInvalidArgument);
}

// Forks, truncations and drops in any order, against lists of positions.
TEST_F(KeptHeadsTest, AgreesWithLists) {
  for (uint64_t seed = 1; seed <= 15 && !HasFailure(); ++seed) {
    Random random(seed);
    std::unique_ptr<Store> prompts = NewStore(3, PageTables::Sharing::kLayer);
    const SequenceId prompt = *prompts->CreateSequence();
    const int64_t length = kSlots + random.Below(40), closed = length / kSlots * kSlots;
    Append(*prompts, prompt, length);
    std::unique_ptr<Store> store = NewStore(1, PageTables::Sharing::kGroup);
    std::map<SequenceId, std::vector<std::vector<int32_t>>> model;
    for (int i = 0; i < 40 && !HasFailure(); ++i) {
      const int64_t choice = random.Below(6);
      if (model.empty()) {
        const SequenceId id = *store->CreateKept(length);
        model[id] = KeepSome(*prompts, prompt, *store, id, random);
        continue;
      }
      const SequenceId id = std::next(model.begin(), random.Below(std::ssize(model)))->first;
      std::vector<std::vector<int32_t>>& kept = model[id];
      if (choice == 0 && model.size() == 2) {
        store->Drop(id);
        model.erase(id);
      } else if (choice <= 1 && model.size() == 1) {
        model[*store->Fork(id)] = std::vector(kept);
      } else if (choice == 2) {
        const int64_t to = random.Below(store->Length(id) + 1);
        const Result<int64_t> cut = store->Truncate(id, to);
        EXPECT_EQ(cut.ok(), to < kSlots || to / kSlots * kSlots >= closed);
        if (!cut.ok()) {
          EXPECT_NE(cut.status().message().find("eviction has let go"), std::string::npos);
        } else if (*cut == 0) {
          store->Drop(id);
          model.erase(id);
        } else {
          for (std::vector<int32_t>& head : kept) {
            std::erase_if(head, [&](int32_t position) { return position >= *cut; });
          }
        }
      } else {
        Grow(*store, id, 1 + random.Below(10), &kept);
      }
      for (const auto& [sequence, positions] : model) Check(*store, sequence, positions);
    }
    for (const auto& [sequence, positions] : model) store->Drop(sequence);
    EXPECT_EQ(store->Usage(Tier::kDevice).slabs, 0);
  }
}

TEST_F(KeptHeadsTest, WhatDoesNotFitIsAnErrorThatLosesNothing) {
  Random random(7);
  std::unique_ptr<Store> prompts = NewStore(3, PageTables::Sharing::kLayer);
  std::unique_ptr<Store> store = NewStore(1, PageTables::Sharing::kGroup, 1400 << 10, 0);
  const SequenceId id = *store->CreateKept(4096);
  std::vector<std::byte> rows(2 * 1024 * 4096);
  const ClosedRows from = {rows.data(), 1024 * 4096, nullptr};
  EXPECT_EQ(store->Keep(id, 0, 0, {Every(0, 4096)}, from).code(), StatusCode::kOutOfBudget);
  EXPECT_TRUE(store->Keep(id, 0, 0, {Every(0, 8)}, from).ok());
  store->Drop(id);
  EXPECT_EQ(store->Usage(Tier::kDevice).slabs, 0);
}

}  // namespace
}  // namespace headway::kv
