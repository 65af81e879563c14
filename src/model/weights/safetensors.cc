#include "model/weights/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/json/json.h"
#include "model/foreign.h"

namespace headway {

namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxRank = 32;
constexpr size_t kMaxNamesInMessage = 5;

struct FormatDType {
  const char* name;
  int bits;
};

// What the format defines. A name that is not here is let through unmeasured, so that a file from
// the future still gives the tensors that are wanted.
constexpr std::array<FormatDType, 22> kFormatDTypes = {{
    {"F32", 32},        {"F16", 16},        {"BF16", 16},   {"F64", 64},    {"BOOL", 8},
    {"U8", 8},          {"I8", 8},          {"U16", 16},    {"I16", 16},    {"U32", 32},
    {"I32", 32},        {"U64", 64},        {"I64", 64},    {"F8_E5M2", 8}, {"F8_E4M3", 8},
    {"F8_E8M0", 8},     {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"C64", 64},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
}};

std::optional<int> DTypeBits(std::string_view name) {
  for (const FormatDType& dtype : kFormatDTypes) {
    if (name == dtype.name) return dtype.bits;
  }
  return std::nullopt;
}

// Reads the header straight into a TensorMap: no document tree, so a header of the largest size
// costs no more memory than the tensors that it lists. Offsets stay relative to the data section.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  TensorMap tensors;
  std::string error;

  bool start_object(size_t) override {
    if (depth_ == 0) {
      depth_ = 1;
      return true;
    }
    if (depth_ != 1) return Fail("an object where none belongs");
    depth_ = 2;
    in_metadata_ = name_ == "__metadata__";
    current_ = TensorInfo();
    fields_.clear();
    return true;
  }

  bool key(string_t& text) override {
    if (depth_ == 1) {
      name_ = text;
      if (!names_.insert(text).second) return Fail("listed twice");
      return true;
    }
    field_ = text;
    if (!fields_.insert(text).second) {
      return Fail(fmt::format("key '{}' appears twice", Printable(text)));
    }
    if (in_metadata_ || text == "dtype" || text == "shape" || text == "data_offsets") return true;
    return Fail(fmt::format("unknown key '{}'", Printable(text)));
  }

  bool string(string_t& text) override {
    if (depth_ != 2) return Fail("a string where none belongs");
    if (in_metadata_) return true;
    if (field_ != "dtype") return Fail(fmt::format("'{}' is not a list", Printable(field_)));
    current_.dtype = text;
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || field_ == "dtype") return Fail("a list where none belongs");
    depth_ = 3;
    numbers_.clear();
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3) return Fail("a number where none belongs");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail(fmt::format("'{}' holds {}, too large", field_, value));
    }
    if (numbers_.size() == kMaxRank) return Fail(fmt::format("'{}' is too long", field_));
    numbers_.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool end_array() override {
    depth_ = 2;
    if (field_ == "shape") {
      current_.shape = numbers_;
      return true;
    }
    if (numbers_.size() != 2) return Fail("'data_offsets' does not hold two numbers");
    current_.begin = numbers_[0];
    current_.end = numbers_[1];
    return true;
  }

  bool end_object() override {
    if (depth_ == 1) {
      depth_ = 0;
      return true;
    }
    depth_ = 1;
    if (in_metadata_) return true;
    if (fields_.size() != 3) return Fail("needs dtype, shape and data_offsets");
    tensors.emplace(name_, std::move(current_));
    return true;
  }

  bool null() override { return Fail("a null where none belongs"); }
  bool boolean(bool) override { return Fail("a boolean where none belongs"); }
  bool number_integer(number_integer_t) override { return Fail("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Fail("a number that is not a whole one");
  }
  bool binary(binary_t&) override { return Fail("binary data"); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    error = fmt::format("the header is not valid JSON at its byte {}", position);
    return false;
  }

 private:
  bool Fail(const std::string& what) {
    error = name_.empty() ? fmt::format("the header has {}", what)
                          : fmt::format("tensor '{}': {}", Printable(name_), what);
    return false;
  }

  int depth_ = 0;  // 1: tensors, 2: fields of one, 3: numbers of a field
  bool in_metadata_ = false;
  std::string name_;
  std::string field_;
  std::set<std::string> names_;
  std::set<std::string> fields_;
  std::vector<int64_t> numbers_;
  TensorInfo current_;
};

// The bytes that dtype and shape make; nothing where they overflow or are not whole bytes.
std::optional<int64_t> TensorBytes(const TensorInfo& tensor, int bits) {
  int64_t total_bits = bits;
  for (int64_t extent : tensor.shape) {
    if (!CheckedMul(total_bits, extent, &total_bits)) return std::nullopt;
  }
  if (total_bits % 8 != 0) return std::nullopt;
  return total_bits / 8;
}

