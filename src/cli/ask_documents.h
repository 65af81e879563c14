// Asks the questions about a command's documents, one after the other, and prints how they were
// answered: what `eval retrieval` and `eval file` share.
#ifndef HEADWAY_CLI_ASK_DOCUMENTS_H_
#define HEADWAY_CLI_ASK_DOCUMENTS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cli/console.h"
#include "cli/flags.h"
#include "engine/eval/question.h"

namespace headway::cli {

struct AskFlags {
  ModelFlags model;
  SamplingFlags sampling;
  OutputFlags output;
  ChatOptions template_options;
  int64_t max_tokens = 64;
  bool compare = false;
};
// All but those of the model.
void AddAskFlags(CLI::App& app, const std::string& group, AskFlags* flags);
// What is wrong with the combination, empty when nothing is.
std::string CheckAskFlags(const AskFlags& flags);

// What the command's reader or generator found.
struct Asked {
  std::vector<eval::Document> documents;
  eval::Grouping grouping = eval::Grouping::kTogether;
  // Whether --max-tokens was given: it then holds for all questions, which else have their own.
  bool own_max_tokens = false;
};

// A note about members of a file that nothing reads, which are in quotes; none where there are
// none.
void SayKeysNotRead(const std::set<std::string>& others, const std::string& name, Console& console);

// Runs all and prints the result; the exit status.
int AskAndPrint(const AskFlags& flags, const Asked& asked, Engine& engine, Console& console);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_ASK_DOCUMENTS_H_
