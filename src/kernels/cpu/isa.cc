#include "kernels/cpu/isa.h"

#include <cpuid.h>
#include <hwy/highway.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace headway {
namespace {

// XCR0: the state components that the system saves for us (Intel SDM vol. 1, 13.3).
uint64_t EnabledState() {
  uint32_t low = 0;
  uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

// Linux gives the 8 KiB of tile data only to processes that ask for it, once for all threads.
bool AskForTileData() {
  constexpr int kArchReqXcompPerm = 0x1023;  // asm/prctl.h of Linux 5.16 and later
  constexpr int kXfeatureXtileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtileData) == 0;
}

bool HasAmx() {
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
  constexpr uint32_t kOsxsave = 1u << 27;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & kOsxsave) == 0) return false;
  constexpr uint32_t kAmxBf16 = 1u << 22;
  constexpr uint32_t kAmxTile = 1u << 24;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  if ((edx & kAmxBf16) == 0 || (edx & kAmxTile) == 0) return false;
  constexpr uint32_t kAvx512Bf16 = 1u << 5;
  if (!__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) || (eax & kAvx512Bf16) == 0) return false;
  constexpr uint64_t kTileState = uint64_t{3} << 17;
  return (EnabledState() & kTileState) == kTileState && AskForTileData();
}

std::vector<Isa> Detect() {
  std::vector<Isa> isas;
  const auto targets = hwy::SupportedTargets();
  const bool avx2 = (targets & HWY_AVX2) != 0;
  const bool avx512 = avx2 && (targets & HWY_AVX3) != 0;
  if (avx512 && HasAmx()) isas.push_back(Isa::kAmx);
  if (avx512) isas.push_back(Isa::kAvx512);
  if (avx2) isas.push_back(Isa::kAvx2);
  return isas;
}

}  // namespace

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

std::vector<Isa> SupportedIsas() {
  static const std::vector<Isa> isas = Detect();
  return isas;
}

}  // namespace headway
