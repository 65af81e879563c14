// What pages of K and V take in the lossless encoding, beside what they would take at least, and
// what is left to gain where they are f16. A model reads a text, its cache is saved as a session,
// and each half of its pages, K or V of a head, is encoded, decoded and compared with what it was.
// Pages of zeros and of random bits have the same shape.
//
//   entropy   bits that an exponent takes at least, all exponents of the row being coded alike;
//             with sign and fraction behind it the floor of a number
//   bits      a number takes, with the parameters of its page; and in a slab, with what pages and
//             parameters are padded by, as a share of plain pages there
//   escapes   of a half: mean, most, and how many it can have
//   unfit     halves with more of them. A context that meets one goes on with plain pages, which is
//             what `kept` says of all pages, as a share of plain ones
//
// Forms of a fixed rate for f16 keep sign and fraction as they are, N exponents of a row, the
// largest and those below it, in some bits, and the others in lists of 3 bytes each which are as
// long as those of the fullest half.
//
//   page_sizes MODEL FILE [CONTEXT [WINDOWS [PAGE]]]
//
//   CONTEXT, WINDOWS   one window of 4096 tokens by default
//   PAGE               tokens of a page; by default those of lossless pages
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/env.h"
#include "base/half.h"
#include "base/random.h"
#include "device/budget.h"
#include "engine/eval/perplexity.h"
#include "engine/page_size.h"
#include "headway/engine.h"
#include "kernels/lossless_codec.h"
#include "kernels/page_codec.h"
#include "kv/session/aligned_buffer.h"
#include "kv/session/slab_file.h"
#include "unwrap.h"

namespace headway::bench {
namespace {

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

using Half = std::vector<uint16_t>;  // [page_slots, head_dim]

struct Halves {
  kv::CacheFormat format;  // of plain pages
  std::vector<Half> k, v;

  // The same cache in lossless pages.
  kv::CacheFormat Lossless() const {
    kv::CacheFormat lossless = format;
    lossless.page.encoding = Encoding::kLossless;
    return lossless;
  }
};

void ReadSlab(kv::SlabFile& file, const kv::SavedSlab& slab, Halves* halves) {
  const kv::CacheFormat& format = file.format();
  const auto buffer =
      Unwrap(kv::AlignedBuffer::Allocate(Env::Default(), static_cast<size_t>(format.slab_bytes())));
  const int heads = format.HeadsIn(slab.layer, slab.group);
  Require(file.ReadPages(slab.slot, heads, slab.checksums, buffer.data()));
  const auto take = [&](int64_t offset) {
    Half half(format.page.bytes() / sizeof(uint16_t));
    std::memcpy(half.data(), buffer.data() + offset, format.page.bytes());
    return half;
  };
  for (int head = 0; head < heads; ++head) {
    for (int page = 0; page < slab.pages; ++page) {
      halves->k.push_back(take(format.KOffset(head, page)));
      halves->v.push_back(take(format.VOffset(head, page)));
    }
  }
}

void ReadSession(const std::string& path, Halves* halves) {
  Budget budget("session", kUnlimited);
  const auto file = Unwrap(
      kv::SlabFile::OpenSession(Unwrap(kv::SessionClaim::Take(Env::Default(), path)), &budget));
  halves->format = file->format();
  if (halves->format.page.dtype != DType::kBF16) Fail("the model's numbers are not bf16");
  for (const kv::SavedSlab& slab : file->manifest().slabs) ReadSlab(*file, slab, halves);
}

struct Arguments {
  std::string model, file;
  int64_t context = 4096;
  int64_t windows = 1;
  int page_slots = 0;
};

// Of the whole pages of the text's windows.
Halves ReadText(const Arguments& arguments) {
  const std::filesystem::path session =
      std::filesystem::temp_directory_path() / ("page_sizes." + std::to_string(getpid()));
  EngineOptions options;
  const std::string text = Unwrap(Env::Default()->ReadFile(arguments.file));
  std::vector<std::vector<TokenId>> windows;
  {
    const auto engine = Unwrap(Engine::Open(arguments.model, options));
    windows =
        eval::CutWindows(Unwrap(engine->Encode(text, {.add_special_tokens = false})),
                         Unwrap(eval::TokenizerBos(*engine)), arguments.context, arguments.windows);
    options.page_slots = arguments.page_slots == 0 ? LosslessPageSlots(engine->info().head_dim)
                                                   : arguments.page_slots;
  }
  options.session = session;
  Halves halves;
  for (std::vector<TokenId>& window : windows) {
    {
      const auto engine = Unwrap(Engine::Open(arguments.model, options));
      const auto context = Unwrap(engine->NewContext({{arguments.context}}));
      Request request;
      request.prompt = std::move(window);
      request.max_tokens = 0;
      Unwrap(context->Generate({&request, 1}, {}));
      Require(context->SaveSession());
    }
    ReadSession(session, &halves);
    std::filesystem::remove(session);
  }
  if (halves.k.empty()) Fail(arguments.file + " has not the tokens of a page");
  return halves;
}

class Exponents {
 public:
  void Add(int exponent) { ++counts_[static_cast<size_t>(exponent)]; }
  double Entropy() const {
    int64_t all = 0;
    for (const int64_t count : counts_) all += count;
    double bits = 0.0;
    for (const int64_t count : counts_) {
      const double share = static_cast<double>(count) / static_cast<double>(all);
      if (count > 0) bits -= share * std::log2(share);
    }
    return bits;
  }

