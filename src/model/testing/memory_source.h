// MemorySource: weights that a test makes, and the bytes that were asked for of them.
#ifndef HEADWAY_MODEL_TESTING_MEMORY_SOURCE_H_
#define HEADWAY_MODEL_TESTING_MEMORY_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/half.h"
#include "headway/status.h"
#include "model/weights/weight_source.h"

namespace headway::testing {

class MemorySource : public WeightSource {
 public:
  // Each tensor is a file of its own.
  void Add(const std::string& name, std::vector<int64_t> shape, std::span<const float> values,
           WeightType type) {
    const auto count = static_cast<int64_t>(values.size());
    auto bytes =
        std::make_unique<std::vector<std::byte>>(static_cast<size_t>(RowBytes(type, count)));
    for (int64_t i = 0; i < count; ++i) {
      StoreFloat(bytes->data(), i, ElementDType(type), values[static_cast<size_t>(i)]);
    }
    tensors_[name] = {type, std::move(shape), names_.size(), 0,
                      static_cast<int64_t>(bytes->size())};
    names_.push_back(name);
    files_.push_back(std::make_unique<File>(std::move(bytes)));
  }

  void Rename(const std::string& from, const std::string& to) {
    tensors_[to] = tensors_.at(from);
    tensors_.erase(from);
  }

  // The offsets in a tensor of the bytes that were asked for.
  const std::set<int64_t>& touched(const std::string& name) const { return touched_[name]; }

  const std::string& where() const override { return where_; }
  bool Has(std::string_view name) const override { return tensors_.find(name) != tensors_.end(); }
  Result<SourceTensor> Find(std::string_view name) const override {
    const auto found = tensors_.find(name);
    if (found != tensors_.end()) return found->second;
    return Status(StatusCode::kNotFound, where_ + ": no tensor '" + std::string(name) + "'");
  }
  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  std::span<const std::byte> Bytes(const SourceTensor& tensor, int64_t begin,
                                   int64_t count) const override {
    std::set<int64_t>& touched = touched_[names_[tensor.file]];
    for (int64_t i = begin; i < begin + count; ++i) touched.insert(touched.end(), i);
    return files_[tensor.file]->bytes().subspan(static_cast<size_t>(begin),
                                                static_cast<size_t>(count));
  }
  size_t files() const override { return files_.size(); }
  const std::string& path(size_t file) const override { return names_[file]; }
  const MappedFile& file(size_t file) const override { return *files_[file]; }
  Status CheckUnchanged(Env&) const override { return OkStatus(); }

 private:
  class File : public MappedFile {
   public:
    explicit File(std::unique_ptr<std::vector<std::byte>> bytes) : bytes_(std::move(bytes)) {}
    std::span<const std::byte> bytes() const override { return *bytes_; }
    const FileIdentity& identity() const override { return identity_; }
    void Forget(std::span<const std::byte>) const override {}

   private:
    const std::unique_ptr<std::vector<std::byte>> bytes_;
    const FileIdentity identity_;
  };

  const std::string where_ = "memory";
  std::map<std::string, SourceTensor, std::less<>> tensors_;
  std::vector<std::string> names_;  // [files_]
  std::vector<std::unique_ptr<File>> files_;
  mutable std::map<std::string, std::set<int64_t>> touched_;
};

}  // namespace headway::testing

#endif  // HEADWAY_MODEL_TESTING_MEMORY_SOURCE_H_
