#include "model/weights/disk_block.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "model/weights/weight_source.h"

namespace headway {
namespace {

constexpr auto kAlign = static_cast<int64_t>(kDirectAlignment);
constexpr int64_t kFewestTensors = 7;              // what is counted: q, k, v, o, gate, up, down
constexpr int64_t kPieceBytes = int64_t{4} << 20;  // of a read: a disk works on several at a time

int64_t RoundDown(int64_t n) { return n / kAlign * kAlign; }

}  // namespace

Result<std::unique_ptr<WeightFile>> WeightFile::Open(Env& env, const std::string& path,
                                                     int64_t bytes, int64_t modified) {
  Result<std::unique_ptr<File>> file = env.Open(path, OpenMode::kRead, FileIo::kDirect);
  if (!file.ok()) return file.status();
  std::unique_ptr<WeightFile> made(new WeightFile(path, std::move(*file)));
  if (made->file_->direct() && bytes % kAlign != 0) {
    Result<std::unique_ptr<File>> cached = env.Open(path, OpenMode::kRead, FileIo::kCached);
    if (!cached.ok()) return cached.status();
    made->cached_ = std::move(*cached);
  }
  made->bytes_ = bytes;
  made->modified_ = modified;
  if (Status s = made->CheckUnchanged(); !s.ok()) return s;
  return made;
}

Result<std::unique_ptr<WeightFile>> WeightFile::Temporary(Env& env, const std::string& directory) {
  Result<std::unique_ptr<File>> file = env.Open(directory, OpenMode::kTemporary, FileIo::kDirect);
  if (!file.ok()) return file.status();
  return std::unique_ptr<WeightFile>(new WeightFile("", std::move(*file)));
}

Result<int64_t> WeightFile::Append(std::byte* data, int64_t bytes) {
  std::vector<IoPiece> pieces;
  for (int64_t at = 0; at < bytes; at += kPieceBytes) {
    pieces.push_back(
        {data + at, static_cast<size_t>(std::min(kPieceBytes, bytes - at)), bytes_ + at});
  }
  if (Status s = file_->Write(pieces); !s.ok()) return s;
  return std::exchange(bytes_, bytes_ + bytes);
}

Status WeightFile::CheckUnchanged() const {
  if (path_.empty()) return OkStatus();
  Result<FileIdentity> now = file_->Identity();
  if (!now.ok()) return now.status();
  if (now->size == bytes_ && now->modified_nanos == modified_) return OkStatus();
  return ChangedInUse(path_);
}

Status WeightFile::Read(std::vector<IoPiece> pieces) const {
  std::vector<IoPiece> last;
  for (IoPiece& piece : pieces) {
    const int64_t left = bytes_ - piece.offset;
    if (static_cast<int64_t>(piece.size) <= left) continue;
    piece.size = static_cast<size_t>(cached_ == nullptr ? left : RoundDown(left));
    if (cached_ == nullptr) continue;
    last.push_back({piece.data + piece.size, static_cast<size_t>(left) - piece.size,
                    piece.offset + static_cast<int64_t>(piece.size)});
  }
  Status read = file_->Read(pieces);
  if (read.ok() && !last.empty()) read = cached_->Read(last);
  // A change explains what went wrong, and what did not, too, may be of two versions then.
  if (Status s = CheckUnchanged(); !s.ok()) return s;
  return read;
}

DiskBlock::DiskBlock(std::vector<Tensor> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    if (a.file != b.file) return std::less<>()(a.file, b.file);
    return a.offset < b.offset;
  });
  for (const Tensor& tensor : tensors) {
    const int64_t begin = RoundDown(tensor.offset);
    const int64_t end = RoundUp(tensor.offset + tensor.bytes, kAlign);
    if (!runs_.empty() && runs_.back().file == tensor.file && begin <= runs_.back().end) {
      Run& run = runs_.back();
      read_bytes_ += std::max<int64_t>(end - run.end, 0);
      run.end = std::max(run.end, end);
    } else {
      runs_.push_back({tensor.file, begin, end, read_bytes_});
      read_bytes_ += end - begin;
    }
    copies_.push_back(
        {runs_.back().at + tensor.offset - runs_.back().begin, tensor.at, tensor.bytes});
  }
}

int64_t DiskBlock::MostReadBytes(int64_t block_bytes, int64_t tensors) {
  return RoundUp(block_bytes, kAlign) + std::max(tensors, kFewestTensors) * 2 * kAlign;
}

Status DiskBlock::Read(std::byte* to) const {
  std::vector<IoPiece> pieces;
  for (size_t i = 0; i < runs_.size(); ++i) {
    const Run& run = runs_[i];
    for (int64_t at = run.begin; at < run.end; at += kPieceBytes) {
      pieces.push_back({to + run.at + at - run.begin,
                        static_cast<size_t>(std::min(kPieceBytes, run.end - at)), at});
    }
    if (i + 1 < runs_.size() && runs_[i + 1].file == run.file) continue;
    if (Status s = run.file->Read(std::exchange(pieces, {})); !s.ok()) {
      return Status(StatusCode::kIo, "weights that stream from disk: " + s.message());
    }
  }
  return OkStatus();
}

}  // namespace headway
