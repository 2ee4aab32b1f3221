// The combinations of layers that are supported, in one place. Tests add Engine<Fake> (tests/unit).
#pragma once

#include "core/engine/engine.h"
#include "core/platform/linux.h"

namespace lanemalloc {

using ProcessEngine = Engine<Linux>;
using ProcessMisses = Misses<Linux>;

}  // namespace lanemalloc
