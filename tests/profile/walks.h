#pragma once

enum class Walks { kSame, kLeft, kDifferent };  // kLeft: ours left the stack to the C library

// Of the stack from the caller on.
Walks compare_walks();
