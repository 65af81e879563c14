#include "engine/eval/tasks/passages.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/eval/tasks/words.h"

namespace headway::eval {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 100;  // copying a value takes stack for each level

// A member of an object, a discarded value where it is not there.
const Json& Member(const Json& object, const char* key) {
  static const Json kNone(Json::value_t::discarded);
  if (!object.is_object()) return kNone;
  const auto found = object.find(key);
  return found != object.end() ? *found : kNone;
}

// Collects paragraphs, each once, whatever the number of questions about it.
class Collector {
 public:
  explicit Collector(std::string name) : name_(std::move(name)) {}

  size_t Paragraph(std::string text) {
    const auto [at, fresh] = known_.try_emplace(text, passages_.paragraphs.size());
    if (fresh) passages_.paragraphs.push_back(std::move(text));
    return at->second;
  }
  Status Wrong(const std::string& where, const std::string& what) const {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}, {}: {}", name_, where, what));
  }

  Status Squad(const Json& data);
  Status Hotpot(const Json& list);
  Passages Take() { return std::move(passages_); }

 private:
  Status SquadParagraph(const Json& paragraph, const std::string& where);
  Status HotpotItem(const Json& item, const std::string& where);

  const std::string name_;
  Passages passages_;
  std::map<std::string, size_t> known_;
};

Status Collector::SquadParagraph(const Json& paragraph, const std::string& where) {
  const Json& context = Member(paragraph, "context");
  if (!context.is_string()) return Wrong(where, "\"context\" must be a string");
  const size_t index = Paragraph(context.get<std::string>());
  const Json& all = Member(paragraph, "qas");
  if (!all.is_array()) return Wrong(where, "\"qas\" must be a list");
  for (const Json& one : all) {
    Passages::Asked asked;
    const Json& question = Member(one, "question");
    const Json& answers = Member(one, "answers");
    if (!question.is_string() || !answers.is_array()) {
      return Wrong(where, "each of \"qas\" must have a \"question\" and a list of \"answers\"");
    }
    asked.question = question.get<std::string>();
    for (const Json& answer : answers) {
      const Json& text = Member(answer, "text");
      if (!text.is_string()) return Wrong(where, "each answer must have a \"text\"");
      std::string words = text.get<std::string>();
      if (!words.empty() && std::ranges::find(asked.answers, words) == asked.answers.end()) {
        asked.answers.push_back(std::move(words));
      }
    }
    asked.golden = {index};
    if (!asked.answers.empty()) passages_.questions.push_back(std::move(asked));
  }
  return OkStatus();
}

Status Collector::Squad(const Json& data) {
  if (!data.is_array()) return Wrong("\"data\"", "must be a list");
  for (size_t i = 0; i < data.size(); ++i) {
    const Json& paragraphs = Member(data[i], "paragraphs");
    const std::string where = fmt::format("article {}", i + 1);
    if (!paragraphs.is_array()) return Wrong(where, "\"paragraphs\" must be a list");
    for (const Json& paragraph : paragraphs) {
      if (Status s = SquadParagraph(paragraph, where); !s.ok()) return s;
    }
  }
  return OkStatus();
}

