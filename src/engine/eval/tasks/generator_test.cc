#include "engine/eval/tasks/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "engine/eval/tasks/haystack.h"

namespace headway::eval {
namespace {

using ::testing::HasSubstr;

// A tokenizer of its own: a token for every 4 bytes of a word, and 10 for the template.
int64_t CountTokens(std::string_view text) {
  int64_t tokens = 0;
  size_t run = 0;
  for (char c : text) {
    if (c == ' ' || c == '\n') run = 0;
    tokens += run++ % 4 == 0 ? 1 : 0;
  }
  return tokens;
}

TextMeasure FakeMeasure() {
  TextMeasure measure;
  measure.tokens = [](std::string_view text) -> Result<int64_t> { return CountTokens(text); };
  measure.prompt_tokens = [](const RetrievalLine& line) -> Result<int64_t> {
    return CountTokens(AskAbout(line.context, line.question)) + 10;
  };
  return measure;
}

RetrievalRequest RequestOf(int64_t count, int64_t length, uint64_t seed) {
  RetrievalRequest request;
  request.count = count;
  request.lengths = {length};
  request.seed = seed;
  request.tasks = DemoTasks();
  return request;
}

std::vector<RetrievalLine> Generate(const RetrievalRequest& request) {
  Result<std::vector<RetrievalLine>> lines = GenerateRetrieval(request, FakeMeasure());
  EXPECT_TRUE(lines.ok()) << lines.status().message();
  return lines.ok() ? std::move(*lines) : std::vector<RetrievalLine>();
}

TEST(RetrievalGenerator, IsTheSameForASeed) {
  const auto a = Generate(RequestOf(10, 1000, 1)), b = Generate(RequestOf(10, 1000, 1));
  const auto other = Generate(RequestOf(10, 1000, 2));
  ASSERT_EQ(a.size(), 10u);
  ASSERT_EQ(b.size(), 10u);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(RetrievalLineJson(a[i]), RetrievalLineJson(b[i]));
    EXPECT_NE(RetrievalLineJson(a[i]), RetrievalLineJson(other[i]));
  }
  // A shorter list is the beginning of a longer one.
  const auto shorter = Generate(RequestOf(3, 1000, 1));
  ASSERT_EQ(shorter.size(), 3u);
  EXPECT_EQ(RetrievalLineJson(shorter[2]), RetrievalLineJson(a[2]));
}

TEST(RetrievalGenerator, NearlyReachesTheLength) {
  for (int64_t length : {512, 2048, 16384}) {
    for (const RetrievalLine& line : Generate(RequestOf(10, length, 3))) {
      const int64_t tokens = *FakeMeasure().prompt_tokens(line);
      EXPECT_LE(tokens, length) << line.id;
      EXPECT_GE(tokens, length - std::max<int64_t>(50, length / 100)) << line.id;
    }
  }
}

size_t Occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(RetrievalGenerator, HidesTheAnswerOnce) {
  const auto lines = Generate(RequestOf(50, 1500, 4));
  std::set<std::string> ids;
  for (const RetrievalLine& line : lines) {
    EXPECT_TRUE(ids.insert(line.id).second);
    for (const std::string& answer : line.answer) {
      EXPECT_THAT(line.context, HasSubstr(answer)) << line.id;
      EXPECT_EQ(line.question.find(answer), std::string::npos) << line.id;
    }
    EXPECT_NE(line.context.front(), ' ');
    EXPECT_NE(line.context.back(), '\n');
  }
  const auto key_of = [](const RetrievalLine& line, size_t begin, const char* end) {
    return line.question.substr(begin, line.question.find(end) - begin);
  };
  for (size_t i = 0; i < lines.size(); i += 5) {
    const std::string needle = key_of(lines[i], 37, " mentioned");
    EXPECT_EQ(Occurrences(lines[i].context, " One of the special magic numbers for " + needle +
                                                " is: " + lines[i].answer[0] + "."),
              1u)
        << lines[i].question;
    EXPECT_EQ(Occurrences(lines[i + 1].context,
                          "The pass key is " + lines[i + 1].answer[0] + ". Remember it. "),
              1u);
    const std::string place = key_of(lines[i + 2], 13, " stored");
    EXPECT_EQ(Occurrences(lines[i + 2].context + "\n",
                          "\nThe " + place + " is stored in the " + lines[i + 2].answer[0] + ".\n"),
              1u);
    const RetrievalLine& chain = lines[i + 3];
    EXPECT_GE(chain.answer.size(), 2u);
    for (size_t j = 1; j < chain.answer.size(); ++j) {
      const std::string link = "\nVAR " + chain.answer[j] + " = VAR " + chain.answer[j - 1] + "\n";
      EXPECT_EQ(Occurrences(chain.context + "\n", link), 1u);
    }
    const RetrievalLine& passage = lines[i + 4];
    const std::string head = passage.question.substr(passage.question.find(':') + 1);
    EXPECT_GE(CountTokens(head), 8);
    EXPECT_EQ(Occurrences(passage.context, head), 1u);
    EXPECT_EQ(Occurrences(passage.context, head + " " + passage.answer[0]), 1u);
  }
}

TEST(RetrievalGenerator, UsesTheGivenHaystack) {
  std::string text;
  const Haystack made_up = Haystack::Generate(40'000, 9);
  for (const std::string& piece : made_up.pieces()) text += piece;
  RetrievalRequest request = RequestOf(4, 1000, 5);
  request.tasks = {RetrievalTask::kPasskey};
  request.haystack = text;
  std::set<std::string> starts;
  for (const RetrievalLine& line : Generate(request)) {
    const size_t fact = line.context.find(" The pass key is");
    ASSERT_NE(fact, std::string::npos);
    EXPECT_THAT(text, HasSubstr(line.context.substr(0, fact)));
    starts.insert(line.context.substr(0, 40));
  }
  EXPECT_GT(starts.size(), 2u);

  request.haystack = text.substr(0, 1000);
  const auto short_one = GenerateRetrieval(request, FakeMeasure());
  ASSERT_FALSE(short_one.ok());
  EXPECT_THAT(short_one.status().message(),
              HasSubstr("take a shorter prompt_length or a longer haystack"));
}

TEST(RetrievalGenerator, RefusesWhatItCannotMake) {
  for (const RetrievalRequest& request :
       {RequestOf(0, 1000, 1), RequestOf(1'000'000'000, 1000, 1), RequestOf(1, 100, 1),
        RequestOf(1, int64_t{1} << 40, 1)}) {
    EXPECT_FALSE(GenerateRetrieval(request, FakeMeasure()).ok());
  }
  RetrievalRequest one_word = RequestOf(1, 300, 1);
  one_word.tasks = {RetrievalTask::kPassage};
  for (int i = 0; i < 2000; ++i) one_word.haystack += "word ";
  const auto ambiguous = GenerateRetrieval(one_word, FakeMeasure());
  ASSERT_FALSE(ambiguous.ok());
  EXPECT_THAT(ambiguous.status().message(),
              HasSubstr("unambiguous; take a longer prompt_length or another haystack"));
}

// All of RULER's tasks but questions, three lines each.
std::vector<RetrievalLine> GenerateRuler(int64_t length, uint64_t seed) {
  RetrievalRequest request = RequestOf(24, length, seed);
  request.tasks = *ParseRetrievalTasks("ruler");
  return Generate(request);
}

TEST(RetrievalGenerator, MakesRulersTasksOfTheLengthAsked) {
  for (const int64_t length : {512, 4096, 32768}) {
    for (const RetrievalLine& line : GenerateRuler(length, 5)) {
      const int64_t tokens = *FakeMeasure().prompt_tokens(line);
      EXPECT_LE(tokens, length) << line.id;
      EXPECT_GE(tokens, length - std::max<int64_t>(50, length / 100)) << line.id;
      EXPECT_EQ(line.labels[1], (Labels::value_type{"length", std::to_string(length)}));
      for (const std::string& answer : line.answer) {
        EXPECT_THAT(line.context, HasSubstr(answer)) << line.id;
        EXPECT_EQ(line.question.find(answer), std::string::npos) << line.id;
      }
    }
  }
}

TEST(RetrievalGenerator, HidesAsManyNeedlesAsRulerDoes) {
  const auto lines = GenerateRuler(2048, 6);
  ASSERT_EQ(lines.size(), 24u);
  const std::string fact = " One of the special magic numbers for ";
  const auto key_of = [](const RetrievalLine& line) {
    return line.question.substr(37, line.question.find(" mentioned") - 37);
  };
  for (size_t i = 0; i < lines.size(); i += 8) {
    EXPECT_EQ(lines[i].id, "niah-single-" + std::to_string(i));
    EXPECT_EQ(Occurrences(lines[i].context, fact), 1u);
    EXPECT_EQ(Occurrences(lines[i + 1].context, fact), 4u);
    EXPECT_EQ(Occurrences(lines[i + 1].context, fact + key_of(lines[i + 1]) + " is: "), 1u);
    // Nothing but needles, one of which has the key.
    const RetrievalLine& full = lines[i + 2];
    EXPECT_GT(Occurrences(full.context, fact), 40u);
    EXPECT_EQ(Occurrences(full.context, fact + key_of(full) + " is: " + full.answer[0] + "."), 1u);
    EXPECT_EQ(Occurrences(full.context, " " + key_of(full) + " "), 1u);
    EXPECT_THAT(full.context, ::testing::StartsWith("One of the special"));
    // One key with four values, and four keys that are all asked for.
    EXPECT_EQ(lines[i + 3].answer.size(), 4u);
    for (const std::string& answer : lines[i + 3].answer) {
      EXPECT_EQ(Occurrences(lines[i + 3].context, " is: " + answer + "."), 1u);
    }
    EXPECT_EQ(lines[i + 4].answer.size(), 4u);
    EXPECT_EQ(Occurrences(lines[i + 4].context, fact), 4u);
    EXPECT_EQ(Occurrences(lines[i + 4].question, "-"), 4u) << lines[i + 4].question;
    EXPECT_EQ(lines[i + 5].answer.size(), 5u);
    EXPECT_EQ(Occurrences(lines[i + 5].context, " = VAR "), 4u);
    EXPECT_EQ(lines[i + 6].answer.size(), 3u);
    EXPECT_EQ(lines[i + 7].answer.size(), 10u);
    EXPECT_EQ(lines[i + 3].metric, Metric::kContainsFolded);
    EXPECT_GT(lines[i + 7].max_tokens, lines[i + 6].max_tokens);
  }
}

TEST(RetrievalGenerator, HidesPasskeysAtTheDepthAsked) {
  RetrievalRequest request = RequestOf(6, 4000, 7);
  request.tasks = {RetrievalTask::kPasskey};
  request.depths = {0.0, 0.5, 1.0};
  const auto lines = Generate(request);
  ASSERT_EQ(lines.size(), 6u);
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto at = static_cast<double>(lines[i].context.find(" The pass key is"));
    const double place = at / static_cast<double>(lines[i].context.size());
    EXPECT_NEAR(place, request.depths[i % 3], 0.03) << lines[i].id;
    EXPECT_EQ(lines[i].labels[2].first, "depth");
  }
  EXPECT_EQ(lines[1].labels[2].second, "50 %");
}

TEST(RetrievalGenerator, MakesSeveralLengths) {
  RetrievalRequest request = RequestOf(2, 512, 8);
  request.lengths = {512, 1024};
  request.tasks = {RetrievalTask::kPasskey};
  const auto lines = Generate(request);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].id, "passkey-0-512");
  EXPECT_EQ(lines[3].id, "passkey-1-1024");
  EXPECT_GT(lines[2].context.size(), lines[0].context.size());
}

