// Root: where a reader outside the process begins. It says by name what there is to read. Its
// format is promised: docs/stats-root.md.
// Called by: abi (fills it in), core/engine/layout.h (names the fields). Locking: none; it does not
// change once the allocator has started.
//
//   ELF note --> root --> fields   "lane.taken": at 1280, 105 of 8 bytes
//                     --> cells    "depot": at 4096 from the world
//                     --> world, samples, options in use
#pragma once

#include <cstddef>
#include <cstdint>

namespace lanemalloc {

struct Field {
  enum class Type : uint8_t { kUnsigned, kSigned, kAddress, kText };

  char name[36]{};
  uint32_t offset = 0;
  uint32_t count = 0;
  uint8_t bytes = 0;
  Type type = Type::kUnsigned;
  uint16_t unused = 0;
};
static_assert(sizeof(Field) == 48);

struct CellPlace {
  enum class Where : uint32_t { kWorld, kLane };
  static constexpr uint32_t kNeverWaits = 0x100;  // beside it: a loop, which has only its tries

  char name[24]{};
  uint32_t where = 0;
  uint32_t offset = 0;
};
static_assert(sizeof(CellPlace) == 32);

struct Root {
  static constexpr uint32_t kVersion = 1;

  char magic[8]{'l', 'a', 'n', 'e', 's', 't', 'a', 't'};
  uint32_t version = kVersion;
  uint32_t size = sizeof(Root);
  char library[16]{};
  uint64_t started_at_ns = 0;
  const Field* fields = nullptr;
  uint32_t field_count = 0;
  uint32_t field_bytes = sizeof(Field);
  const void* world = nullptr;
  const uint32_t* class_sizes = nullptr;
  uint32_t class_count = 0;
  uint32_t block_shift = 0;
  uint32_t lane_bytes = 0;
  uint32_t state_bytes = 0;
  uint32_t first_lane = 0;
  uint32_t cell_count = 0;
  const CellPlace* cells = nullptr;
  const void* sampler = nullptr;
  const char* options = nullptr;
};
static_assert(sizeof(Root) == 120 && offsetof(Root, started_at_ns) == 32 &&
              offsetof(Root, options) == 112);

// Writes a name that fits, with zeros behind it.
template <size_t kRoom, size_t kLength>
constexpr void name_into(char (&room)[kRoom], const char (&name)[kLength]) {
  static_assert(kLength <= kRoom);
  for (size_t i = 0; i < kLength; ++i) room[i] = name[i];
}

}  // namespace lanemalloc
