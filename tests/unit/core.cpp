// Compiles what core.h declares.
#include "core.h"

namespace lanemalloc {

INSTANTIATE_CORE()

}  // namespace lanemalloc
