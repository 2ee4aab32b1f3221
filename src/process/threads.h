// Threads: how the engine learns of their end; and the scavenger. See threads.cpp.
// Called by: process.cpp, stats.cpp.
#pragma once

#include "process/process.h"

namespace lanemalloc {

// Called once, when the process starts. False: the C library has no keys left.
bool make_thread_keys();
// Makes the engine learn when the calling thread, whose slot it is, ends. False: it would not
// learn.
bool watch_end(Slot& slot);
// The same for a thread that perhaps never allocates: the C library may free for it after its last
// destructor, and the thread must not get a lane then.
void watch_end_of_thread();
// Starts the scavenger if the process is to have one and has none. Not for signal handlers.
void look_after_scavenger();
// In a fork child, which has one thread: forgets the others.
void forget_other_threads();

}  // namespace lanemalloc
