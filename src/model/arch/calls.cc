#include "model/arch/calls.h"

#include <algorithm>

#include "base/check.h"

namespace headway::arch {

namespace {

template <typename T>
const T* StepAt(std::span<const Step> steps, size_t i) {
  return i < steps.size() ? std::get_if<T>(&steps[i]) : nullptr;
}

// The slots that hold something, step by step.
class LiveSlots {
 public:
  void Write(Slot slot) {
    if (slot == Slot::kInner || slot == Slot::kUp) {
      for (Slot dead : {Slot::kQuery, Slot::kKey, Slot::kValue, Slot::kAttended}) Kill(dead);
    }
    live_[static_cast<size_t>(slot)] = true;
  }
  void Read(Slot slot) const { HEADWAY_CHECK(live_[static_cast<size_t>(slot)]); }
  void Follow(const Step& step) {
    if (const auto* norm = std::get_if<NormStep>(&step)) {
      Read(Slot::kResidual);
      Write(norm->to);
    } else if (const auto* linear = std::get_if<LinearStep>(&step)) {
      Read(linear->from);
      // The residual stream becomes activations in kNormed first.
      if (linear->from == Slot::kResidual) Write(Slot::kNormed);
      for (const Product& product : linear->products) Write(product.to);
    } else if (const auto* heads = std::get_if<HeadNormStep>(&step)) {
      Read(heads->heads);
    } else if (std::get_if<AttendStep>(&step) != nullptr) {
      for (Slot slot : {Slot::kQuery, Slot::kKey, Slot::kValue}) Read(slot);
      live_ = {};
      Write(Slot::kResidual);
      Write(Slot::kAttended);
    } else if (std::get_if<EmbedStep>(&step) != nullptr) {
      Write(Slot::kResidual);
    } else if (std::get_if<ActivateStep>(&step) != nullptr) {
      Read(Slot::kInner);
    }
  }

 private:
  void Kill(Slot slot) { live_[static_cast<size_t>(slot)] = false; }

  std::array<bool, kSlots> live_ = {};
};

LinearResult ResultOf(const Product& product) {
  if (product.to == Slot::kResidual) {
    return product.into == Into::kAdd ? LinearResult::kAddFloat : LinearResult::kFloat;
  }
  HEADWAY_CHECK(product.into == Into::kSet);
  return product.to == Slot::kLogits ? LinearResult::kFloat : LinearResult::kActivation;
}

Call LinearCall(const LinearStep& step) {
  HEADWAY_CHECK(!step.products.empty() && step.products.size() <= Call::kMostOutputs);
  Call call = {.kind = CallKind::kLinear, .at = step.from};
  for (const Product& product : step.products) {
    call.output[static_cast<size_t>(call.outputs++)] = {product.linear, product.to,
                                                        ResultOf(product)};
  }
  return call;
}

// Makes calls whose products have split columns parts of a sum over the ranks: the residual stream
// is in the first part, and the others are set.
void Sum(const TensorList& tensors, SumRole role, std::vector<Call>* calls) {
  for (Call& call : *calls) {
    for (size_t i = 0; i < static_cast<size_t>(call.outputs); ++i) {
      Call::Output& output = call.output[i];
      const Split split = tensors.specs[static_cast<size_t>(output.linear.weight)].split;
      if (split != Split::kQueryColumns && split != Split::kInnerColumns) continue;
      HEADWAY_CHECK(call.outputs == 1 && output.result == LinearResult::kAddFloat);
      call.sums = true;
      if (role == SumRole::kOther) output.result = LinearResult::kFloat;
    }
  }
}

bool Writes(const LinearStep& step, Slot slot) {
  return std::any_of(step.products.begin(), step.products.end(),
                     [slot](const Product& product) { return product.to == slot; });
}

// Whether one of the steps reads kNormed as it is now.
bool ReadsNormed(std::span<const Step> steps) {
  for (const Step& step : steps) {
    if (const auto* norm = std::get_if<NormStep>(&step)) {
      if (norm->to == Slot::kNormed) return false;
    } else if (const auto* linear = std::get_if<LinearStep>(&step)) {
      if (linear->from == Slot::kNormed) return true;
      if (linear->from == Slot::kResidual) return false;
    }
  }
  return false;
}

class Resolver {
 public:
  Resolver(std::span<const Step> steps, Normed normed) : steps_(steps), normed_(normed) {}

  std::vector<Call> Take() {
    while (next_ < steps_.size()) One();
    return std::move(calls_);
  }

 private:
  void One() {
    if (const auto* embed = StepAt<EmbedStep>(steps_, next_)) {
      calls_.push_back({.kind = CallKind::kEmbed, .embed = *embed});
    } else if (const auto* heads = StepAt<HeadNormStep>(steps_, next_)) {
      calls_.push_back(
          {.kind = CallKind::kHeadNorm,
           .at = heads->heads,
           .norm = {.kind = NormKind::kRms, .eps = heads->eps, .weight = heads->weight}});
    } else if (const auto* norm = StepAt<NormStep>(steps_, next_)) {
      return OfNorm(*norm);
    } else if (const auto* linear = StepAt<LinearStep>(steps_, next_)) {
      return OfLinear(*linear);
    } else {
      // The engine rotates, and it attends between two calls of Resolve. An activation goes with
      // the product before it.
      HEADWAY_CHECK(StepAt<RopeStep>(steps_, next_) != nullptr);
    }
    ++next_;
  }

