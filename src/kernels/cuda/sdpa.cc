#include "kernels/cuda/sdpa.h"

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/check.h"

// Through this the frontend finds cuDNN's functions (NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING).
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace headway::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Uid : int64_t { kQ = 1, kK, kV, kO, kLse, kTokens, kKeys };

// A plan's workspace starts with the actual sizes, 16 bytes apart, which keeps both as aligned as
// cuDNN takes tensors to be; cuDNN's own part follows.
constexpr int64_t kKeysOffset = 16;
constexpr int64_t kLengthsBytes = 256;

// Of tokens and of keys: cuDNN counts them, and their buckets, in 32 bits.
constexpr int64_t kMaxSize = int64_t{1} << 30;

// The shape of a plan: its sizes are bucket sizes, or the exact ones. Without padding they are the
// actual ones.
struct PlanKey {
  SdpaShape shape;
  bool padded = false;

  bool operator==(const PlanKey&) const = default;
};

struct PlanKeyHash {
  size_t operator()(const PlanKey& key) const {
    return SdpaShapeHash()(key.shape) * 2 + (key.padded ? 1 : 0);
  }
};

struct Plan {
  Status status;  // not ok: cuDNN refused, and asking again would only cost time
  std::unique_ptr<fe::graph::Graph> graph;
  int64_t workspace_bytes = 0;
};

PlanKey KeyOf(const SdpaShape& shape) {
  PlanKey key{.shape = shape};
  key.shape.tokens = SdpaBucket(shape.tokens);
  if (!shape.exact_keys) key.shape.keys = SdpaBucket(shape.keys);
  key.shape.exact_keys = false;  // what they are, the key says
  key.padded = key.shape.tokens != shape.tokens || key.shape.keys != shape.keys;
  return key;
}

std::string PlanName(const PlanKey& key) {
  const SdpaShape& shape = key.shape;
  return std::string(key.padded ? "up to " : "") + std::to_string(shape.tokens) + " tokens and " +
         std::to_string(shape.keys) + " keys, " + std::to_string(shape.query_heads) + " and " +
         std::to_string(shape.kv_heads) + " heads of " + std::to_string(shape.head_dim) + ", " +
         DTypeName(shape.dtype) + (shape.causal ? ", causal" : "");
}

