#include "engine/drafts/agreement.h"

#include <algorithm>
#include <span>
#include <string>

namespace headway {

Status DraftAgreement::Agree(std::span<int64_t> numbers) {
  if (communicator_ == nullptr || numbers.empty()) return OkStatus();
  std::vector<int64_t> all(numbers.size() * static_cast<size_t>(communicator_->ranks()));
  const Status told =
      communicator_->GatherOnHost(std::as_bytes(numbers), std::as_writable_bytes(std::span(all)));
  if (told.ok()) std::copy_n(all.begin(), numbers.size(), numbers.begin());
  return told;
}

Status DraftAgreement::Agree(const Status& done) {
  if (communicator_ == nullptr) return done;
  const Result<int64_t> code = communicator_->OfFirst(static_cast<int64_t>(done.code()));
  if (!code.ok()) return done.ok() ? code.status() : done;
  if (*code == static_cast<int64_t>(StatusCode::kOk)) return OkStatus();
  // In the first one's words, since whichever rank ends first speaks for all.
  constexpr size_t kMostBytes = 1024;
  std::string words = done.message().substr(0, kMostBytes);
  words.resize(kMostBytes);
  std::string of_all(kMostBytes * static_cast<size_t>(communicator_->ranks()), '\0');
  const Status told = communicator_->GatherOnHost(std::as_bytes(std::span(words)),
                                                  std::as_writable_bytes(std::span(of_all)));
  if (first() || !told.ok()) return done.ok() ? told : done;
  return Status(static_cast<StatusCode>(*code), of_all.c_str());
}

Status DraftAgreement::AgreeOnGuesses(int64_t most, std::span<std::vector<TokenId>* const> fed) {
  if (communicator_ == nullptr) return OkStatus();
  // Of each sequence how many, then as many places for them.
  std::vector<int64_t> guesses;
  for (const std::vector<TokenId>* tokens : fed) {
    guesses.push_back(std::ssize(*tokens) - 1);
    guesses.insert(guesses.end(), tokens->begin() + 1, tokens->end());
    guesses.resize(guesses.size() + static_cast<size_t>(most - std::ssize(*tokens) + 1));
  }
  if (Status s = Agree(guesses); !s.ok()) return s;
  auto at = guesses.begin();
  for (std::vector<TokenId>* tokens : fed) {
    tokens->resize(1);
    tokens->insert(tokens->end(), at + 1, at + 1 + *at);
    at += most + 1;
  }
  return OkStatus();
}

}  // namespace headway
