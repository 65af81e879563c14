// The normalization forms of Unicode Standard Annex 15.
#ifndef HEADWAY_TEXT_UNICODE_NORMALIZE_H_
#define HEADWAY_TEXT_UNICODE_NORMALIZE_H_

#include <string>
#include <string_view>

namespace headway::unicode {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Valid UTF-8 in a normalization form, by the Unicode version that Hugging Face's tokenizers uses.
std::string Normalize(std::string_view text, NormalForm form);

}  // namespace headway::unicode

#endif  // HEADWAY_TEXT_UNICODE_NORMALIZE_H_
