#include "engine/salience_settings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

namespace headway {
namespace {

// What is wrong with the options; empty: nothing.
std::string Wrong(const std::function<void(EngineOptions&)>& change) {
  EngineOptions options;
  options.hgca = 1.0;
  change(options);
  const Result<Settings> settings = ReadSettings(options);
  if (settings.ok()) return "";
  EXPECT_EQ(settings.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(settings.status().message().find('\n'), std::string::npos);
  return settings.status().message();
}

TEST(SalienceSettings, WhatIsGivenIsThere) {
  EngineOptions options;
  EXPECT_FALSE(ReadSettings(options)->salience.chooses());
  options.hgca = 0.0;  // exact
  EXPECT_FALSE(ReadSettings(options)->salience.chooses());
  options.hgca = 0.5;
  Settings settings = *ReadSettings(options);
  EXPECT_TRUE(settings.salience.chooses());
  EXPECT_EQ(settings.salience.beta, 0.5);
  EXPECT_EQ(settings.salience.window, 4096);
  EXPECT_EQ(settings.salience.alpha, 1.0 / 16);
  EXPECT_EQ(settings.salience.every, 8);
  EXPECT_EQ(settings.salience.most, 0.3);
  EXPECT_EQ(settings.salience.queries, 32);
  EXPECT_FALSE(settings.salient_on_host.has_value());
  EXPECT_EQ(settings.placement, kv::PlacementKind::kRecent);
  EXPECT_EQ(settings.recompute_share, 0.0);
  options.hgca_window = 100;
  options.hgca_alpha = 0.25;
  options.hgca_every = 3;
  options.hgca_most = 1.0;
  options.hgca_queries = 8;
  options.hgca_on = "host";
  options.placement = "first-fit";
  settings = *ReadSettings(options);
  EXPECT_EQ(settings.salience.window, 100);
  EXPECT_EQ(settings.salience.alpha, 0.25);
  EXPECT_EQ(settings.salience.every, 3);
  EXPECT_EQ(settings.salience.most, 1.0);
  EXPECT_EQ(settings.salience.queries, 8);
  EXPECT_EQ(settings.salient_on_host, true);
  EXPECT_EQ(settings.placement, kv::PlacementKind::kFirstFit);
}

TEST(SalienceSettings, WhatMakesNoSenseIsRefused) {
  const auto names = [](const std::string& what,
                        const std::function<void(EngineOptions&)>& change) {
    EXPECT_NE(Wrong(change).find(what), std::string::npos) << what << ": " << Wrong(change);
  };
  EXPECT_EQ(Wrong([](EngineOptions&) {}), "");
  names("hgca is", [](EngineOptions& o) { o.hgca = -0.5; });
  names("hgca is", [](EngineOptions& o) { o.hgca = NAN; });
  names("hgca_window", [](EngineOptions& o) { o.hgca_window = 0; });
  names("hgca_alpha", [](EngineOptions& o) { o.hgca_alpha = 0.0; });
  names("hgca_alpha", [](EngineOptions& o) { o.hgca_alpha = NAN; });
  names("hgca_every", [](EngineOptions& o) { o.hgca_every = 0; });
  names("hgca_most", [](EngineOptions& o) { o.hgca_most = 1.5; });
  names("hgca_queries", [](EngineOptions& o) { o.hgca_queries = 257; });
  names("hgca_queries 32: queries come from the window",
        [](EngineOptions& o) { o.hgca_window = 31; });
  names("hgca_on", [](EngineOptions& o) { o.hgca_on = "disk"; });
  names("hgca_window needs hgca", [](EngineOptions& o) {
    o.hgca = -1.0;
    o.hgca_window = 100;
  });
  names("evict", [](EngineOptions& o) { o.evict = "snapkv"; });
  names("selector", [](EngineOptions& o) { o.selector = "pages"; });
  names("self_extend", [](EngineOptions& o) { o.self_extend = "4:1024"; });
  names("head_pattern", [](EngineOptions& o) { o.head_pattern = "heads.json"; });
  names("host_share", [](EngineOptions& o) { o.host_share = 0.5; });
  names("give hgca_on host", [](EngineOptions& o) {
    o.host_share = 0.5;
    o.hgca_on = "device";
  });
  names("hgca_epsilon: the host's cores read all salient tokens", [](EngineOptions& o) {
    o.host_share = 0.5;
    o.hgca_epsilon = 0.1;
  });
  names("recompute", [](EngineOptions& o) { o.recompute_share = 0.5; });
}

TEST(SalienceSettings, ReselectionHasNoMasses) {
  EngineOptions options;
  options.hgca_reselect = 4;
  options.hgca_window = 16;  // fewer than queries that would be weighed
  options.hgca_most = 0.1;
  const Settings settings = *ReadSettings(options);
  EXPECT_TRUE(settings.salience.chooses());
  EXPECT_FALSE(settings.salience.has_masses());
  EXPECT_EQ(settings.salience.reselect, 4);
  EXPECT_EQ(settings.salience.window, 16);
  EXPECT_EQ(settings.salience.most, 0.1);
  EXPECT_EQ(settings.placement, kv::PlacementKind::kRecent);
  const auto names = [](const std::string& what,
                        const std::function<void(EngineOptions&)>& change) {
    const auto changed = [&](EngineOptions& o) {
      o.hgca = EngineOptions().hgca;
      o.hgca_reselect = 4;
      change(o);
    };
    EXPECT_NE(Wrong(changed).find(what), std::string::npos) << what << ": " << Wrong(changed);
  };
  names("hgca_reselect is", [](EngineOptions& o) { o.hgca_reselect = -1; });
  names("leave out hgca", [](EngineOptions& o) { o.hgca = 1.0; });
  names("leave out hgca_alpha", [](EngineOptions& o) { o.hgca_alpha = 0.5; });
  names("leave out hgca_every", [](EngineOptions& o) { o.hgca_every = 2; });
  names("leave out hgca_queries", [](EngineOptions& o) { o.hgca_queries = 8; });
  names("blocks of 16", [](EngineOptions& o) { o.page_slots = 8; });
  names("hgca_most", [](EngineOptions& o) { o.hgca_most = 0.0; });
  names("hgca_reselect and evict", [](EngineOptions& o) { o.evict = "snapkv"; });
  names("hgca_reselect and selector", [](EngineOptions& o) { o.selector = "pages"; });
}

TEST(SalienceSettings, BoundsAreRead) {
  EngineOptions options;
  options.hgca = 1.0;
  EXPECT_FALSE(ReadSettings(options)->salience.is_bounded());
  options.hgca_epsilon = 0.1;
  Settings settings = *ReadSettings(options);
  EXPECT_TRUE(settings.salience.is_bounded());
  EXPECT_EQ(settings.salience.bound.epsilon, 0.1);
  EXPECT_NEAR(settings.salience.bound.deviations, 1.644854, 1e-6);
  EXPECT_EQ(settings.salience.delta, 0.05);
  EXPECT_EQ(settings.salient_on_host, true);
  EXPECT_TRUE(CheckBound(settings, /*own_memory=*/false).ok());
  EXPECT_EQ(CheckBound(settings, /*own_memory=*/true).message(),
            "hgca_epsilon: the host's cores read keys before the window, and cannot where they lie "
            "in a GPU's memory; give placement host-only");
  options.placement = "host-only";
  EXPECT_TRUE(CheckBound(*ReadSettings(options), /*own_memory=*/true).ok());
  options.hgca = EngineOptions().hgca;
  options.hgca_reselect = 2;
  options.hgca_on = "host";
  options.hgca_delta = 0.5;
  settings = *ReadSettings(options);
  EXPECT_TRUE(settings.salience.is_bounded());
  EXPECT_NEAR(settings.salience.bound.deviations, 0.0, 1e-9);
  const auto names = [](const std::string& what,
                        const std::function<void(EngineOptions&)>& change) {
    EXPECT_NE(Wrong(change).find(what), std::string::npos) << what << ": " << Wrong(change);
  };
  names("hgca_epsilon is", [](EngineOptions& o) { o.hgca_epsilon = 1.0; });
  names("hgca_epsilon is", [](EngineOptions& o) { o.hgca_epsilon = -0.1; });
  names("hgca_epsilon is", [](EngineOptions& o) { o.hgca_epsilon = NAN; });
  names("hgca_delta is", [](EngineOptions& o) { o.hgca_epsilon = 0.1, o.hgca_delta = 0.0; });
  names("hgca_delta is", [](EngineOptions& o) { o.hgca_epsilon = 0.1, o.hgca_delta = 0.6; });
  names("hgca_delta needs hgca_epsilon", [](EngineOptions& o) { o.hgca_delta = 0.1; });
  names("leave out hgca_on", [](EngineOptions& o) { o.hgca_epsilon = 0.1, o.hgca_on = "device"; });
  names("hgca_epsilon needs hgca", [](EngineOptions& o) { o.hgca = -1.0, o.hgca_epsilon = 0.1; });
}

TEST(SalienceSettings, CoresAttendToWhatTheBusLeavesThem) {
  MachineProfile machine;
  machine.host_read_copying.points = {{1, 75e9}};
  machine.host_attention = 0.8;
  machine.host_to_device_reading = 50e9;
  machine.host_to_device.points = {{1, 60e9}};
  machine.read_in_place = 48e9;
  Settings settings;
  settings.salience.beta = 1.0;
  EXPECT_DOUBLE_EQ(SalientByCores(settings, &machine), 0.6);
  EXPECT_EQ(SalientByCores(settings, nullptr), 1.0);
  settings.host_share = 0.25;
  EXPECT_EQ(SalientByCores(settings, &machine), 0.25);
  settings.host_share.reset();
  settings.salience.bound.epsilon = 0.1;
  EXPECT_EQ(SalientByCores(settings, &machine), 1.0);
  settings.salience.bound = {};
  machine.own_memory = false;
  EXPECT_EQ(SalientByCores(settings, &machine), 1.0);
}

TEST(SalienceSettings, PlansReadTheWindowAndWhatIsSalientAtMost) {
  kv::SaliencePolicy policy;
  EXPECT_FALSE(KeptOf(policy, {5000}, 1.0).count);
  policy.beta = 1.0;
  policy.window = 1000;
  policy.most = 0.25;
  const plan::KeptTokens kept = KeptOf(policy, {5000, 300}, 0.75);
  EXPECT_EQ(kept.count(5000), 2000);
  EXPECT_EQ(kept.on_host(5000), 1000);
  EXPECT_EQ(kept.by_cores, 0.75);
  EXPECT_EQ(kept.count(300), 300);
  EXPECT_EQ(kept.on_host(300), 0);
  EXPECT_EQ(kept.plain(5000), 1000);
  EXPECT_FALSE(KeptOf(policy, {5000}, std::nullopt).on_host);
}

}  // namespace
}  // namespace headway
