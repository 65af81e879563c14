#include "support/golden.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

namespace headway {

namespace {
const char* const kModels = HEADWAY_SOURCE_DIR "/tests/golden/models";
}

std::vector<std::string> GoldenNames() {
  std::vector<std::string> names;
  std::error_code ignored;  // no folder: no names, which the tests refuse
  for (const auto& entry : std::filesystem::directory_iterator(kModels, ignored)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string GoldenTestName(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

Result<Golden> LoadGolden(Env& env, const std::string& name) {
  Golden golden;
  golden.folder = std::string(kModels) + "/" + name;
  const std::string path = golden.folder + "/golden.json";
  Result<std::string> text = env.ReadFile(path);
  if (!text.ok()) return text.status();
  try {
    const nlohmann::json json = nlohmann::json::parse(*text);
    json.at("prompt").get_to(golden.prompt);
    json.at("tokens").get_to(golden.tokens);
    json.at("margins").get_to(golden.margins);
    json.at("rows").get_to(golden.rows);
    json.at("logits").get_to(golden.logits);
  } catch (const nlohmann::json::exception& error) {
    return Status(StatusCode::kCorrupt, path + ": " + error.what());
  }
  if (golden.margins.size() != golden.tokens.size() || golden.rows.size() != golden.logits.size()) {
    return Status(StatusCode::kCorrupt, path + ": lists of unequal lengths");
  }
  return golden;
}

double GoldenTolerance(const ModelShape& shape, int64_t context, DType kv_dtype,
                       std::span<const float> reference, DType activations) {
  double squares = 0.0;
  for (float logit : reference) squares += double{logit} * logit;
  const double rms = std::sqrt(squares / static_cast<double>(reference.size()));
  // Rounding errors of a sum of n terms in any order grow as sqrt(n) when they are independent; a
  // layer has sums over d_model, the heads' width, d_ff and the context, and the errors of layers
  // add up as independent ones, too. The logit's own sum is one more over d_model.
  const double terms = static_cast<double>(shape.layers) *
                           static_cast<double>(shape.d_model + shape.query_heads * shape.head_dim +
                                               shape.d_ff + context) +
                       shape.d_model;
  const double sums = std::numeric_limits<float>::epsilon() * std::sqrt(terms);
  // Rounded keys shift every score, rounded values every output, by half a unit in the last place.
  const auto epsilon = [](DType dtype) {
    return dtype == DType::kBF16 ? 0x1p-8 : (dtype == DType::kF16 ? 0x1p-11 : 0.0);
  };
  const auto layers = static_cast<double>(shape.layers);
  // Eight activations of a layer follow one another: normed, q or k, o, normed, gate, up, product.
  const double storage =
      epsilon(kv_dtype) * std::sqrt(layers) + epsilon(activations) * std::sqrt(8.0 * layers);
  // Attention here is sharp: scores reach 10, by which their relative errors grow before the
  // softmax.
  constexpr double kSharpness = 10.0;
  return kSharpness * (sums + storage) * rms;
}

double MaxDifference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - b[i]);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace headway
