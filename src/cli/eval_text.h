// The text that eval commands read in windows.
#ifndef HEADWAY_CLI_EVAL_TEXT_H_
#define HEADWAY_CLI_EVAL_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "headway/engine.h"

namespace headway::cli {

struct EvalTextFlags {
  std::string file;  // "-": standard input
  int64_t context = 0;
  std::string bos = "auto";
};
void AddEvalTextFlags(CLI::App& app, const std::string& group, EvalTextFlags* flags);

struct EvalText {
  std::vector<TokenId> tokens;
  std::optional<TokenId> bos;  // what each window begins with
};
// `text` is what the file has.
Result<EvalText> EncodeEvalText(const EvalTextFlags& flags, const std::string& text,
                                const Engine& engine);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_EVAL_TEXT_H_
