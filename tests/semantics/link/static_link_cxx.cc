// static_link.c as C++: libstdc++ calls operator new of the archive.
#include "static_link.c"
