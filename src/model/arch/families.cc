#include "model/arch/families.h"

#include <array>

namespace headway::arch {

std::span<const Family* const> Families() {
  static constexpr std::array<const Family*, 5> kFamilies = {&kLlama, &kMistral, &kQwen2, &kQwen3,
                                                             &kOpt};
  return kFamilies;
}

}  // namespace headway::arch
