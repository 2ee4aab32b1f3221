// Writers of profiles: pprof's format, and a report, as text, of what was never freed. Called by:
// the abi layer, when a program asks or ends. Locking: none; stacks go on changing meanwhile, and
// each is read once. No malloc: writers use a few KiB of stack, and take addresses of their own for
// what they must remember, which they give back at the end.
//
// The format is https://github.com/google/pprof/blob/main/proto/profile.proto, a message of
// protocol buffers. That is a sequence of fields. Each is a key (number of the field and type, in
// one varint) with a varint, or with a length and bytes. The order is free, so one pass over the
// stacks suffices: strings, places and samples are written as they are met. A place's id is its
// address, which the format allows. Readers also accept what is not compressed.
//
// Frames are return addresses; a frame's place is the byte before it, which belongs to the call. If
// the unwinder could not tell the allocator's own functions from the program's, readers drop them
// by their names (drop_frames).
#pragma once

#include "core/base/text.h"
#include "seeing/mappings.h"
#include "seeing/stacks.h"

namespace lanemalloc {

// What a profile says about itself.
struct ProfileFacts {
  StackKind kind = StackKind::kAllocation;
  uint64_t period = 0;       // mean distance of samples, bytes or nanoseconds
  uint64_t time_ns = 0;      // time of day when it is written
  uint64_t duration_ns = 0;  // since sampling began
  bool peak_is_now = true;   // Sampler::peak_is_now()
};

// A message within the profile.
class Message {
 public:
  Message& number(unsigned field, uint64_t value) {
    if (value == 0) return *this;  // the same as no field
    varint(field << 3);
    varint(value);
    return *this;
  }
  // A message within this one.
  Message& message(unsigned field, const Message& inner) {
    varint(field << 3 | 2);
    varint(inner.size_);
    for (size_t i = 0; i < inner.size_; ++i) bytes_[size_++] = inner.bytes_[i];
    return *this;
  }
  void varint(uint64_t value) {
    CHECK(size_ + 10 <= sizeof bytes_);
    for (; value >= 0x80; value >>= 7) bytes_[size_++] = static_cast<unsigned char>(value | 0x80);
    bytes_[size_++] = static_cast<unsigned char>(value);
  }
  const unsigned char* data() const { return bytes_; }
  size_t size() const { return size_; }

 private:
  unsigned char bytes_[1024];  // a sample of 64 frames has at most 900
  size_t size_ = 0;
};

// Collects small pieces for write(const void*, size_t).
template <class Write>
class Buffered {
 public:
  explicit Buffered(Write& write) : write_(write) {}
  ~Buffered() { flush(); }
  void put(const void* from, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      if (used_ == sizeof bytes_) flush();
      bytes_[used_++] = static_cast<const unsigned char*>(from)[i];
    }
  }

 private:
  void flush() {
    if (used_ > 0) write_(static_cast<const void*>(bytes_), used_);
    used_ = 0;
  }

  Write& write_;
  size_t used_ = 0;
  unsigned char bytes_[2048];
};

template <class P, class Write>
class ProfileWriter {
 public:
  ProfileWriter(const ProfileFacts& facts, Write& write) : facts_(facts), out_(write) {
    memory_ = P::reserve(kMemory);
    if (memory_ != 0 && !P::open(memory_, kMemory)) {
      P::release(memory_, kMemory);
      memory_ = 0;
    }
  }
  ~ProfileWriter() {
    if (memory_ != 0) P::release(memory_, kMemory);
  }
  ProfileWriter(const ProfileWriter&) = delete;
  ProfileWriter& operator=(const ProfileWriter&) = delete;

  // False if there is no memory; then nothing is written.
  bool write(const Stacks<P>& stacks) {
    if (memory_ == 0) return false;
    write_head();
    write_mappings();
    stacks.for_each([this](const Stack& stack) {
      if (stack.kind() == facts_.kind) write_stack(stack);
    });
    return true;
  }

 private:
  // Fields of the profile.
  enum : unsigned {
    kSampleType = 1,
    kSample,
    kMapping,
    kLocation,
    kFunction,
    kString,
    kDropFrames,
    kTime = 9,
    kDuration,
    kPeriodType,
    kPeriod,
    kDefaultType = 14,
  };
  static constexpr Bytes kMemory = 2 * kHugePage;
  static constexpr uint32_t kPlaces = kHugePage / sizeof(Address);  // the first half: a table
  struct Range {
    Address begin, end;
  };
  static constexpr uint32_t kMostRanges = kHugePage / sizeof(Range);  // the second half
  static constexpr uint32_t kMostProbes = 64;
  // Place and function of a stack without frames.
  static constexpr uint64_t kUnknown = 1;
  // Ids of places for which the table has no room.
  static constexpr uint64_t kExtra = uint64_t{1} << 63;
  static constexpr char kOurs[] =
      "lanemalloc::.*|(lane_)?(malloc|calloc|realloc|reallocarray|memalign|aligned_alloc|posix_"
      "memalign|"
      "valloc|"
      "pvalloc)|operator new(\\[\\])?|lane_(heap|pool|arena)_[a-z_]*";

