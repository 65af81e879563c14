#include "hardware/profile_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/test_machines.h"

namespace headway::hardware {
namespace {

using plan::RandomMachine;
using plan::ShippedText;
using plan::Simple;
using ::testing::HasSubstr;

constexpr const char* kShippedNames[] = {
    "a100-40-pcie", "a100-40-sxm", "a100-80-pcie", "a100-80-sxm", "a6000",
    "h100-pcie",    "h100-sxm",    "h200",         "l40s",        "rtx-4090"};

TEST(ProfileJson, EveryShippedProfileReadsAndNamesTheSourceOfEachFigure) {
  for (const char* name : kShippedNames) {
    const Result<MachineProfile> machine = ParseProfile(ShippedText(name), name);
    ASSERT_TRUE(machine.ok()) << machine.status().message();
    EXPECT_FALSE(machine->devices.empty()) << name;
    for (const ProfileFigure& figure : DescribeProfile(*machine)) {
      EXPECT_EQ(figure.source.empty(), figure.value == "not measured") << name << figure.name;
    }
    // The device reads faster than the bus carries, and no rate is beyond the one it is part of.
    EXPECT_GT(machine->device_read, machine->host_to_device.Peak());
    EXPECT_LE(machine->both_directions, machine->host_to_device.Peak());
    EXPECT_LE(machine->host_read_copying.Peak(), machine->host_read.Peak());
    EXPECT_LE(machine->decode_attention.Peak(), machine->device_read);
    EXPECT_LE(machine->selection.Peak(), machine->device_read);
    EXPECT_LE(machine->read_in_place, machine->host_to_device.Peak());
    EXPECT_LE(machine->moved_attention, machine->listed_attention);
    EXPECT_LE(machine->coded_listed_attention, machine->listed_attention);
    EXPECT_LE(machine->coded_moved_attention, machine->moved_attention);
    EXPECT_LE(machine->listed_attention, machine->attention.Peak());
  }
}

TEST(ProfileJson, WritesWhatItReads) {
  Random random(1);
  for (int i = 0; i < 20; ++i) {
    MachineProfile machine = RandomMachine(random);
    machine.hardware = "a GPU and \"a\" CPU";
    machine.sources["disk_read_bytes_per_second"] = "measured";
    if (i % 2 == 0) {  // what need not be measured
      machine.selection = {{{65536.0, 5e9}, {1e8, 2e12}}};
      machine.second_look = {{{7e6, 1.5e11}}};
      machine.key_choice = {{{1.0, 3e9}, {64.0, 5e8}}};
      machine.turned_key_choice = {{{1.0, 7e8}, {64.0, 2e8}}};
      machine.prompt_scores = 1e9;
      machine.read_in_place = 5e10;
      machine.listed_decode = 3e10;
      machine.listed_attention = 2e14;
      machine.moved_attention = 1e14;
      machine.coded_listed_attention = 8e13;
      machine.coded_moved_attention = 4e13;
      machine.gpus = 4.0;
      machine.link = 3e11;
      machine.sum_seconds = 6e-6;
      machine.buses = 4e10;
      machine.buses_reading = 2e10;
      machine.cores_copying = 9e10;
    }
    const std::string text = WriteProfile(machine);
    const Result<MachineProfile> again = ParseProfile(text, "text");
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(WriteProfile(*again), text);
    EXPECT_EQ(again->gemm.points, machine.gemm.points);
    EXPECT_EQ(again->selection.points, machine.selection.points);
    EXPECT_EQ(again->second_look.points, machine.second_look.points);
    EXPECT_EQ(again->key_choice.points, machine.key_choice.points);
    EXPECT_EQ(again->turned_key_choice.points, machine.turned_key_choice.points);
    EXPECT_EQ(again->disk_pieces.points, machine.disk_pieces.points);
    EXPECT_EQ(again->read_in_place, machine.read_in_place);
    EXPECT_EQ(again->prompt_scores, machine.prompt_scores);
    EXPECT_EQ(again->listed_decode, machine.listed_decode);
    EXPECT_EQ(again->listed_attention, machine.listed_attention);
    EXPECT_EQ(again->moved_attention, machine.moved_attention);
    EXPECT_EQ(again->coded_listed_attention, machine.coded_listed_attention);
    EXPECT_EQ(again->coded_moved_attention, machine.coded_moved_attention);
    EXPECT_EQ(again->gpus, machine.gpus);
    EXPECT_EQ(again->link, machine.link);
    EXPECT_EQ(again->sum_seconds, machine.sum_seconds);
    EXPECT_EQ(again->buses, machine.buses);
    EXPECT_EQ(again->buses_reading, machine.buses_reading);
    EXPECT_EQ(again->cores_copying, machine.cores_copying);
    EXPECT_EQ(again->hardware, machine.hardware);
  }
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ProfileJson, RefusesProfilesThatMakeNoSense) {
  const std::string good = WriteProfile(Simple());
  ASSERT_TRUE(ParseProfile(good, "p.json").ok());
  const auto refuses = [](const std::string& text, const std::string& why) {
    const Result<MachineProfile> machine = ParseProfile(text, "p.json");
    ASSERT_FALSE(machine.ok()) << why;
    EXPECT_EQ(machine.status().code(), StatusCode::kCorrupt);
    EXPECT_THAT(machine.status().message(), testing::StartsWith("p.json: "));
    EXPECT_THAT(machine.status().message(), HasSubstr(why));
    EXPECT_EQ(machine.status().message().find('\n'), std::string::npos);
  };
  refuses("", "is not JSON");
  refuses("{", "is not JSON");
  refuses(std::string(100'000, '['), "is not JSON");
  refuses(good + std::string(2'000'000, ' '), "is longer than 1 MiB");
  refuses("[]", "is no machine profile");
  refuses("{\"format\": 7}", "is no machine profile");
  refuses(Replaced(good, "\"version\": 1", "\"version\": 0"), "another version");
  refuses(Replaced(good, "\"version\": 1", "\"version\": \"1\""), "another version");
  refuses(Replaced(good, "\"own_memory\": true", "\"own_memory\": 1"), "own_memory");
  refuses(Replaced(good, "\"name\": \"simple\"", "\"name\": 3"), "'name' is not a text");
  refuses(Replaced(good, "\"device_read_bytes_per_second\"", "\"x\""),
          "'device_read_bytes_per_second' is missing");
  const std::string value = "\"device_read_bytes_per_second\": {\n  \"value\": 1000000000000.0";
  const auto with = [&](const std::string& number) {
    return Replaced(good, value, "\"device_read_bytes_per_second\": {\n  \"value\": " + number);
  };
  refuses(with("-1"), "is -1; 1e+06 to 1e+14 are possible");
  refuses(with("0"), "is 0");
  refuses(with("1e300"), "is 1e+300");
  refuses(with("1e999"), "");
  refuses(with("\"fast\""), "is not a number");
  refuses(with("null"), "is not a number");
  refuses(with("NaN"), "is not JSON");
  const std::string points = "\"gemm_flops_per_second\": {\n  \"points\": [";
  const auto curve = [&](const std::string& list) {
    const size_t at = good.find(points) + points.size();
    return good.substr(0, at) + list + good.substr(good.find("\n  ]", at));
  };
  ASSERT_TRUE(ParseProfile(curve("[1, 1e14]"), "p.json").ok());
  refuses(curve(""), "no list of 1 to 64");
  refuses(curve("[1]"), "no [size, rate]");
  refuses(curve("[2, 1e14], [1, 1e14]"), "ascending");
  refuses(curve("[-2, 1e14]"), "ascending");
  refuses(curve("[1, 1e12], [2, 1e14]"), "less time for 2");
  refuses(curve("[1, -1e12]"), "is -1e+12");
}

TEST(ProfileJson, DamagedTextsNeverCrash) {
  const std::string good = ShippedText("h200");
  Random random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string text = good;
    for (uint64_t n = 1 + random.Below(4); n > 0 && !text.empty(); --n) {
      const auto at = static_cast<size_t>(random.Below(text.size()));
      switch (random.Below(3)) {
        case 0:
          text[at] = static_cast<char>(random.Below(256));
          break;
        case 1:
          text.erase(at, static_cast<size_t>(random.Below(20)));
          break;
        default:
          text.resize(at + 1);
      }
    }
    const Result<MachineProfile> machine = ParseProfile(text, "x");
    EXPECT_TRUE(machine.ok() || !machine.status().message().empty());
  }
}

}  // namespace
}  // namespace headway::hardware
