// Assembly: the parts that run the steps of a blueprint. Its owner, a context or the harness of the
// tests, gives those that differ between the two; Build makes the others.
#ifndef HEADWAY_ENGINE_ASSEMBLY_H_
#define HEADWAY_ENGINE_ASSEMBLY_H_

#include <memory>

#include "base/env.h"
#include "device/device.h"
#include "device/lanes.h"
#include "engine/evictor.h"
#include "engine/executor.h"
#include "engine/layout.h"
#include "engine/step/salience.h"
#include "headway/context.h"
#include "kernels/kernels.h"
#include "kv/store/store.h"
#include "model/model.h"

namespace headway {

struct Assembly {
  // `layout` is of the blueprint, its store with budgets; `session` may be null, and is of what is
  // kept where tokens are let go. Everything that is
  // marked as given is there, and what it points to outlives the assembly.
  Status Build(const Layout& layout, std::shared_ptr<kv::SlabFile> session);

  // Fills in what was read so far. Waits for the GPU where there is a page cache.
  void CountReads(Timings* timings) const;

  // In the order in which they are built; destroyed in reverse.
  Env* env = nullptr;                             // given
  const Model* model = nullptr;                   // given, its weights where they will be used
  Budget* device_budget = nullptr;                // given: of the device beside the store
  Budget* host_budget = nullptr;                  // given: of weights on their way from disk
  Budget* memory_budget = nullptr;                // given: of RAM that no other budget counts
  std::unique_ptr<Device> device;                 // given
  std::unique_ptr<Kernels> kernels;               // given, not prepared
  std::unique_ptr<HostAttention> host_attention;  // given: of the path `host`; null without it
  HostShareControl host_share{0.0};               // given: its share of pages in host memory
  const Trace* host_trace = nullptr;              // given: HostOptions::trace
  Trace* trace = nullptr;                         // given: ExecutorParts::trace
  LaneWaitFilter wait_filter;                     // given: Lanes::Create
  Communicator* communicator = nullptr;           // given: ExecutorParts::communicator
  bool by_layers = false;                         // given: ExecutorParts::by_layers
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Lanes> lanes;
  std::unique_ptr<kv::Store> store;
  std::unique_ptr<WeightStream> weights;  // null where all are resident
  std::unique_ptr<HiddenStates> hidden;   // null where no prompt passes layer by layer
  std::unique_ptr<Salience> salience;     // null where decodes attend to all tokens
  std::unique_ptr<SharedHeads> shared;    // null where ranks have whole heads
  std::unique_ptr<Executor> executor;
  // Of a context that lets tokens go; else null.
  std::unique_ptr<kv::Store> kept_store;
  std::unique_ptr<Demoted> demoted;  // null where what they do not keep is dropped
  std::unique_ptr<Executor> kept_executor;
  std::unique_ptr<Evictor> evictor;

 private:
  Status BuildSalience(const SalienceLimits& limits, const kv::StoreOptions& options);
  Status BuildKept(const KeptLayout& layout, const kv::StoreOptions& prompts,
                   std::shared_ptr<kv::SlabFile> session);
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_ASSEMBLY_H_
