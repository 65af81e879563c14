#include "engine/eval/tasks/words.h"

#include <set>
#include <string_view>

namespace headway::eval {

const Words& Adjectives() {
  static const auto* const words = new Words{
      "bitter", "bold",   "brave", "bright", "broad",   "calm",  "clean",  "clever", "cold",
      "cool",   "dark",   "deep",  "dry",    "early",   "faint", "fair",   "fine",   "fresh",
      "gentle", "golden", "grand", "green",  "heavy",   "high",  "humble", "kind",   "large",
      "lively", "lonely", "long",  "mild",   "narrow",  "noble", "old",    "open",   "pale",
      "plain",  "proud",  "quiet", "quick",  "rapid",   "red",   "round",  "sharp",  "silent",
      "simple", "small",  "soft",  "steady", "strange", "sweet", "tall",   "tender", "thin",
      "vast",   "warm",   "white", "wide",   "wild",    "young"};
  return *words;
}

const Words& Nouns() {
  static const auto* const words = new Words{
      "anchor",  "apple",  "arrow", "bell",     "boat",   "book",  "bridge",  "bucket",  "candle",
      "castle",  "clock",  "cloud", "coat",     "crown",  "door",  "eagle",   "engine",  "falcon",
      "feather", "field",  "flame", "forest",   "garden", "gate",  "hammer",  "harbor",  "horse",
      "island",  "jacket", "jewel", "kettle",   "ladder", "lamp",  "lantern", "letter",  "market",
      "meadow",  "mirror", "moon",  "mountain", "needle", "nest",  "ocean",   "orchard", "paper",
      "pencil",  "plate",  "queen", "rabbit",   "ring",   "river", "road",    "shadow",  "ship",
      "star",    "stone",  "table", "temple",   "tower",  "tree",  "valley",  "wagon",   "wheel",
      "window",  "wolf",   "yard"};
  return *words;
}

const std::string& Pick(Random& random, const Words& words) {
  return words[static_cast<size_t>(random.Below(static_cast<int64_t>(words.size())))];
}

std::string Digits(Random& random, int count) {
  std::string digits;
  for (int i = 0; i < count; ++i) digits += static_cast<char>('0' + random.Below(10));
  return digits;
}

std::string MadeUpWord(Random& random) {
  constexpr std::string_view kConsonants = "bcdfghjklmnpqrstvwxz", kVowels = "aeiou";
  std::string word;
  for (int syllable = 0; syllable < 4; ++syllable) {
    word += kConsonants[static_cast<size_t>(random.Below(std::ssize(kConsonants)))];
    word += kVowels[static_cast<size_t>(random.Below(std::ssize(kVowels)))];
  }
  return word;
}

Words DrawDifferent(int64_t count, const std::function<std::string()>& draw) {
  Words drawn;
  std::set<std::string> seen;
  while (static_cast<int64_t>(drawn.size()) < count) {
    std::string next = draw();
    if (seen.insert(next).second) drawn.push_back(std::move(next));
  }
  return drawn;
}

}  // namespace headway::eval
