// ConfigReader: the keys of one JSON object, each with its bounds and its default.
#ifndef HEADWAY_MODEL_CONFIG_READER_H_
#define HEADWAY_MODEL_CONFIG_READER_H_

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>

#include "headway/status.h"

namespace headway {

// No published model is near these; they keep every product of a few of them far inside int64.
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;  // d_model, d_ff, heads * head_dim
inline constexpr int64_t kMaxHeads = int64_t{1} << 16;
inline constexpr int64_t kMaxHeadDim = 1024;
inline constexpr int64_t kMaxVocab = int64_t{1} << 24;
inline constexpr int64_t kMaxTable = int64_t{1} << 24;  // learned positions
inline constexpr int64_t kMaxPosition = std::numeric_limits<int32_t>::max();

// Remembers the first thing that was wrong, so that a list of reads needs one check at its end. A
// read that fails returns the lower bound, or the default of what has no bounds.
class ConfigReader {
 public:
  // `object` outlives the reader; `where` names it in errors.
  ConfigReader(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  const Status& status() const { return status_; }
  const std::string& where() const { return where_; }

  // Null when absent or JSON null.
  const nlohmann::json* Find(const char* key) const;
  // True for JSON null, too.
  bool HasKey(const char* key) const;

  // A whole number in [low, high]; `fallback` when absent, an error when that is empty.
  int64_t Int(const char* key, int64_t low, int64_t high, std::optional<int64_t> fallback);
  // A number in [low, high], in the same way.
  double Number(const char* key, double low, double high, std::optional<double> fallback);
  // Empty when absent.
  std::optional<double> MaybeNumber(const char* key, double low, double high);
  bool Bool(const char* key, bool fallback);
  std::string String(const char* key, const char* fallback);

  void Fail(const std::string& what, StatusCode code = StatusCode::kCorrupt);
  void Unsupported(const std::string& what) { Fail(what, StatusCode::kUnsupported); }
  // Takes over what another reader found wrong.
  void Adopt(const Status& status);

 private:
  const nlohmann::json& object_;
  const std::string where_;
  Status status_;
};

}  // namespace headway

#endif  // HEADWAY_MODEL_CONFIG_READER_H_
