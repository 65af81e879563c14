#include "kernels/cpu/linear_testing.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <numbers>

#include "base/half.h"
#include "base/thread_pool.h"
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/matvec.h"

namespace headway {
namespace {

// Values that nothing may read or leave behind.
constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

// One matrix product with its f64 result. Weights lie `misaligned` bytes off, as tensors of
// safetensors files may; y has `padding` floats behind each row that must stay as they are.
struct LinearCase {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
  DType dtype = DType::kBF16;
  int misaligned = 0;
  int64_t padding = 0;
  bool bias = false;
  LinearResult result = LinearResult::kActivation;

  std::string Name() const {
    return "rows " + std::to_string(rows) + " in " + std::to_string(in) + " out " +
           std::to_string(out) + " " + DTypeName(dtype) + " misaligned " +
           std::to_string(misaligned) + (bias ? " bias" : "") + " result " +
           std::to_string(static_cast<int>(result));
  }
};

class LinearProduct {
 public:
  // `x` [rows, in] is shared by the ops of a call.
  LinearProduct(const LinearCase& c, Random& random, const std::vector<float>& x) : c_(c) {
    const size_t bytes = static_cast<size_t>(c.out * c.in) * DTypeBytes(c.dtype);
    weight_.resize(bytes + static_cast<size_t>(c.misaligned));
    for (int64_t i = 0; i < c.out * c.in; ++i) StoreFloat(Weight(), i, c.dtype, random.Normal());
    for (int64_t o = 0; c.bias && o < c.out; ++o) bias_.push_back(random.Normal());
    before_.assign(static_cast<size_t>(c.rows * Stride()), kPoison);
    expected_.resize(before_.size());
    tolerance_.resize(before_.size());
    norm_.resize(before_.size());
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t o = 0; o < c.out; ++o) Expect(random, x.data() + row * c.in, row, o);
    }
    y_ = before_;
  }

  LinearOp Op() {
    return {.weight = {Weight(), c_.dtype, c_.out, c_.in},
            .bias = c_.bias ? bias_.data() : nullptr,
            .y = y_.data(),
            .y_stride = Stride(),
            .result = c_.result};
  }

  // The first element that is off by more than it may be, in words; empty where there is none.
  std::string Wrong(bool on_tiles) const {
    for (int64_t row = 0; row < c_.rows; ++row) {
      for (int64_t o = 0; o < Stride(); ++o) {
        const size_t at = static_cast<size_t>(row * Stride() + o);
        if (o >= c_.out) {
          if (std::isnan(y_[at])) continue;
          return c_.Name() + ": wrote behind row " + std::to_string(row);
        }
        // Against bf16 weights tiles round tokens to bf16, which puts every term off by another
        // 2^-9 of itself at most: a random walk too.
        const bool rounded = on_tiles && c_.dtype == DType::kBF16;
        const double tolerance = tolerance_[at] + (rounded ? 4.0 * 0x1p-9 * norm_[at] : 0.0);
        if (std::fabs(y_[at] - expected_[at]) <= tolerance) continue;
        return c_.Name() + " at row " + std::to_string(row) + " output " + std::to_string(o) +
               ": expected " + std::to_string(expected_[at]) + ", got " + std::to_string(y_[at]);
      }
    }
    return "";
  }

  const std::vector<float>& y() const { return y_; }
  void Reset() { y_ = before_; }

 private:
  std::byte* Weight() { return weight_.data() + c_.misaligned; }
  int64_t Stride() const { return c_.out + c_.padding; }

  void Expect(Random& random, const float* x, int64_t row, int64_t o) {
    const size_t at = static_cast<size_t>(row * Stride() + o);
    double sum = c_.bias ? bias_[static_cast<size_t>(o)] : 0.0;
    double magnitude = std::fabs(sum);
    double squares = 0.0;
    if (c_.result == LinearResult::kAddFloat) {
      before_[at] = random.Normal();
      sum += before_[at];
      magnitude += std::fabs(before_[at]);
    }
    for (int64_t k = 0; k < c_.in; ++k) {
      const double term = double{x[k]} * LoadAsFloat(Weight(), o * c_.in + k, c_.dtype);
      sum += term;
      magnitude += std::fabs(term);
      squares += term * term;
    }
    expected_[at] = Activated(sum);
    norm_[at] = std::sqrt(squares);
    // n additions in f32 in any order err by less than n eps times the sum of magnitudes
    // (Higham, Accuracy and Stability, 4.2); products are exact within one rounding, and the terms'
    // errors are random walks, so that sqrt(n) with a factor of 4 is ample.
    tolerance_[at] = 4.0 * std::sqrt(static_cast<double>(c_.in) + 2.0) * 0x1p-24 * magnitude;
    if (!IsGelu(c_.result)) return;
    // GELU is nowhere steeper than 1.13. Its own arithmetic is a dozen roundings of the share of
    // the sum that it passes on, and the error of its formula (1.2e-7).
    tolerance_[at] = 1.13 * tolerance_[at] + 16.0 * 0x1p-24 * std::fabs(sum);
    norm_[at] *= 1.13;
  }

