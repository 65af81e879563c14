#include "text/tokenizer/post_processor.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "text/tokenizer/text.h"

namespace headway::tok {
namespace {

// Bounds what a template can make of a text.
constexpr size_t kMaxParts = 16;
constexpr size_t kMaxIds = 256;

Result<TokenId> ReadId(const JsonNode& node, TokenId id_limit) {
  const nlohmann::json& id = node.value();
  if (id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(id_limit)) {
    return id.get<TokenId>();
  }
  return node.Corrupt(fmt::format("is no token's id (0 to {})", id_limit - 1));
}

}  // namespace

Result<PostProcessor> PostProcessor::FromJson(const JsonNode& node, TokenId id_limit) {
  PostProcessor result;
  if (node.IsNull()) return result;
  Status status = Read(node, 0, id_limit, &result);
  if (!status.ok()) return status;
  return result;
}

Status PostProcessor::Read(const JsonNode& node, int depth, TokenId id_limit,
                           PostProcessor* result) {
  if (depth > kMaxSequenceDepth) return node.Corrupt("Sequences are nested too deep");
  const Result<std::string> type = node.Type();
  if (!type.ok()) return type.status();
  if (*type == "ByteLevel") return OkStatus();  // moves offsets, which Headway has none of
  if (*type == "TemplateProcessing") return ReadTemplate(node, id_limit, result);
  if (*type == "RobertaProcessing" || *type == "BertProcessing") {
    return ReadClsAndSep(node, id_limit, result);
  }
  if (*type != "Sequence") return UnsupportedType(node, *type);
  const JsonNode list = node.Member("processors");
  const Result<size_t> size = list.Size();
  if (!size.ok()) return size.status();
  for (size_t i = 0; i < *size; ++i) {
    Status status = Read(list.Element(i), depth + 1, id_limit, result);
    if (!status.ok()) return status;
  }
  return OkStatus();
}

Status PostProcessor::BeginTemplate(const JsonNode& node) {
  if (!std::exchange(has_template_, true)) return OkStatus();
  return Status(StatusCode::kUnsupported,
                node.path() + ": a second processor that adds tokens is not supported");
}

Status PostProcessor::ReadClsAndSep(const JsonNode& node, TokenId id_limit, PostProcessor* result) {
  if (Status s = result->BeginTemplate(node); !s.ok()) return s;
  for (const char* key : {"cls", "sep"}) {
    const JsonNode pair = node.Member(key);  // [token, id]
    const Result<size_t> size = pair.Size();
    if (!size.ok()) return size.status();
    if (*size != 2) return pair.Corrupt("is not a token and its id");
    const Result<TokenId> token = ReadId(pair.Element(1), id_limit);
    if (!token.ok()) return token.status();
    result->parts_.push_back({.text = false, .ids = {*token}});
  }
  result->parts_.insert(result->parts_.begin() + 1, {.text = true, .ids = {}});
  return OkStatus();
}

Status PostProcessor::ReadTemplate(const JsonNode& node, TokenId id_limit, PostProcessor* result) {
  if (Status s = result->BeginTemplate(node); !s.ok()) return s;
  const JsonNode single = node.Member("single");
  const Result<size_t> size = single.Size();
  if (!size.ok()) return size.status();
  if (*size > kMaxParts) return single.Corrupt("has more than 16 pieces");
  for (size_t i = 0; i < *size; ++i) {
    const JsonNode piece = single.Element(i);
    const JsonNode sequence = piece.Member("Sequence");
    const JsonNode special = piece.Member("SpecialToken");
    Part part;
    if (!sequence.IsNull()) {
      const Result<std::string> id = sequence.String("id");
      if (!id.ok()) return id.status();
      if (*id != "A") return sequence.Corrupt("a template for one text names another");
      part.text = true;
    } else if (!special.IsNull()) {
      const Result<std::string> name = special.String("id");
      if (!name.ok()) return name.status();
      const JsonNode ids = node.Member("special_tokens").Member(*name).Member("ids");
      const Result<size_t> count = ids.Size();
      if (!count.ok()) return count.status();
      if (*count > kMaxIds) return ids.Corrupt("has more than 256 ids");
      for (size_t k = 0; k < *count; ++k) {
        const Result<TokenId> token = ReadId(ids.Element(k), id_limit);
        if (!token.ok()) return token.status();
        part.ids.push_back(*token);
      }
    } else {
      return piece.Corrupt("is neither a Sequence nor a SpecialToken");
    }
    result->parts_.push_back(std::move(part));
  }
  return OkStatus();
}

std::vector<TokenId> PostProcessor::Apply(std::vector<TokenId> tokens,
                                          const EncodeOptions& options) const {
  if (!has_template_) return tokens;
  std::vector<TokenId> result;
  result.reserve(tokens.size() + parts_.size());
  for (const Part& part : parts_) {
    if (part.text) {
      result.insert(result.end(), tokens.begin(), tokens.end());
    } else if (options.add_special_tokens) {
      result.insert(result.end(), part.ids.begin(), part.ids.end());
    }
  }
  return result;
}

}  // namespace headway::tok
