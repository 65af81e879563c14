// DiskBlock: the matrices of a layer that stay on disk, as reads of the files in which they lie.
// Reads go past the page cache where the file system lets them, so that bytes come in whole blocks
// of the disk: a tensor's lie anywhere in what was read, and a copy takes each to its place.
#ifndef HEADWAY_MODEL_WEIGHTS_DISK_BLOCK_H_
#define HEADWAY_MODEL_WEIGHTS_DISK_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "headway/status.h"

namespace headway {

// A file of weights, open while they are read again and again.
class WeightFile {
 public:
  // One that the model was loaded from, which had so many bytes and was written to last at
  // `modified` (nanoseconds of the file system's clock). kIo for another one.
  static Result<std::unique_ptr<WeightFile>> Open(Env& env, const std::string& path, int64_t bytes,
                                                  int64_t modified);
  // An empty one for weights that lie in no file; gone when closed.
  static Result<std::unique_ptr<WeightFile>> Temporary(Env& env, const std::string& directory);

  // Of a temporary one. `data` and `bytes` are aligned to kDirectAlignment. Returns its offset.
  Result<int64_t> Append(std::byte* data, int64_t bytes);

  // Reads pieces that are aligned to kDirectAlignment, of which the last may reach beyond the end
  // of the file: the rest of it is left as it was. kIo for a file that is no longer what Open
  // was told. From any thread.
  Status Read(std::vector<IoPiece> pieces) const;

 private:
  WeightFile(std::string path, std::unique_ptr<File> file)
      : path_(std::move(path)), file_(std::move(file)) {}
  Status CheckUnchanged() const;

  const std::string path_;  // empty: temporary
  const std::unique_ptr<File> file_;
  std::unique_ptr<File> cached_;  // the same file for its last bytes, fewer than a disk's block
  int64_t bytes_ = 0;
  int64_t modified_ = 0;
};

class DiskBlock {
 public:
  // A tensor of the block, in bytes. Its file outlives the block.
  struct Tensor {
    const WeightFile* file = nullptr;
    int64_t offset = 0;  // in the file
    int64_t bytes = 0;
    int64_t at = 0;  // in the block
  };
  // What is done with a tensor once it was read.
  struct Copy {
    int64_t from = 0;  // in what Read has filled
    int64_t to = 0;    // in the block
    int64_t bytes = 0;
  };

  explicit DiskBlock(std::vector<Tensor> tensors);

  // Bytes that Read takes at most for a block of so many bytes in so many tensors, wherever these
  // lie.
  static int64_t MostReadBytes(int64_t block_bytes, int64_t tensors);

  int64_t read_bytes() const { return read_bytes_; }
  std::span<const Copy> copies() const { return copies_; }
  // Fills `to`, read_bytes() aligned to kDirectAlignment. kIo, in one line, for whatever goes
  // wrong. From any thread.
  Status Read(std::byte* to) const;

 private:
  // What of a file is read in one go, whole blocks of the disk.
  struct Run {
    const WeightFile* file = nullptr;
    int64_t begin = 0;
    int64_t end = 0;
    int64_t at = 0;  // in what Read fills
  };

  std::vector<Run> runs_;  // file by file, ascending
  std::vector<Copy> copies_;
  int64_t read_bytes_ = 0;
};

}  // namespace headway

#endif  // HEADWAY_MODEL_WEIGHTS_DISK_BLOCK_H_
