#include "cli/selection_flags.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <iterator>
#include <string>

#include "cli/flags.h"
#include "cli/help_formatter.h"

namespace headway::cli {
namespace {

// A number whose default is a number, too.
template <typename T>
CLI::Option* AddDefaulted(CLI::App& app, const std::string& group, const std::string& name,
                          T* target, const Bounds<std::type_identity_t<T>>& bounds,
                          const std::string& help) {
  return AddNumber(app, group, name, target, bounds, help)->default_str(fmt::format("{}", *target));
}

// Why a selector does not go with the policy that is given; empty: it does.
std::string WrongSelector(const CLI::Option& policy, const std::string& name) {
  const HipPreset* preset = policy.count() > 0 ? HipPresetOf(policy.results().front()) : nullptr;
  if (preset == nullptr || name == kInfiniteHip) return "";
  return fmt::format("{} does not go with --policy {}, which has a selector of its own", name,
                     preset->policy);
}

// What infinitehip has beside the others.
void AddHipFlags(CLI::App& app, const std::string& sparse, EngineOptions& engine) {
  AddText(app, sparse, "--hip-stages", &engine.hip_stages,
          "infinitehip's stages before the last: chunks of keys, and the keys of those that "
          "survive")
      ->type_name("CHUNK:KEYS,...")
      ->default_str(engine.hip_stages);
  AddText(app, sparse, "--hip-refresh", &engine.hip_refresh,
          "infinitehip: tokens that one run of each of these stages is for, in decode and until a "
          "page is full, each a multiple of the next and the last of --sparse-refresh; without it "
          "all stages run for each choice")
      ->type_name("TOKENS,...")
      ->default_str("none, with --policy infinitehip 16,8, -fast 32,16 and -flash 96,24");
  AddDefaulted(
      app, sparse, "--hip-outer-keys", &engine.hip_outer_keys, {0, kMaxCount},
      "infinitehip: keys that a head of the first four layers and of the last one chooses; 0: "
      "as many as others");
  AddChoice(app, sparse, "--hip-positions", &engine.hip_positions,
            {"published", "chunk", "relative", "one"},
            "infinitehip beyond the trained window: where keys count while they are scored; chunk, "
            "by the number of their chunk, relative, the two that are compared one behind the "
            "other, published, chunk in the first three layers and relative in the others, one, "
            "all at one distance");
}

// How many keys a head chooses.
void AddBudgetFlags(CLI::App& app, const std::string& sparse, EngineOptions& engine) {
  AddDefaulted(app, sparse, "--sparse-keys", &engine.sparse_keys, {1, kMaxCount},
               "keys that a KV head chooses for each token, on average");
  AddDefaulted(
      app, sparse, "--sparse-share", &engine.sparse_share, {0.0, 1.0},
      "share of the context's keys that it chooses where these are more than --sparse-keys")
      ->type_name("X");
  AddDefaulted(
      app, sparse, "--sparse-top-p", &engine.sparse_top_p, {0.0, 1.0},
      "choose as few keys as get this share of the attention to all far keys, by the "
      "selector's estimate, of a layer's heads together where these share their keys: from "
      "--sparse-least to --sparse-keys; 0: always as many")
      ->type_name("P");
  AddDefaulted(app, sparse, "--sparse-least", &engine.sparse_least, {1, kMaxCount},
               "fewest keys that a KV head chooses with --sparse-top-p, on average");
  AddDefaulted(
      app, sparse, "--sparse-epsilon", &engine.sparse_epsilon, {0.0, 1.0},
      "choose --sparse-keys keys or more, up to all, of each KV head for itself, so that what "
      "a new token leaves out has at most this share of its attention, as a sample of the "
      "keys tells; 0: no bound")
      ->type_name("E");
  AddDefaulted(app, sparse, "--sparse-delta", &engine.sparse_delta, {0.0, 1.0},
               "probability with which what a head leaves out may have more than --sparse-epsilon")
      ->type_name("D");
}

// What prompts choose, and contexts beyond the trained window.
void AddPromptFlags(CLI::App& app, const std::string& sparse, EngineOptions& engine) {
  app.add_flag("--sparse-prefill", engine.sparse_prefill,
               "prompts are read so, too: blocks of their tokens choose keys")
      ->group(sparse);
  AddDefaulted(
      app, sparse, "--sparse-dense-every", &engine.sparse_dense_every, {0, kMaxCount},
      "of a prompt's tokens that choose keys, one of N reads all keys besides, and what that "
      "changes is added to those up to the next; it costs the bus what an exact prompt does; "
      "0: none");
  AddChoice(app, sparse, "--reach", &engine.reach, {"auto", "on", "off"},
            "beyond the window that the model was trained for: attend to chosen keys as if they "
            "lay next to each other, in prompts, too; auto: where the context is longer");
  AddChoice(app, sparse, "--reach-positions", &engine.reach_positions, {"streamingllm", "infllm"},
            "there, for comparison: infllm attends to far keys as if all of them lay just before "
            "the recent ones");
}

}  // namespace

const HipPreset* HipPresetOf(std::string_view policy) {
  const auto* const preset = std::ranges::find(kHipPresets, policy, &HipPreset::policy);
  return preset == std::end(kHipPresets) ? nullptr : preset;
}

void AddSelectionFlags(CLI::App& app, EngineOptions& engine) {
  const std::string sparse = More("Selection (an approximation)");
  app.add_flag_function(
         "--sparse",
         [&engine](int64_t) {
           if (engine.selector == EngineOptions{}.selector) engine.selector = "pages";
         },
         "each new token reads the keys that matter to it, chosen by summaries of the cache, and "
         "leaves out the rest; prompts are read exactly unless --sparse-prefill or --reach says "
         "otherwise")
      ->group("Memory");
  AddChoice(app, sparse, "--selector", &engine.selector,
            {"none", "pages", "quest", "infllm", "infinitehip", "oracle", "oracle-heads"},
            "how keys are chosen: pages, by mean and variance of blocks; for comparison quest, by "
            "their least and greatest keys, infllm, by two of their keys, infinitehip, by keys "
            "that stand for chunks, and oracle "
            "and oracle-heads, by all keys; --sparse is pages")
      ->check([policy = app.get_option("--policy")](
                  const std::string& name) { return WrongSelector(*policy, name); },
              "");
  AddBudgetFlags(app, sparse, engine);
  AddDefaulted(app, sparse, "--sparse-sink", &engine.sparse_sink, {0, kMaxCount},
               "first keys that are always read");
  AddDefaulted(app, sparse, "--sparse-recent", &engine.sparse_recent, {1, kMaxCount},
               "last keys that are always read");
  AddNumber(app, sparse, "--sparse-block", &engine.sparse_block, {0, 4096},
            "keys that are chosen together; 0: the default")
      ->default_str(
          "16, in very long contexts on GPUs up to 64; with infinitehip 8, with infllm 64");
  AddHipFlags(app, sparse, engine);
  AddDefaulted(
      app, sparse, "--sparse-looks", &engine.sparse_looks, {1, 2},
      "2: of eight times the keys, those are chosen that matter by their own 2 bits a channel, "
      "which take a sixteenth of a 16-bit cache; with pages only");
  AddChoice(
      app, sparse, "--sparse-sketches", &engine.sparse_sketches, {"auto", "device", "host"},
      "where these bits lie; auto: on the device where that is no slower, else in host memory");
  AddAuto(app, sparse, "--sparse-levels", &engine.sparse_levels, 2,
          "2: decode looks at summaries of whole pages first, and at those of blocks in the best "
          "pages only, which have eight times the keys: with pages, quest and infllm; auto: 2 on "
          "GPUs where that is predicted to be faster, if nothing is said of looks");
  AddNumber(app, sparse, "--sparse-refresh", &engine.sparse_refresh, {1, kMaxCount},
            "tokens that one choice is for, in decode and until a page is full: those behind the "
            "first read the same keys, which is faster and less exact")
      ->default_str("1, with --policy infinitehip 4, -fast and -flash 8");
  AddDefaulted(
      app, sparse, "--sparse-candidates-refresh", &engine.sparse_candidates_refresh, {1, kMaxCount},
      "tokens that one search of all keys is for, in decode and until a page is full: it "
      "lists eight times the keys, and each token chooses among these, which is faster and "
      "misses what only later tokens look for; with pages, quest and infllm");
  AddNumber(app, sparse, "--sparse-from", &engine.sparse_from, {0, kMaxCount},
            "read sequences of up to N tokens whole, which is faster as long as they are short")
      ->default_str("with pages as long as that is predicted to be as fast, else 0");
  AddSize(app, sparse, "--sparse-cache", &engine.sparse_cache,
          "GPU memory for copies of chosen keys, taken where keys lie in host memory, so that they "
          "cross the bus once; no answer depends on it; 0: none")
      ->default_str("what some steps choose");
  AddPromptFlags(app, sparse, engine);
}

}  // namespace headway::cli
