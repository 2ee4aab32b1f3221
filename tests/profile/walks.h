#pragma once

enum class Walks { kSame, kLeft, kDifferent };  // kLeft: our walk left the stack to the C library

// Compares the two walks of the stack, from the caller on.
Walks compare_walks();
