#include "cli/eval_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

namespace headway::cli {
namespace {

Json GroupsJson(const Answers& answers) {
  const std::vector<eval::GroupScore> groups = eval::GroupScores(answers.results, answers.grouping);
  const std::vector<eval::GroupScore> exact = eval::GroupScores(answers.exact, answers.grouping);
  Json all = Json::array();
  for (size_t i = 0; i < groups.size(); ++i) {
    Json json = Json::object();
    for (const auto& [name, value] : groups[i].labels) json["labels"][name] = value;
    json["lines"] = groups[i].questions;
    json["score"] = groups[i].score;
    if (!exact.empty()) json["exact_score"] = exact[i].score;
    all.push_back(std::move(json));
  }
  return all;
}

std::string LabelOf(const eval::Labels& labels, const std::string& name) {
  for (const auto& [label, value] : labels) {
    if (label == name) return value;
  }
  return "-";
}

// A column a label, in the order in which they come; or "of", where groups have one label each.
std::string GroupsTable(const Answers& answers) {
  const std::vector<eval::GroupScore> groups = eval::GroupScores(answers.results, answers.grouping);
  if (groups.size() < 2) return "";
  const std::vector<eval::GroupScore> exact = eval::GroupScores(answers.exact, answers.grouping);
  std::vector<std::string> names;
  for (const eval::GroupScore& group : groups) {
    for (const auto& [name, value] : group.labels) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  const bool together = answers.grouping == eval::Grouping::kTogether;
  std::vector<std::vector<std::string>> rows(1);
  rows[0] = together ? names : std::vector<std::string>{"label", "value"};
  rows[0].insert(rows[0].end(), {"lines", "score"});
  if (!exact.empty()) rows[0].push_back("exact");
  for (size_t i = 0; i < groups.size(); ++i) {
    std::vector<std::string> row;
    if (together) {
      for (const std::string& name : names) row.push_back(LabelOf(groups[i].labels, name));
    } else {
      row = {groups[i].labels[0].first, groups[i].labels[0].second};
    }
    row.push_back(std::to_string(groups[i].questions));
    row.push_back(fmt::format("{:.4f}", groups[i].score));
    if (!exact.empty()) row.push_back(fmt::format("{:.4f}", exact[i].score));
    rows.push_back(std::move(row));
  }
  std::vector<bool> right(rows[0].size(), true);
  right[0] = false;
  return FormatTable(rows, right);
}

int64_t PromptTokens(const std::vector<eval::Answered>& results) {
  int64_t tokens = 0;
  for (const eval::Answered& result : results) tokens += result.prompt_tokens;
  return tokens;
}

}  // namespace

Json ApproximationsJson(const std::vector<eval::Approximation>& approximations) {
  Json all = Json::array();
  for (const eval::Approximation& approximation : approximations) {
    Json json = {{"name", approximation.name}};
    for (const auto& [name, value] : approximation.parameters) {
      std::visit([&, &key = name](const auto& v) { json[key] = v; }, value);
    }
    all.push_back(std::move(json));
  }
  return all;
}

std::string ApproximationsText(const std::vector<eval::Approximation>& approximations) {
  std::string text;
  for (const eval::Approximation& approximation : approximations) {
    std::string parameters;
    for (const auto& [name, value] : approximation.parameters) {
      parameters += (parameters.empty() ? "" : ", ") + name + " " +
                    std::visit([](const auto& v) { return fmt::format("{}", v); }, value);
    }
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", approximation.name, parameters);
  }
  return text.empty() ? "none; all is exact" : text;
}

std::string AnswersJson(const Answers& answers) {
  Json list = Json::array();
  for (size_t i = 0; i < answers.results.size(); ++i) {
    const eval::Answered& result = answers.results[i];
    Json json = {{"id", result.id},
                 {"output", result.output},
                 {"score", result.score},
                 {"prompt_tokens", result.prompt_tokens}};
    if (result.reused_tokens > 0) json["reused_tokens"] = result.reused_tokens;
    for (const auto& [name, value] : result.labels) json["labels"][name] = value;
    if (!answers.exact.empty()) {
      json["exact_output"] = answers.exact[i].output;
      json["exact_score"] = answers.exact[i].score;
    }
    list.push_back(std::move(json));
  }
  Json json = {{"score", eval::MeanScore(answers.results)}};
  if (!answers.exact.empty()) json["exact_score"] = eval::MeanScore(answers.exact);
  json["groups"] = GroupsJson(answers);
  json["results"] = std::move(list);
  json["approximations"] = ApproximationsJson(answers.approximations);
  json["prompt_tokens"] = PromptTokens(answers.results);
  json["seconds"] = answers.seconds;
  json["kv_bytes"] = TiersJson(answers.tiers);
  return Dump(json);
}

std::string AnswersText(const Answers& answers) {
  std::string text;
  for (size_t i = 0; i < answers.results.size(); ++i) {
    const eval::Answered& result = answers.results[i];
    std::string output = result.output;
    std::replace(output.begin(), output.end(), '\n', ' ');
    text += fmt::format("{:.2f}  ", result.score);
    if (!answers.exact.empty()) text += fmt::format("(exact {:.2f})  ", answers.exact[i].score);
    text += fmt::format("{}  {}\n", result.id, output);
  }
  text += GroupsTable(answers);
  text += fmt::format("score {:.4f} over {} lines of {} prompt tokens in all, in {:.1f} s\n",
                      eval::MeanScore(answers.results), answers.results.size(),
                      FormatCount(PromptTokens(answers.results)), answers.seconds);
  if (!answers.exact.empty()) {
    text += fmt::format("exact {:.4f}; approximation: {}\n", eval::MeanScore(answers.exact),
                        ApproximationsText(answers.approximations));
  }
  return text;
}

}  // namespace headway::cli
