#include "kv/policy/placement.h"

#include <array>
#include <compare>
#include <vector>

namespace headway::kv {
namespace {

constexpr std::array kAllTiers = {Tier::kDevice, Tier::kHost, Tier::kDisk};

// Slabs move up to the fastest tier with room as they are read.
std::optional<Tier> FastestAbove(const Placement& placement, Tier home, const Room& room) {
  const std::optional<Tier> fastest = placement.FastestWithRoom(room);
  return fastest.has_value() && *fastest < home ? fastest : std::nullopt;
}

class FirstFit final : public Placement {
 public:
  std::span<const Tier> tiers() const override { return kAllTiers; }
  std::optional<Tier> PlaceNew(const Room& room) const override { return FastestWithRoom(room); }
  std::optional<Tier> PlacePromoted(Tier home, const Room& room) const override {
    return FastestAbove(*this, home, room);
  }
};

// The fastest of some tiers with room, for good.
class SlowTiers final : public Placement {
 public:
  explicit SlowTiers(std::span<const Tier> tiers) : tiers_(tiers) {}
  std::span<const Tier> tiers() const override { return tiers_; }
  std::optional<Tier> PlaceNew(const Room& room) const override { return FastestWithRoom(room); }

 private:
  const std::span<const Tier> tiers_;
};

class OneTier final : public Placement {
 public:
  explicit OneTier(Tier tier) : tier_{tier} {}
  std::span<const Tier> tiers() const override { return tier_; }
  // Without room the tier itself says what it lacks.
  std::optional<Tier> PlaceNew(const Room&) const override { return tier_[0]; }

 private:
  const std::array<Tier, 1> tier_;
};

class Lru final : public Placement {
 public:
  std::span<const Tier> tiers() const override { return kAllTiers; }
  // A new slab belongs on the device, and an older one makes room for it.
  std::optional<Tier> PlaceNew(const Room& room) const override {
    if (room.has[static_cast<int>(Tier::kDevice)]) return Tier::kDevice;
    return std::nullopt;
  }
  std::optional<Tier> PlacePromoted(Tier home, const Room& room) const override {
    return FastestAbove(*this, home, room);
  }

  bool demotes() const override { return true; }
  int PickVictim(std::span<const int32_t> movable) const override {
    int victim = -1;
    for (size_t i = 0; i < movable.size(); ++i) {
      if (victim < 0 || LastRead(movable[i]) < LastRead(movable[static_cast<size_t>(victim)])) {
        victim = static_cast<int>(i);
      }
    }
    return victim;
  }

  void BeginStep() override { ++step_; }
  void Read(int32_t slab) override { Set(slab, step_); }
  void Copied(int32_t from, int32_t to) override { Set(to, LastRead(from)); }
  void Forget(int32_t slab) override { Set(slab, 0); }

 private:
  int64_t LastRead(int32_t slab) const {
    const auto at = static_cast<size_t>(slab);
    return at < last_read_.size() ? last_read_[at] : 0;
  }
  void Set(int32_t slab, int64_t step) {
    const auto at = static_cast<size_t>(slab);
    if (at >= last_read_.size()) last_read_.resize(at + 1, 0);
    last_read_[at] = step;
  }

  int64_t step_ = 0;
  std::vector<int64_t> last_read_;  // step; 0: never
};

class Recent final : public Placement {
 public:
  explicit Recent(int sink_segments) : sink_segments_(sink_segments) {}
  std::span<const Tier> tiers() const override { return kAllTiers; }
  // A new slab belongs on the device, and an older one makes room for it.
  std::optional<Tier> PlaceNew(const Room& room) const override {
    if (room.has[static_cast<int>(Tier::kDevice)]) return Tier::kDevice;
    return std::nullopt;
  }
  // What lies on disk is read whole.
  std::optional<Tier> PlacePromoted(Tier home, const Room& room) const override {
    return home == Tier::kDisk ? FastestAbove(*this, home, room) : std::nullopt;
  }

  bool demotes() const override { return true; }
  int PickVictim(std::span<const int32_t> movable) const override {
    int victim = -1;
    Age oldest;
    for (size_t i = 0; i < movable.size(); ++i) {
      const Age& age = ages_[static_cast<size_t>(movable[i])];
      if (age.segment < sink_segments_ || (victim >= 0 && age >= oldest)) continue;
      victim = static_cast<int>(i);
      oldest = age;
    }
    return victim;
  }

  void BeginStep() override { ++step_; }
  void Began(int32_t slab, int segment) override {
    const auto at = static_cast<size_t>(slab);
    if (at >= ages_.size()) ages_.resize(at + 1);
    ages_[at] = {kRecentKeys, step_, segment, next_++};
  }
  void Passed(int32_t slab) override { ages_[static_cast<size_t>(slab)].keys = kPassedKeys; }

 private:
  // Slabs without recent keys go first. Of those of one step, the first segments go first, in all
  // layers and head groups.
  enum Keys : uint8_t { kPassedKeys, kRecentKeys };
  struct Age {
    Keys keys = kRecentKeys;
    int64_t step = 0;
    int segment = 0;
    int64_t number = 0;  // in the order in which slabs were begun
    auto operator<=>(const Age&) const = default;
  };

  const int sink_segments_;
  int64_t step_ = 0;
  int64_t next_ = 0;
  std::vector<Age> ages_;  // of each slab
};

}  // namespace

std::optional<Tier> Placement::PlacePromoted(Tier, const Room&) const { return std::nullopt; }

int Placement::PickVictim(std::span<const int32_t> movable) const {
  return movable.empty() ? -1 : 0;
}

std::optional<Tier> Placement::FastestWithRoom(const Room& room) const {
  for (const Tier tier : tiers()) {
    if (room.has[static_cast<int>(tier)]) return tier;
  }
  return std::nullopt;
}

std::unique_ptr<Placement> Placement::Make(PlacementKind kind, int sink_segments) {
  const std::span<const Tier> all = kAllTiers;
  switch (kind) {
    case PlacementKind::kFirstFit:
      break;
    case PlacementKind::kLru:
      return std::make_unique<Lru>();
    case PlacementKind::kHostOnly:
      return std::make_unique<SlowTiers>(all.subspan(1));
    case PlacementKind::kDiskOnly:
      return std::make_unique<SlowTiers>(all.subspan(2));
    case PlacementKind::kRecent:
      return std::make_unique<Recent>(sink_segments);
  }
  return std::make_unique<FirstFit>();
}

std::unique_ptr<Placement> Placement::Fixed(Tier tier) { return std::make_unique<OneTier>(tier); }

}  // namespace headway::kv
