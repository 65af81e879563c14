#include "model/locate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/json/json.h"
#include "model/foreign.h"

namespace headway {

namespace {

constexpr size_t kMaxArgument = 512;

// "org/name@revision" taken apart.
struct HubName {
  std::string org;
  std::string name;
  std::string revision;
};

// Letters, digits, '-', '_' and '.', as the hub allows, and nothing that walks through folders.
bool IsHubPart(std::string_view part) {
  if (part.empty() || part.front() == '.' || part.find("..") != std::string_view::npos) {
    return false;
  }
  for (char c : part) {
    const bool alphanumeric =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!alphanumeric && c != '-' && c != '_' && c != '.') return false;
  }
  return true;
}

// A revision may have slashes ("refs/pr/1").
bool IsRevision(std::string_view revision) {
  size_t begin = 0;
  while (begin <= revision.size()) {
    const size_t end = std::min(revision.find('/', begin), revision.size());
    if (!IsHubPart(revision.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return true;
}

std::optional<HubName> ParseHubName(const std::string& model) {
  if (model.size() > kMaxArgument) return std::nullopt;
  HubName hub;
  const size_t at = model.find('@');
  const std::string id = model.substr(0, at);
  hub.revision = at == std::string::npos ? "main" : model.substr(at + 1);
  const size_t slash = id.find('/');
  if (slash == std::string::npos) return std::nullopt;
  hub.org = id.substr(0, slash);
  hub.name = id.substr(slash + 1);
  if (!IsHubPart(hub.org) || !IsHubPart(hub.name) || !IsRevision(hub.revision)) return std::nullopt;
  return hub;
}

std::string Trim(std::string text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  text.resize(end == std::string::npos ? 0 : end + 1);
  return text;
}

}  // namespace

GetEnvironment ProcessEnvironment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  };
}

std::string HubCacheFolder(const GetEnvironment& environment) {
  if (auto cache = environment("HF_HUB_CACHE")) return *cache;
  if (auto home = environment("HF_HOME")) return *home + "/hub";
  if (auto cache = environment("XDG_CACHE_HOME")) return *cache + "/huggingface/hub";
  return environment("HOME").value_or("") + "/.cache/huggingface/hub";
}

Result<std::string> LocateModel(Env& env, const std::string& model,
                                const GetEnvironment& environment) {
  if (model.empty()) return Status(StatusCode::kInvalidArgument, "the model's name is empty");
  if (env.IsDirectory(model)) return model;
  if (env.Exists(model)) {
    if (Status foreign = RefuseForeignFile(model); !foreign.ok()) return foreign;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: a file; a model is the folder with config.json in it", model));
  }
  const std::optional<HubName> hub = ParseHubName(model);
  if (!hub) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: no such folder, and not of the form org/name[@revision]",
                              Printable(model)));
  }
  const std::string repository =
      fmt::format("{}/models--{}--{}", HubCacheFolder(environment), hub->org, hub->name);
  if (!env.IsDirectory(repository)) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: no such folder, and not in the Hugging Face cache (looked for "
                              "{}); download it first, for example with 'hf download {}/{}'",
                              model, repository, hub->org, hub->name));
  }
  // A revision is a branch or tag, whose file holds the commit, or the commit itself.
  std::string commit = hub->revision;
  const std::string ref = fmt::format("{}/refs/{}", repository, hub->revision);
  if (env.Exists(ref)) {
    Result<std::string> text = env.ReadFile(ref, kMaxConfigBytes);
    if (!text.ok()) return text.status();
    commit = Trim(std::move(*text));
    if (!IsHubPart(commit)) {
      return Status(StatusCode::kCorrupt, fmt::format("{}: does not hold a commit", ref));
    }
  }
  const std::string snapshot = fmt::format("{}/snapshots/{}", repository, commit);
  if (!env.IsDirectory(snapshot)) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: revision '{}' is not in the Hugging Face cache (looked for {} "
                              "and {}); download it first",
                              model, hub->revision, ref, snapshot));
  }
  return snapshot;
}

}  // namespace headway
