// What tests of blueprints share.
#ifndef HEADWAY_ENGINE_BLUEPRINT_TESTING_H_
#define HEADWAY_ENGINE_BLUEPRINT_TESTING_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "engine/blueprint.h"
#include "engine/draft_plan.h"
#include "support/test_machines.h"

namespace headway {

// What blueprints are made from, with heads of `head_dim` elements.
struct Subject {
  explicit Subject(int head_dim) {
    config.shape = {2, 2 * head_dim, 2, 2, head_dim, 80, 96, DType::kBF16};
    config.windows.assign(2, 0);
  }
  Result<Blueprint> Draw(const BackendInfo& backend, const KernelSizes& kernels) const {
    BlueprintInputs inputs;
    inputs.settings = &settings;
    inputs.config = &config;
    inputs.weights = weights;
    inputs.pattern = &pattern;
    inputs.backend = backend;
    inputs.kernels = &kernels;
    if (backend.own_memory) inputs.device_memory = backend.memory;
    inputs.machine = machine;
    return MakeBlueprints(inputs, nullptr, {{length}});
  }
  Result<Blueprint> OnGpu() const {
    const PlannedBackend gpu = PlanGpuBackend(gpu_memory);
    return Draw(gpu.info, *gpu.sizes);
  }
  Result<Blueprint> OnCpu() const {
    ThreadPool pool(1);
    const std::unique_ptr<Backend> cpu = *NewBackend("cpu", "auto");
    const std::unique_ptr<Kernels> kernels = *cpu->NewKernels(&pool, nullptr);
    return Draw(cpu->info(), *kernels);
  }

  Settings settings;
  ModelConfig config;
  WeightBytes weights;
  kv::HeadPattern pattern;
  int64_t length = 1000;
  int64_t gpu_memory = int64_t{80} << 30;
  const MachineProfile* machine = nullptr;
};

// Llama-3-8B's shape on an H200 beside much host memory.
struct LlamaOnH200 : Subject {
  LlamaOnH200() : Subject(128) {
    config.shape = {32, 4096, 32, 8, 128, 14336, 128256, DType::kBF16};
    config.windows.clear();
    weights = CountWeightBytes(config);
    settings.memory.host = int64_t{1} << 40;
    machine = &h200;
  }

  MachineProfile h200 = plan::Shipped("h200");
};

inline void ExpectUnsupported(const Result<Blueprint>& blueprint, const std::string& message) {
  EXPECT_EQ(blueprint.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(blueprint.status().message(), message);
}

}  // namespace headway

#endif  // HEADWAY_ENGINE_BLUEPRINT_TESTING_H_