  double Activated(double sum) const {
    switch (c_.result) {
      case LinearResult::kRelu:
        return std::max(sum, 0.0);
      case LinearResult::kGelu:
        return 0.5 * sum * (1.0 + std::erf(sum / std::numbers::sqrt2));
      case LinearResult::kGeluTanh:
        return 0.5 * sum *
               (1.0 +
                std::tanh(std::sqrt(2.0 / std::numbers::pi) * (sum + 0.044715 * sum * sum * sum)));
      default:
        return sum;
    }
  }

  LinearCase c_;
  std::vector<std::byte> weight_;
  std::vector<float> bias_;
  std::vector<float> before_;
  std::vector<double> expected_;
  std::vector<double> norm_;  // of the vector of terms
  std::vector<double> tolerance_;
  std::vector<float> y_;
};

struct Free {
  void operator()(void* data) const { std::free(data); }
};

// Runs the products as one call, with the scratch memory that the limits ask for and a guard
// behind it.
std::string Run(ThreadPool& pool, const cpu::LinearCode& code, const std::vector<float>& x,
                int64_t rows, int64_t in, std::vector<LinearProduct>& products) {
  std::vector<LinearOp> ops;
  for (LinearProduct& product : products) ops.push_back(product.Op());
  const int64_t bytes = cpu::LinearScratchBytes(code, {.rows = rows, .max_in = in}, pool.threads());
  constexpr size_t kGuard = 64;
  const size_t size = (static_cast<size_t>(bytes) + kGuard + 63) / 64 * 64;
  const std::unique_ptr<std::byte, Free> scratch(
      static_cast<std::byte*>(std::aligned_alloc(64, size)));
  std::memset(scratch.get(), 0xff, size);  // NaN in every type
  cpu::Linear(pool, code, x.data(), rows, ops, {scratch.get(), static_cast<size_t>(bytes)});
  for (size_t i = static_cast<size_t>(bytes); i < size; ++i) {
    if (scratch.get()[i] != std::byte{0xff}) return "wrote behind the scratch memory";
  }
  return "";
}

std::vector<float> RandomTokens(Random& random, int64_t rows, int64_t in) {
  std::vector<float> x(static_cast<size_t>(rows * in));
  for (float& value : x) value = random.Normal();
  return x;
}

// One to four ops on the same tokens, of all types and results, biased or not.
std::vector<LinearCase> RandomCases(Random& random, int64_t rows, int64_t in) {
  constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  constexpr LinearResult kResults[] = {LinearResult::kActivation, LinearResult::kRelu,
                                       LinearResult::kGelu, LinearResult::kGeluTanh,
                                       LinearResult::kAddFloat};
  std::vector<LinearCase> cases(static_cast<size_t>(1 + random.Below(4)));
  for (LinearCase& c : cases) {
    c = {.rows = rows,
         .in = in,
         .out = 1 + random.Below(120),
         .dtype = kDTypes[random.Below(3)],
         .misaligned = static_cast<int>(random.Below(8)),
         .padding = random.Below(5),
         .bias = random.Below(2) == 0,
         .result = kResults[random.Below(std::ssize(kResults))]};
  }
  return cases;
}

}  // namespace

std::string LinearDisagreement(const cpu::LinearCode& code, Random& random, int64_t rows,
                               int64_t in) {
  const std::vector<float> x = RandomTokens(random, rows, in);
  std::vector<LinearProduct> products;
  for (const LinearCase& c : RandomCases(random, rows, in)) products.emplace_back(c, random, x);
  std::vector<std::vector<float>> first;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    for (LinearProduct& product : products) product.Reset();
    std::string wrong = Run(pool, code, x, rows, in, products);
    for (size_t i = 0; i < products.size() && wrong.empty(); ++i) {
      wrong = products[i].Wrong(code.tiles != nullptr && rows > cpu::kMatVecRows);
      const std::vector<float>& y = products[i].y();
      if (threads == 1) {
        first.push_back(y);
      } else if (std::memcmp(y.data(), first[i].data(), y.size() * sizeof(float)) != 0) {
        wrong = "results differ between 1 and " + std::to_string(threads) + " threads";
      }
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::vector<NamedLinearCode> AllLinearCodes() {
  std::vector<NamedLinearCode> codes;
  for (const Isa isa : SupportedIsas()) {
    codes.push_back({IsaName(isa), cpu::LinearCodeFor(isa)});
    if (isa == Isa::kAvx512) {
      codes.push_back({"emulated_amx", {.isa = isa, .tiles = &cpu::EmulatedAmxGemm()}});
    }
  }
  return codes;
}

}  // namespace headway
