// Profiles of heads as files, for tests of the public API.
#ifndef HEADWAY_TESTS_SUPPORT_HEAD_PROFILE_H_
#define HEADWAY_TESTS_SUPPORT_HEAD_PROFILE_H_

#include <cstddef>
#include <fstream>
#include <string>

#include "headway/context.h"
#include "headway/plan.h"

namespace headway {

// Writes what heads were given of a prompt; the file's name.
inline std::string WriteProfile(const std::string& file, const ModelInfo& info,
                                const HeadBudgets& heads) {
  std::string text = "{\"format\": \"headway head profile\", \"version\": 1, \"kind\": \"budgets\"";
  text += ", \"model\": {\"layers\": " + std::to_string(info.layers) +
          ", \"kv_heads\": " + std::to_string(info.kv_heads) + ", \"config\": \"" +
          info.config_hash + "\"}, \"anyway\": " + std::to_string(heads.anyway) + ", \"heads\": [";
  for (size_t at = 0; at < heads.tokens.size(); ++at) {
    const auto of_layer = at % static_cast<size_t>(info.kv_heads);
    text += of_layer > 0 ? "," : at > 0 ? "],[" : "[";
    text += std::to_string(heads.tokens[at]);
  }
  std::ofstream(file) << text << "]]}";
  return file;
}

}  // namespace headway

#endif  // HEADWAY_TESTS_SUPPORT_HEAD_PROFILE_H_
