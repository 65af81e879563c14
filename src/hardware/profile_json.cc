#include "hardware/profile_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace headway::hardware {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "headway-machine";
constexpr int kVersion = 1;
// Parsed JSON takes some seventy times its text; a profile has some KiB.
constexpr size_t kMaxText = size_t{1} << 20;

enum class Unit {
  kCount,
  kBytes,
  kBytesPerSecond,
  kFlopsPerSecond,
  kScoresPerSecond,
  kSeconds,
  kShare,
};
enum class Size { kNone, kBytes, kRows, kThreads };

// Every figure of a profile, so that reading, writing, checking and printing agree.
struct Field {
  const char* name;
  const char* meaning;
  Unit unit;
  double low, high;  // that hardware can be
  double MachineProfile::*value = nullptr;
  Curve MachineProfile::*curve = nullptr;
  Size size = Size::kNone;
  bool optional = false;
};

constexpr const char* kNotMeasured = "not measured";
constexpr double kSlowest = 1e6, kFastest = 1e14;

const Field kFields[] = {
    {"device_memory_bytes", "memory of the device", Unit::kBytes, 1e6, 1e15,
     &MachineProfile::device_memory},
    {"host_memory_bytes", "memory of the host", Unit::kBytes, 1e6, 1e15,
     &MachineProfile::host_memory},
    {"device_read_bytes_per_second", "matrix × vector product", Unit::kBytesPerSecond, kSlowest,
     kFastest, &MachineProfile::device_read},
    {"product_seconds", "a product beside its bytes", Unit::kSeconds, 0.0, 1.0,
     &MachineProfile::product_seconds},
    {"gemm_flops_per_second", "matrix product", Unit::kFlopsPerSecond, 1e8, 1e18, nullptr,
     &MachineProfile::gemm, Size::kRows},
    {"attention_flops_per_second", "attention in prefill", Unit::kFlopsPerSecond, 1e8, 1e18,
     nullptr, &MachineProfile::attention, Size::kRows},
    {"decode_attention_bytes_per_second", "attention in decode", Unit::kBytesPerSecond, kSlowest,
     kFastest, nullptr, &MachineProfile::decode_attention, Size::kBytes},
    {"selection_bytes_per_second", "choosing keys in decode", Unit::kBytesPerSecond, kSlowest,
     kFastest, nullptr, &MachineProfile::selection, Size::kBytes, /*optional=*/true},
    {"second_look_bytes_per_second", "a second look at them", Unit::kBytesPerSecond, kSlowest,
     kFastest, nullptr, &MachineProfile::second_look, Size::kBytes, /*optional=*/true},
    {"key_choice_bytes_per_second", "choosing by keys, in stages", Unit::kBytesPerSecond, kSlowest,
     kFastest, nullptr, &MachineProfile::key_choice, Size::kRows, /*optional=*/true},
    {"turned_key_choice_bytes_per_second", "the same, keys rotated back", Unit::kBytesPerSecond,
     kSlowest, kFastest, nullptr, &MachineProfile::turned_key_choice, Size::kRows,
     /*optional=*/true},
    {"prompt_scores_per_second", "choosing keys in prefill", Unit::kScoresPerSecond, 1e5, 1e15,
     &MachineProfile::prompt_scores, nullptr, Size::kNone, /*optional=*/true},
    {"listed_decode_bytes_per_second", "chosen keys in decode", Unit::kBytesPerSecond, kSlowest,
     kFastest, &MachineProfile::listed_decode, nullptr, Size::kNone, /*optional=*/true},
    {"listed_attention_flops_per_second", "attention to chosen keys", Unit::kFlopsPerSecond, 1e8,
     1e18, &MachineProfile::listed_attention, nullptr, Size::kNone,
     /*optional=*/true},
    {"moved_attention_flops_per_second", "the same, keys rotated", Unit::kFlopsPerSecond, 1e8, 1e18,
     &MachineProfile::moved_attention, nullptr, Size::kNone, /*optional=*/true},
    {"coded_listed_attention_flops_per_second", "attention to chosen keys in codes",
     Unit::kFlopsPerSecond, 1e8, 1e18, &MachineProfile::coded_listed_attention, nullptr,
     Size::kNone, /*optional=*/true},
    {"coded_moved_attention_flops_per_second", "the same, keys rotated", Unit::kFlopsPerSecond, 1e8,
     1e18, &MachineProfile::coded_moved_attention, nullptr, Size::kNone, /*optional=*/true},
    {"launch_seconds", "a small kernel", Unit::kSeconds, 0.0, 1.0, &MachineProfile::launch_seconds},
    {"sync_seconds", "kernel's end to host", Unit::kSeconds, 0.0, 1.0,
     &MachineProfile::sync_seconds},
    {"step_seconds", "host's work between steps", Unit::kSeconds, 0.0, 10.0,
     &MachineProfile::step_seconds},
    {"host_to_device_bytes_per_second", "host to device", Unit::kBytesPerSecond, kSlowest, kFastest,
     nullptr, &MachineProfile::host_to_device, Size::kBytes},
    {"device_to_host_bytes_per_second", "device to host", Unit::kBytesPerSecond, kSlowest, kFastest,
     nullptr, &MachineProfile::device_to_host, Size::kBytes},
    {"both_directions_bytes_per_second", "each direction of both", Unit::kBytesPerSecond, kSlowest,
     kFastest, &MachineProfile::both_directions},
    {"read_in_place_bytes_per_second", "host memory read by kernels", Unit::kBytesPerSecond,
     kSlowest, kFastest, &MachineProfile::read_in_place, nullptr, Size::kNone, /*optional=*/true},
    {"host_read_bytes_per_second", "host memory read", Unit::kBytesPerSecond, kSlowest, kFastest,
     nullptr, &MachineProfile::host_read, Size::kThreads},
    {"host_read_while_copying_bytes_per_second", "the same while copies run", Unit::kBytesPerSecond,
     kSlowest, kFastest, nullptr, &MachineProfile::host_read_copying, Size::kThreads},
    {"host_to_device_while_reading_bytes_per_second", "copies meanwhile", Unit::kBytesPerSecond,
     kSlowest, kFastest, &MachineProfile::host_to_device_reading},
    {"host_attention_share", "CPU attention, of the read", Unit::kShare, 0.01, 1.1,
     &MachineProfile::host_attention},
    {"gpus_of_host", "GPUs that share the host", Unit::kCount, 1.0, 64.0, &MachineProfile::gpus,
     nullptr, Size::kNone, /*optional=*/true},
    {"link_bytes_per_second", "links between GPUs of a node", Unit::kBytesPerSecond, kSlowest,
     kFastest, &MachineProfile::link, nullptr, Size::kNone, /*optional=*/true},
    {"sum_seconds", "a small sum over them", Unit::kSeconds, 0.0, 1.0, &MachineProfile::sum_seconds,
     nullptr, Size::kNone, /*optional=*/true},
    {"host_to_each_device_bytes_per_second", "host to each GPU, all at once", Unit::kBytesPerSecond,
     kSlowest, kFastest, &MachineProfile::buses, nullptr, Size::kNone,
     /*optional=*/true},
    {"host_to_each_device_while_reading_bytes_per_second", "the same while all cores read",
     Unit::kBytesPerSecond, kSlowest, kFastest, &MachineProfile::buses_reading, nullptr,
     Size::kNone, /*optional=*/true},
    {"host_read_while_all_copy_bytes_per_second", "what these read meanwhile",
     Unit::kBytesPerSecond, kSlowest, kFastest, &MachineProfile::cores_copying, nullptr,
     Size::kNone, /*optional=*/true},
    {"network_bytes_per_second", "network between nodes", Unit::kBytesPerSecond, kSlowest, kFastest,
     &MachineProfile::network, nullptr, Size::kNone, /*optional=*/true},
    {"network_sum_seconds", "a small sum over nodes", Unit::kSeconds, 0.0, 1.0,
     &MachineProfile::network_sum_seconds, nullptr, Size::kNone, /*optional=*/true},
    {"disk_read_bytes_per_second", "disk read", Unit::kBytesPerSecond, kSlowest, kFastest,
     &MachineProfile::disk_read, nullptr, Size::kNone, /*optional=*/true},
    {"disk_write_bytes_per_second", "disk write", Unit::kBytesPerSecond, kSlowest, kFastest,
     &MachineProfile::disk_write, nullptr, Size::kNone, /*optional=*/true},
    {"disk_random_read_bytes_per_second", "disk read, by pieces", Unit::kBytesPerSecond, 1e4,
     kFastest, nullptr, &MachineProfile::disk_pieces, Size::kBytes, /*optional=*/true},
};

