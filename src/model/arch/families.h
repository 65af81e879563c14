// The families of models that Headway runs, one file each.
#ifndef HEADWAY_MODEL_ARCH_FAMILIES_H_
#define HEADWAY_MODEL_ARCH_FAMILIES_H_

#include <span>

namespace headway::arch {

struct Family;

extern const Family kLlama;
extern const Family kMistral;
extern const Family kQwen2;
extern const Family kQwen3;
extern const Family kOpt;
extern const Family kGptNeoX;

// All of them, in the order in which messages name them.
std::span<const Family* const> Families();

}  // namespace headway::arch

#endif  // HEADWAY_MODEL_ARCH_FAMILIES_H_
