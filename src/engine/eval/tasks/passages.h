// Questions about given texts, as SQuAD and HotpotQA publish them: the paragraphs that answer a
// question lie among others of the same file.
#ifndef HEADWAY_ENGINE_EVAL_TASKS_PASSAGES_H_
#define HEADWAY_ENGINE_EVAL_TASKS_PASSAGES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/eval/retrieval.h"
#include "headway/status.h"

namespace headway::eval {

struct Passages {
  struct Asked {
    std::string question;
    std::vector<std::string> answers;  // any of which is right
    std::vector<size_t> golden;        // the paragraphs that answer it
  };
  std::vector<std::string> paragraphs;  // each once
  std::vector<Asked> questions;

  bool empty() const { return questions.empty(); }
};

// A JSON file as SQuAD has it ("data", "paragraphs", "qas"; questions without an answer are left
// out), or as HotpotQA has it (a list of "question", "answer", "context" and "supporting_facts").
// `name` is the file's, for messages.
Result<Passages> ParsePassages(std::string_view json, const std::string& name);

// The order in which a document about `asked` gets paragraphs: the golden ones, then all others.
std::vector<size_t> PassageOrder(const Passages& passages, const Passages::Asked& asked,
                                 uint64_t seed);

// The question about a document of the first `count` paragraphs of `order`, at least the golden
// ones, which lie at random places among them.
RetrievalLine AskAboutPassages(const Passages& passages, const Passages::Asked& asked,
                               std::span<const size_t> order, int64_t count, uint64_t seed);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_TASKS_PASSAGES_H_
