// DraftAgreement: what ranks that share a model must know alike of drafts. The first one decides
// how many there are, by its clock, and alone runs another model that makes them.
#ifndef HEADWAY_ENGINE_DRAFTS_AGREEMENT_H_
#define HEADWAY_ENGINE_DRAFTS_AGREEMENT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"
#include "headway/status.h"
#include "parallel/communicator.h"

namespace headway {

class DraftAgreement {
 public:
  // Null: there is one rank, which agrees with itself.
  explicit DraftAgreement(Communicator* communicator) : communicator_(communicator) {}

  bool first() const { return communicator_ == nullptr || communicator_->rank() == 0; }

  // Become the first rank's.
  Status Agree(std::span<int64_t> numbers);
  // Of what the first rank alone has done: its error ends all.
  Status Agree(const Status& done);
  // The tokens behind the first one, which all have, become the first rank's, `most` at most.
  Status AgreeOnGuesses(int64_t most, std::span<std::vector<TokenId>* const> fed);

 private:
  Communicator* communicator_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_DRAFTS_AGREEMENT_H_