  void OfNorm(const NormStep& step) {
    ++next_;
    if (step.to == Slot::kResidual) {
      calls_.push_back({.kind = CallKind::kNormInPlace, .norm = step.norm});
      return;
    }
    HEADWAY_CHECK(step.to == Slot::kNormed);
    const auto* linear = StepAt<LinearStep>(steps_, next_);
    if (linear != nullptr && linear->from == Slot::kNormed && Fuses(*linear)) {
      return OfProducts(*linear, CallKind::kNormLinear, step.norm);
    }
    calls_.push_back({.kind = CallKind::kNorm, .norm = step.norm});
  }

  void OfLinear(const LinearStep& step) {
    if (step.from != Slot::kResidual) return OfProducts(step, CallKind::kLinear, {});
    // Products read activations.
    if (Fuses(step)) return OfProducts(step, CallKind::kNormLinear, {});
    calls_.push_back({.kind = CallKind::kNorm, .width_of = step.products.front().linear.weight});
    OfProducts({Slot::kNormed, step.products}, CallKind::kLinear, {});
  }

  // Not where the product writes what the norm reads, nor where the normed rows are read again.
  bool Fuses(const LinearStep& step) const {
    return normed_ == Normed::kDropped && !Writes(step, Slot::kResidual) &&
           !ReadsNormed(steps_.subspan(next_ + 1));
  }

  // With the activation behind it. next_ is at the product, or at what was written as one.
  void OfProducts(const LinearStep& step, CallKind kind, const Norm& norm) {
    Call call = LinearCall(step);
    call.kind = kind;
    call.norm = norm;
    if (kind == CallKind::kNormLinear) call.at = Slot::kResidual;
    ++next_;
    if (const auto* activate = StepAt<ActivateStep>(steps_, next_)) {
      Activate(activate->activation, &call);
      ++next_;
    }
    calls_.push_back(call);
  }

  static void Activate(Activation activation, Call* call) {
    HEADWAY_CHECK(call->output[0].to == Slot::kInner);
    if (activation == Activation::kSwiGlu) {
      HEADWAY_CHECK(call->outputs == 2 && call->output[1].to == Slot::kUp);
      call->kind =
          call->kind == CallKind::kNormLinear ? CallKind::kNormGatedLinear : CallKind::kGatedLinear;
      return;
    }
    HEADWAY_CHECK(call->outputs == 1);
    call->output[0].result = activation == Activation::kRelu   ? LinearResult::kRelu
                             : activation == Activation::kGelu ? LinearResult::kGelu
                                                               : LinearResult::kGeluTanh;
  }

  std::span<const Step> steps_;
  const Normed normed_;
  size_t next_ = 0;
  std::vector<Call> calls_;
};

// The calls that make k and v, of those that make all three, whose norms stand alone.
std::vector<Call> KeysValues(std::span<const Call> before) {
  std::vector<Call> calls;
  for (const Call& call : before) {
    if (call.kind == CallKind::kHeadNorm && call.at == Slot::kKey) calls.push_back(call);
    if (call.kind != CallKind::kLinear) continue;
    HEADWAY_CHECK(call.at == Slot::kNormed);
    Call some = call;
    some.outputs = 0;
    for (int i = 0; i < call.outputs; ++i) {
      const Call::Output& output = call.output[static_cast<size_t>(i)];
      if (output.to != Slot::kKey && output.to != Slot::kValue) continue;
      some.output[static_cast<size_t>(some.outputs++)] = output;
    }
    if (some.outputs > 0) calls.push_back(some);
  }
  return calls;
}

}  // namespace

std::vector<Call> Resolve(std::span<const Step> steps, Normed normed) {
  return Resolver(steps, normed).Take();
}

LayerCalls ResolveLayer(const LayerProgram& layer, SumRole role) {
  const std::span<const Step> steps = layer.steps;
  LiveSlots live;
  live.Write(Slot::kResidual);
  for (const Step& step : steps) live.Follow(step);
  const auto attends = [](const Step& step) { return std::get_if<AttendStep>(&step) != nullptr; };
  HEADWAY_CHECK(std::count_if(steps.begin(), steps.end(), attends) == 1);
  const auto cut =
      static_cast<size_t>(std::find_if(steps.begin(), steps.end(), attends) - steps.begin());
  LayerCalls calls;
  calls.before = Resolve(steps.first(cut), Normed::kDropped);
  calls.before_keeping = Resolve(steps.first(cut), Normed::kKept);
  calls.keys_values = KeysValues(calls.before_keeping);
  calls.after = Resolve(steps.subspan(cut + 1), Normed::kDropped);
  if (role != SumRole::kAlone) Sum(layer.tensors, role, &calls.after);
  return calls;
}

}  // namespace headway::arch