Status Bad(const std::string& where, const std::string& what) {
  return Status(StatusCode::kCorrupt, fmt::format("{}: {}", where, what));
}

// Reads text and numbers of a profile, keeping the first error.
class Reader {
 public:
  Reader(const Json& json, const std::string& where) : json_(json), where_(where) {}

  Status status() const { return status_; }
  void Fail(const std::string& what) {
    if (status_.ok()) status_ = Bad(where_, what);
  }

  std::string Text(const char* name) {
    const auto at = json_.find(name);
    if (at == json_.end()) return "";
    if (!at->is_string()) Fail(fmt::format("'{}' is not a text", name));
    return at->is_string() ? at->get<std::string>() : "";
  }

  // Null, with the error kept, where the figure is not usable.
  const Json* Figure(const Field& field, MachineProfile* machine) {
    const auto at = json_.find(field.name);
    if (at == json_.end()) {
      if (!field.optional) Fail(fmt::format("'{}' is missing", field.name));
      return nullptr;
    }
    const char* inside = field.value != nullptr ? "value" : "points";
    if (!at->is_object() || !at->contains(inside)) {
      Fail(fmt::format("'{}' has no '{}'", field.name, inside));
      return nullptr;
    }
    if (const auto source = at->find("source"); source != at->end() && source->is_string()) {
      machine->sources[field.name] = source->get<std::string>();
    }
    return &(*at)[inside];
  }

