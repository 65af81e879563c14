// A machine's profile as JSON: what `headway probe` writes, and what is in machines/.
#ifndef HEADWAY_HARDWARE_PROFILE_JSON_H_
#define HEADWAY_HARDWARE_PROFILE_JSON_H_

#include <string>
#include <string_view>
#include <vector>

#include "base/machine_profile.h"
#include "headway/status.h"

namespace headway::hardware {

// The profile in a JSON text. kCorrupt, in one line that begins with `where`, for what is no
// profile, for another version of the format, and for figures that are missing, negative, not
// finite, or beyond what hardware can be.
Result<MachineProfile> ParseProfile(std::string_view json, const std::string& where);

// The text that ParseProfile reads.
std::string WriteProfile(const MachineProfile& machine);

// The figures in order, for printing: name as in the JSON, what it is, its value.
struct ProfileFigure {
  std::string name;
  std::string meaning;
  std::string value;  // "55.5 GB/s", or "18.0 GB/s at 256 KiB ... 55.4 at 64 MiB"
  std::string source;
};
std::vector<ProfileFigure> DescribeProfile(const MachineProfile& machine);

}  // namespace headway::hardware

#endif  // HEADWAY_HARDWARE_PROFILE_JSON_H_