  void put(unsigned field, const void* bytes, size_t n) {
    Message key;
    key.varint(field << 3 | 2);
    key.varint(n);
    out_.put(key.data(), key.size());
    out_.put(bytes, n);
  }
  void put(unsigned field, const Message& message) { put(field, message.data(), message.size()); }
  void put(unsigned field, uint64_t value) {
    Message number;
    number.number(field, value);
    out_.put(number.data(), number.size());
  }
  // Writes a string and returns its number. The first string is "".
  uint64_t string(const char* text) {
    put(kString, text, __builtin_strlen(text));
    return strings_++;
  }
  Message value_type(const char* type, const char* unit) {
    return Message().number(1, string(type)).number(2, string(unit));
  }

  void write_head() {
    string("");
    if (facts_.kind == StackKind::kAllocation) {
      put(kSampleType, value_type("alloc_objects", "count"));
      put(kSampleType, value_type("alloc_space", "bytes"));
      put(kSampleType, value_type("inuse_objects", "count"));
      put(kSampleType, value_type("inuse_space", "bytes"));
      put(kSampleType, value_type("peak_objects", "count"));
      put(kSampleType, value_type("peak_space", "bytes"));
      put(kSampleType, value_type("temporary_objects", "count"));
      put(kSampleType, value_type("temporary_space", "bytes"));
      size_label_ = string("bytes");
      put(kDefaultType, string("inuse_space"));
      put(kPeriodType, value_type("space", "bytes"));
    } else {
      put(kSampleType, value_type("contentions", "count"));
      put(kSampleType, value_type("delay", "nanoseconds"));
      put(kDefaultType, string("delay"));
      put(kPeriodType, value_type("delay", "nanoseconds"));
    }
    put(kPeriod, facts_.period);
    put(kTime, facts_.time_ns);
    put(kDuration, facts_.duration_ns);
    put(kDropFrames, string(kOurs));
    put(kFunction, Message().number(1, kUnknown).number(2, string("[stack not known]")));
    put(kLocation, Message().number(1, kUnknown).message(4, Message().number(1, kUnknown)));
  }

  void write_mappings() {
    Mappings all;
    Mapping mapping;
    char build_id[65];
    while (ranges_ < kMostRanges && all.next(mapping)) {
      if (!mapping.is_code || (mapping.path[0] != '/' && mapping.path[0] != '[')) continue;
      ranges()[ranges_++] = {mapping.begin, mapping.end};
      write_build_id(mapping, build_id);
      const uint64_t path = string(mapping.path);
      put(kMapping, Message()
                        .number(1, ranges_)
                        .number(2, mapping.begin)
                        .number(3, mapping.end)
                        .number(4, mapping.offset)
                        .number(5, path)
                        .number(6, build_id[0] != '\0' ? string(build_id) : 0));
    }
  }

  void write_stack(const Stack& stack) {
    // What was freed is read first, since it was allocated before.
    const uint64_t freed_objects = stack.count_of(kFreedObjects),
                   freed_bytes = stack.count_of(kFreedBytes);
    const uint64_t first = stack.count_of(kAllocatedObjects),
                   second = stack.count_of(kAllocatedBytes);
    if (first == 0) return;
    Message sample;
    const unsigned depth = stack.depth();
    for (unsigned i = 0; i < depth; ++i) sample.number(1, place_of(stack.frame(i)));
    if (depth == 0) sample.number(1, kUnknown);
    value(sample, first);
    value(sample, second);
    if (facts_.kind == StackKind::kAllocation) {
      const uint64_t objects = first - freed_objects, bytes = second - freed_bytes;
      value(sample, objects);
      value(sample, bytes);
      value(sample, facts_.peak_is_now ? objects : stack.count_of(kPeakObjects));
      value(sample, facts_.peak_is_now ? bytes : stack.count_of(kPeakBytes));
      value(sample, stack.count_of(kTemporaryObjects));
      value(sample, stack.count_of(kTemporaryBytes));
      if (const Bytes size = size_of_code(stack.size()); size != 0)
        sample.message(3, Message().number(1, size_label_).number(3, size).number(4, size_label_));
    }
    put(kSample, sample);
  }
  // One of a list, so 0 is written as well. It seems to be below 0 only if the counters of a stack
  // changed between two reads.
  static void value(Message& sample, uint64_t n) {
    sample.varint(2 << 3);
    sample.varint(static_cast<int64_t>(n) < 0 ? 0 : n);
  }