Status CheckSizes(const TensorMap& tensors, int64_t data_bytes, const std::string& where) {
  for (const auto& [name, tensor] : tensors) {
    if (tensor.begin > tensor.end || tensor.end > data_bytes) {
      return Status(StatusCode::kCorrupt,
                    fmt::format("{}: tensor '{}' lies at bytes [{}, {}) of {}: the file is "
                                "truncated or its header lies; download it again",
                                where, Printable(name), tensor.begin, tensor.end, data_bytes));
    }
    std::optional<int> bits = DTypeBits(tensor.dtype);
    if (!bits) continue;
    std::optional<int64_t> bytes = TensorBytes(tensor, *bits);
    if (!bytes || *bytes != tensor.end - tensor.begin) {
      return Status(StatusCode::kCorrupt,
                    fmt::format("{}: tensor '{}' has {} bytes, its {} and shape [{}] do not", where,
                                Printable(name), tensor.end - tensor.begin, tensor.dtype,
                                fmt::join(tensor.shape, ", ")));
    }
  }
  return OkStatus();
}

// Each tensor begins where the one before it ends, and the last one ends with the file.
Status CheckCoverage(const TensorMap& tensors, int64_t data_bytes, const std::string& where) {
  std::vector<const TensorMap::value_type*> by_offset;
  by_offset.reserve(tensors.size());
  for (const auto& entry : tensors) by_offset.push_back(&entry);
  std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  int64_t covered = 0;
  for (const auto* entry : by_offset) {
    if (entry->second.begin != covered) {
      return Status(
          StatusCode::kCorrupt,
          fmt::format("{}: tensor '{}' {}", where, Printable(entry->first),
                      entry->second.begin < covered ? "overlaps the one before it"
                                                    : "leaves a hole behind the one before it"));
    }
    covered = entry->second.end;
  }
  if (covered != data_bytes) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("{}: {} bytes behind the last tensor", where, data_bytes - covered));
  }
  return OkStatus();
}

std::string JoinNames(const std::vector<std::string>& names) {
  std::string joined;
  for (size_t i = 0; i < names.size() && i < kMaxNamesInMessage; ++i) {
    joined += (i == 0 ? "" : ", ") + Printable(names[i]);
  }
  if (names.size() > kMaxNamesInMessage) {
    joined += fmt::format(" and {} more", names.size() - kMaxNamesInMessage);
  }
  return joined;
}

// A shard is a file beside its index: a name that leads elsewhere is an attack or a mistake.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

Status RefuseWithoutWeights(Env& env, const std::string& folder) {
  const Result<std::vector<std::string>> files = env.List(folder);
  if (!files.ok()) return files.status();
  std::vector<std::string> shards;
  for (const std::string& file : *files) {
    if (file.starts_with("model-") && file.ends_with(".safetensors")) shards.push_back(file);
  }
  if (shards.empty()) {
    return RefuseFolder(env, folder,
                        "no model.safetensors and no model.safetensors.index.json; download the "
                        "model's weights");
  }
  return Status(StatusCode::kNotFound,
                fmt::format("{}: has {} without model.safetensors.index.json, which says what they "
                            "hold; download that, too",
                            folder, JoinNames(shards)));
}

}  // namespace

Result<TensorMap> ParseSafetensors(std::span<const std::byte> file, const std::string& where) {
  const int64_t file_bytes = static_cast<int64_t>(file.size());
  if (file_bytes < kLengthBytes) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("{}: {} bytes, too short for safetensors; download it again", where,
                              file_bytes));
  }
  if (IsLfsPointer({reinterpret_cast<const char*>(file.data()), file.size()})) {
    return Status(StatusCode::kCorrupt, fmt::format("{}: {}", where, kLfsPointer));
  }
  uint64_t header_bytes = 0;
  for (size_t i = kLengthBytes; i-- > 0;) {
    header_bytes = header_bytes << 8 | std::to_integer<uint64_t>(file[i]);
  }
  if (header_bytes > static_cast<uint64_t>(std::min(kMaxHeaderBytes, file_bytes - kLengthBytes))) {
    return Status(
        StatusCode::kCorrupt,
        fmt::format("{}: claims a header of {} bytes in a file of {}: truncated, or not a "
                    "safetensors file; download it again",
                    where, header_bytes, file_bytes));
  }
  const char* text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  if (header_bytes == 0 || text[0] != '{') {
    return Status(StatusCode::kCorrupt, fmt::format("{}: its header is not a JSON object", where));
  }
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text, text + header_bytes, &reader)) {
    return Status(StatusCode::kCorrupt, fmt::format("{}: {}", where, reader.error));
  }

  const int64_t data_start = kLengthBytes + static_cast<int64_t>(header_bytes);
  const int64_t data_bytes = file_bytes - data_start;
  Status sizes = CheckSizes(reader.tensors, data_bytes, where);
  if (!sizes.ok()) return sizes;
  Status coverage = CheckCoverage(reader.tensors, data_bytes, where);
  if (!coverage.ok()) return coverage;
  for (auto& [name, tensor] : reader.tensors) {
    tensor.begin += data_start;
    tensor.end += data_start;
  }
  return std::move(reader.tensors);
}

