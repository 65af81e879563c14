#include "kv/policy/head_profile.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numeric>

#include "headway/types.h"

namespace headway::kv {
namespace {

using Json = nlohmann::json;

// Parsed JSON takes some twenty times its text; profiles of many texts are some hundred KiB.
constexpr size_t kMaxText = size_t{16} << 20;

Status Wrong(const std::string& name, const std::string& what) {
  return Status(StatusCode::kInvalidArgument, "head profile " + name + ": " + what);
}

// The member, or null.
const Json& Member(const Json& object, const char* key) {
  static const Json none;
  const auto found = object.find(key);
  return found == object.end() ? none : *found;
}

bool IsText(const Json& value, std::string_view text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

bool IsNumber(const Json& value, int64_t number) {
  return value.is_number_integer() && value.get<int64_t>() == number;
}

Status CheckHeader(const Json& profile, const std::string& name, const ProfiledModel& model) {
  if (!IsText(Member(profile, "format"), "headway head profile")) {
    return Wrong(name, "is none; headway profile-heads --evict writes them");
  }
  if (!IsNumber(Member(profile, "version"), 1)) {
    return Wrong(name, "has another version than 1; write it again with headway profile-heads");
  }
  const Json& of = Member(profile, "model");
  if (!of.is_object()) return Wrong(name, "names no model");
  if (!IsNumber(Member(of, "layers"), model.layers) ||
      !IsNumber(Member(of, "kv_heads"), model.kv_heads)) {
    return Wrong(name, fmt::format("is of a model of another shape than {} layers with {} KV heads",
                                   model.layers, model.kv_heads));
  }
  if (!IsText(Member(of, "config"), model.config)) {
    return Wrong(name, "is of a model with another configuration; profile this one");
  }
  return OkStatus();
}

// [layers * KV heads], none below `least`.
Result<std::vector<double>> HeadsOf(const Json& profile, const std::string& name,
                                    const ProfiledModel& model, double least) {
  const Json& layers = Member(profile, "heads");
  if (!layers.is_array() || std::ssize(layers) != model.layers) {
    return Wrong(name, "\"heads\" must have a list for each layer");
  }
  std::vector<double> values;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const Json& heads = layers[layer];
    if (!heads.is_array() || std::ssize(heads) != model.kv_heads) {
      return Wrong(name, fmt::format("layer {} has no list with a number for each head", layer));
    }
    for (size_t head = 0; head < heads.size(); ++head) {
      const double value = heads[head].is_number() ? heads[head].get<double>() : NAN;
      if (!std::isfinite(value) || value > static_cast<double>(kMaxLength)) {
        return Wrong(name, fmt::format("layer {}, head {} has no number", layer, head));
      }
      if (value < least) {
        return Wrong(name, fmt::format("layer {}, head {} has {}, which is below {:.0f}", layer,
                                       head, value, least));
      }
      values.push_back(value);
    }
  }
  return values;
}

}  // namespace

Result<std::vector<double>> ParseHeadProfile(std::string_view text, const std::string& name,
                                             const ProfiledModel& model) {
  if (text.size() > kMaxText) return Wrong(name, "is longer than 16 MiB; is it another file?");
  const Json profile = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!profile.is_object()) return Wrong(name, "is not a JSON object, or it is cut short");
  if (Status s = CheckHeader(profile, name, model); !s.ok()) return s;
  double anyway = 0.0;
  if (IsText(Member(profile, "kind"), "budgets")) {
    const Json& tokens = Member(profile, "anyway");
    if (!tokens.is_number_integer() || tokens.get<int64_t>() < 0 ||
        tokens.get<int64_t>() > kMaxLength) {
      return Wrong(name, "\"anyway\" must be the tokens that each head keeps whatever its budget");
    }
    anyway = static_cast<double>(tokens.get<int64_t>());
  } else if (!IsText(Member(profile, "kind"), "importance")) {
    return Wrong(name, "is neither of the kind \"budgets\" nor \"importance\"");
  }
  Result<std::vector<double>> shares = HeadsOf(profile, name, model, anyway);
  if (!shares.ok()) return shares;
  for (double& share : *shares) share -= anyway;
  const double mean =
      std::accumulate(shares->begin(), shares->end(), 0.0) / static_cast<double>(shares->size());
  if (mean <= 0.0) return Wrong(name, "gives no head more than what all of them keep");
  for (double& share : *shares) share /= mean;
  return shares;
}

}  // namespace headway::kv