// "context": [["Title", ["A sentence.", " Another."]], ...], "supporting_facts": [["Title", 0],
// ...]
Status Collector::HotpotItem(const Json& item, const std::string& where) {
  const Json& question = Member(item, "question");
  const Json& answer = Member(item, "answer");
  const Json& context = Member(item, "context");
  if (!question.is_string() || !answer.is_string() ||
      answer.get_ref<const std::string&>().empty() || !context.is_array()) {
    return Wrong(where, "needs a \"question\", an \"answer\" and a list of \"context\"");
  }
  std::set<std::string> supporting;
  const Json& facts = Member(item, "supporting_facts");
  if (!facts.is_array()) return Wrong(where, "\"supporting_facts\" must be a list");
  for (const Json& fact : facts) {
    if (fact.is_array() && !fact.empty() && fact[0].is_string()) {
      supporting.insert(fact[0].get<std::string>());
    }
  }
  Passages::Asked asked{question.get<std::string>(), {answer.get<std::string>()}, {}};
  for (const Json& entry : context) {
    const bool good =
        entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_array();
    if (!good) return Wrong(where, "each of \"context\" must be a title and a list of sentences");
    std::string text = entry[0].get<std::string>() + "\n";
    for (const Json& sentence : entry[1]) {
      if (!sentence.is_string()) return Wrong(where, "each sentence must be a string");
      text += sentence.get_ref<const std::string&>();
    }
    const size_t index = Paragraph(std::move(text));
    if (supporting.contains(entry[0].get<std::string>())) asked.golden.push_back(index);
  }
  if (asked.golden.empty()) return Wrong(where, "no paragraph has one of the \"supporting_facts\"");
  std::ranges::sort(asked.golden);
  asked.golden.erase(std::unique(asked.golden.begin(), asked.golden.end()), asked.golden.end());
  passages_.questions.push_back(std::move(asked));
  return OkStatus();
}

Status Collector::Hotpot(const Json& list) {
  for (size_t i = 0; i < list.size(); ++i) {
    if (Status s = HotpotItem(list[i], fmt::format("question {}", i + 1)); !s.ok()) return s;
  }
  return OkStatus();
}

}  // namespace

Result<Passages> ParsePassages(std::string_view json, const std::string& name) {
  bool deep = false;
  const auto see = [&](int depth, Json::parse_event_t, const Json&) {
    deep = deep || depth > kMaxDepth;
    return !deep;
  };
  const Json value = Json::parse(json, see, /*allow_exceptions=*/false);
  if (deep) return Status(StatusCode::kInvalidArgument, name + " is nested too deeply");
  Collector collector(name);
  Status status = OkStatus();
  if (value.is_object() && value.contains("data")) {
    status = collector.Squad(value["data"]);
  } else if (value.is_array()) {
    status = collector.Hotpot(value);
  } else {
    return Status(StatusCode::kInvalidArgument,
                  name +
                      " is no JSON of questions: neither an object with \"data\" (SQuAD) nor a "
                      "list (HotpotQA)");
  }
  if (!status.ok()) return status;
  Passages passages = collector.Take();
  if (passages.empty()) {
    return Status(StatusCode::kInvalidArgument, name + " has no question with an answer");
  }
  return passages;
}

std::vector<size_t> PassageOrder(const Passages& passages, const Passages::Asked& asked,
                                 uint64_t seed) {
  std::vector<size_t> others;
  for (size_t i = 0; i < passages.paragraphs.size(); ++i) {
    if (!std::ranges::binary_search(asked.golden, i)) others.push_back(i);
  }
  Random random(seed);
  Shuffle(random, &others);
  std::vector<size_t> order = asked.golden;
  order.insert(order.end(), others.begin(), others.end());
  return order;
}

RetrievalLine AskAboutPassages(const Passages& passages, const Passages::Asked& asked,
                               std::span<const size_t> order, int64_t count, uint64_t seed) {
  const auto golden = static_cast<int64_t>(asked.golden.size());
  const std::span<const size_t> taken = order.first(static_cast<size_t>(std::max(count, golden)));
  std::vector<size_t> placed(taken.begin() + golden, taken.end());
  Random random(seed);
  for (const size_t paragraph : asked.golden) {
    const auto places = static_cast<double>(placed.size() + 1);
    placed.insert(placed.begin() + static_cast<ptrdiff_t>(random.Uniform() * places), paragraph);
  }
  RetrievalLine line;
  for (size_t i = 0; i < placed.size(); ++i) {
    line.context += fmt::format("{}Document {}:\n{}", i == 0 ? "" : "\n\n", i + 1,
                                passages.paragraphs[placed[i]]);
  }
  line.question =
      "Answer the question from the documents above, in as few words as possible. "
      "Question: " +
      asked.question;
  line.answer = asked.answers;
  return line;
}

}  // namespace headway::eval