Result<Safetensors> Safetensors::Open(Env& env, const std::string& folder) {
  Safetensors weights;
  weights.folder_ = folder;
  const std::string single = folder + "/model.safetensors";
  if (env.Exists(single)) {
    TensorMap tensors;
    Status status = weights.AddFile(env, single, &tensors);
    if (!status.ok()) return status;
    for (auto& [name, info] : tensors) weights.tensors_.emplace(name, Located{std::move(info), 0});
    return weights;
  }
  if (env.Exists(folder + "/model.safetensors.index.json")) {
    Status status = weights.OpenShards(env, folder);
    if (!status.ok()) return status;
    return weights;
  }
  return RefuseWithoutWeights(env, folder);
}

Status Safetensors::AddFile(Env& env, const std::string& path, TensorMap* tensors) {
  Result<std::unique_ptr<MappedFile>> file = env.Map(path);
  if (!file.ok()) return file.status();
  Result<TensorMap> parsed = ParseSafetensors((*file)->bytes(), path);
  if (!parsed.ok()) return parsed.status();
  *tensors = std::move(*parsed);
  files_.push_back(std::move(*file));
  paths_.push_back(path);
  return OkStatus();
}

Status Safetensors::OpenShards(Env& env, const std::string& folder) {
  const std::string index_path = folder + "/model.safetensors.index.json";
  Result<nlohmann::json> index = ReadJsonObject(env, index_path);
  if (!index.ok()) return index.status();
  const auto map = index->find("weight_map");
  if (map == index->end() || !map->is_object() || map->empty()) {
    return Status(StatusCode::kCorrupt, fmt::format("{}: no weight_map", index_path));
  }
  std::map<std::string, std::vector<std::string>> by_shard;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string() || !IsPlainFileName(shard.get_ref<const std::string&>())) {
      return Status(StatusCode::kCorrupt,
                    fmt::format("{}: the shard of tensor '{}' is not the name of a file beside it",
                                index_path, Printable(name)));
    }
    by_shard[shard.get_ref<const std::string&>()].push_back(name);
  }
  std::vector<std::string> missing;
  for (const auto& [shard, names] : by_shard) {
    if (!env.Exists(folder + "/" + shard)) missing.push_back(shard);
  }
  if (!missing.empty()) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: {} of {} shards missing: {}; complete the download", folder,
                              missing.size(), by_shard.size(), JoinNames(missing)));
  }
  for (const auto& [shard, names] : by_shard) {
    const size_t file = files_.size();
    TensorMap tensors;
    Status status = AddFile(env, folder + "/" + shard, &tensors);
    if (!status.ok()) return status;
    for (const std::string& name : names) {
      auto found = tensors.find(name);
      if (found == tensors.end()) {
        return Status(StatusCode::kCorrupt,
                      fmt::format("{}/{}: tensor '{}' is not in it, though the index says so",
                                  folder, Printable(shard), Printable(name)));
      }
      tensors_.emplace(name, Located{std::move(found->second), file});
    }
  }
  return OkStatus();
}

Result<SourceTensor> Safetensors::Find(std::string_view name) const {
  auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: no tensor '{}' in its weights", folder_, Printable(name)));
  }
  const auto& [info, file] = found->second;
  SourceTensor tensor = {
      .shape = info.shape, .file = file, .offset = info.begin, .bytes = info.end - info.begin};
  if (info.dtype == "F32") {
    tensor.type = WeightType::kF32;
  } else if (info.dtype == "F16") {
    tensor.type = WeightType::kF16;
  } else if (info.dtype == "BF16") {
    tensor.type = WeightType::kBF16;
  } else {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: tensor '{}' has dtype {}; Headway computes with F32, F16 and "
                              "BF16",
                              folder_, Printable(name), Printable(info.dtype)));
  }
  return tensor;
}

std::span<const std::byte> Safetensors::Bytes(const SourceTensor& tensor, int64_t begin,
                                              int64_t count) const {
  HEADWAY_CHECK(begin >= 0 && count >= 0 && begin + count <= tensor.bytes);
  return files_[tensor.file]->bytes().subspan(static_cast<size_t>(tensor.offset + begin),
                                              static_cast<size_t>(count));
}

Status Safetensors::CheckUnchanged(Env& env) const {
  for (size_t i = 0; i < files_.size(); ++i) {
    Result<std::unique_ptr<File>> file = env.Open(paths_[i], OpenMode::kRead, FileIo::kCached);
    if (!file.ok()) return file.status();
    Result<FileIdentity> now = (*file)->Identity();
    if (!now.ok()) return now.status();
    if (*now != files_[i]->identity()) return ChangedInUse(paths_[i]);
  }
  return OkStatus();
}

std::vector<std::string> Safetensors::Names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, located] : tensors_) names.push_back(name);
  return names;
}

}  // namespace headway
