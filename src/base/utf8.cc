#include "base/utf8.h"

#include <algorithm>
#include <cstdint>

#include "base/check.h"

namespace headway {
namespace {

// What the first byte of a character promises: its length, its bits of the code point, and the
// range of its second byte, which excludes overlong forms, surrogates and what is above U+10FFFF.
// The later bytes are 80..BF. length 0: no character begins so.
struct Lead {
  size_t length = 0;
  char32_t bits = 0;
  uint8_t second_low = 0x80;
  uint8_t second_high = 0xBF;
};

Lead ReadLead(uint8_t byte) {
  if (byte < 0x80) return {.length = 1, .bits = byte};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {.length = 2, .bits = byte & 0x1Fu};
  if (byte < 0xF0) {
    Lead lead{.length = 3, .bits = byte & 0x0Fu};
    if (byte == 0xE0) lead.second_low = 0xA0;
    if (byte == 0xED) lead.second_high = 0x9F;
    return lead;
  }
  if (byte > 0xF4) return {};
  Lead lead{.length = 4, .bits = byte & 0x07u};
  if (byte == 0xF0) lead.second_low = 0x90;
  if (byte == 0xF4) lead.second_high = 0x8F;
  return lead;
}

// How many bytes from `offset` on are as a character needs them; `complete` when they are all.
struct Match {
  size_t bytes = 0;
  bool complete = false;
  char32_t code_point = 0;
};

Match MatchCharacter(std::string_view text, size_t offset) {
  const Lead lead = ReadLead(static_cast<uint8_t>(text[offset]));
  if (lead.length == 0) return {};
  Match match{.bytes = 1, .code_point = lead.bits};
  while (match.bytes < lead.length && offset + match.bytes < text.size()) {
    const auto byte = static_cast<uint8_t>(text[offset + match.bytes]);
    const uint8_t low = match.bytes == 1 ? lead.second_low : 0x80;
    const uint8_t high = match.bytes == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) break;
    match.code_point = (match.code_point << 6) | (byte & 0x3Fu);
    ++match.bytes;
  }
  match.complete = match.bytes == lead.length;
  return match;
}

}  // namespace

size_t DecodeUtf8(std::string_view text, size_t offset, char32_t* code_point) {
  HEADWAY_CHECK(offset < text.size());
  const Match match = MatchCharacter(text, offset);
  if (!match.complete) return 0;
  *code_point = match.code_point;
  return match.bytes;
}

char32_t NextWideCharacter(std::string_view text, size_t* offset) {
  const Match match = MatchCharacter(text, *offset);
  HEADWAY_CHECK(match.complete);
  *offset += match.bytes;
  return match.code_point;
}

size_t PreviousOffset(std::string_view text, size_t offset) {
  do {
    --offset;
  } while (offset > 0 && (static_cast<uint8_t>(text[offset]) & 0xC0) == 0x80);
  return offset;
}

char32_t LastCharacter(std::string_view text, size_t* length) {
  size_t begin = PreviousOffset(text, text.size());
  *length = text.size() - begin;
  return NextCharacter(text, &begin);
}

int64_t CountChars(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

size_t CharOffset(std::string_view text, int64_t index) {
  size_t offset = 0;
  for (; index > 0 && offset < text.size(); --index) offset += CharBytes(text, offset);
  return offset;
}

void AppendUtf8(char32_t code_point, std::string* text) {
  HEADWAY_CHECK(code_point <= 0x10FFFF && (code_point < 0xD800 || code_point > 0xDFFF));
  const auto put = [text](char32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

bool IsValidUtf8(std::string_view text, size_t* bad_offset) {
  size_t offset = 0;
  while (offset < text.size()) {
    const Match match = MatchCharacter(text, offset);
    if (!match.complete) {
      if (bad_offset != nullptr) *bad_offset = offset;
      return false;
    }
    offset += match.bytes;
  }
  return true;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  size_t offset = 0;
  while (offset < text.size()) {
    const Match match = MatchCharacter(text, offset);
    if (match.complete) {
      result.append(text, offset, match.bytes);
    } else {
      result.append("\xEF\xBF\xBD");
    }
    offset += std::max<size_t>(match.bytes, 1);
  }
  return result;
}

size_t IncompleteUtf8Suffix(std::string_view text) {
  for (size_t length = 1; length <= std::min<size_t>(3, text.size()); ++length) {
    const size_t offset = text.size() - length;
    const auto byte = static_cast<uint8_t>(text[offset]);
    if (byte >= 0x80 && byte < 0xC0) continue;  // inside a character: look for its first byte
    const Match match = MatchCharacter(text, offset);
    return !match.complete && match.bytes == length ? length : 0;
  }
  return 0;
}

}  // namespace headway
