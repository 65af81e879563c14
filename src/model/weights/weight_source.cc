#include "model/weights/weight_source.h"

#include <fmt/format.h>

namespace headway {

int64_t WeightSource::file_bytes() const {
  int64_t total = 0;
  for (size_t i = 0; i < files(); ++i) total += static_cast<int64_t>(file(i).bytes().size());
  return total;
}

Status ChangedInUse(const std::string& path) {
  return Status(StatusCode::kIo,
                fmt::format("{} was changed while the model was in use; start again", path));
}

}  // namespace headway
