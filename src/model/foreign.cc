#include "model/foreign.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

namespace headway {
namespace {

struct Foreign {
  std::string_view begin;  // of the file's name
  std::string_view end;
  const char* what;
};

constexpr char kPublisher[] =
    "the publisher's own format, which Headway does not read; get the model's Hugging Face folder "
    "(config.json, tokenizer.json, model*.safetensors)";
constexpr char kPickled[] =
    "weights in a form that Headway does not read; save them as safetensors (save_pretrained of "
    "Transformers)";

// The first that fits a file counts.
constexpr Foreign kForeign[] = {
    {"", ".gguf",
     "GGUF, which Headway does not read yet; get the model's Hugging Face folder (config.json, "
     "tokenizer.json, model*.safetensors)"},
    {"consolidated.", "", kPublisher},
    {"adapter_model.", "",
     "an adapter, not a model; merge it into its base model (merge_and_unload of PEFT) and save "
     "that"},
    {"pytorch_model", "", kPickled},
    {"tf_model", ".h5", kPickled},
    {"flax_model", ".msgpack", kPickled},
};

}  // namespace

Status RefuseForeignFile(const std::string& path) {
  const std::string_view name = std::string_view(path).substr(path.find_last_of('/') + 1);
  for (const Foreign& foreign : kForeign) {
    if (!name.starts_with(foreign.begin) || !name.ends_with(foreign.end)) continue;
    return Status(StatusCode::kUnsupported, fmt::format("{}: {}", path, foreign.what));
  }
  return OkStatus();
}

Status RefuseFolder(Env& env, const std::string& folder, const std::string& missing) {
  const Result<std::vector<std::string>> files = env.List(folder);
  if (!files.ok()) return files.status();
  for (const std::string& file : *files) {
    Status status = RefuseForeignFile(fmt::format("{}/{}", folder, file));
    if (!status.ok()) return status;
  }
  return Status(StatusCode::kNotFound, fmt::format("{}: {}", folder, missing));
}

}  // namespace headway