  // The id of a frame's place. The place is written when it is met first.
  uint64_t place_of(Address frame) {
    const Address address = frame - 1;
    const uint64_t hash = (address * 0x9E3779B97F4A7C15) >> 32;
    uint64_t id = 0;
    for (uint32_t probe = 0; probe < kMostProbes && id == 0; ++probe) {
      Address& slot = reinterpret_cast<Address*>(memory_)[(hash + probe) % kPlaces];
      if (slot == address) return address;
      if (slot == 0) id = slot = address;
    }
    if (id == 0) id = kExtra + extras_++;
    uint32_t range = 0;
    while (range < ranges_ &&
           address - ranges()[range].begin >= ranges()[range].end - ranges()[range].begin)
      ++range;
    put(kLocation,
        Message().number(1, id).number(2, range < ranges_ ? range + 1 : 0).number(3, address));
    return id;
  }
  Range* ranges() const { return reinterpret_cast<Range*>(memory_ + kHugePage); }

  const ProfileFacts facts_;
  Buffered<Write> out_;
  Address memory_;
  uint32_t ranges_ = 0;
  uint64_t strings_ = 0;
  uint64_t size_label_ = 0;  // the string "bytes"
  uint64_t extras_ = 0;
};

// Writes a profile of one kind. write(const void*, size_t) may write anywhere; it must not fail.
// False if there is no memory; then nothing is written.
template <class P, class Write>
bool write_profile(const Stacks<P>& stacks, const ProfileFacts& facts, Write write) {
  return ProfileWriter<P, Write>(facts, write).write(stacks);
}

// Writes lines of text: how much is alive, and the `most` stacks (at most 32) with the most live
// bytes, the largest first. A stack whose objects have several sizes is one for each. Each frame
// has its address, file and place in the file. Returns the live bytes. All numbers are estimated
// from samples.
template <class P, class Write>
uint64_t write_leaks(const Stacks<P>& stacks, unsigned most, Write write) {
  constexpr unsigned kMost = 32;
  struct Leak {
    const Stack* stack;
    uint64_t objects, bytes;
  } leaks[kMost + 1], all{};
  if (most > kMost) most = kMost;
  unsigned n = 0;
  uint64_t leaking = 0;
  stacks.for_each([&](const Stack& stack) {
    const uint64_t freed_objects = stack.count_of(kFreedObjects),
                   freed_bytes = stack.count_of(kFreedBytes);
    const Leak leak{&stack, stack.count_of(kAllocatedObjects) - freed_objects,
                    stack.count_of(kAllocatedBytes) - freed_bytes};
    if (stack.kind() != StackKind::kAllocation || static_cast<int64_t>(leak.bytes) <= 0) return;
    ++leaking;
    all.objects += leak.objects;
    all.bytes += leak.bytes;
    unsigned place = n < most ? n++ : n;  // in order; what falls behind the last is forgotten
    for (; place > 0 && leaks[place - 1].bytes < leak.bytes; --place)
      leaks[place] = leaks[place - 1];
    leaks[place] = leak;
  });
  const auto say = [&](Text& line) {
    line.end();
    write(static_cast<const void*>(line.data()), line.size());
  };
  Text head;
  head << "lanemalloc: " << all.bytes << " bytes in " << all.objects << " objects are alive, from "
       << leaking << " stacks (estimated from samples)";
  say(head);
  for (const Leak* leak = leaks; leak < leaks + n; ++leak) {
    Text title;
    title << "lanemalloc: " << leak->bytes << " bytes in " << leak->objects
          << " objects, allocated at";
    say(title);
    for (unsigned i = 0; i < leak->stack->depth(); ++i) {
      const Address code = leak->stack->frame(i) - 1;
      Text line;
      line << "lanemalloc:     " << reinterpret_cast<const void*>(code);
      Mappings mappings;
      Mapping mapping;
      while (mappings.next(mapping)) {
        if (code < mapping.begin || code >= mapping.end || mapping.path[0] == '\0') continue;
        line << ' ' << mapping.path << '+' << reinterpret_cast<const void*>(mapping.place_of(code));
        break;
      }
      say(line);
    }
  }
  return all.bytes;
}

}  // namespace lanemalloc