  double Number(const Json& json, const Field& field) {
    if (!json.is_number()) {
      Fail(fmt::format("'{}' is not a number", field.name));
      return 0.0;
    }
    const double value = json.get<double>();
    // A NaN is in no range.
    if (!(value >= field.low && value <= field.high)) {
      Fail(fmt::format("'{}' is {:g}; {:g} to {:g} are possible", field.name, value, field.low,
                       field.high));
    }
    return value;
  }

  Curve Points(const Json& json, const Field& field) {
    Curve curve;
    if (!json.is_array() || json.empty() || json.size() > 64) {
      Fail(fmt::format("'{}' is no list of 1 to 64 [size, rate]", field.name));
      return curve;
    }
    double seconds = 0.0;
    for (const Json& point : json) {
      if (!point.is_array() || point.size() != 2 || !point[0].is_number()) {
        Fail(fmt::format("'{}' has a point that is no [size, rate]", field.name));
        return curve;
      }
      const double size = point[0].get<double>();
      const double rate = Number(point[1], field);
      const double before = curve.empty() ? 0.0 : curve.points.back().first;
      if (!(size > before && size < 1e18)) {
        Fail(fmt::format("sizes of '{}' are not positive and ascending", field.name));
        return curve;
      }
      // More work in less time is a wrong measurement, and would make a plan that asks for more.
      if (field.size != Size::kThreads && rate > 0.0 && size / rate < seconds) {
        Fail(fmt::format("'{}' takes less time for {:g} than for less", field.name, size));
        return curve;
      }
      if (rate > 0.0) seconds = size / rate;
      curve.points.emplace_back(size, rate);
    }
    return curve;
  }

 private:
  const Json& json_;
  const std::string& where_;
  Status status_;
};

std::string FormatRate(double rate, Unit unit) {
  const char* of = unit == Unit::kFlopsPerSecond    ? "FLOP/s"
                   : unit == Unit::kScoresPerSecond ? "scores/s"
                                                    : "B/s";
  if (rate >= 1e12) return fmt::format("{:.3g} T{}", rate * 1e-12, of);
  return fmt::format("{:.3g} G{}", rate * 1e-9, of);
}

std::string FormatSize(double size, Size of) {
  const char* unit = of == Size::kRows ? " rows" : of == Size::kThreads ? " threads" : "";
  if (of != Size::kBytes) return fmt::format("{:.0f}{}", size, unit);
  if (size >= 1 << 20) return fmt::format("{:.4g} MiB", size / (1 << 20));
  return fmt::format("{:.4g} KiB", size / (1 << 10));
}

