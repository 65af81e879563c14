#include "engine/session_check.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/eviction_settings.h"
#include "engine/refused.h"
#include "kv/policy/eviction_budgets.h"
#include "model/config_identity.h"

namespace headway {
namespace {

// Of a session of what heads keep, or of whole prompts: whether the settings go on with it.
Status CheckKept(const kv::Manifest& saved, const Settings& settings) {
  const SessionSettings& session = *settings.session;
  const kv::EvictionPolicy& policy = settings.eviction;
  const std::optional<kv::SavedKept>& kept = saved.kept;
  const std::string words = EvictionWords(policy);
  if (kept.has_value() && !policy.evicts()) {
    return Wrong(
        {"session " + session.path + " holds what ", Option::kEvict,
         " " + kept->policy + " keeps of a prompt; continue it with that, or give another ",
         Option::kSession, " file"});
  }
  if (!policy.evicts()) return OkStatus();
  if (!kept.has_value()) {
    return Wrong({"session " + session.path + " holds all of a prompt; continue it without ",
                  Option::kEvict,
                  std::string(" ") + kv::EvictionName(policy.method) + ", or give another ",
                  Option::kSession, " file"});
  }
  if (kept->policy != words) {
    return Wrong({"session " + session.path + " holds what ", Option::kEvict,
                  " " + kept->policy + " keeps of a prompt, and this is " + words +
                      "; continue it with the same, or give another ",
                  Option::kSession, " file"});
  }
  const kv::CacheFormat& format = saved.format;
  const int slots = format.page.page_slots;
  const kv::KeptBounds bounds =
      kv::KeptBoundsOf(policy, RankHeads::Alone(format.layers, format.kv_heads), kept->from, slots);
  int64_t pages = 0, most = 0;
  for (const std::vector<int32_t>& positions : kept->positions) {
    pages += std::ssize(positions) / slots;
    most = std::max<int64_t>(most, std::ssize(positions) / slots);
  }
  if (pages > bounds.all_pages || most > bounds.head_pages) {
    return Status(StatusCode::kCorrupt,
                  Refusal{{"session " + session.path + " is damaged: its heads keep more than " +
                               words + " lets them; delete it or give another ",
                           Option::kSession, " file"}});
  }
  const int64_t behind = std::ssize(saved.tokens) - kept->from;
  if (behind <= policy.room) return OkStatus();
  return Wrong({"session " + session.path + " holds " + std::to_string(behind) +
                    " tokens behind its prompt; raise ",
                Option::kEvictRoom});
}

}  // namespace

Status CheckSession(const kv::Manifest& saved, const Settings& settings, const ModelConfig& config,
                    Encoding encoding) {
  const SessionSettings& session = *settings.session;
  const kv::CacheFormat& format = saved.format;
  const std::string differs = IdentityDifference(saved.model_config, ConfigIdentity(config));
  if (!differs.empty()) return OtherModel(session, differs);
  // So that nothing is taken for granted of a file that was made up.
  const bool fits = format.layers == config.shape.layers &&
                    format.kv_heads == config.shape.kv_heads &&
                    format.page.head_dim == config.shape.head_dim &&
                    format.page.dtype == config.shape.dtype && saved.keys_rotated;
  if (!fits) return OtherModel(session, "another cache");
  // The encoding first: without a page of the user's, that follows from it.
  if (format.page.encoding != encoding) {
    const std::string name = EncodingName(format.page.encoding);
    return Wrong({"session " + session.path + " keeps its cache in KV encoding " + name + "; use ",
                  Option::kKvEncoding, " " + name + " or another ", Option::kSession, " file"});
  }
  if (format.page.page_slots != settings.cut.page_slots) {
    const std::string slots = std::to_string(format.page.page_slots);
    return Wrong({"session " + session.path + " has pages of " + slots + " slots; use ",
                  Option::kPage, " " + slots + " or another ", Option::kSession, " file"});
  }
  if (settings.policy != Policy::kAuto) {
    return Wrong({"session " + session.path + " fixes how the cache is cut; continue it without ",
                  Option::kPolicy, std::string(" ") + PolicyName(settings.policy)});
  }
  return CheckKept(saved, settings);
}

Status OtherModel(const SessionSettings& session, const std::string& what) {
  return Wrong({"session " + session.path + " was made with " + what + "; give another ",
                Option::kSession, " file"});
}

}  // namespace headway
