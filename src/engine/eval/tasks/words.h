// Words that tasks are made of: those of everyday life and made-up ones.
#ifndef HEADWAY_ENGINE_EVAL_TASKS_WORDS_H_
#define HEADWAY_ENGINE_EVAL_TASKS_WORDS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"

namespace headway::eval {

using Words = std::vector<std::string>;

const Words& Adjectives();
const Words& Nouns();

const std::string& Pick(Random& random, const Words& words);
std::string Digits(Random& random, int count);
// Four syllables of a consonant and a vowel: none is part of another, and there are 10^8 of them.
std::string MadeUpWord(Random& random);

// `count` different strings from `draw`.
Words DrawDifferent(int64_t count, const std::function<std::string()>& draw);

// In an order in which each is as likely as the others.
template <typename T>
void Shuffle(Random& random, std::vector<T>* items) {
  for (size_t i = items->size(); i > 1; --i) {
    std::swap((*items)[i - 1],
              (*items)[static_cast<size_t>(random.Below(static_cast<int64_t>(i)))]);
  }
}

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_TASKS_WORDS_H_
