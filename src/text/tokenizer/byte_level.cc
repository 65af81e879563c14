#include "text/tokenizer/byte_level.h"

#include <array>

#include "base/utf8.h"

namespace headway::tok {
namespace {

constexpr char32_t kFirstSubstitute = 0x100;
constexpr int kSubstitutes = 68;

bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
}

struct Alphabet {
  Alphabet() {
    substituted.fill(-1);
    char32_t substitute = kFirstSubstitute;
    for (int byte = 0; byte < 256; ++byte) {
      char32_t c = static_cast<char32_t>(byte);
      if (!StandsForItself(byte)) {
        substituted[substitute - kFirstSubstitute] = byte;
        c = substitute++;
      }
      AppendUtf8(c, &characters[static_cast<size_t>(byte)]);
    }
  }

  std::array<std::string, 256> characters;
  std::array<int, kSubstitutes> substituted;  // the byte of each substitute
};

const Alphabet& GetAlphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

std::string_view ByteLevelCharacter(uint8_t byte) { return GetAlphabet().characters[byte]; }

void AppendByteLevel(std::string_view bytes, std::string* characters) {
  const Alphabet& alphabet = GetAlphabet();
  for (char byte : bytes) *characters += alphabet.characters[static_cast<uint8_t>(byte)];
}

bool AppendFromByteLevel(std::string_view characters, std::string* bytes) {
  const Alphabet& alphabet = GetAlphabet();
  const size_t size = bytes->size();
  for (size_t offset = 0; offset < characters.size();) {
    const char32_t c = NextCharacter(characters, &offset);
    if (c >= kFirstSubstitute && c < kFirstSubstitute + kSubstitutes) {
      bytes->push_back(static_cast<char>(alphabet.substituted[c - kFirstSubstitute]));
    } else if (c < 0x100 && StandsForItself(static_cast<int>(c))) {
      bytes->push_back(static_cast<char>(c));
    } else {
      bytes->resize(size);
      return false;
    }
  }
  return true;
}

}  // namespace headway::tok
