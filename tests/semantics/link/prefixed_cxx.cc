// prefixed.c as C++17.
#include "prefixed.c"
