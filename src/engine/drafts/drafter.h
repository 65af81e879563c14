// Drafter: guesses what follows a sequence. A decode step verifies the guesses: what the model
// itself picks behind each token says how many of them stay (Leviathan et al., "Fast inference from
// transformers via speculative decoding", 2023).
#ifndef HEADWAY_ENGINE_DRAFTS_DRAFTER_H_
#define HEADWAY_ENGINE_DRAFTS_DRAFTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/types.h"
#include "headway/status.h"

namespace headway {

// Of one sequence.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // The sequence goes on with these tokens: its prompt, then what was generated.
  virtual void Append(std::span<const TokenId> tokens) = 0;
  // Appends at most `most` tokens, perhaps none, that may follow.
  virtual Status Propose(int64_t most, std::vector<TokenId>* drafts) = 0;
  // How many of its drafts, the first ones, stay; `picked` are the tokens that the model has picked
  // before and behind each of them, one more than drafts.
  virtual int64_t Accepted(std::span<const TokenId> drafts, std::span<const TokenId> picked);
};

// How many of the drafts, the first ones, are the tokens that were picked before and behind each.
int64_t RightDrafts(std::span<const TokenId> drafts, std::span<const TokenId> picked);

using NewDrafter = std::function<std::unique_ptr<Drafter>()>;

}  // namespace headway

#endif  // HEADWAY_ENGINE_DRAFTS_DRAFTER_H_
