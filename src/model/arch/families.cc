#include "model/arch/families.h"

#include <array>

namespace headway::arch {

std::span<const Family* const> Families() {
  static constexpr std::array<const Family*, 6> kFamilies = {&kLlama, &kMistral, &kQwen2,
                                                             &kQwen3, &kOpt,     &kGptNeoX};
  return kFamilies;
}

}  // namespace headway::arch
