#include "base/utf8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/random.h"

namespace headway {
namespace {

bool IsCodePoint(char32_t c) { return c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF); }

// The definition, by another way: the bytes are the encoding of the code point that they spell.
size_t LengthByDefinition(std::string_view text) {
  for (size_t length = 1; length <= std::min<size_t>(4, text.size()); ++length) {
    const auto first = static_cast<unsigned char>(text[0]);
    char32_t code_point = length == 1 ? first : first & (0x7Fu >> length);
    for (size_t i = 1; i < length; ++i) {
      code_point = (code_point << 6) | (static_cast<unsigned char>(text[i]) & 0x3Fu);
    }
    if (!IsCodePoint(code_point)) continue;
    std::string encoded;
    AppendUtf8(code_point, &encoded);
    if (encoded == text.substr(0, length)) return length;
  }
  return 0;
}

TEST(Utf8, EveryCodePointRoundTrips) {
  std::string all;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (!IsCodePoint(c)) continue;
    std::string text;
    AppendUtf8(c, &text);
    const size_t length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    ASSERT_EQ(text.size(), length);
    char32_t decoded = 0;
    ASSERT_EQ(DecodeUtf8(text, 0, &decoded), length) << static_cast<uint32_t>(c);
    ASSERT_EQ(decoded, c);
    // Any beginning of it is incomplete, and only that.
    for (size_t kept = 0; kept <= length; ++kept) {
      const std::string part = "é" + text.substr(0, kept);
      ASSERT_EQ(IncompleteUtf8Suffix(part), kept == length ? 0 : kept);
    }
    all += text;
  }
  EXPECT_TRUE(IsValidUtf8(all));
  EXPECT_EQ(ReplaceInvalidUtf8(all), all);
}

TEST(Utf8, EveryTripleOfBytesIsJudgedByTheDefinition) {
  std::string text(4, '\0');
  for (uint32_t bits = 0; bits < (1u << 24); ++bits) {
    text[0] = static_cast<char>(bits >> 16);
    text[1] = static_cast<char>(bits >> 8);
    text[2] = static_cast<char>(bits);
    text[3] = '\x85';  // completes what a leading F0..F4 began
    char32_t code_point = 0;
    ASSERT_EQ(DecodeUtf8(text, 0, &code_point), LengthByDefinition(text)) << std::hex << bits;
    if (bits % 0x100 == 0xFF && (bits >> 16) < 0xC0) bits |= 0xFFFF;  // such need no second byte
  }
}

TEST(Utf8, FindsTheBadByte) {
  size_t bad = 99;
  EXPECT_TRUE(IsValidUtf8("", &bad));
  EXPECT_TRUE(IsValidUtf8("aé漢😀", &bad));
  EXPECT_EQ(bad, 99u);
  EXPECT_FALSE(IsValidUtf8("aé\xFFz", &bad));
  EXPECT_EQ(bad, 3u);
  EXPECT_FALSE(IsValidUtf8("ab\xE6\xBC", &bad));
  EXPECT_EQ(bad, 2u);
  EXPECT_FALSE(IsValidUtf8("\xC0\xAF"));          // overlong "/"
  EXPECT_FALSE(IsValidUtf8("\xED\xA0\x80"));      // a surrogate
  EXPECT_FALSE(IsValidUtf8("\xF4\x90\x80\x80"));  // U+110000
}

TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(ReplaceInvalidUtf8("a\xFFz"), "a" + r + "z");
  // The Unicode Standard, table 3-8 and its neighbours.
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x9F\x98"), r);
}

TEST(Utf8, HoldsBackOnlyWhatCanBeCompleted) {
  EXPECT_EQ(IncompleteUtf8Suffix(""), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("abc"), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("\x80\x80\x80\x80"), 0u);  // never a character
  EXPECT_EQ(IncompleteUtf8Suffix("\xFF"), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("\xED\xA0"), 0u);  // would be a surrogate
  EXPECT_EQ(IncompleteUtf8Suffix("\xF0\x9F\x98"), 3u);
}

TEST(Utf8, SplitStreamsJoinToTheSameText) {
  constexpr uint64_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      const int kind = static_cast<int>(random.Below(5));
      if (kind == 4) {
        text.push_back(static_cast<char>(random.Below(256)));
        continue;
      }
      constexpr char32_t kTops[] = {0x7F, 0x7FF, 0xD7FF, 0x10FFFF};
      const auto c = static_cast<char32_t>(random.Below(kTops[kind] + 1));
      if (IsCodePoint(c)) AppendUtf8(c, &text);
    }
    // What a stream prints piece by piece is what the whole text prints at once.
    std::string printed;
    std::string held;
    for (size_t at = 0; at < text.size();) {
      const auto step = static_cast<size_t>(1 + random.Below(5));
      held += text.substr(at, step);
      at += step;
      const size_t ready = held.size() - IncompleteUtf8Suffix(held);
      printed += ReplaceInvalidUtf8(std::string_view(held).substr(0, ready));
      held.erase(0, ready);
    }
    printed += ReplaceInvalidUtf8(held);
    ASSERT_EQ(printed, ReplaceInvalidUtf8(text));
    ASSERT_TRUE(IsValidUtf8(printed));
  }
}

TEST(Utf8Test, WalksOverText) {
  const std::string text = "aé漢😀";
  EXPECT_EQ(CountChars(text), 4);
  EXPECT_EQ(CharOffset(text, 3), 6u);
  EXPECT_EQ(CharOffset("aé", 9), 3u);
  EXPECT_EQ(CharAt(text, 3), U'漢');
  size_t offset = 1, length = 0;
  EXPECT_EQ(NextCharacter(text, &offset), U'é');
  EXPECT_EQ(offset, 3u);
  EXPECT_EQ(LastCharacter(text, &length), U'😀');
  EXPECT_EQ(length, 4u);
  EXPECT_EQ(PreviousOffset(text, 6), 3u);
}

}  // namespace
}  // namespace headway
