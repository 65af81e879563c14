#include "text/tokenizer/normalizer.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/utf8.h"
#include "text/tokenizer/regex.h"
#include "text/unicode/normalize.h"
#include "text/unicode/unicode.h"

namespace headway::tok {

class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  virtual Status Apply(Piece* piece, PieceWork* work) const = 0;
};

namespace {

using Steps = std::vector<std::shared_ptr<const NormalizerStep>>;

class Prepend : public NormalizerStep {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}

  Status Apply(Piece* piece, PieceWork* work) const override {
    if (!piece->text.empty()) PrependTo(text_, piece, work);
    return OkStatus();
  }

 private:
  std::string text_;
};

class Replace : public NormalizerStep {
 public:
  Replace(Regex pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  Status Apply(Piece* piece, PieceWork* work) const override {
    Status status = pattern_.Split(piece->text, work->regex(), work->stretches());
    if (!status.ok()) return status;
    return ReplaceMatches(*work->stretches(), content_, piece, work);
  }

 private:
  Regex pattern_;
  std::string content_;
};

class UnicodeForm : public NormalizerStep {
 public:
  explicit UnicodeForm(unicode::NormalForm form) : form_(form) {}

  Status Apply(Piece* piece, PieceWork* work) const override {
    const bool ascii = std::all_of(piece->text.begin(), piece->text.end(),
                                   [](char c) { return static_cast<unsigned char>(c) < 0x80; });
    if (ascii) return OkStatus();
    // A character's decomposition comes from where the character came from.
    const size_t from_start =
        unicode::Normalize(piece->text.substr(0, piece->from_start), form_).size();
    piece->text = work->Keep(unicode::Normalize(piece->text, form_));
    piece->from_start = std::min(from_start, piece->text.size());
    return OkStatus();
  }

 private:
  unicode::NormalForm form_;
};

class Lowercase : public NormalizerStep {
 public:
  Status Apply(Piece* piece, PieceWork* work) const override {
    std::string text;
    text.reserve(piece->text.size());
    size_t from_start = 0;
    for (size_t offset = 0; offset < piece->text.size();) {
      const bool at_start = offset < piece->from_start;
      unicode::AppendLowercase(NextCharacter(piece->text, &offset), &text);
      if (at_start) from_start = text.size();
    }
    piece->text = work->Keep(std::move(text));
    piece->from_start = from_start;
    return OkStatus();
  }
};

class Strip : public NormalizerStep {
 public:
  struct Ends {
    bool left = false;
    bool right = false;
  };
  explicit Strip(const Ends& ends) : ends_(ends) {}

  Status Apply(Piece* piece, PieceWork*) const override {
    const std::string_view text = piece->text;
    size_t begin = 0;
    while (ends_.left && begin < text.size()) {
      size_t next = begin;
      if (!unicode::IsWhitespace(NextCharacter(text, &next))) break;
      begin = next;
    }
    size_t end = text.size();
    while (ends_.right && end > begin) {
      size_t length = 0;
      if (!unicode::IsWhitespace(LastCharacter(text.substr(0, end), &length))) break;
      end -= length;
    }
    *piece = piece->Slice(begin, end);
    return OkStatus();
  }

 private:
  Ends ends_;
};

Status AddReplace(const JsonNode& node, Steps* steps) {
  Result<Regex> pattern = ReadPattern(node, "pattern");
  if (!pattern.ok()) return pattern.status();
  Result<std::string> content = node.String("content");
  if (!content.ok()) return content.status();
  steps->push_back(std::make_shared<Replace>(*std::move(pattern), *std::move(content)));
  return OkStatus();
}

Status AddStrip(const JsonNode& node, Steps* steps) {
  const Result<bool> left = node.Bool("strip_left", true);
  if (!left.ok()) return left.status();
  const Result<bool> right = node.Bool("strip_right", true);
  if (!right.ok()) return right.status();
  steps->push_back(std::make_shared<Strip>(Strip::Ends{.left = *left, .right = *right}));
  return OkStatus();
}

Status AddStep(const JsonNode& node, const std::string& type, Steps* steps) {
  constexpr std::pair<std::string_view, unicode::NormalForm> kForms[] = {
      {"NFC", unicode::NormalForm::kNfc},
      {"NFD", unicode::NormalForm::kNfd},
      {"NFKC", unicode::NormalForm::kNfkc},
      {"NFKD", unicode::NormalForm::kNfkd}};
  for (const auto& [name, form] : kForms) {
    if (type != name) continue;
    steps->push_back(std::make_shared<UnicodeForm>(form));
    return OkStatus();
  }
  if (type == "Replace") return AddReplace(node, steps);
  if (type == "Strip") return AddStrip(node, steps);
  if (type == "Lowercase") {
    steps->push_back(std::make_shared<Lowercase>());
    return OkStatus();
  }
  if (type != "Prepend") return UnsupportedType(node, type);
  Result<std::string> text = node.String("prepend");
  if (!text.ok()) return text.status();
  steps->push_back(std::make_shared<Prepend>(*std::move(text)));
  return OkStatus();
}

}  // namespace

Result<Normalizer> Normalizer::FromJson(const JsonNode& node) {
  Normalizer normalizer;
  if (node.IsNull()) return normalizer;
  Status status = AddSteps(node, "normalizers", AddStep, &normalizer.steps_);
  if (!status.ok()) return status;
  return normalizer;
}

Status Normalizer::Apply(Piece* piece, PieceWork* work) const {
  for (const std::shared_ptr<const NormalizerStep>& step : steps_) {
    Status status = step->Apply(piece, work);
    if (status.ok()) status = work->CheckSize();
    if (!status.ok()) return status;
  }
  return OkStatus();
}

}  // namespace headway::tok
