#include "text/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/fnv.h"
#include "base/json/json.h"
#include "base/utf8.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/json_fields.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/post_processor.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/text.h"
#include "text/tokenizer/tokenizer_json.h"

namespace headway {

struct Tokenizer::Parts {
  tok::Normalizer normalizer;
  tok::PreTokenizer pre_tokenizer;
  tok::Bpe model;
  tok::AddedTokens added;
  tok::PostProcessor post_processor;
  tok::Decoder decoder;
  uint64_t hash;

  // What the id stands for in decoding; nothing for an id that is no token.
  std::optional<std::string_view> Token(TokenId id) const {
    if (const std::string* form = added.DecodedForm(id)) return *form;
    return model.vocabulary().Token(id);
  }
};

namespace {

// The two tokens of a merge; a text has one space between them.
Status SplitMerge(const tok::TokenizerJson::Merge& merge, std::string_view* left,
                  std::string_view* right) {
  *left = merge.left;
  *right = merge.right;
  if (merge.pair) return OkStatus();
  const size_t space = merge.left.find(' ');
  if (space == std::string::npos || merge.left.find(' ', space + 1) != std::string::npos) {
    return Status(StatusCode::kCorrupt, fmt::format("the merge {} is not two tokens with a space "
                                                    "between them",
                                                    tok::Quoted(merge.left)));
  }
  *left = std::string_view(merge.left).substr(0, space);
  *right = std::string_view(merge.left).substr(space + 1);
  return OkStatus();
}

Result<std::vector<tok::Bpe::Merge>> ResolveMerges(const tok::TokenizerJson& json) {
  std::vector<tok::Bpe::Merge> merges;
  merges.reserve(json.merges.size());
  std::string joined;
  for (const tok::TokenizerJson::Merge& merge : json.merges) {
    if (!merge.pair && merge.left.starts_with("#version")) continue;
    std::string_view left;
    std::string_view right;
    Status status = SplitMerge(merge, &left, &right);
    if (!status.ok()) return AtPath("model.merges", status);
    joined.assign(left);
    joined += right;
    const auto find = [&json](std::string_view token) { return json.vocabulary.Find(token); };
    const std::optional<TokenId> ids[3] = {find(left), find(right), find(joined)};
    for (size_t i = 0; i < 3; ++i) {
      if (ids[i].has_value()) continue;
      const std::string_view token = i == 0 ? left : i == 1 ? right : std::string_view(joined);
      return Status(StatusCode::kCorrupt,
                    fmt::format("model.merges[{}]: the token {} is not in model.vocab",
                                merges.size(), tok::Quoted(token)));
    }
    merges.push_back({*ids[0], *ids[1], *ids[2]});
  }
  return merges;
}

Status RefuseType(const JsonNode& model, std::string_view type) {
  const Status status = tok::UnsupportedType(model, type);
  return Status(status.code(), status.message() + "; Headway reads tokenizers of the type BPE");
}

// What a BPE model can have and Headway does not do.
Status CheckModel(const JsonNode& model, const tok::TokenizerJson& json) {
  if (!model.value().is_object()) return model.Corrupt("is missing or not an object");
  // Files of early versions do not name the type; only BPE has merges.
  if (!model.Member("type").IsNull()) {
    const Result<std::string> type = model.Type();
    if (!type.ok()) return type.status();
    if (*type != "BPE") return RefuseType(model, *type);
  } else if (model.Member("vocab").value().is_array()) {
    return RefuseType(model, "Unigram");
  }
  if (!json.has_vocabulary) return model.Member("vocab").Corrupt("is missing or not an object");
  if (!json.has_merges) return model.Member("merges").Corrupt("is missing or not a list");
  const JsonNode dropout = model.Member("dropout");
  if (!dropout.IsNull() && !(dropout.value().is_number() && dropout.value() == 0)) {
    return Status(StatusCode::kUnsupported,
                  "model.dropout: random merges are for training and not supported");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.Member(key).IsNull()) continue;
    const Result<std::string> text = model.String(key);
    if (!text.ok()) return text.status();
    if (!text->empty()) {
      return Status(StatusCode::kUnsupported,
                    fmt::format("model.{}: {} is not supported", key, tok::Quoted(*text)));
    }
  }
  return OkStatus();
}

Result<tok::BpeOptions> ReadOptions(const JsonNode& model) {
  tok::BpeOptions options;
  if (!model.Member("unk_token").IsNull()) {
    Result<std::string> token = model.String("unk_token");
    if (!token.ok()) return token.status();
    options.unknown_token = *std::move(token);
  }
  const std::pair<const char*, bool*> flags[] = {{"fuse_unk", &options.fuse_unknown},
                                                 {"byte_fallback", &options.byte_fallback},
                                                 {"ignore_merges", &options.ignore_merges}};
  for (const auto& [key, flag] : flags) {
    const Result<bool> value = model.Bool(key, false);
    if (!value.ok()) return value.status();
    *flag = *value;
  }
  return options;
}

Result<tok::Bpe> BuildModel(const JsonNode& node, tok::TokenizerJson* json) {
  Status status = CheckModel(node, *json);
  if (!status.ok()) return status;
  Result<tok::BpeOptions> options = ReadOptions(node);
  if (!options.ok()) return options.status();
  status = json->vocabulary.Finish();
  if (!status.ok()) return status;
  const Result<std::vector<tok::Bpe::Merge>> merges = ResolveMerges(*json);
  if (!merges.ok()) return merges.status();
  return tok::Bpe(std::move(json->vocabulary), *merges, *std::move(options));
}

// A tokenizer.json is missing: which files there are that it can be made of.
Status ExplainMissing(Env* env, const std::string& model_dir) {
  const std::vector<std::string> others[] = {{"tokenizer.model"},
                                             {"vocab.json", "merges.txt"},
                                             {"tekken.json"},
                                             {"tiktoken.model"},
                                             {"vocab.txt"}};
  for (const std::vector<std::string>& files : others) {
    const bool all = std::all_of(files.begin(), files.end(), [&](const std::string& file) {
      return env->Exists(model_dir + "/" + file);
    });
    if (!all) continue;
    return Status(
        StatusCode::kNotFound,
        fmt::format("{} has {} but no tokenizer.json, which Headway needs; Transformers makes it: "
                    "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
                    model_dir, fmt::join(files, " and ")));
  }
  return Status(StatusCode::kNotFound,
                fmt::format("{} has no tokenizer.json: is it a model folder?", model_dir));
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(std::string_view json_text,
                                                       std::string_view name,
                                                       const nlohmann::json* config) {
  const auto fail = [name](const Status& status) { return AtPath(std::string(name), status); };
  Result<tok::TokenizerJson> json = tok::ParseTokenizerJson(json_text);
  if (!json.ok()) return fail(json.status());
  const JsonNode root(json->parts, "");
  Result<tok::Bpe> model = BuildModel(root.Member("model"), &*json);
  if (!model.ok()) return fail(model.status());
  Result<tok::Normalizer> normalizer = tok::Normalizer::FromJson(root.Member("normalizer"));
  if (!normalizer.ok()) return fail(normalizer.status());
  Result<tok::PreTokenizer> pre_tokenizer =
      tok::PreTokenizer::FromJson(root.Member("pre_tokenizer"));
  if (!pre_tokenizer.ok()) return fail(pre_tokenizer.status());
  const nlohmann::json null;
  const char* key = "added_tokens_decoder";
  const bool decodes = config != nullptr && config->contains(key);
  const JsonNode decoded(decodes ? config->at(key) : null,
                         "tokenizer_config.json's " + std::string(key));
  Result<tok::AddedTokens> added = tok::AddedTokens::FromJson(root.Member("added_tokens"), decoded,
                                                              model->vocabulary(), *normalizer);
  if (!added.ok()) return fail(added.status());
  const TokenId id_limit = std::max(model->vocabulary().max_id(), added->max_id()) + 1;
  Result<tok::PostProcessor> post_processor =
      tok::PostProcessor::FromJson(root.Member("post_processor"), id_limit);
  if (!post_processor.ok()) return fail(post_processor.status());
  Result<tok::Decoder> decoder = tok::Decoder::FromJson(root.Member("decoder"));
  if (!decoder.ok()) return fail(decoder.status());
  const uint64_t hash = Fnv1a(added->changes(), Fnv1a(json_text));
  auto parts = std::unique_ptr<const Parts>(
      new Parts{*std::move(normalizer), *std::move(pre_tokenizer), *std::move(model),
                *std::move(added), *std::move(post_processor), *std::move(decoder), hash});
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts)));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(Env* env, const std::string& model_dir) {
  const std::string path = model_dir + "/tokenizer.json";
  if (!env->Exists(path)) return ExplainMissing(env, model_dir);
  const Result<std::string> text = env->ReadFile(path);
  if (!text.ok()) return text.status();
  const std::string config_path = model_dir + "/tokenizer_config.json";
  if (!env->Exists(config_path)) return FromJson(*text, path);
  const Result<nlohmann::json> config = ReadJsonObject(*env, config_path);
  if (!config.ok()) return config.status();
  return FromJson(*text, path, &*config);
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text, EncodeOptions options) const {
  size_t bad_offset = 0;
  if (!IsValidUtf8(text, &bad_offset)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the text is not UTF-8: the byte at offset {} is part of no "
                              "character",
                              bad_offset));
  }
  tok::PieceWork work(text.size());
  std::vector<tok::Piece> pieces;
  Status status = parts_->added.Split(text, options, parts_->normalizer, &work, &pieces);
  if (!status.ok()) return status;
  status = parts_->pre_tokenizer.Apply(&work, &pieces);
  if (!status.ok()) return status;
  tok::BpeWork bpe;
  std::vector<TokenId> tokens;
  for (const tok::Piece& piece : pieces) {
    if (piece.added >= 0) {
      tokens.push_back(piece.added);
      continue;
    }
    status = parts_->model.Encode(piece.text, parts_->pre_tokenizer.word_text(), &bpe, &tokens);
    if (!status.ok()) return status;
  }
  return parts_->post_processor.Apply(std::move(tokens), options);
}

