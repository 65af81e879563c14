// The definition of sketches and of the second look: plain loops over slots and channels.
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/ref/ref_selection_parts.h"

namespace headway::ref {
namespace {

namespace math = selection;

constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

math::SketchSizes SizesOfCode(std::byte code) {
  return math::SizesOf(std::sqrt(static_cast<float>(static_cast<uint8_t>(code))));
}

float StepOf(const float* scales) {
  return math::SketchStep(std::sqrt(math::LargestVariance(scales[1])));
}

// Rows of signs and sizes of slot `slot`, and its bit in them.
struct SlotBits {
  int64_t signs = 0;
  int64_t sizes = 0;
  std::byte bit = std::byte{0};
};
SlotBits BitsOf(int64_t slot, int64_t dim) {
  return {slot / 8 * 2 * dim, (slot / 8 * 2 + 1) * dim, std::byte{1} << (slot % 8)};
}

// A block as a second look sees it.
struct Sketch {
  std::vector<int32_t> means;                   // codes
  std::vector<std::vector<int32_t>> distances;  // of each slot, with their signs
  float scale0 = 0;
  float step = 0;
};

Sketch SketchOf(const SummaryFormat& summary, int head_dim, const BlockedKeys& keys,
                const BlockPlace& place) {
  const std::byte* codes = CodesAt(summary, head_dim, keys, place);
  const float* scales = ScalesAt(keys, place);
  const std::byte* bits = place.segment->sketch + place.head * keys.sketch_head_stride +
                          place.block * summary.sketch_bytes(head_dim);
  Sketch sketch;
  sketch.scale0 = scales[0];
  sketch.step = StepOf(scales);
  sketch.distances.resize(static_cast<size_t>(summary.block_slots));
  for (int64_t i = 0; i < head_dim; ++i) {
    sketch.means.push_back(static_cast<int8_t>(codes[i]));
    const math::SketchSizes sizes = SizesOfCode(codes[head_dim + i]);
    for (int64_t slot = 0; slot < summary.block_slots; ++slot) {
      const SlotBits at = BitsOf(slot, head_dim);
      const bool far = (bits[at.sizes + i] & at.bit) != std::byte{0};
      const bool below = (bits[at.signs + i] & at.bit) != std::byte{0};
      const int32_t size = far ? sizes.far : sizes.near;
      sketch.distances[static_cast<size_t>(slot)].push_back(below ? -size : size);
    }
  }
  return sketch;
}

int32_t Dot(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  int32_t sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

struct Mass {
  float top = kNoLogit;
  uint32_t mass = 0;
};

Mass MassOf(const Sketch& sketch, const CodedQuery& query) {
  const int32_t first = Dot(query.q.codes, sketch.means);
  std::vector<float> logits;
  Mass mass;
  for (const std::vector<int32_t>& distances : sketch.distances) {
    logits.push_back(math::SketchLogit(query.factors, sketch.scale0, first, sketch.step,
                                       Dot(query.q.codes, distances)));
    mass.top = logits.back() > mass.top ? logits.back() : mass.top;
  }
  uint64_t sum = 0;
  for (const float logit : logits) sum += math::ShareWeight(mass.top, logit);
  mass.mass = math::MassOf(sum);
  return mass;
}

// Each block's share for one query head, added to its worth.
void AddShares(const std::vector<Mass>& masses, std::vector<float>& worth) {
  float largest = kNoLogit;
  for (const Mass& mass : masses) largest = mass.top > largest ? mass.top : largest;
  std::vector<uint32_t> weights;
  uint64_t sum = 0;
  for (const Mass& mass : masses) {
    weights.push_back(math::MassWeight(mass.mass, math::ShareWeight(largest, mass.top)));
    sum += weights.back();
  }
  for (size_t i = 0; i < weights.size(); ++i) worth[i] += math::ShareOf(weights[i], sum);
}

}  // namespace

void MakeSketch(const SummaryFormat& summary, const std::vector<std::vector<float>>& keys,
                const std::byte* codes, const float* scales, std::byte* sketch) {
  const auto dim = static_cast<int64_t>(keys.front().size());
  for (int64_t i = 0; i < summary.sketch_bytes(static_cast<int>(dim)); ++i) sketch[i] = {};
  const float step = StepOf(scales);
  for (int64_t i = 0; i < dim; ++i) {
    const float mean = math::SketchMean(scales[0], static_cast<int8_t>(codes[i]));
    const float middle = math::SketchMiddle(SizesOfCode(codes[dim + i]), step);
    for (int64_t slot = 0; slot < summary.block_slots; ++slot) {
      const float key = keys[static_cast<size_t>(slot)][static_cast<size_t>(i)];
      const SlotBits at = BitsOf(slot, dim);
      if (math::SketchSign(key, mean)) sketch[at.signs + i] |= at.bit;
      if (math::SketchIsFar(key, mean, middle)) sketch[at.sizes + i] |= at.bit;
    }
  }
}

Worths SketchWorths(const SelectCall& call, const SelectItem& item, const Lists& candidates) {
  const int head_dim = call.format.head_dim;
  Worths worths;
  for (int64_t head = 0; head < item.keys.heads; ++head) {
    const std::vector<int32_t>& blocks = candidates[static_cast<size_t>(head)];
    std::vector<Sketch> sketches;
    for (const int32_t block : blocks) {
      sketches.push_back(
          SketchOf(call.summary, head_dim, item.keys, PlaceOf(item.keys, head, block)));
    }
    worths.emplace_back(blocks.size(), 0.0f);
    for (int64_t q_head = head * call.group; q_head < (head + 1) * call.group; ++q_head) {
      const CodedQuery query = QueryOf(item, {0, 1}, q_head, head_dim, call.scale);
      std::vector<Mass> masses;
      for (const Sketch& sketch : sketches) masses.push_back(MassOf(sketch, query));
      AddShares(masses, worths.back());
    }
  }
  return worths;
}

}  // namespace headway::ref
