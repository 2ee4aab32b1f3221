// Writers of profiles: what they write, byte by byte; what is mapped where. (tests/profile opens
// profiles with pprof.)
#include "seeing/pprof.h"

#include <cstring>
#include <map>
#include <string>

#include "fixture.h"
#include "seeing/sampler.h"

namespace lanemalloc {
namespace {

// A message of protocol buffers, decoded as far as all messages are alike.
struct Decoded {
  std::map<unsigned, std::vector<uint64_t>> numbers;
  std::map<unsigned, std::vector<std::string>> pieces;
  bool whole = true;

  explicit Decoded(const std::string& bytes) {
    size_t at = 0;
    const auto varint = [&] {
      uint64_t value = 0;
      for (unsigned shift = 0; at < bytes.size(); shift += 7) {
        const auto byte = static_cast<unsigned char>(bytes[at++]);
        value |= uint64_t{byte & 0x7Fu} << shift;
        if (byte < 0x80) return value;
      }
      whole = false;
      return value;
    };
    while (at < bytes.size() && whole) {
      const uint64_t key = varint();
      const auto field = static_cast<unsigned>(key >> 3);
      if (key % 8 == 0) {
        numbers[field].push_back(varint());
      } else {
        const uint64_t n = varint();
        whole = whole && key % 8 == 2 && n <= bytes.size() - at;
        if (whole) pieces[field].push_back(bytes.substr(at, n));
        at += n;
      }
    }
  }
  uint64_t number(unsigned field) const {
    return numbers.count(field) != 0 ? numbers.at(field).at(0) : 0;
  }
};

class PprofTest : public FakeTest {
 protected:
  void SetUp() override {
    FakeTest::SetUp();
    ASSERT_TRUE(sampler_.start([](Address* frames, unsigned most) {
      const auto n = static_cast<unsigned>(std::min<size_t>(frames_.size(), most));
      std::copy_n(frames_.begin(), n, frames);
      return n;
    }));
    sampler_.set_interval(1);
    sampler_.set_contention_interval(1);
  }
  Sample allocate(std::vector<Address> frames, Bytes size) {
    frames_ = std::move(frames);
    return sampler_.sample_allocation(size, random_);
  }
  Decoded profile(StackKind kind = StackKind::kAllocation) {
    std::string bytes;
    EXPECT_TRUE(write_profile(
        sampler_.stacks(), {kind, 77, 88, 99, sampler_.peak_is_now()},
        [&](const void* some, size_t n) { bytes.append(static_cast<const char*>(some), n); }));
    Decoded decoded(bytes);
    EXPECT_TRUE(decoded.whole);
    return decoded;
  }
  std::string leaks(unsigned most) {
    std::string text;
    write_leaks(sampler_.stacks(), most, [&](const void* some, size_t n) {
      text.append(static_cast<const char*>(some), n);
    });
    return text;
  }
  static std::string lines_of(const std::string& text, const char* with) {
    std::string found;
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
      end = text.find('\n', at);
      if (text.substr(at, end - at).find(with) != std::string::npos)
        found += text.substr(at, end - at) + '\n';
    }
    return found;
  }

