#include "kernels/cuda/gemm.h"

#include <cublasLt.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace headway::cuda {
namespace {

cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kBF16:
      return CUDA_R_16BF;
  }
  return CUDA_R_32F;
}

Status Failed(const char* what, cublasStatus_t status) {
  return Status(StatusCode::kIo,
                std::string("cuBLASLt: ") + what + ": " + cublasLtGetStatusString(status));
}

// Rows, outputs, inputs, stride of y, dtype, result, whether there is a bias, and multiprocessors
// that are left to others.
using Shape = std::tuple<int64_t, int64_t, int64_t, int64_t, DType, LinearResult, bool, int>;

struct Plan {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (product != nullptr) cublasLtMatmulDescDestroy(product);
    for (cublasLtMatrixLayout_t layout : {weight, x, y}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
  }
};

cublasStatus_t SetBias(const void* bias, cublasLtMatmulDesc_t product) {
  return cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                        sizeof(bias));
}

// What follows a product. A row of y^T, which is a column of y, has one number of the bias.
cublasStatus_t SetEpilogue(cudaDataType_t type, const void* bias, bool relu,
                           cublasLtMatmulDesc_t product) {
  if (bias == nullptr && !relu) return CUBLAS_STATUS_SUCCESS;
  const cublasLtEpilogue_t epilogue = bias == nullptr ? CUBLASLT_EPILOGUE_RELU
                                      : relu          ? CUBLASLT_EPILOGUE_RELU_BIAS
                                                      : CUBLASLT_EPILOGUE_BIAS;
  cublasStatus_t s = cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                    &epilogue, sizeof(epilogue));
  if (s != CUBLAS_STATUS_SUCCESS || bias == nullptr) return s;
  s = cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                     sizeof(type));
  return s == CUBLAS_STATUS_SUCCESS ? SetBias(bias, product) : s;
}

}  // namespace

struct Gemm::Impl {
  ~Impl() {
    plans.clear();
    if (handle != nullptr) cublasLtDestroy(handle);
  }
  Status MakePlan(int64_t rows, const LinearOp& op, const void* bias, Plan* plan);

  int choice = 0;
  int left = 0;             // of the GPU's multiprocessors, to others
  int multiprocessors = 0;  // that it has
  cublasLtHandle_t handle = nullptr;
  std::map<Shape, std::unique_ptr<Plan>> plans;
};

Gemm::Gemm(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gemm::~Gemm() = default;

Result<std::unique_ptr<Gemm>> Gemm::Create(int choice) {
  auto impl = std::make_unique<Impl>();
  impl->choice = choice;
  const cublasStatus_t status = cublasLtCreate(&impl->handle);
  if (status != CUBLAS_STATUS_SUCCESS) return Failed("starting", status);
  int device = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&impl->multiprocessors, cudaDevAttrMultiProcessorCount, device);
  return std::unique_ptr<Gemm>(new Gemm(std::move(impl)));
}