// What cuDNN says goes on for pages, candidate by candidate; the start tells the reason.
std::string OneLine(std::string text) {
  constexpr size_t kLongest = 400;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// The frontend throws where it cannot return an error.
template <typename Function>
Status Guarded(StatusCode code, const std::string& what, Function function) {
  try {
    fe::error_t error = function();
    if (error.is_good()) return OkStatus();
    return Status(code, OneLine(what + ": " + error.get_message()));
  } catch (const std::exception& error) {
    return Status(code, OneLine(what + ": " + error.what()));
  }
}

// cuDNN stays loaded: plans and handles of any Sdpa call into it.
Status LoadCudnn() {
  static const std::string error = [] {
    std::string first_error;
    // The second is where CUDA's installers put it, for loaders that do not look there.
    for (const char* name : {"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9"}) {
      fe::cudnn_dlhandle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (fe::cudnn_dlhandle != nullptr) return std::string();
      if (first_error.empty()) first_error = dlerror();
    }
    return first_error;
  }();
  if (error.empty()) return OkStatus();
  return Status(StatusCode::kUnsupported,
                "cuDNN is not installed (" + error +
                    "): install cuDNN 9 or put the folder of libcudnn.so.9 in LD_LIBRARY_PATH");
}

Status CudaStatus(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return OkStatus();
  return Status(StatusCode::kInternal, std::string(what) + ": " + cudaGetErrorString(error));
}

Status Validate(const SdpaShape& shape) {
  if (shape.dtype != DType::kBF16 && shape.dtype != DType::kF16) {
    return Status(StatusCode::kUnsupported,
                  std::string("cuDNN attention takes bf16 and f16, not ") + DTypeName(shape.dtype));
  }
  if (shape.head_dim < 1 || shape.kv_heads < 1 || shape.query_heads < 1 ||
      shape.query_heads % shape.kv_heads != 0) {
    return Status(StatusCode::kInvalidArgument,
                  "attention of " + std::to_string(shape.query_heads) + " query heads to " +
                      std::to_string(shape.kv_heads) + " KV heads of " +
                      std::to_string(shape.head_dim));
  }
  if (shape.tokens < 1 || shape.tokens > kMaxSize || shape.keys < 1 || shape.keys > kMaxSize) {
    return Status(StatusCode::kInvalidArgument, "attention of " + std::to_string(shape.tokens) +
                                                    " tokens to " + std::to_string(shape.keys) +
                                                    " keys");
  }
  if (shape.causal && shape.tokens > shape.keys) {
    return Status(StatusCode::kInvalidArgument,
                  "causal attention of " + std::to_string(shape.tokens) + " tokens to only " +
                      std::to_string(shape.keys) + " keys");
  }
  return OkStatus();
}

// Rows of `width` elements of some heads.
struct StridedRows {
  int64_t heads, rows, width, head_stride, row_stride;
};

fe::graph::Tensor_attributes Tensor(const char* name, Uid uid, const StridedRows& of) {
  // With one sequence the outermost stride steps nowhere.
  const int64_t batch_stride = std::max(of.heads * of.head_stride, of.rows * of.row_stride);
  return fe::graph::Tensor_attributes()
      .set_name(name)
      .set_uid(uid)
      .set_dim({1, of.heads, of.rows, of.width})
      .set_stride({batch_stride, of.head_stride, of.row_stride, 1});
}

fe::graph::Tensor_attributes LengthTensor(const char* name, Uid uid) {
  return fe::graph::Tensor_attributes()
      .set_name(name)
      .set_uid(uid)
      .set_dim({1, 1, 1, 1})
      .set_stride({1, 1, 1, 1})
      .set_data_type(fe::DataType_t::INT32);
}

void FillGraph(const PlanKey& key, fe::graph::Graph& graph) {
  const SdpaShape& shape = key.shape;
  graph
      .set_io_data_type(shape.dtype == DType::kBF16 ? fe::DataType_t::BFLOAT16
                                                    : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const StridedRows queries = {shape.query_heads, shape.tokens, shape.head_dim, shape.q_head_stride,
                               shape.q_token_stride};
  const StridedRows keys = {shape.kv_heads, shape.keys, shape.head_dim, shape.kv_head_stride,
                            shape.kv_token_stride};
  const auto q = graph.tensor(Tensor("q", kQ, queries));
  const auto k = graph.tensor(Tensor("k", kK, keys));
  const auto v = graph.tensor(Tensor("v", kV, keys));
  auto attributes =
      fe::graph::SDPA_attributes().set_name("sdpa").set_generate_stats(true).set_attn_scale(
          shape.scale);
  if (shape.causal) {
    // The diagonal ends in the corner of the actual sizes, where there are such.
    attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT)
        .set_diagonal_band_right_bound(0);
  }
  if (key.padded) {
    attributes.set_padding_mask(true)
        .set_seq_len_q(graph.tensor(LengthTensor("tokens", kTokens)))
        .set_seq_len_kv(graph.tensor(LengthTensor("keys", kKeys)));
  }
  const auto [o, lse] = graph.sdpa(q, k, v, attributes);
  const int64_t o_batch_stride =
      std::max(shape.query_heads * shape.o_head_stride, shape.tokens * shape.o_token_stride);
  o->set_output(true)
      .set_uid(kO)
      .set_dim({1, shape.query_heads, shape.tokens, shape.head_dim})
      .set_stride({o_batch_stride, shape.o_head_stride, shape.o_token_stride, 1});
  lse->set_output(true)
      .set_uid(kLse)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({1, shape.query_heads, shape.tokens, 1})
      .set_stride({shape.query_heads * shape.tokens, shape.tokens, 1, 1});
}

}  // namespace