  static inline std::vector<Address> frames_;
  Sampler<Fake> sampler_;
  uint64_t random_ = 1;
};

TEST_OWNED(PprofTest, EachStackIsASampleAndEachPlaceStandsThereOnce) {
  const auto here = reinterpret_cast<Address>(&write_build_id) + 1;
  allocate({here, 2000}, 100);
  allocate({3000, 2000}, 200);
  Sample sample = allocate({here, 2000}, 300);
  sample.mark = 5;
  sampler_.freed(sample, 5);
  allocate({}, 200);
  sampler_.contended(500, random_);  // belongs to the other profile
  const Decoded all = profile();
  EXPECT_EQ(all.number(12), 77u);
  EXPECT_EQ(all.number(9), 88u);
  EXPECT_EQ(all.number(10), 99u);
  const std::vector<std::string>& strings = all.pieces.at(6);
  EXPECT_EQ(strings[0], "");
  EXPECT_EQ(strings[all.number(14)], "inuse_space");
  ASSERT_EQ(all.pieces.at(1).size(), 8u);
  EXPECT_EQ(strings[Decoded(all.pieces.at(1)[2]).number(1)], "inuse_objects");
  EXPECT_EQ(strings[Decoded(all.pieces.at(1)[2]).number(2)], "count");
  EXPECT_EQ(strings[Decoded(all.pieces.at(1)[5]).number(1)], "peak_space");
  EXPECT_EQ(strings[Decoded(all.pieces.at(1)[7]).number(1)], "temporary_space");
  // By place and size. 300 is rounded up to a step of eight in each doubling.
  std::map<std::pair<std::vector<uint64_t>, uint64_t>, std::vector<uint64_t>> samples;
  for (const std::string& piece : all.pieces.at(2)) {
    const Decoded sample(piece);
    uint64_t size = 0;
    if (sample.pieces.contains(3)) {
      const Decoded label(sample.pieces.at(3)[0]);
      EXPECT_EQ(strings[label.number(1)], "bytes");
      EXPECT_EQ(strings[label.number(4)], "bytes");
      size = label.number(3);
    }
    samples[{sample.numbers.at(1), size}] = sample.numbers.at(2);
  }
  const std::map<std::pair<std::vector<uint64_t>, uint64_t>, std::vector<uint64_t>> right = {
      {{{here - 1, 1999}, 104}, {1, 100, 1, 100, 1, 100, 0, 0}},
      {{{here - 1, 1999}, 320}, {1, 300, 0, 0, 1, 300, 1, 300}},
      {{{2999, 1999}, 208}, {1, 200, 1, 200, 1, 200, 0, 0}},
      {{{1}, 0}, {1, 200, 1, 200, 0, 0, 0, 0}}};
  EXPECT_EQ(samples, right);
  std::map<uint64_t, uint64_t> places;  // each with its mapping
  for (const std::string& piece : all.pieces.at(4)) {
    const Decoded place(piece);
    EXPECT_TRUE(places.emplace(place.number(1), place.number(2)).second);
  }
  ASSERT_EQ(places.size(), 4u);
  EXPECT_EQ(places.at(1999), 0u);
  ASSERT_GT(places.at(here - 1), 0u);
  const Decoded mapping(all.pieces.at(3).at(places.at(here - 1) - 1));
  EXPECT_EQ(mapping.number(1), places.at(here - 1));
  EXPECT_NE(strings[mapping.number(5)].find("/"), std::string::npos);
  EXPECT_LE(mapping.number(2), here);
  EXPECT_GT(mapping.number(3), here);
}

TEST_OWNED(PprofTest, WaitsAreAProfileOfTheirOwn) {
  allocate({1000}, 100);
  for (int i = 0; i < 3; ++i) sampler_.contended(500, random_);
  const Decoded all = profile(StackKind::kContention);
  EXPECT_EQ(all.pieces.at(6)[all.number(14)], "delay");
  ASSERT_EQ(all.pieces.at(2).size(), 1u);
  EXPECT_EQ(Decoded(all.pieces.at(2)[0]).numbers.at(2), (std::vector<uint64_t>{3, 1500}));
}

TEST_OWNED(PprofTest, DeepStacksAndManyPlacesFit) {
  for (Address i = 0; i < 200; ++i) {
    std::vector<Address> deep(64);
    for (Address& frame : deep)
      frame = ~Address{0} - i * 64 - static_cast<Address>(&frame - deep.data());
    allocate(deep, 1);
  }
  const Decoded all = profile();
  EXPECT_EQ(all.pieces.at(2).size(), 200u);
  EXPECT_EQ(all.pieces.at(4).size(), 200u * 64 + 1);
}

TEST_OWNED(PprofTest, WithoutMemoryNothingIsWritten) {
  for (Fake::Call call : {Fake::Call::kReserve, Fake::Call::kOpen}) {
    Fake::fail(call, 1);
    EXPECT_FALSE(write_profile(sampler_.stacks(), {}, [](const void*, size_t) {
      ADD_FAILURE() << "something was written";
    }));
    Fake::fail_never();
  }
}

TEST_OWNED(PprofTest, TheReportNamesTheLargestLeaksInOrder) {
  for (Address i = 1; i <= 40; ++i) allocate({i * 1000}, (i * 7 % 41) * 10);
  sampler_.freed(allocate({50000}, 100000));
  const std::string text = leaks(3);
  EXPECT_EQ(
      lines_of(text, "alive"),
      "lanemalloc: 8200 bytes in 40 objects are alive, from 40 stacks (estimated from samples)\n");
  EXPECT_EQ(lines_of(text, "allocated at"),
            "lanemalloc: 400 bytes in 1 objects, allocated at\nlanemalloc: 390 bytes in 1 objects, "
            "allocated at\n"
            "lanemalloc: 380 bytes in 1 objects, allocated at\n");
  const std::string most = lines_of(leaks(1000), "allocated at");
  EXPECT_EQ(std::count(most.begin(), most.end(), '\n'), 32);
  EXPECT_EQ(lines_of(leaks(0), "allocated at"), "");
}

TEST(MappingsTest, FindThisProgramAndItsBuild) {
  const auto here = reinterpret_cast<Address>(&write_build_id);
  Mappings all;
  Mapping mapping;
  unsigned found = 0, count = 0;
  for (Address last = 0; all.next(mapping); last = mapping.end, ++count) {
    EXPECT_GE(mapping.begin, last);
    EXPECT_GT(mapping.end, mapping.begin);
    char build_id[65];
    write_build_id(mapping, build_id);
    EXPECT_LE(strlen(build_id), 64u);
    if (here < mapping.begin || here >= mapping.end) continue;
    ++found;
    EXPECT_TRUE(mapping.is_code);
    EXPECT_STREQ(mapping.path,
                 program_invocation_name[0] == '/' ? program_invocation_name : mapping.path);
    EXPECT_LE(mapping.file_begins, here);
  }
  EXPECT_EQ(found, 1u);
  EXPECT_GT(count, 5u);
}

}  // namespace
}  // namespace lanemalloc
