// Sets of characters inside a translated pattern.
#ifndef HEADWAY_TEXT_TOKENIZER_ONIG_CLASS_H_
#define HEADWAY_TEXT_TOKENIZER_ONIG_CLASS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headway::tok {

// A set of characters, on its way to a PCRE2 expression that matches exactly one of them.
class CharacterSet {
 public:
  // What stands between the brackets of a class, in PCRE2's syntax.
  void AddItems(std::string_view items) { items_.append(items); }
  void AddCharacter(char32_t c);
  void AddRange(char32_t first, char32_t last);
  void AddSet(const CharacterSet& other);

  // Keeps what is in `other` too.
  void IntersectWith(const CharacterSet& other);
  void Negate() { negated_ = !negated_; }

  bool empty() const { return items_.empty() && alternatives_.empty(); }
  // An expression for one character of the set. Requires !empty().
  std::string Expression() const;

 private:
  std::string Positive() const;

  std::string items_;
  std::vector<std::string> alternatives_;  // expressions for one character each
  bool negated_ = false;
};

// \s, \w, \d or \h (a hexadecimal digit), by its letter. Oniguruma's \w outside of classes also
// matches the superscripts and fractions of Latin-1.
enum class Place { kInClass, kOutside };
CharacterSet ShorthandSet(char letter, Place place);

// \p{name}: a general category or a script; nothing for names that are not translated.
std::optional<CharacterSet> PropertySet(std::string_view name);

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_ONIG_CLASS_H_
