#include "headway/status.h"

#include "headway/refusal.h"

namespace headway {

const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kCorrupt:
      return "corrupt";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kOutOfBudget:
      return "out of budget";
    case StatusCode::kIo:
      return "i/o error";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown";
}

Status::Status(StatusCode code, Refusal refusal)
    : code_(code),
      message_(refusal.message.Text()),
      refusal_(std::make_shared<const Refusal>(std::move(refusal))) {}

Message Status::words() const {
  return refusal_ == nullptr ? Message{message_} : refusal_->message;
}

Status Status::Within(const Message& before) const { return Within(before, {}); }

Status Status::Within(const Message& before, const Message& behind) const {
  Refusal refusal = refusal_ == nullptr ? Refusal() : *refusal_;
  refusal.message = before;
  refusal.message += words();
  refusal.message += behind;
  return Status(code_, std::move(refusal));
}

}  // namespace headway
