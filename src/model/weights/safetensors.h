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
#include "base/types.h"
#include "headway/status.h"

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

// The error where a file of weights is not what was opened.
Status ChangedInUse(const std::string& path);

// A tensor's bytes in a mapped file, of any alignment.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
  size_t file = 0;     // that it lies in, for Weights::path
  int64_t offset = 0;  // in bytes from the start of that file
};

// All tensors of a model folder.
class Weights {
 public:
  // Maps model.safetensors, else the shards that model.safetensors.index.json lists.
  static Result<Weights> Open(Env& env, const std::string& folder);

  bool Has(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  // kNotFound, or kUnsupported when its dtype is not F32, F16 or BF16; both name the tensor.
  Result<TensorView> Find(std::string_view name) const;
  std::vector<std::string> Names() const;  // sorted
  int64_t file_bytes() const;              // of all mapped files
  const std::string& path(size_t file) const { return paths_[file]; }
  int64_t file_bytes(size_t file) const {
    return static_cast<int64_t>(files_[file]->bytes().size());
  }
  size_t files() const { return files_.size(); }
  const MappedFile& file(size_t file) const { return *files_[file]; }
  // kIo where one of the files is no longer what it was when it was mapped.
  Status CheckUnchanged(Env& env) const;

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