std::string FormatScalar(double value, Unit unit) {
  switch (unit) {
    case Unit::kCount:
      return fmt::format("{:.0f}", value);
    case Unit::kBytes:
      return fmt::format("{:.4g} GiB", value / (1 << 30));
    case Unit::kSeconds:
      return fmt::format("{:.3g} µs", value * 1e6);
    case Unit::kShare:
      return fmt::format("{:.0f} %", value * 100.0);
    case Unit::kBytesPerSecond:
    case Unit::kFlopsPerSecond:
    case Unit::kScoresPerSecond:
      break;
  }
  return value > 0.0 ? FormatRate(value, unit) : kNotMeasured;
}

}  // namespace

Result<MachineProfile> ParseProfile(std::string_view text, const std::string& where) {
  if (text.size() > kMaxText) return Bad(where, "is longer than 1 MiB; is it another file?");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Bad(where, "is not JSON");
  if (!json.is_object() || json.value("format", Json()) != kFormat) {
    return Bad(where, fmt::format("is no machine profile: 'format' is not \"{}\"", kFormat));
  }
  if (json.value("version", Json()) != kVersion) {
    return Bad(where, fmt::format("has another version of the format than {}; make it anew with "
                                  "headway probe",
                                  kVersion));
  }
  MachineProfile machine;
  Reader reader(json, where);
  machine.name = reader.Text("name");
  machine.hardware = reader.Text("hardware");
  machine.program = reader.Text("program");
  if (machine.name.empty()) reader.Fail("'name' is missing");
  if (const auto own = json.find("own_memory"); own != json.end() && own->is_boolean()) {
    machine.own_memory = own->get<bool>();
  } else {
    reader.Fail("'own_memory' is neither true nor false");
  }
  if (const auto devices = json.find("devices"); devices != json.end()) {
    if (!devices->is_array()) reader.Fail("'devices' is no list");
    for (const Json& device : *devices) {
      if (!device.is_string()) {
        reader.Fail("'devices' is no list of texts");
        break;
      }
      machine.devices.push_back(device.get<std::string>());
    }
  }
  for (const Field& field : kFields) {
    const Json* figure = reader.Figure(field, &machine);
    if (figure == nullptr) continue;
    if (field.value != nullptr) {
      machine.*field.value = reader.Number(*figure, field);
    } else {
      machine.*field.curve = reader.Points(*figure, field);
    }
  }
  if (!reader.status().ok()) return reader.status();
  return machine;
}

std::string WriteProfile(const MachineProfile& machine) {
  Json json = {{"format", kFormat}, {"version", kVersion}, {"name", machine.name}};
  if (!machine.devices.empty()) json["devices"] = machine.devices;
  if (!machine.hardware.empty()) json["hardware"] = machine.hardware;
  if (!machine.program.empty()) json["program"] = machine.program;
  json["own_memory"] = machine.own_memory;
  for (const Field& field : kFields) {
    const bool measured =
        field.value != nullptr ? machine.*field.value != 0.0 : !(machine.*field.curve).empty();
    if (field.optional && !measured) continue;
    Json& figure = json[field.name];
    if (field.value != nullptr) {
      figure["value"] = machine.*field.value;
    } else {
      figure["points"] = (machine.*field.curve).points;
    }
    const auto source = machine.sources.find(field.name);
    if (source != machine.sources.end()) figure["source"] = source->second;
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<ProfileFigure> DescribeProfile(const MachineProfile& machine) {
  std::vector<ProfileFigure> figures;
  for (const Field& field : kFields) {
    ProfileFigure figure{field.name, field.meaning, "", ""};
    if (field.value != nullptr) {
      const double value = machine.*field.value;
      const bool known = !field.optional || value > 0.0;
      figure.value = known ? FormatScalar(value, field.unit) : kNotMeasured;
    } else {
      const auto& points = (machine.*field.curve).points;
      if (points.empty()) figure.value = kNotMeasured;
      for (size_t i = 0; i < points.size(); ++i) {
        figure.value +=
            fmt::format("{}{} ({})", i == 0 ? "" : ", ", FormatRate(points[i].second, field.unit),
                        FormatSize(points[i].first, field.size));
      }
    }
    const auto source = machine.sources.find(field.name);
    if (source != machine.sources.end()) figure.source = source->second;
    figures.push_back(std::move(figure));
  }
  return figures;
}

}  // namespace headway::hardware
