// What heads let go of in an encoding: the codes of the pages that they hold without one, and the
// same summaries.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/step/demoted.h"
#include "kernels/page_codec.h"
#include "kv/policy/demotion.h"
#include "support/eviction_reading.h"
#include "support/golden_fixture.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kBlock = kv::DemotionPolicy::kSummary.block_slots;

// A head's pages and summaries where they lie, as bytes.
std::string BytesOf(StepHarness& h, const std::byte* from, int64_t count) {
  std::string bytes(static_cast<size_t>(count), '\0');
  h.compute().Copy(reinterpret_cast<std::byte*>(bytes.data()), from, bytes.size());
  EXPECT_TRUE(h.compute().Synchronize().ok());
  return bytes;
}

// What a head holds in an encoding is what it holds without, page by page encoded; summaries are of
// the keys as they were.
void ExpectEncoded(Reading& plain, Reading& encoded, kv::SequenceId a, kv::SequenceId b) {
  const Demoted& of_plain = plain.harness().demoted();
  const Demoted& of_codes = encoded.harness().demoted();
  const Demoted::Held& from = *plain.harness().demoted().Find(a);
  const Demoted::Held& to = *encoded.harness().demoted().Find(b);
  const PageFormat page = of_codes.limits().page;
  const auto code_bytes = page.closed_bytes();
  ASSERT_EQ(from.heads.size(), to.heads.size());
  for (int i = 0; i < static_cast<int>(from.heads.size()); ++i) {
    const int heads = of_codes.limits().shape.kv_heads, layer = i / heads, head = i % heads;
    const int64_t blocks = of_codes.BlocksOf(to, layer, head);
    ASSERT_EQ(of_plain.BlocksOf(from, layer, head), blocks);
    const SegmentPlace at = of_plain.PlaceOf(from, layer, head);
    const SegmentPlace codes_at = of_codes.PlaceOf(to, layer, head);
    const int64_t summaries = blocks * kv::DemotionPolicy::kSummary.bytes(page.head_dim);
    EXPECT_EQ(BytesOf(plain.harness(), at.summary, summaries),
              BytesOf(encoded.harness(), codes_at.summary, summaries));
    const BlockedKeys lie = of_plain.KeysOf(1, blocks), codes_lie = of_codes.KeysOf(1, blocks);
    const int64_t pages = blocks * kBlock / page.page_slots;
    const std::string rows = BytesOf(plain.harness(), at.slab, 2 * lie.v_offset);
    const std::string codes =
        BytesOf(encoded.harness(), codes_at.slab,
                codes_lie.params_offset + pages * codes_lie.params_page_stride);
    for (int64_t n = 0; n < pages; ++n) {
      std::string k(code_bytes, '\0'), v = k;
      std::string params(static_cast<size_t>(ParamBytes(page)), '\0');
      const auto* const k_rows =
          reinterpret_cast<const std::byte*>(rows.data()) + n * lie.page_stride;
      const auto bytes = [](std::string& of) { return reinterpret_cast<std::byte*>(of.data()); };
      EncodePage(page, k_rows, k_rows + lie.v_offset, bytes(k), bytes(v), bytes(params));
      const auto first = static_cast<size_t>(n * codes_lie.page_stride);
      ASSERT_EQ(codes.substr(first, code_bytes), k) << "layer " << layer << " head " << head;
      ASSERT_EQ(codes.substr(static_cast<size_t>(codes_lie.v_offset) + first, code_bytes), v);
      ASSERT_EQ(codes.substr(
                    static_cast<size_t>(codes_lie.params_offset + n * codes_lie.params_page_stride),
                    params.size()),
                params);
    }
  }
}

class EngineDemotedEncoded : public GoldenModel {};

TEST_P(EngineDemotedEncoded, HoldsCodesOfTheSamePages) {
  const std::unique_ptr<Model> other = Load();  // which is not moved to a GPU
  ASSERT_NE(other, nullptr);
  const auto length = std::ssize(golden_.prompt) + 1;
  HarnessConfig config;
  config.eviction.method = kv::EvictionMethod::kAdaSnap;
  config.eviction.budget = 60;
  config.eviction.window = 8;
  config.eviction.demotion = {64, 1};
  Reading plain(*model_, *other, config, length);
  ASSERT_TRUE(plain.ok());
  Prompt prompt;
  const kv::SequenceId a = plain.Evict(golden_.prompt, &prompt);
  for (const Encoding encoding : {Encoding::kInt8, Encoding::kFp8E4M3, Encoding::kInt4}) {
    config.encoding = encoding;
    Reading encoded(*model_, *other, config, length);
    ASSERT_TRUE(encoded.ok());
    Prompt same;
    const kv::SequenceId b = encoded.Evict(golden_.prompt, &same);
    ExpectEncoded(plain, encoded, a, b);
    const StepInput input{b, std::span(golden_.tokens).first(1), &encoded.rope(), LogitsMode::kAll};
    ASSERT_TRUE(encoded.harness().StepKept({&input, 1}).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineDemotedEncoded,
                         ::testing::Values("llama31", "llama-bf16", "qwen2"));

}  // namespace
}  // namespace headway::testing