 private:
  std::array<int64_t, 256> counts_ = {};
};

struct Escapes {
  int64_t halves = 0, all = 0, most = 0;

  void AddHalf(int64_t count) {
    ++halves;
    all += count;
    most = std::max(most, count);
  }
  double mean() const { return static_cast<double>(all) / static_cast<double>(halves); }
};

// Encodes a half into `codes` and `params`, and ends the program if it does not come back. Returns
// whether it fits.
bool ComesBack(const PageFormat& page, const Half& half, std::vector<std::byte>* codes,
               std::vector<std::byte>* params) {
  const auto* from = reinterpret_cast<const std::byte*>(half.data());
  if (!lossless::EncodeHalf(page, from, codes->data(), params->data())) return false;
  Half row(static_cast<size_t>(page.head_dim));
  for (int slot = 0; slot < page.page_slots; ++slot) {
    lossless::DecodeRow(page, codes->data(), params->data(), slot, row.data());
    if (!std::equal(row.begin(), row.end(), half.begin() + int64_t{slot} * page.head_dim)) {
      Fail("a page came back with other bits");
    }
  }
  return true;
}

int64_t EscapesOf(const PageFormat& page, const Half& half) {
  int64_t count = 0;
  for (auto row = half.begin(); row < half.end(); row += page.head_dim) {
    int largest = 0;
    for (int i = 0; i < page.head_dim; ++i) {
      largest = std::max(largest, lossless::ExponentOf(row[i]));
    }
    const int floor = lossless::FloorOf(largest);
    count += std::count_if(row, row + page.head_dim,
                           [floor](uint16_t bits) { return lossless::Escapes(bits, floor); });
  }
  return count;
}

void PrintLossless(const char* name, const kv::CacheFormat& plain, const kv::CacheFormat& lossless,
                   const std::vector<Half>& halves) {
  const PageFormat& page = lossless.page;
  std::vector<std::byte> codes(page.closed_bytes());
  std::vector<std::byte> params(static_cast<size_t>(KeyParamBytes(page)));
  Exponents exponents;
  Escapes escapes;
  int64_t unfit = 0;
  for (const Half& half : halves) {
    for (const uint16_t bits : half) exponents.Add(lossless::ExponentOf(bits));
    escapes.AddHalf(EscapesOf(page, half));
    if (!ComesBack(page, half, &codes, &params)) ++unfit;
  }
  const auto numbers = static_cast<double>(halves.front().size());
  const double share =
      100.0 * static_cast<double>(lossless.slab_bytes()) / static_cast<double>(plain.slab_bytes());
  std::printf("%-12s %6zd %8.2f %6.2f %6.2f %7.1f %% %9.2f %5ld %4ld %6ld %6.1f %%\n", name,
              halves.size(), exponents.Entropy(), 8.0 + exponents.Entropy(),
              8.0 * static_cast<double>(codes.size() + params.size()) / numbers, share,
              escapes.mean(), escapes.most, lossless::EscapeEntries(page.page_slots, page.head_dim),
              unfit, unfit == 0 ? share : 100.0);
}

// A form of a fixed rate for f16.
struct Form {
  int exponents;  // of a row
  double bits;    // of a number's exponent
};
constexpr Form kForms[] = {{4, 2.0}, {8, 3.0}, {11, 3.5}, {16, 4.0}};
constexpr int kListedBits = 24;  // of an escape: its position and exponent
constexpr int ExponentOfF16(uint16_t bits) { return bits >> 10 & 0x1F; }

int64_t EscapesOfF16(const Form& form, int head_dim, const Half& half) {
  int64_t count = 0;
  for (auto row = half.begin(); row < half.end(); row += head_dim) {
    int largest = 0;
    for (int i = 0; i < head_dim; ++i) largest = std::max(largest, ExponentOfF16(row[i]));
    count += std::count_if(row, row + head_dim, [&](uint16_t bits) {
      return ExponentOfF16(bits) <= largest - form.exponents;
    });
  }
  return count;
}

void PrintF16(const char* name, const PageFormat& page, const std::vector<Half>& halves) {
  Exponents exponents;
  std::array<Escapes, std::size(kForms)> escapes;
  for (const Half& half : halves) {
    Half f16(half.size());
    std::transform(half.begin(), half.end(), f16.begin(),
                   [](uint16_t bits) { return ToF16(ToFloat(BF16{bits})).bits; });
    for (const uint16_t bits : f16) exponents.Add(ExponentOfF16(bits));
    for (size_t i = 0; i < escapes.size(); ++i) {
      escapes[i].AddHalf(EscapesOfF16(kForms[i], page.head_dim, f16));
    }
  }
  std::printf("%-12s %8.2f %6.2f", name, exponents.Entropy(), 11.0 + exponents.Entropy());
  const auto numbers = static_cast<double>(halves.front().size());
  for (size_t i = 0; i < escapes.size(); ++i) {
    const double listed = static_cast<double>(RoundUp(escapes[i].most, 8)) * kListedBits / numbers;
    const double floors = 8.0 / page.head_dim;
    std::printf("   %6.2f (%.2f %%)", 11.0 + kForms[i].bits + floors + listed,
                100.0 * escapes[i].mean() / numbers);
  }
  std::printf("\n");
}

std::vector<Half> Drawn(const PageFormat& page) {
  constexpr int kHalves = 64;
  std::vector<Half> halves(kHalves, Half(page.bytes() / sizeof(uint16_t)));
  Random random(1);
  for (Half& half : halves) {
    for (uint16_t& bits : half) bits = static_cast<uint16_t>(random.Next());
  }
  return halves;
}

void Print(const Halves& halves) {
  const kv::CacheFormat lossless = halves.Lossless();
  const PageFormat& page = lossless.page;
  if (!lossless::Takes(page)) Fail("heads of this size have no lossless pages");
  const std::pair<const char*, std::vector<Half>> rows[] = {
      {"K", halves.k},
      {"V", halves.v},
      {"zeros", {Half(page.bytes() / sizeof(uint16_t))}},
      {"random bits", Drawn(page)}};
  std::printf("pages of %d x %d, bf16, %d heads in a slab\n", page.page_slots, page.head_dim,
              lossless.group_heads);
  std::printf("             halves  entropy  floor   bits   in slab   ");
  std::printf("escapes  most   of  unfit   kept\n");
  for (const auto& [name, of] : rows) PrintLossless(name, halves.format, lossless, of);
  std::printf("\nthe same numbers in f16, bits of a number in forms of a fixed rate (and ");
  std::printf("escapes)\n");
  std::printf("              entropy  floor");
  for (const Form& form : kForms) std::printf("   %2d in %.1f bits ", form.exponents, form.bits);
  std::printf("\n");
  PrintF16("K", page, halves.k);
  PrintF16("V", page, halves.v);
}

}  // namespace
}  // namespace headway::bench

int main(int argc, char** argv) {
  if (argc < 3 || argc > 6) {
    std::fprintf(stderr, "usage: page_sizes MODEL FILE [CONTEXT [WINDOWS [PAGE]]]\n");
    return 2;
  }
  headway::bench::Arguments arguments = {argv[1], argv[2]};
  if (argc > 3) arguments.context = std::atoll(argv[3]);
  if (argc > 4) arguments.windows = std::atoll(argv[4]);
  if (argc > 5) arguments.page_slots = std::atoi(argv[5]);
  if (arguments.context < 2 || arguments.windows < 1) {
    headway::bench::Fail("a context has two tokens or more, and there is one window or more");
  }
  headway::bench::Print(headway::bench::ReadText(arguments));
  return 0;
}
