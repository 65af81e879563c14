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
    case Lane::kHostCompute:
      return "cpu";
    case Lane::kRanks:
      return "ranks";
    case Lane::kDiskWrite:
      return "disk-write";
    case Lane::kDiskWeights:
      return "disk-weights";
    case Lane::kDiskRead:
    case Lane::kDiskRead2:
    case Lane::kDiskRead3:
    case Lane::kDiskRead4:
      return "disk-read";
  }
  return "?";
}

}  // namespace headway
