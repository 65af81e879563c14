// Which machine a plan is made for: a profile that the user names, the probe of this machine that
// is in the cache, or the profile that is shipped for its GPU.
#ifndef HEADWAY_ENGINE_MACHINE_PROFILE_H_
#define HEADWAY_ENGINE_MACHINE_PROFILE_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "headway/engine.h"
#include "headway/status.h"
#include "kernels/backend/backend.h"
#include "plan/machine.h"

namespace headway {

// The profiles of machines/, which are part of the program.
struct ShippedMachine {
  const char* name;
  const char* json;
};
std::span<const ShippedMachine> ShippedMachines();

struct ChosenMachine {
  plan::Machine machine;
  std::string origin;  // "probe", "shipped profile h200", ... ; for people
};

// The shipped profile of that name, or the profile in the file. kNotFound lists the shipped names.
Result<ChosenMachine> LoadMachine(Env& env, const std::string& name);

// kInvalidArgument where one is of a GPU and the other is not.
Status CheckKind(const ChosenMachine& machine, const BackendInfo& backend);

// What a probe is bound to: GPU, CPU, threads and memory. Another key, another probe.
std::string HardwareKey(const BackendInfo& backend, int threads);

// The file in the user's cache folder for a key; empty where there is none.
std::string MachineCachePath(const std::string& hardware);
// What the cache holds for this hardware and this version of the program, if it is of use. A file
// that is damaged, or of another version, is said in `note` and treated as absent.
std::optional<plan::Machine> ReadMachineCache(Env& env, const std::string& hardware,
                                              std::string* note);
// Replaces the file at once, so that no reader sees half of one.
Status WriteMachineCache(Env& env, const plan::Machine& machine);

// The machine of the options, or of the cache, or that is shipped for the GPU; empty where there is
// none of these.
Result<std::optional<ChosenMachine>> ChooseMachine(Env& env, const EngineOptions& options,
                                                   const BackendInfo& backend, int threads);

// Measures. `quick` takes under a second, leaves out the disk, and of each curve but a point or
// two.
Result<plan::Machine> ProbeHardware(Env& env, const EngineOptions& options, bool quick);

}  // namespace headway

#endif  // HEADWAY_ENGINE_MACHINE_PROFILE_H_
