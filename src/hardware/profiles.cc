#include "hardware/profiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/bytes.h"
#include "base/fnv.h"
#include "base/log.h"
#include "base/user_cache.h"
#include "hardware/profile_json.h"
#include "headway/refusal.h"

#ifndef HEADWAY_VERSION
#error "the build defines HEADWAY_VERSION"
#endif

namespace headway::hardware {
namespace {

// The first "key : value" of a file of /proc.
std::string ProcValue(const char* path, const std::string& key) {
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(key)) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

const ShippedProfile* FindShipped(const std::string& name) {
  for (const ShippedProfile& machine : ShippedProfiles()) {
    if (name == machine.name) return &machine;
  }
  return nullptr;
}

}  // namespace

Result<ChosenProfile> LoadProfile(Env& env, const std::string& name) {
  if (const ShippedProfile* shipped = FindShipped(name); shipped != nullptr) {
    Result<MachineProfile> machine = ParseProfile(shipped->json, name);
    if (!machine.ok()) return machine.status();
    return ChosenProfile{std::move(*machine), "shipped profile " + name};
  }
  if (!env.Exists(name) || env.IsDirectory(name)) {
    std::string names;
    for (const ShippedProfile& machine : ShippedProfiles()) {
      names += std::string(names.empty() ? "" : ", ") + machine.name;
    }
    return Status(
        StatusCode::kNotFound,
        fmt::format("there is no machine profile '{}': neither a file nor one of {}", name, names));
  }
  Result<std::string> text = env.ReadFile(name, kMaxConfigBytes);
  if (!text.ok()) return text.status();
  Result<MachineProfile> machine = ParseProfile(*text, name);
  if (!machine.ok()) return machine.status();
  return ChosenProfile{std::move(*machine), "profile " + name};
}

std::string HardwareKey(const BackendInfo& backend, int threads) {
  const std::string gpu =
      backend.own_memory ? fmt::format("{} {} MiB, ", backend.name, backend.memory >> 20) : "";
  return fmt::format("{}{}, {} threads", gpu, ProcValue("/proc/cpuinfo", "model name"), threads);
}

double HostMemory(Env& env) {
  const Result<std::string> text = env.ReadFile("/proc/meminfo");
  if (!text.ok() || !text->starts_with("MemTotal:")) return static_cast<double>(kGiB);
  const int64_t bytes = std::strtoll(text->c_str() + 9, nullptr, 10) * kKiB;
  return static_cast<double>(std::max<int64_t>(bytes, kMiB));
}

std::string KeptProfilePath(const std::string& hardware) {
  return UserCachePath(fmt::format("machine-{:016x}.json", Fnv1a(hardware)));
}

std::optional<MachineProfile> ReadKeptProfile(Env& env, const std::string& hardware,
                                              std::string* note) {
  const std::string path = KeptProfilePath(hardware);
  if (path.empty() || !env.Exists(path)) return std::nullopt;
  Result<std::string> text = env.ReadFile(path, kMaxConfigBytes);
  Result<MachineProfile> machine =
      text.ok() ? ParseProfile(*text, path) : Result<MachineProfile>(text.status());
  if (!machine.ok()) {
    *note = "the cached probe is not used: " + machine.status().message();
    return std::nullopt;
  }
  if (machine->hardware != hardware) {
    *note = "the cached probe is not used: it is of other hardware, " + machine->hardware;
    return std::nullopt;
  }
  if (machine->program != HEADWAY_VERSION) {
    *note = fmt::format("the cached probe is not used: version {} made it, and this is {}",
                        machine->program, HEADWAY_VERSION);
    return std::nullopt;
  }
  // It may have grown since.
  machine->host_memory = HostMemory(env);
  if (!machine->own_memory) machine->device_memory = machine->host_memory;
  return std::move(*machine);
}

Status KeepProfile(Env& env, const MachineProfile& machine) {
  return WriteUserCache(env, KeptProfilePath(machine.hardware), WriteProfile(machine));
}

Status CheckKind(const ChosenProfile& profile, const BackendInfo& backend) {
  if (profile.machine.own_memory == backend.own_memory) return OkStatus();
  const bool gpu = !backend.own_memory;  // that the profile has
  return Status(StatusCode::kInvalidArgument,
                Refusal{{Option::kMachine,
                         fmt::format(": {} is of a {}; give ", profile.origin,
                                     gpu ? "GPU" : "machine without a GPU"),
                         Option::kDevice, gpu ? " cuda" : " cpu"}});
}

Result<std::optional<ChosenProfile>> ChooseProfile(Env& env, const std::optional<std::string>& name,
                                                   const BackendInfo& backend, int threads) {
  if (name.has_value()) {
    Result<ChosenProfile> loaded = LoadProfile(env, *name);
    if (!loaded.ok()) {
      return loaded.status().Within({Option::kMachine, ": "});
    }
    if (Status s = CheckKind(*loaded, backend); !s.ok()) return s;
    return std::optional(std::move(*loaded));
  }
  std::string note;
  const std::string hardware = HardwareKey(backend, threads);
  std::optional<MachineProfile> cached = ReadKeptProfile(env, hardware, &note);
  if (!note.empty()) Log(LogLevel::kWarning, note + "; headway probe measures anew");
  if (cached.has_value()) {
    return std::optional(ChosenProfile{std::move(*cached), "headway probe"});
  }
  for (const ShippedProfile& shipped : ShippedProfiles()) {
    Result<MachineProfile> machine = ParseProfile(shipped.json, shipped.name);
    if (!machine.ok() || !backend.own_memory) continue;
    const std::vector<std::string>& devices = machine->devices;
    if (std::find(devices.begin(), devices.end(), backend.name) == devices.end()) continue;
    return std::optional(
        ChosenProfile{std::move(*machine), std::string("shipped profile ") + shipped.name});
  }
  return std::optional<ChosenProfile>();
}

}  // namespace headway::hardware
