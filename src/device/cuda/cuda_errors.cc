#include "device/cuda/cuda_errors.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "headway/refusal.h"

namespace headway::cuda {
namespace {

// After these every later call fails, too, until the process ends.
bool LosesGpu(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorContextIsDestroyed:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
      return true;
    default:
      return false;
  }
}

std::string Version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

Status StatusOf(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return OkStatus();
  const StatusCode code =
      error == cudaErrorMemoryAllocation ? StatusCode::kOutOfBudget : StatusCode::kIo;
  std::string text = fmt::format("{}: {}", what, cudaGetErrorString(error));
  if (LosesGpu(error)) {
    text +=
        "; this process cannot use the GPU any longer: start it again (what a session saved "
        "before is kept)";
  }
  return Status(code, text);
}

Status StatusOf(const NoGpu& found) {
  std::string why;
  if (found.driver == 0) {
    why = fmt::format("no NVIDIA driver is installed; this build needs one for CUDA {} or newer",
                      Version(found.runtime / 1000 * 1000));
  } else if (found.driver / 1000 < found.runtime / 1000) {
    why = fmt::format(
        "the NVIDIA driver is too old: it knows CUDA {}, and this build needs {} or newer; update "
        "the driver",
        Version(found.driver), Version(found.runtime / 1000 * 1000));
  } else if (found.error == cudaSuccess || found.error == cudaErrorNoDevice) {
    why = "none is visible";
    if (found.visible != nullptr) {
      why += fmt::format(" (CUDA_VISIBLE_DEVICES is \"{}\")", found.visible);
    }
  } else {
    why = cudaGetErrorString(found.error);
  }
  return Status(
      StatusCode::kUnsupported,
      Refusal{{"no NVIDIA GPU can be used: " + why + "; or use ", Option::kDevice, " cpu"}});
}

Status OutOfGpuMemory(const std::string& tag, int64_t bytes, int64_t free) {
  return Status(
      StatusCode::kOutOfBudget,
      Refusal{{fmt::format("{}: {} of the GPU's memory are needed{}; end other programs on it, or "
                           "give a smaller ",
                           tag, FormatBytes(bytes),
                           free < 0 ? "" : ", and " + FormatBytes(free) + " are free"),
               Option::kGpuMemory}});
}

std::string PageableWarning(const std::string& tag, int64_t bytes, cudaError_t why, double pageable,
                            double pinned) {
  const auto rate = [](double bytes_a_second) {
    return bytes_a_second <= 0.0 ? "at an unknown rate"
                                 : fmt::format("at {:.1f} GB/s", bytes_a_second * 1e-9);
  };
  std::string text = fmt::format(
      "{} of host memory for {} cannot be pinned ({}): copies to the GPU wait for one another and "
      "run {}",
      FormatBytes(bytes), tag, cudaGetErrorString(why), rate(pageable));
  if (pinned > 0.0) text += fmt::format(", pinned ones {}", rate(pinned));
  return text;
}

}  // namespace headway::cuda
