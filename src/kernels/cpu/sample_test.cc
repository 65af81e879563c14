#include <gtest/gtest.h>

#include <vector>

#include "kernels/host_sampler.h"
#include "kernels/ref/ref_sampling.h"
#include "kernels/sample_testing.h"

namespace headway {
namespace {

TEST(HostSamplerTest, PicksTheTokensOfTheDefinition) {
  Random random(1);
  HostSampler host;
  for (int round = 0; round < 2000; ++round) {
    const SampleCase made = RandomSampleCase(random, round % 50 == 0 ? 20000 : 600);
    SCOPED_TRACE(made.name);
    SampleItem item = made.item;
    item.penalties = made.penalties;
    std::vector<float> expected_logits = made.logits;
    item.logits = expected_logits.data();
    const Sampled expected = ref::Sample(item);
    std::vector<float> logits = made.logits;
    item.logits = logits.data();
    const Sampled picked = host.Sample(item);
    ASSERT_TRUE(SameSample(picked, expected)) << picked.token << " is not " << expected.token;
    for (size_t i = 0; i < logits.size(); ++i) {
      ASSERT_TRUE(SameSample({0, logits[i]}, {0, expected_logits[i]}));
    }
  }
}

}  // namespace
}  // namespace headway
