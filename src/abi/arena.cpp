// The C functions of arenas, over src/fronts/arena/. Public declarations:
// include/lanemalloc/arena.h.
#include "fronts/arena/arena.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "process/process.h"

using namespace lanemalloc;

namespace {

// Runs work(arena) with the process started. Null: there is no memory.
template <class Work>
void* with(lane_arena* arena, Work work) {
  if (LIKELY(start_process())) {
    Arena<Linux> whole(*arena, process_engine, thread_slot);
    if (void* piece = work(whole); LIKELY(piece != nullptr)) return piece;
  }
  errno = ENOMEM;
  return nullptr;
}

Arena<Linux> started(lane_arena* arena) {
  start_process();  // it has: a caller that gives something back has got it before
  return {*arena, process_engine, thread_slot};
}

void* copied(void* piece, const void* bytes, size_t size) {
  if (LIKELY(piece != nullptr) && size > 0) memcpy(piece, bytes, size);
  return piece;
}

char* as_string(lane_arena* arena, const char* text, size_t length) {
  char* copy = static_cast<char*>(lane_arena_alloc(arena, length + 1));
  if (UNLIKELY(copy == nullptr)) return nullptr;
  copied(copy, text, length);
  copy[length] = '\0';
  return copy;
}

}  // namespace

extern "C" {

EXPORT int lane_arena_init(lane_arena* arena, size_t block_size) {
  return Arena<Linux>::start(*arena, block_size) ? 0 : EINVAL;
}

EXPORT void lane_arena_reset(lane_arena* arena) { started(arena).reset(); }

EXPORT void lane_arena_destroy(lane_arena* arena) { started(arena).destroy(); }

EXPORT void* lane_arena_alloc_out_of_line(lane_arena* arena, size_t size) {
  return with(arena, [=](auto& whole) { return whole.allocate(size); });
}

EXPORT void* lane_arena_alloc_zeroed(lane_arena* arena, size_t count, size_t size) {
  size_t total;
  if (__builtin_mul_overflow(count, size, &total)) {
    errno = ENOMEM;
    return nullptr;
  }
  void* piece = lane_arena_alloc(arena, total);
  return LIKELY(piece != nullptr) ? memset(piece, 0, total) : nullptr;
}

EXPORT void* lane_arena_alloc_aligned(lane_arena* arena, size_t alignment, size_t size) {
  if (!is_power_of_two(alignment)) {
    errno = EINVAL;
    return nullptr;
  }
  return with(arena, [=](auto& whole) { return whole.allocate_aligned(alignment, size); });
}

EXPORT void* lane_arena_realloc(lane_arena* arena, void* piece, size_t old_size, size_t size) {
  return with(arena, [=](auto& whole) { return whole.reallocate(piece, old_size, size); });
}

EXPORT int lane_arena_rollback(lane_arena* arena, void* piece, size_t size) {
  return started(arena).rollback(piece, size) ? 1 : 0;
}

EXPORT char* lane_arena_strdup(lane_arena* arena, const char* text) {
  return as_string(arena, text, strlen(text));
}

EXPORT char* lane_arena_strndup(lane_arena* arena, const char* text, size_t most) {
  return as_string(arena, text, strnlen(text, most));
}

EXPORT void* lane_arena_memdup(lane_arena* arena, const void* bytes, size_t size) {
  return copied(lane_arena_alloc(arena, size), bytes, size);
}

EXPORT char* lane_arena_concat(lane_arena* arena, ...) {
  va_list texts, again;
  va_start(texts, arena);
  va_copy(again, texts);
  size_t length = 0;
  while (const char* text = va_arg(texts, const char*)) length += strlen(text);
  va_end(texts);
  char* whole = static_cast<char*>(lane_arena_alloc(arena, length + 1));
  if (LIKELY(whole != nullptr)) {
    char* end = whole;
    while (const char* text = va_arg(again, const char*)) end = stpcpy(end, text);
    *end = '\0';
  }
  va_end(again);
  return whole;
}

// Prints where the next piece would lie. If all of the text fits, it becomes that piece.
EXPORT char* lane_arena_vprintf(lane_arena* arena, const char* format, va_list arguments) {
  const auto room = static_cast<size_t>(arena->end - arena->next);
  va_list again;
  va_copy(again, arguments);
  const int length = vsnprintf(arena->next, room, format, arguments);
  char* text = nullptr;
  if (length >= 0) {
    const size_t size = static_cast<size_t>(length) + 1;
    text = static_cast<char*>(lane_arena_alloc(arena, size));
    if (size > room && text != nullptr) vsnprintf(text, size, format, again);
  }
  va_end(again);
  return text;
}

EXPORT char* lane_arena_printf(lane_arena* arena, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char* text = lane_arena_vprintf(arena, format, arguments);
  va_end(arguments);
  return text;
}

EXPORT int lane_arena_at_reset(lane_arena* arena, void (*end)(void* object), void* object) {
  return start_process() && started(arena).at_reset(end, object) ? 0 : ENOMEM;
}

EXPORT lane_arena_checkpoint lane_arena_mark(const lane_arena* arena) {
  return {arena->blocks, arena->next, arena->large_made, arena->ends};
}

EXPORT void lane_arena_rewind(lane_arena* arena, lane_arena_checkpoint checkpoint) {
  if (started(arena).rewind(checkpoint)) return;
  Text why;
  why << "the checkpoint in block " << static_cast<const void*>(checkpoint.block)
      << " is not in the arena: it is another arena's, or there was a reset or an earlier rewind "
         "since"
      << '\0';
  report_misuse("lane_arena_rewind", arena, why.data());
}

}  // extern "C"