std::string Tokenizer::Decode(std::span<const TokenId> tokens, SpecialTokens special) const {
  Detokenizer detokenizer(this, special);
  std::string text;
  for (TokenId token : tokens) text += detokenizer.Push(token);
  text += detokenizer.Finish();
  return text;
}

int Tokenizer::vocab_size() const {
  return std::max(parts_->model.vocabulary().max_id(), parts_->added.max_id()) + 1;
}

bool Tokenizer::IsSpecial(TokenId id) const { return parts_->added.IsSpecial(id); }

uint64_t Tokenizer::Hash() const { return parts_->hash; }

struct Detokenizer::State {
  const Tokenizer::Parts* parts;
  SpecialTokens special;
  tok::DecodeStream stream;
};

Detokenizer::Detokenizer(const Tokenizer* tokenizer, SpecialTokens special)
    : state_(new State{tokenizer->parts_.get(), special,
                       tok::DecodeStream(&tokenizer->parts_->decoder)}) {}
Detokenizer::~Detokenizer() = default;
Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;
Detokenizer& Detokenizer::operator=(Detokenizer&&) noexcept = default;

std::string Detokenizer::Push(TokenId token) {
  std::string text;
  const std::optional<std::string_view> form = state_->parts->Token(token);
  if (!form.has_value()) return text;
  if (state_->special == SpecialTokens::kSkip && state_->parts->added.IsSpecialContent(*form)) {
    return text;
  }
  state_->stream.Token(*form, &text);
  return text;
}

std::string Detokenizer::Finish() {
  std::string text;
  state_->stream.Finish(&text);
  return text;
}

}  // namespace headway
