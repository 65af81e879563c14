#include "cli/roofline.h"

#include <algorithm>
#include <cmath>

namespace headway::cli {
namespace {

double DTypeBytesOf(const ModelInfo& info) { return info.dtype == "f32" ? 4.0 : 2.0; }

// Weights that multiply each token, the head not among them.
double BodyWeights(const ModelInfo& info) {
  return static_cast<double>(info.step_weight_bytes) / DTypeBytesOf(info) -
         static_cast<double>(info.vocab) * info.d_model;
}

double HeadFlops(const ModelInfo& info) {
  return 2.0 * static_cast<double>(info.vocab) * info.d_model;
}

// Of attention over one key: a product for the logit and one for the value.
double FlopsPerKey(const ModelInfo& info) {
  return 4.0 * static_cast<double>(info.layers) * info.query_heads * info.head_dim;
}

// Of a block's summary, in all layers and KV heads: two codes of a byte a channel, and two scales.
double SummaryBytes(const ModelInfo& info) {
  return static_cast<double>(info.layers) * info.kv_heads * (2.0 * info.head_dim + 8.0);
}

// Of a key, 2 bits a channel.
double SketchBytes(const ModelInfo& info) {
  return static_cast<double>(info.layers) * info.kv_heads * info.head_dim / 4.0;
}

// Keys of closed pages that a query reads, as far as there are so many.
int64_t KeysRead(const SelectionReport& selection) {
  return selection.keys + selection.sink + selection.recent;
}

// Of a chunk of `tokens` tokens behind `before`: what it chooses of these, and how.
void AddChoice(const ModelInfo& info, const SelectionReport& selection, int64_t before,
               int64_t tokens, Work* work) {
  const auto n = static_cast<double>(tokens);
  const auto keys = static_cast<double>(before);
  const bool chooses = KeysRead(selection) < before && before + tokens > selection.from;
  if (!chooses) {
    work->attention_flops += FlopsPerKey(info) * n * keys;
    return;
  }
  work->attention_flops += FlopsPerKey(info) * n * static_cast<double>(KeysRead(selection));
  // Two products of a pooled query and a block, as attention has of a query and a key.
  const auto candidates = static_cast<double>(selection.prompt_candidates);
  const bool twice = candidates > 0.0 && 2.0 * candidates <= keys;
  const double scored = std::ceil(n / selection.pool) * (twice ? candidates : keys) +
                        (twice ? std::ceil(n / selection.search) * keys : 0.0);
  const double scores = scored / selection.block;
  work->attention_flops += FlopsPerKey(info) * scores;
  work->bytes += keys * info.layers * info.kv_heads * selection.scored_bytes;
}

}  // namespace

Work PrefillWork(const ModelInfo& info, std::span<const int64_t> lengths,
                 std::span<const int64_t> prefixes, const PlanReport& plan) {
  Work work;
  work.bytes = static_cast<double>(info.step_weight_bytes);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto prefix = static_cast<double>(prefixes[i]);
    const double n = static_cast<double>(lengths[i]) - prefix;
    work.bytes += n * static_cast<double>(info.kv_bytes_per_token);
    work.flops += n * 2.0 * BodyWeights(info) + HeadFlops(info);
    if (!plan.selection.has_value() || !plan.selection->prompts) {
      // Token i sees the prefix and i + 1 keys.
      work.attention_flops += FlopsPerKey(info) * n * (prefix + (n + 1.0) / 2.0);
      continue;
    }
    for (int64_t at = prefixes[i]; at < lengths[i]; at += plan.chunk) {
      const int64_t tokens = std::min(plan.chunk, lengths[i] - at);
      const auto own = static_cast<double>(tokens);
      work.attention_flops += FlopsPerKey(info) * own * (own + 1.0) / 2.0;
      AddChoice(info, *plan.selection, at, tokens, &work);
    }
  }
  return work;
}

Work DecodeWork(const ModelInfo& info, std::span<const int64_t> lengths, int64_t steps,
                const std::optional<SelectionReport>& selection) {
  const auto s = static_cast<double>(steps);
  Work work;
  work.bytes = s * static_cast<double>(info.step_weight_bytes);
  for (int64_t length : lengths) {
    // Step i sees length + i + 1 keys.
    double keys = s * (static_cast<double>(length) + (s + 1.0) / 2.0);
    if (selection.has_value()) {
      const int64_t read = KeysRead(*selection);
      if (read < length && length >= selection->from) {
        const auto refresh = static_cast<double>(selection->refresh);
        const auto search =
            static_cast<double>(std::max(selection->refresh, selection->candidates_refresh));
        work.bytes += keys * info.layers * info.kv_heads * selection->scored_bytes / search;
        // A second look reads summaries of its candidates, or half of these, and 2 bits a channel
        // of each key.
        const double summary = SummaryBytes(info) / selection->block;
        const double looked = selection->looks > 1 ? summary / 2.0 + SketchBytes(info) : summary;
        work.bytes += s * static_cast<double>(selection->candidates) * looked / refresh;
        keys = s * static_cast<double>(read);
      }
    }
    work.bytes += keys * static_cast<double>(info.kv_bytes_per_token);
    work.flops += s * (2.0 * BodyWeights(info) + HeadFlops(info));
    work.attention_flops += keys * FlopsPerKey(info);
  }
  return work;
}

MachinePeaks PeaksOfGpus(const MachinePeaks& peaks, int gpus) {
  MachinePeaks all = peaks;
  for (double* rate :
       {&all.read_bytes_per_second, &all.gemm_flops_per_second, &all.attention_flops_per_second,
        &all.host_to_device_bytes_per_second, &all.device_to_host_bytes_per_second,
        &all.shared_host_to_device_bytes_per_second}) {
    *rate *= gpus;
  }
  return all;
}

double FloorSeconds(const Work& work, const MachinePeaks& peaks) {
  const auto seconds = [](double amount, double rate) { return rate > 0.0 ? amount / rate : 0.0; };
  const double attention = peaks.attention_flops_per_second > 0.0 ? peaks.attention_flops_per_second
                                                                  : peaks.gemm_flops_per_second;
  // What the bus does not bring in time, cores of the host attend to.
  const double from_host =
      peaks.host_read_bytes_per_second > 0.0
          ? peaks.host_read_bytes_per_second + peaks.shared_host_to_device_bytes_per_second
          : peaks.host_to_device_bytes_per_second;
  return std::max(
      {seconds(work.bytes, peaks.read_bytes_per_second),
       seconds(work.flops, peaks.gemm_flops_per_second) + seconds(work.attention_flops, attention),
       seconds(work.bus_bytes, from_host),
       seconds(work.weight_bytes, peaks.host_to_device_bytes_per_second),
       seconds(work.disk_bytes, peaks.disk_read_bytes_per_second)});
}

}  // namespace headway::cli
