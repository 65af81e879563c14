// Stores that have some of the heads of a session each.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "device/cpu/cpu_device.h"
#include "kv/store/store.h"
#include "kv/testing/memory_env.h"
#include "kv/testing/rig.h"
#include "kv/testing/slab_test_util.h"

namespace headway::kv {
namespace {

// Three heads in each of two layers, of six.
StoreOptions Half() {
  StoreOptions options = SmallStore();
  options.format.group_heads = 1;
  options.session_heads = {6, {{0, 2, 4}, {1, 2, 5}}};
  return options;
}

Status Make(StoreOptions options, int heads_in_file) {
  MemoryEnv env;
  Budget budget("disk", kUnlimited);
  CacheFormat format = options.format;
  format.kv_heads = heads_in_file;
  Result<std::unique_ptr<SlabFile>> file = CreateSessionAt(&env, "/s", format, &budget);
  EXPECT_TRUE(file.ok());
  options.device_budget = options.host_budget = options.disk_budget = &budget;
  const std::unique_ptr<Device> device = NewCpuDevice(&env, nullptr);
  const std::unique_ptr<Stream> compute = *device->NewStream(Lane::kCompute);
  const std::unique_ptr<Lanes> lanes = *Lanes::Create(device.get(), compute.get());
  return Store::Create(options, &env, device.get(), lanes.get(), std::move(*file)).status();
}

TEST(SharedSession, TakesHeadsOfItsSession) {
  EXPECT_TRUE(Make(Half(), 6).ok());
  EXPECT_EQ(Make(Half(), 5).code(), StatusCode::kInvalidArgument);
  StoreOptions fewer = Half();
  fewer.session_heads.own = {{2, 4}, {}};
  EXPECT_TRUE(Make(fewer, 6).ok());
  const std::function<void(StoreOptions*)> wrong[] = {
      [](StoreOptions* options) { options->format.group_heads = 2; },
      [](StoreOptions* options) { options->session_heads.own.pop_back(); },
      [](StoreOptions* options) {
        options->session_heads.own[1] = {0, 1, 2, 3};
      },
      [](StoreOptions* options) {
        options->session_heads.own[0] = {0, 0, 1};
      },
      [](StoreOptions* options) {
        options->session_heads.own[0] = {2, 1, 3};
      },
      [](StoreOptions* options) {
        options->session_heads.own[1] = {-1, 1, 3};
      },
      [](StoreOptions* options) {
        options->session_heads.own[1] = {0, 1, 6};
      }};
  for (const auto& change : wrong) {
    StoreOptions options = Half();
    change(&options);
    EXPECT_EQ(Make(options, 6).code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace headway::kv
