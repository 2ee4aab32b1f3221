// The process: its one engine, the one thread-local word, and what happens when they start and end.
// Called by: the other files of abi/. Locking: see process.cpp.
#pragma once

#include "core/engine/configs.h"

namespace lanemalloc {

extern constinit ProcessEngine process_engine;
extern thread_local constinit Slot thread_slot;

// Called before the first use; cheap afterwards. False: there is no address space; try again later.
bool start_process_once();
extern constinit std::atomic<bool> process_started;
FAST bool start_process() {
  // acquire: sees the engine started. Pairs with [started.release].
  return LIKELY(process_started.load(std::memory_order_acquire)) || start_process_once();
}

// For a fork child in which a handler of another library runs before ours and starts a thread: does
// what our handler would do. False: the child runs no handlers.
bool sort_out_child_early();

// The options in use.
Options& process_options();

// Reports a bad pointer as the options say, and returns unless they say abort. expected: the family
// that the object should have; null: malloc.
SLOW void report_bad_pointer(const char* function, const void* pointer, Verdict why,
                             const Family* expected = nullptr);
SLOW void report_wrong_size(const char* function, const void* pointer, Bytes size, Bytes real,
                            const Family& family);
// The same for a value that is not a heap or pool, or not any more.
SLOW void report_dead_family(const char* function, const void* family, Family::Type type);
// The same for anything else that a program passes.
SLOW void report_misuse(const char* function, const void* pointer, const char* why);

}  // namespace lanemalloc