size_t SdpaShapeHash::operator()(const SdpaShape& shape) const {
  size_t hash = std::hash<float>()(shape.scale);
  for (const int64_t value :
       {static_cast<int64_t>(shape.dtype), int64_t{shape.query_heads}, int64_t{shape.kv_heads},
        int64_t{shape.head_dim}, shape.tokens, shape.keys, int64_t{shape.causal},
        shape.q_token_stride, shape.q_head_stride, shape.kv_token_stride, shape.kv_head_stride,
        shape.o_token_stride, shape.o_head_stride}) {
    hash = (hash ^ static_cast<size_t>(value)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return hash;
}

struct Sdpa::Impl {
  ~Impl() {
    plans.clear();
    if (handle != nullptr) fe::detail::destroy_handle(handle);
  }

  // The plan of the shape, built if it is new.
  Plan& Find(const PlanKey& key) {
    const auto [entry, is_new] = plans.try_emplace(key);
    Plan& plan = entry->second;
    if (!is_new) return plan;
    auto graph = std::make_unique<fe::graph::Graph>();
    plan.status =
        Guarded(StatusCode::kUnsupported, "cuDNN refuses attention of " + PlanName(key), [&] {
          // Given, because the frontend would look for a CUDA runtime library to ask.
          graph->set_sm_version(sm_version);
          FillGraph(key, *graph);
          fe::error_t error = graph->build(handle, {fe::HeurMode_t::A});
          if (error.is_good()) error = graph->get_workspace_size(plan.workspace_bytes);
          return error;
        });
    if (plan.status.ok()) plan.graph = std::move(graph);
    plan.workspace_bytes += kLengthsBytes;
    return plan;
  }

  int sm_version = 0;
  cudnnHandle_t handle = nullptr;
  std::unordered_map<PlanKey, Plan, PlanKeyHash> plans;
};

Sdpa::Sdpa(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Sdpa::~Sdpa() = default;

Result<std::unique_ptr<Sdpa>> Sdpa::Create(int device) {
  if (Status status = LoadCudnn(); !status.ok()) return status;
  auto impl = std::make_unique<Impl>();
  int major = 0;
  int minor = 0;
  cudaError_t error = cudaSetDevice(device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  }
  if (Status status = CudaStatus("choosing the device of cuDNN", error); !status.ok()) {
    return status;
  }
  impl->sm_version = 10 * major + minor;
  const Status status = Guarded(StatusCode::kUnsupported, "cuDNN does not start", [&] {
    const cudnnStatus_t created = fe::detail::create_handle(&impl->handle);
    if (created == CUDNN_STATUS_SUCCESS) return fe::error_t();
    return fe::error_t(fe::error_code_t::HANDLE_ERROR, fe::detail::get_error_string(created));
  });
  if (!status.ok()) return status;
  return std::unique_ptr<Sdpa>(new Sdpa(std::move(impl)));
}

Status Sdpa::Prepare(const SdpaShape& shape) {
  if (Status status = Validate(shape); !status.ok()) return status;
  return impl_->Find(KeyOf(shape)).status;
}

int64_t Sdpa::WorkspaceBytes(const SdpaShape& shape) const {
  const auto entry = impl_->plans.find(KeyOf(shape));
  HEADWAY_CHECK(entry != impl_->plans.end() && entry->second.status.ok());
  return entry->second.workspace_bytes;
}

int64_t Sdpa::plans() const { return static_cast<int64_t>(impl_->plans.size()); }

Status Sdpa::Run(cudaStream_t stream, const SdpaShape& shape, const SdpaMemory& memory) {
  if (Status status = Validate(shape); !status.ok()) return status;
  const PlanKey key = KeyOf(shape);
  const Plan& plan = impl_->Find(key);
  if (!plan.status.ok()) return plan.status;
  HEADWAY_CHECK(memory.workspace != nullptr && memory.workspace_bytes >= plan.workspace_bytes);

  auto* const base = static_cast<std::byte*>(memory.workspace);
  std::unordered_map<int64_t, void*> pointers = {{kQ, const_cast<void*>(memory.q)},
                                                 {kK, const_cast<void*>(memory.k)},
                                                 {kV, const_cast<void*>(memory.v)},
                                                 {kO, memory.o},
                                                 {kLse, memory.lse}};
  if (key.padded) {
    auto* const tokens_at = reinterpret_cast<int32_t*>(base);
    auto* const keys_at = reinterpret_cast<int32_t*>(base + kKeysOffset);
    const cudaError_t error = SetSdpaLengths(stream, tokens_at, static_cast<int32_t>(shape.tokens),
                                             keys_at, static_cast<int32_t>(shape.keys));
    if (Status status = CudaStatus("setting the sizes of attention", error); !status.ok()) {
      return status;
    }
    pointers.emplace(kTokens, tokens_at);
    pointers.emplace(kKeys, keys_at);
  }
  return Guarded(StatusCode::kInternal, "cuDNN attention of " + PlanName(key), [&] {
    const cudnnStatus_t set = fe::detail::set_stream(impl_->handle, stream);
    if (set != CUDNN_STATUS_SUCCESS) {
      return fe::error_t(fe::error_code_t::HANDLE_ERROR, fe::detail::get_error_string(set));
    }
    return plan.graph->execute(impl_->handle, pointers, base + kLengthsBytes);
  });
}

}  // namespace headway::cuda
