// Threads: who is told of their end, and the one of ours. See threads.cpp.
// Called by: process.cpp, stats.cpp.
#pragma once

#include "abi/process.h"

namespace lanemalloc {

// Once, when the process starts. False: the C library has no keys left.
bool make_thread_keys();
// Has the engine told when the calling thread, whose slot it is, ends. False: nobody would tell.
bool watch_end(Slot& slot);
// The same of a thread that perhaps never allocates: the C library may free for it after its last
// destructor, and the thread must not come to have a lane then.
void watch_end_of_thread();
// Starts the thread that returns memory, if the process is to have one and has none. Not for signal
// handlers.
void look_after_scavenger();
// In a fork child: there is one thread.
void forget_other_threads();

}  // namespace lanemalloc
