#include "cli/eval_text.h"

#include <CLI/App.hpp>
#include <utility>

#include "cli/flags.h"
#include "engine/eval/perplexity.h"

namespace headway::cli {
namespace {

Result<std::optional<TokenId>> ChooseBos(const std::string& bos, const Engine& engine) {
  if (bos == "auto") return eval::TokenizerBos(engine);
  if (bos == "never") return std::optional<TokenId>();
  if (engine.info().bos.has_value()) return engine.info().bos;
  return Status(StatusCode::kInvalidArgument,
                "--bos always: " + engine.info().folder + " names no beginning-of-text token");
}

}  // namespace

void AddEvalTextFlags(CLI::App& app, const std::string& group, EvalTextFlags* flags) {
  AddText(app, group, "-f,--file", &flags->file, "the text; - is standard input")
      ->required()
      ->type_name("FILE");
  AddNumber(app, group, "-c,--context,--ctx-size", &flags->context, {2, kMaxCount},
            "tokens of a window")
      ->required();
  AddChoice(app, group, "--bos", &flags->bos, {"auto", "always", "never"},
            "whether a window begins with the beginning-of-text token, which counts as one of its "
            "tokens: auto, where the tokenizer puts it before a text; always; never");
}

Result<EvalText> EncodeEvalText(const EvalTextFlags& flags, const std::string& text,
                                const Engine& engine) {
  Result<std::vector<TokenId>> tokens =
      engine.Encode(text, {.add_special_tokens = false, .parse_special = true});
  if (!tokens.ok()) return tokens.status();
  Result<std::optional<TokenId>> bos = ChooseBos(flags.bos, engine);
  if (!bos.ok()) return bos.status();
  return EvalText{std::move(*tokens), *bos};
}

}  // namespace headway::cli