// cuBLASLt's matrices are column-major, so y^T [out, rows] = W [out, in] x^T [in, rows].
Status Gemm::Impl::MakePlan(int64_t rows, const LinearOp& op, const void* bias, Plan* plan) {
  const cudaDataType_t type = TypeOf(op.weight.dtype);
  const bool floats = !IsActivation(op.result);
  const cudaDataType_t type_of_y = floats ? CUDA_R_32F : type;
  const auto out = static_cast<uint64_t>(op.weight.out);
  const auto in = static_cast<uint64_t>(op.weight.in);
  cublasStatus_t s = cublasLtMatmulDescCreate(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  if (s != CUBLAS_STATUS_SUCCESS) return Failed("describing a product", s);
  const cublasOperation_t transpose = CUBLAS_OP_T;
  s = cublasLtMatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                     sizeof(transpose));
  if (s == CUBLAS_STATUS_SUCCESS) {
    s = SetEpilogue(type_of_y, bias, op.result == LinearResult::kRelu, plan->product);
  }
  if (const int32_t target = multiprocessors - left;
      s == CUBLAS_STATUS_SUCCESS && left > 0 && target > 0) {
    s = cublasLtMatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &target,
                                       sizeof(target));
  }
  if (s != CUBLAS_STATUS_SUCCESS) return Failed("describing a product", s);
  s = cublasLtMatrixLayoutCreate(&plan->weight, type, in, out, op.weight.in);
  if (s == CUBLAS_STATUS_SUCCESS) {
    s = cublasLtMatrixLayoutCreate(&plan->x, type, in, static_cast<uint64_t>(rows), op.weight.in);
  }
  if (s == CUBLAS_STATUS_SUCCESS) {
    s = cublasLtMatrixLayoutCreate(&plan->y, type_of_y, out, static_cast<uint64_t>(rows),
                                   op.y_stride);
  }
  if (s != CUBLAS_STATUS_SUCCESS) return Failed("describing a matrix", s);

  cublasLtMatmulPreference_t preference = nullptr;
  s = cublasLtMatmulPreferenceCreate(&preference);
  if (s != CUBLAS_STATUS_SUCCESS) return Failed("choosing an algorithm", s);
  const auto workspace = static_cast<size_t>(kGemmWorkspaceBytes);
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                       &workspace, sizeof(workspace));
  // Rows of weights and activations lie on 16 bytes, or on their elements where widths are odd.
  const auto element = static_cast<uint32_t>(DTypeBytes(op.weight.dtype));
  const uint32_t in_align = op.weight.in * element % 16 == 0 ? 16 : element;
  const uint32_t y_element = floats ? 4 : element;
  const uint32_t y_align =
      op.y_stride * y_element % 16 == 0 && op.weight.out % 8 == 0 ? 16 : y_element;
  for (const cublasLtMatmulPreferenceAttributes_t operand :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES}) {
    cublasLtMatmulPreferenceSetAttribute(preference, operand, &in_align, sizeof(in_align));
  }
  for (const cublasLtMatmulPreferenceAttributes_t operand :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    cublasLtMatmulPreferenceSetAttribute(preference, operand, &y_align, sizeof(y_align));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> proposals(static_cast<size_t>(choice) + 1);
  int found = 0;
  s = cublasLtMatmulAlgoGetHeuristic(handle, plan->product, plan->weight, plan->x, plan->y, plan->y,
                                     preference, choice + 1, proposals.data(), &found);
  cublasLtMatmulPreferenceDestroy(preference);
  if (s != CUBLAS_STATUS_SUCCESS || found == 0) return Failed("choosing an algorithm", s);
  plan->algorithm = proposals[static_cast<size_t>(found - 1)].algo;
  return OkStatus();
}

Status Gemm::Run(cudaStream_t stream, const void* x, int64_t rows, const LinearOp& op,
                 const void* bias, void* workspace) {
  const Shape shape(rows, op.weight.out, op.weight.in, op.y_stride, op.weight.dtype, op.result,
                    bias != nullptr, impl_->left);
  std::unique_ptr<Plan>& plan = impl_->plans[shape];
  if (plan == nullptr) {
    auto made = std::make_unique<Plan>();
    if (Status s = impl_->MakePlan(rows, op, bias, made.get()); !s.ok()) return s;
    plan = std::move(made);
  }
  if (bias != nullptr) {
    const cublasStatus_t s = SetBias(bias, plan->product);
    if (s != CUBLAS_STATUS_SUCCESS) return Failed("setting a bias", s);
  }
  const float one = 1.0f;
  const float beta = op.result == LinearResult::kAddFloat ? 1.0f : 0.0f;
  const cublasStatus_t s =
      cublasLtMatmul(impl_->handle, plan->product, &one, op.weight.data, plan->weight, x, plan->x,
                     &beta, op.y, plan->y, op.y, plan->y, &plan->algorithm, workspace,
                     static_cast<size_t>(kGemmWorkspaceBytes), stream);
  return s == CUBLAS_STATUS_SUCCESS ? OkStatus() : Failed("a product", s);
}

void Gemm::Leave(int multiprocessors) { impl_->left = multiprocessors; }

}  // namespace headway::cuda
