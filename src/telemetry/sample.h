// Sample: what an object that was sampled stands for. Kept with the object, outside the memory that programs write to, so that its free
// takes away just what its allocation added. Called by: engine. Locking: whoever has the object.
#pragma once

#include <cstdint>

namespace lanemalloc {

struct Stack;

struct Sample {
  Stack* stack = nullptr;  // null: none was taken
  uint64_t objects = 0;
  uint64_t bytes = 0;
};

}  // namespace lanemalloc
