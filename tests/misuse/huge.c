// Sizes that wrap, or that nobody can have: the call must refuse them, and leave the rest as it
// was.
#include "misuse.h"

static size_t wanted;
// What came back.
static void look_at_result(void* object) {
  if (object == NULL) result("refused");
  if (malloc_usable_size(object) < wanted) harm("twice", "an object is smaller than asked for");
}

static void by_malloc(const struct Case* c) {
  take(64);
  if (mistake("malloc of a size that nobody can have"))
    look_at_result(malloc(hide_size(wanted = c->size)));
  probe(64);
}
static void by_calloc(const struct Case* c) {
  take(64);
  if (mistake("calloc of a product that wraps")) {
    wanted = SIZE_MAX / 2;
    look_at_result(calloc(hide_size(c->size), hide_size((size_t)c->a)));
  }
  probe(64);
}
static void by_realloc(const struct Case* c) {
  void* object = take(c->size);
  if (mistake("realloc to a size that nobody can have")) {
    void* moved = realloc(hide(object), hide_size(wanted = (size_t)c->a));
    look();  // it is still there
    look_at_result(moved);
  }
  probe(64);
}
static void by_reallocarray(const struct Case* c) {
  void* object = take(64);
  if (mistake("reallocarray to a product that wraps")) {
    wanted = SIZE_MAX / 2;
    void* moved = reallocarray(hide(object), hide_size(c->size), hide_size((size_t)c->a));
    look();
    look_at_result(moved);
  }
  probe(64);
}
static void by_aligned_alloc(const struct Case* c) {
  take(64);
  if (mistake("aligned_alloc that wraps when it is rounded up"))
    look_at_result(aligned_alloc(hide_size((size_t)c->a), hide_size(wanted = c->size)));
  probe(64);
}
static void by_posix_memalign(const struct Case* c) {
  take(64);
  if (mistake("posix_memalign of what nobody can have")) {
    void* object = NULL;
    wanted = c->size;
    const int error = posix_memalign(&object, hide_size((size_t)c->a), hide_size(c->size));
    look_at_result(error == 0 ? object : NULL);
  }
  probe(64);
}
static void by_memalign(const struct Case* c) {
  take(64);
  if (mistake("memalign with an alignment that nobody can have"))
    look_at_result(memalign(hide_size((size_t)c->a), hide_size(wanted = c->size)));
  probe(64);
}
static void by_pvalloc(const struct Case* c) {
  take(64);
  if (mistake("pvalloc that wraps when it is rounded up"))
    look_at_result(pvalloc(hide_size(wanted = c->size)));
  probe(64);
}
static void by_valloc(const struct Case* c) {
  take(64);
  if (mistake("valloc of a size that nobody can have"))
    look_at_result(valloc(hide_size(wanted = c->size)));
  probe(64);
}

static const struct Case kCases[] = {
    {"huge/malloc-max", by_malloc, SIZE_MAX, 0, 0},
    {"huge/malloc-max-less-7", by_malloc, SIZE_MAX - 7, 0, 0},
    {"huge/malloc-max-less-15", by_malloc, SIZE_MAX - 15, 0, 0},
    {"huge/malloc-max-less-31", by_malloc, SIZE_MAX - 31, 0, 0},
    {"huge/malloc-minus-page", by_malloc, (size_t)-4096, 0, 0},
    {"huge/malloc-minus-block", by_malloc, (size_t)-(64 << 10), 0, 0},
    {"huge/malloc-half", by_malloc, SIZE_MAX / 2, 0, 0},
    {"huge/malloc-half-and-1", by_malloc, SIZE_MAX / 2 + 1, 0, 0},
    {"huge/malloc-2-to-48", by_malloc, (size_t)1 << 48, 0, 0},
    {"huge/calloc-wraps-to-0", by_calloc, (size_t)1 << 32, (long)1 << 32, 0},
    {"huge/calloc-wraps-to-16", by_calloc, ((size_t)1 << 60) + 1, 16, 0},
    {"huge/calloc-wraps-to-64", by_calloc, SIZE_MAX / 64 + 2, 64, 0},
    {"huge/calloc-max-twice", by_calloc, SIZE_MAX, -1, 0},
    {"huge/realloc-max-small", by_realloc, kSmall, -1, 0},
    {"huge/realloc-max-less-15-small", by_realloc, kSmall, -16, 0},
    {"huge/realloc-max-less-15-medium", by_realloc, kMedium, -16, 0},
    {"huge/realloc-max-less-15-big", by_realloc, kBig, -16, 0},
    {"huge/realloc-max-less-15-large", by_realloc, kLarge, -16, 0},
    {"huge/realloc-minus-block-large", by_realloc, kLarge, -(64 << 10), 0},
    {"huge/realloc-half-large", by_realloc, kLarge, INTPTR_MAX, 0},
    {"huge/reallocarray-wraps-to-0", by_reallocarray, (size_t)1 << 32, (long)1 << 32, 0},
    {"huge/reallocarray-wraps-to-16", by_reallocarray, ((size_t)1 << 60) + 1, 16, 0},
    {"huge/aligned-max", by_aligned_alloc, SIZE_MAX, 64, 0},
    {"huge/aligned-minus-page", by_aligned_alloc, SIZE_MAX - 4095, 4096, 0},
    {"huge/aligned-minus-2-mib", by_aligned_alloc, SIZE_MAX - (2 << 20) + 1, 2 << 20, 0},
    {"huge/posix-memalign-max", by_posix_memalign, SIZE_MAX, 64, 0},
    {"huge/posix-memalign-no-power", by_posix_memalign, 64, 24, 0},
    {"huge/posix-memalign-0", by_posix_memalign, 64, 0, 0},
    {"huge/posix-memalign-sign", by_posix_memalign, 64, INTPTR_MIN, 0},
    {"huge/memalign-sign", by_memalign, 64, INTPTR_MIN, 0},
    {"huge/memalign-beyond-sign", by_memalign, 64, INTPTR_MIN + 1, 0},
    {"huge/memalign-2-to-62", by_memalign, 64, (long)1 << 62, 0},
    {"huge/memalign-max-and-page", by_memalign, SIZE_MAX - 100, 4096, 0},
    {"huge/pvalloc-max", by_pvalloc, SIZE_MAX, 0, 0},
    {"huge/pvalloc-minus-page", by_pvalloc, SIZE_MAX - 4094, 0, 0},
    {"huge/valloc-max", by_valloc, SIZE_MAX, 0, 0},
};
PROGRAM(kCases)
