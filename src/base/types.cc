#include "base/types.h"

namespace headway {

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
  }
  return "?";
}

const char* EncodingName(Encoding encoding) {
  switch (encoding) {
    case Encoding::kNone:
      return "none";
    case Encoding::kInt8:
      return "int8";
    case Encoding::kFp8E4M3:
      return "fp8";
    case Encoding::kInt4:
      return "int4";
    case Encoding::kLossless:
      return "lossless";
  }
  return "?";
}

Result<Encoding> ParseEncoding(std::string_view name) {
  for (const Encoding encoding : {Encoding::kNone, Encoding::kLossless, Encoding::kInt8,
                                  Encoding::kFp8E4M3, Encoding::kInt4}) {
    if (name == EncodingName(encoding)) return encoding;
  }
  return Status(StatusCode::kInvalidArgument,
                "there is no KV encoding \"" + std::string(name) +
                    "\"; there are none, lossless, int8, fp8 and int4");
}

const char* TierName(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kDisk:
      return "disk";
  }
  return "?";
}

}  // namespace headway
