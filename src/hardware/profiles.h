// Which profile a plan is made for: one that the user names, the probe of this machine that is kept
// in the user's cache folder, or the one that is shipped for its GPU.
#ifndef HEADWAY_HARDWARE_PROFILES_H_
#define HEADWAY_HARDWARE_PROFILES_H_

#include <optional>
#include <span>
#include <string>

#include "base/env.h"
#include "base/machine_profile.h"
#include "headway/status.h"
#include "kernels/backend/backend.h"

namespace headway::hardware {

// The profiles of machines/, which are part of the program.
struct ShippedProfile {
  const char* name;
  const char* json;
};
std::span<const ShippedProfile> ShippedProfiles();

struct ChosenProfile {
  MachineProfile machine;
  std::string origin;  // "headway probe", "shipped profile h200", ... ; for people
};

// The shipped profile of that name, or the profile in the file. kNotFound lists the shipped names.
Result<ChosenProfile> LoadProfile(Env& env, const std::string& name);

// kInvalidArgument where one is of a GPU and the other is not.
Status CheckKind(const ChosenProfile& profile, const BackendInfo& backend);

// What a probe is bound to: GPU, CPU and threads. Another key, another probe.
std::string HardwareKey(const BackendInfo& backend, int threads);
// Bytes that the machine has now: some virtual machines are given more by and by.
double HostMemory(Env& env);

// The file in the user's cache folder for a key; empty where there is none.
std::string KeptProfilePath(const std::string& hardware);
// What the cache holds for this hardware and this version of the program, if it is of use. A file
// that is damaged, or of another version, is said in `note` and treated as absent.
std::optional<MachineProfile> ReadKeptProfile(Env& env, const std::string& hardware,
                                              std::string* note);
// Replaces the file at once, so that no reader sees half of one.
Status KeepProfile(Env& env, const MachineProfile& machine);

// The profile of that name, or without one the probe of this machine that is kept, or the profile
// that is shipped for its GPU; empty where there is none of these.
Result<std::optional<ChosenProfile>> ChooseProfile(Env& env, const std::optional<std::string>& name,
                                                   const BackendInfo& backend, int threads);

}  // namespace headway::hardware

#endif  // HEADWAY_HARDWARE_PROFILES_H_
