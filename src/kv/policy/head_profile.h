// Profiles of heads, as `headway profile-heads` writes them: the tokens that a method gave each
// head of some texts, or how important heads are. Read for static budgets (EvictionPolicy::shares).
#ifndef HEADWAY_KV_POLICY_HEAD_PROFILE_H_
#define HEADWAY_KV_POLICY_HEAD_PROFILE_H_

#include <string>
#include <string_view>
#include <vector>

#include "headway/status.h"

namespace headway::kv {

// The model that a profile must be of.
struct ProfiledModel {
  int layers = 0;
  int kv_heads = 0;
  std::string config;  // ModelInfo::config_hash
};

// Reads a profile from the text of a file, `name` in messages: what each head has of the mean,
// beside what all of them keep anyway; [layers * KV heads], their mean 1. The text is a JSON
// object:
//   "format": "headway head profile", "version": 1,
//   "model": {"layers": L, "kv_heads": H, "config": ModelInfo::config_hash},
//   "kind": "budgets" or "importance",
//   "anyway": tokens that each head kept whatever its budget, of budgets alone,
//   "heads": L lists of H numbers: tokens or importance, the mean over the texts.
// What else it has is for people. kInvalidArgument for a profile that is broken, of another model,
// or whose heads have less than what all of them keep.
Result<std::vector<double>> ParseHeadProfile(std::string_view text, const std::string& name,
                                             const ProfiledModel& model);

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_HEAD_PROFILE_H_
