// Weights in safetensors files: one file or many behind an index, mapped and never copied. The
// format is described at https://huggingface.co/docs/safetensors: 8 bytes of header length, a JSON
// header, then the tensors' bytes without holes.
#ifndef HEADWAY_MODEL_WEIGHTS_SAFETENSORS_H_
#define HEADWAY_MODEL_WEIGHTS_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "headway/status.h"
#include "model/weights/weight_source.h"

namespace headway {

// One entry of a header.
struct TensorInfo {
  std::string dtype;  // as the file spells it: "BF16"
  std::vector<int64_t> shape;
  int64_t begin = 0;  // in bytes from the start of the file
  int64_t end = 0;
};

using TensorMap = std::map<std::string, TensorInfo, std::less<>>;

// The tensors of a file whose bytes are `file`, every offset checked: inside the file, the size
// that dtype and shape make, no overlap and no hole. `where` names the file in errors. Any dtype
// passes here; asking Weights for a tensor of one that Headway does not compute with does not.
Result<TensorMap> ParseSafetensors(std::span<const std::byte> file, const std::string& where);

// All tensors of a model folder.
class Safetensors final : public WeightSource {
 public:
  // Maps model.safetensors, else the shards that model.safetensors.index.json lists.
  static Result<Safetensors> Open(Env& env, const std::string& folder);

  const std::string& where() const override { return folder_; }
  bool Has(std::string_view name) const override { return tensors_.find(name) != tensors_.end(); }
  Result<SourceTensor> Find(std::string_view name) const override;
  std::vector<std::string> Names() const override;
  std::span<const std::byte> Bytes(const SourceTensor& tensor, int64_t begin,
                                   int64_t count) const override;
  size_t files() const override { return files_.size(); }
  const std::string& path(size_t file) const override { return paths_[file]; }
  const MappedFile& file(size_t file) const override { return *files_[file]; }
  Status CheckUnchanged(Env& env) const override;

 private:
  struct Located {
    TensorInfo info;
    size_t file = 0;  // index into files_
  };

  Status AddFile(Env& env, const std::string& path, TensorMap* tensors);
  Status OpenShards(Env& env, const std::string& folder);

  std::string folder_;
  std::vector<std::unique_ptr<MappedFile>> files_;
  std::vector<std::string> paths_;  // [files_]
  std::map<std::string, Located, std::less<>> tensors_;
};

}  // namespace headway

#endif  // HEADWAY_MODEL_WEIGHTS_SAFETENSORS_H_
