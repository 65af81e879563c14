// consumer MODEL: continues a sentence through the public API.
#include <headway/engine.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: consumer MODEL\n");
    return 2;
  }
  headway::EngineOptions options;
  options.kv_memory = 4 << 20;
  auto engine = headway::Engine::Open(argv[1], options);
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.status().message().c_str());
    return 1;
  }
  auto prompt = (*engine)->Encode("It was a bright morning, and the old man", {});
  if (!prompt.ok()) return 1;
  auto context = (*engine)->NewContext({{static_cast<int64_t>(prompt->size()) + 16}});
  if (!context.ok()) return 1;
  headway::Request request;
  request.prompt = *prompt;
  request.max_tokens = 16;
  auto result = (*context)->Generate({&request, 1}, {});
  if (!result.ok() || (*result)[0].tokens.empty()) return 1;
  std::printf("%s\n", (*result)[0].text.c_str());
  return 0;
}
