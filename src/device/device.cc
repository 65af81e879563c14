#include "device/device.h"

namespace headway {

const char* LaneName(Lane lane) {
  switch (lane) {
    case Lane::kCompute:
      return "compute";
    case Lane::kHostToDevice:
      return "h2d";
    case Lane::kDeviceToHost:
      return "d2h";
    case Lane::kDiskRead:
      return "disk-read";
    case Lane::kDiskWrite:
      return "disk-write";
  }
  return "?";
}

}  // namespace headway
