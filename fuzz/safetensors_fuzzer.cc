// The files of a model folder that are parsed: a safetensors file, its header alone, config.json.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "model/rope.h"
#include "model/weights/safetensors.h"

namespace {

// What a reader of tensors relies on.
void CheckTensors(std::span<const std::byte> file) {
  const auto tensors = headway::ParseSafetensors(file, "fuzz");
  if (!tensors.ok()) {
    if (tensors.status().message().find('\n') != std::string::npos) abort();
    return;
  }
  for (const auto& [name, tensor] : *tensors) {
    if (tensor.begin < 8 || tensor.begin > tensor.end ||
        tensor.end > static_cast<int64_t>(file.size())) {
      abort();
    }
    for (int64_t extent : tensor.shape) {
      if (extent < 0) abort();
    }
  }
}

// The input as a header under a length that is right, so that mutation need not find it. The data
// section has as many bytes as the header, up to 256.
void CheckHeader(std::span<const uint8_t> header) {
  std::string file(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  file.append(reinterpret_cast<const char*>(header.data()), header.size());
  file.append(std::min<size_t>(header.size(), 256), '\0');
  CheckTensors(std::as_bytes(std::span(file)));
}

// What the rest of the engine relies on in a config that was let through.
void CheckConfig(std::string_view text) {
  const auto config = headway::ParseModelConfig(text, text, "fuzz");
  if (!config.ok()) {
    if (config.status().message().find('\n') != std::string::npos) abort();
    return;
  }
  const headway::ModelShape& shape = config->shape;
  if (shape.layers < 1 || shape.kv_heads < 1 || shape.query_heads % shape.kv_heads != 0 ||
      shape.head_dim < 2 || shape.head_dim % 2 != 0 || shape.d_model < 1 || shape.d_ff < 1 ||
      shape.vocab < 1 || config->windows.size() != static_cast<size_t>(shape.layers)) {
    abort();
  }
  for (int64_t length : {int64_t{1}, int64_t{1} << 20}) {
    for (float f : headway::ComputeRope(config->rope, shape.head_dim, length).inv_freq) {
      if (!(f >= 0.0f)) abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  CheckTensors(std::as_bytes(std::span(data, size)));
  CheckHeader({data, size});
  CheckConfig({reinterpret_cast<const char*>(data), size});
  return 0;
}
