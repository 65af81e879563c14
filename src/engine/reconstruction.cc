#include "engine/reconstruction.h"

#include <algorithm>
#include <functional>

namespace headway {
namespace {

// Last tokens of the chunk before that say where to go on, as KVzip has them.
constexpr int64_t kHint = 8;

}  // namespace

std::vector<TokenId> Reconstruction::InputFor(std::span<const TokenId> prompt, int64_t begin,
                                              int64_t end) const {
  std::vector<TokenId> input = begin == 0 ? words_.first : words_.next;
  const auto add = [&input](std::span<const TokenId> tokens) {
    input.insert(input.end(), tokens.begin(), tokens.end());
  };
  const auto part = [&prompt](int64_t from, int64_t to) {
    return prompt.subspan(static_cast<size_t>(from), static_cast<size_t>(to - from));
  };
  add(part(std::max<int64_t>(0, begin - kHint), begin));
  add(words_.behind);
  add(part(begin, end));
  return input;
}

Status Reconstruction::Repeat(kv::SequenceId sequence, std::span<const TokenId> prompt,
                              const RopeFrequencies& rope, const std::atomic<bool>* cancel) {
  const int64_t length = std::ssize(prompt);
  // Reads what the sequence lacks of the prompt, and `input` behind it.
  const auto read = [&](std::span<const TokenId> input,
                        const std::function<Status(int64_t position)>& seen) {
    const int64_t from = store_.Length(sequence);
    std::vector<TokenId> tokens(prompt.begin() + from, prompt.end());
    tokens.insert(tokens.end(), input.begin(), input.end());
    const auto most = static_cast<size_t>(executor_.limits().step_tokens);
    for (size_t at = 0; at < tokens.size(); at += most) {
      const size_t count = std::min(most, tokens.size() - at);
      const StepInput step{sequence, std::span(tokens).subspan(at, count), &rope};
      if (Status s = executor_.Step({&step, 1}, nullptr, cancel); !s.ok()) return s;
      if (Status s = seen(from + static_cast<int64_t>(at)); !s.ok()) return s;
    }
    return OkStatus();
  };
  const int64_t chunk = evictor_.policy().repeat;
  for (int64_t begin = 0; begin < length; begin += chunk) {
    const int64_t end = std::min(length, begin + chunk);
    const auto seen = [&](int64_t position) {
      return evictor_.SeeRepeated(sequence, position, {length, begin, end});
    };
    if (Status s = read(InputFor(prompt, begin, end), seen); !s.ok()) return s;
    // The last page of the prompt goes as well, and is read again.
    const Result<int64_t> left = store_.Truncate(sequence, length);
    if (!left.ok()) return left.status();
  }
  return read({}, [](int64_t) { return OkStatus(); });
}

}  // namespace headway