TEST(RetrievalGenerator, AsksAboutGivenTexts) {
  RetrievalRequest request = RequestOf(5, 1000, 9);
  request.tasks = {RetrievalTask::kQuestions};
  EXPECT_FALSE(GenerateRetrieval(request, FakeMeasure()).ok());
  for (int i = 0; i < 60; ++i) {
    const std::string number = std::to_string(i);
    std::string text;
    for (int j = 0; j < 12; ++j) text += "Sentence " + std::to_string(j) + " of them. ";
    request.passages.paragraphs.push_back(text + "The fact is x" + number + "x.");
    request.passages.questions.push_back(
        {"What is " + number + "?", {"x" + number + "x"}, {static_cast<size_t>(i)}});
  }
  for (const RetrievalLine& line : Generate(request)) {
    EXPECT_EQ(Occurrences(line.context, line.answer[0]), 1u);
    EXPECT_THAT(line.context, ::testing::StartsWith("Document 1:\n"));
    EXPECT_EQ(line.metric, Metric::kContainsAny);
    const int64_t tokens = *FakeMeasure().prompt_tokens(line);
    EXPECT_LE(tokens, 1000);
    EXPECT_GE(tokens, 850);  // a paragraph more would be too many
  }
  request.lengths = {100'000};
  const auto too_few = GenerateRetrieval(request, FakeMeasure());
  ASSERT_FALSE(too_few.ok());
  EXPECT_THAT(too_few.status().message(), HasSubstr("or a larger file of questions"));
}

TEST(RetrievalTasks, AreParsed) {
  const auto tasks = ParseRetrievalTasks("passkey,variables");
  ASSERT_TRUE(tasks.ok());
  EXPECT_EQ(*tasks, (std::vector{RetrievalTask::kPasskey, RetrievalTask::kVariables}));
  const auto ruler = ParseRetrievalTasks("ruler,qa");
  ASSERT_TRUE(ruler.ok());
  EXPECT_EQ(ruler->size(), 9u);
  for (const char* bad : {"", "passkey,", "needles", "passkey,,place"}) {
    EXPECT_FALSE(ParseRetrievalTasks(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace headway::eval
