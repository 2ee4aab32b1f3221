// Objects that are freed twice: how far apart, by which thread, and whether the object is still
// free (double) or was handed out again in between (reused).
#include "misuse.h"

struct Row {
  void** objects;
  unsigned n;
  int times;
};
static void free_row(void* argument) {
  const struct Row* row = (const struct Row*)argument;
  for (int time = 0; time < row->times; time++)
    for (unsigned i = 0; i < row->n; i++) free(hide(row->objects[i]));
}
// Frees again what is free. `again` names a thread: 0 the first one, 1 a new one, 2 the helper.
static void free_again(void* object, int again) {
  if (mistake("an object is freed that is free already")) {
    if (again == 2) {
      in_helper(free_it, object);
    } else if (again) {
      in_thread(free_it, object);
    } else {
      free(hide(object));
    }
  }
}

// --- double: the object is free.

static void after_others(const struct Case* c) {
  static void* others[1000];
  if (c->b == 2) start_helper();
  void* before = take(c->size);
  void* object = take(c->size);
  for (long i = 0; i < c->a; i++) others[i] = take(c->size);
  void* behind = take(c->size);
  give(object);
  for (long i = 0; i < c->a; i++) give(others[i]);
  free_again(object, (int)c->b);
  probe(c->size);
  give(before);
  give(behind);
}
static void other_thread_first(const struct Case* c) {
  static void* others[1000];
  void* object = take(c->size);
  for (long i = 0; i < c->a; i++) others[i] = take(c->size);
  forget(object);
  in_thread(free_it, object);
  for (long i = 0; i < c->a; i++) give(others[i]);
  free_again(object, (int)c->b);
  probe(c->size);
}
// The owner has taken back what the other thread has freed.
static void after_it_came_back(const struct Case* c) {
  static void* objects[600];
  const unsigned n = c->size >= kBig ? 20 : 600;
  for (unsigned i = 0; i < n; i++) objects[i] = take(c->size);
  for (unsigned i = 0; i < n; i++) forget(objects[i]);
  struct Row row = {objects, n, 1};
  in_thread(free_row, &row);
  for (unsigned i = 0; i < n / 8; i++) take(c->size);
  void* object = NULL;
  for (unsigned i = n; i-- > 0 && object == NULL;) {
    object = objects[i];
    for (unsigned j = 0; j < live_count; j++)
      if (live[j].at == object) object = NULL;
  }
  if (object == NULL) absent("every object was handed out again");
  free_again(object, (int)c->b);
  probe(c->size);
}
// The list of free objects moves on between the frees, but the object stays free.
static void after_refill(const struct Case* c) {
  static void* objects[4000];
  const unsigned n = c->size >= kBig ? 16 : c->size == kSmall ? 4000 : 200;
  for (unsigned i = 0; i < n; i++) objects[i] = take(c->size);
  for (unsigned i = 0; i < n; i += 2) give(objects[i]);
  for (unsigned i = 0; i < n / 8; i++) take(c->size);
  void* object = NULL;
  for (unsigned i = n / 2 & ~1u; i < n && object == NULL; i += 2) {
    object = objects[i];
    for (unsigned j = 0; j < live_count; j++)
      if (live[j].at == object) object = NULL;
  }
  if (object == NULL) absent("every object was handed out again");
  free_again(object, (int)c->b);
  probe(c->size);
}

// A row of objects, freed and freed again in one go.
static void row_twice(const struct Case* c) {
  static void* objects[1000];
  struct Row row = {objects, (unsigned)c->a, 1};
  void* before = take(c->size);
  for (unsigned i = 0; i < row.n; i++) objects[i] = take(c->size);
  void* behind = take(c->size);
  for (unsigned i = 0; i < row.n; i++) forget(objects[i]);
  if (mistake("a row of objects is freed twice")) row.times = 2;
  if (c->b) {
    in_thread(free_row, &row);
  } else {
    free_row(&row);
  }
  probe(c->size);
  give(before);
  give(behind);
}
// Each of them twice, one after the other.
static void free_pairs(void* argument) {
  const struct Row* row = (const struct Row*)argument;
  for (unsigned i = 0; i < row->n; i++)
    for (int time = 0; time < row->times; time++) free(hide(row->objects[i]));
}
static void pairs(const struct Case* c) {
  static void* objects[1000];
  struct Row row = {objects, (unsigned)c->a, 1};
  for (unsigned i = 0; i < row.n; i++) objects[i] = take(c->size);
  void* behind = take(c->size);
  for (unsigned i = 0; i < row.n; i++) forget(objects[i]);
  if (mistake("each of many objects is freed twice")) row.times = 2;
  if (c->b) {
    in_thread(free_pairs, &row);
  } else {
    free_pairs(&row);
  }
  probe(c->size);
  give(behind);
}
// The whole slab is empty when the second free comes.
static void of_an_empty_slab(const struct Case* c) {
  static void* objects[4000];
  const unsigned n = c->size >= kBig ? 16 : probes_for(c->size);
  for (unsigned i = 0; i < n; i++) objects[i] = take(c->size);
  for (unsigned i = 0; i < n; i++) give(objects[i]);
  free_again(objects[n / 3], (int)c->b);
  probe(c->size);
}
static void after_realloc(const struct Case* c) {
  void* object = take(c->size);
  void* behind = take(c->size);
  forget(object);
  void* moved = realloc(hide(object), c->size * 40);
  REQUIRE(moved != NULL);
  if (moved == object) absent("realloc has not moved the object");
  keep(moved, c->size * 40);
  free_again(object, (int)c->b);
  probe(c->size);
  give(moved);
  give(behind);
}
static void after_realloc_to_nothing(const struct Case* c) {
  void* object = take(c->size);
  void* behind = take(c->size);
  forget(object);
  void* left = realloc(hide(object), hide_size(0));
  if (left != NULL) absent("realloc to no size does not free here");
  free_again(object, (int)c->b);
  probe(c->size);
  give(behind);
}
static void realloc_again(const struct Case* c) {
  void* object = take(c->size);
  void* behind = take(c->size);
  give(object);
  if (mistake("realloc of an object that is free")) {
    void* moved = realloc(hide(object), c->size * 2);
    if (moved == NULL) result("refused");
    keep(moved, c->size * 2);
  }
  probe(c->size);
  probe(c->size * 2);
  give(behind);
}
static void after_trim(const struct Case* c) {
  static void* objects[100];
  for (unsigned i = 0; i < 100; i++) objects[i] = take(c->size);
  void* behind = take(c->size);
  for (unsigned i = 0; i < 100; i++) give(objects[i]);
  malloc_trim(0);
  free_again(objects[50], (int)c->b);
  probe(c->size);
  give(behind);
}
static void take_and_give(void* argument) {
  void** place = (void**)argument;
  *place = malloc((size_t)*place);
  memset(*place, 1, 16);
  free(hide(*place));
}
// The thread that allocated and freed it has ended.
static void after_the_thread(const struct Case* c) {
  void* object = (void*)c->size;
  in_thread(take_and_give, &object);
  free_again(object, (int)c->b);
  probe(c->size);
}
static void after_a_fork(const struct Case* c) {
  static void* others[10];
  void* object = take(c->size);
  for (int i = 0; i < 10; i++) others[i] = take(c->size);
  if (c->a) {
    forget(object);
    in_thread(free_it, object);
  } else {
    give(object);
  }
  give(others[3]);
  go_on_in_child();
  free_again(object, (int)c->b);
  probe(c->size);
}
static void by_memalign(const struct Case* c) {
  void* object = memalign(256, c->size);
  void* behind = memalign(256, c->size);
  REQUIRE(object && behind);
  keep(behind, c->size);
  free(hide(object));
  free_again(object, (int)c->b);
  probe(c->size);
  for (int i = 0; i < 40; i++) keep(memalign(256, c->size), c->size);
}
// Three frees of one object with two others between.
static void three_times(const struct Case* c) {
  void* object = take(c->size);
  void* one = take(c->size);
  void* two = take(c->size);
  give(object);
  const int makes = mistake("an object is freed three times");
  give(one);
  if (makes) free(hide(object));
  give(two);
  if (makes) free(hide(object));
  probe(c->size);
}
// Filled with zeros between the frees, so that no mark in the object is left.
static void wiped(const struct Case* c) {
  void* object = take(c->size);
  void* other = take(c->size);
  give(object);
  give(other);
  if (mistake("a free object is filled with zeros, and freed again")) {
    write_words(object, c->size, 0, c->size == kLarge ? 64 : c->size / 8);
    free(hide(object));
  }
  probe(c->size);
}

// --- reused: the object has been handed out again; the second free takes it from its new user.

static void free_the_new_users(void* object, size_t size) {
  if (mistake("an object is freed by its former user")) {
    free(hide(object));
    for (unsigned i = 0; i < probes_for(size) && i < 3000; i++) take(size);
  }
  probe(size);
}
static void reused_by_malloc(const struct Case* c) {
  void* object = take(c->size);
  void* behind = take(c->size);
  give(object);
  void* user = NULL;
  for (unsigned i = 0; i < probes_for(c->size) && user != object; i++) user = take(c->size);
  if (user != object) absent("the object was not handed out again");
  free_the_new_users(object, c->size);
  give(behind);
}
static void reused_by_calloc(const struct Case* c) {
  void* object = take(c->size);
  void* behind = take(c->size);
  give(object);
  void* user = NULL;
  for (unsigned i = 0; i < probes_for(c->size) && user != object; i++) {
    user = calloc(1, c->size);
    REQUIRE(user != NULL);
    keep(user, c->size);
  }
  if (user != object) absent("the object was not handed out again");
  free_the_new_users(object, c->size);
  give(behind);
}
// Where a large object lay, there are small ones now.
static void reused_by_smaller(const struct Case* c) {
  char* object = (char*)take(c->size);
  void* behind = take(c->size);
  give(object);
  const size_t size = (size_t)c->a;
  int is_there = 0;
  for (unsigned i = 0; i < 6000 && !is_there; i++) is_there = take(size) == object;
  if (!is_there) absent("no smaller object came there");
  free_the_new_users(object, size);
  give(behind);
}
static void take_some(void* argument) {
  const struct Case* c = (const struct Case*)argument;
  for (unsigned i = 0; i < probes_for(c->size); i++) take(c->size);
}
static void reused_by_another_thread(const struct Case* c) {
  void* object = take(c->size);
  void* behind = take(c->size);
  give(object);
  malloc_trim(0);
  in_thread(take_some, (void*)(uintptr_t)c);
  int is_there = 0;
  for (unsigned i = 0; i < live_count; i++) is_there |= live[i].at == object;
  if (!is_there) absent("no other thread got the object");
  free_the_new_users(object, c->size);
  give(behind);
}

static const struct Case kCases[] = {
    EACH_SIZE("double/at-once", after_others, 0, 0),
    {"double/at-once-16", after_others, 16, 0, 0},
    {"double/at-once-1024", after_others, 1024, 0, 0},
    {"double/at-once-60000", after_others, 60000, 0, 0},
    EACH_SIZE("double/after-1", after_others, 1, 0),
    EACH_SIZE("double/after-7", after_others, 7, 0),
    {"double/after-7-16", after_others, 16, 7, 0},
    {"double/after-7-1024", after_others, 1024, 7, 0},
    {"double/after-7-60000", after_others, 60000, 7, 0},
    SMALL_AND_MEDIUM("double/after-100", after_others, 100, 0),
    {"double/after-100-16", after_others, 16, 100, 0},
    {"double/after-100-1024", after_others, 1024, 100, 0},
    {"double/after-100-60000", after_others, 60000, 100, 0},
    {"double/after-30-big", after_others, kBig, 30, 0},
    {"double/after-30-large", after_others, kLarge, 30, 0},
    EACH_SIZE("double/thread-second", after_others, 0, 2),
    SMALL_AND_MEDIUM("double/after-7-thread-second", after_others, 7, 1),
    SMALL_AND_MEDIUM("double/after-100-thread-second", after_others, 100, 1),
    EACH_SIZE("double/thread-first", other_thread_first, 0, 0),
    SMALL_AND_MEDIUM("double/thread-first-after-7", other_thread_first, 7, 0),
    SMALL_AND_MEDIUM("double/thread-first-after-100", other_thread_first, 100, 0),
    EACH_SIZE("double/two-threads", other_thread_first, 0, 1),
    SMALL_AND_MEDIUM("double/came-back", after_it_came_back, 0, 0),
    SMALL_AND_MEDIUM("double/came-back-thread", after_it_came_back, 0, 1),
    SMALL_AND_MEDIUM("double/after-refill", after_refill, 0, 0),
    {"double/after-refill-big", after_refill, kBig, 0, 0},
    SMALL_AND_MEDIUM("double/row-of-2", row_twice, 2, 0),
    SMALL_AND_MEDIUM("double/row-of-10", row_twice, 10, 0),
    SMALL_AND_MEDIUM("double/row-of-100", row_twice, 100, 0),
    SMALL_AND_MEDIUM("double/row-of-10-thread", row_twice, 10, 1),
    SMALL_AND_MEDIUM("double/row-of-100-thread", row_twice, 100, 1),
    {"double/row-of-500-thread-small", row_twice, kSmall, 500, 1},
    SMALL_AND_MEDIUM("double/pairs-of-100", pairs, 100, 0),
    SMALL_AND_MEDIUM("double/pairs-of-100-thread", pairs, 100, 1),
    SMALL_AND_MEDIUM("double/empty-slab", of_an_empty_slab, 0, 0),
    {"double/empty-slab-big", of_an_empty_slab, kBig, 0, 0},
    SMALL_AND_MEDIUM("double/empty-slab-thread", of_an_empty_slab, 0, 1),
    SMALL_AND_MEDIUM("double/after-realloc", after_realloc, 0, 0),
    {"double/after-realloc-big", after_realloc, kBig, 0, 0},
    {"double/after-realloc-to-nothing-small", after_realloc_to_nothing, kSmall, 0, 0},
    EACH_SIZE("double/realloc", realloc_again, 0, 0),
    SMALL_AND_MEDIUM("double/after-trim", after_trim, 0, 0),
    SMALL_AND_MEDIUM("double/after-thread-ended", after_the_thread, 0, 0),
    SMALL_AND_MEDIUM("double/after-fork", after_a_fork, 0, 0),
    SMALL_AND_MEDIUM("double/thread-first-after-fork", after_a_fork, 1, 0),
    {"double/after-fork-large", after_a_fork, kLarge, 0, 0},
    SMALL_AND_MEDIUM("double/aligned", by_memalign, 0, 0),
    SMALL_AND_MEDIUM("double/three-times", three_times, 0, 0),
    SMALL_AND_MEDIUM("double/wiped", wiped, 0, 0),
    SMALL_AND_MEDIUM("reused/by-malloc", reused_by_malloc, 0, 0),
    {"reused/by-malloc-big", reused_by_malloc, kBig, 0, 0},
    {"reused/by-malloc-large", reused_by_malloc, kLarge, 0, 0},
    SMALL_AND_MEDIUM("reused/by-calloc", reused_by_calloc, 0, 0),
    {"reused/by-smaller-large", reused_by_smaller, kLarge, 64, 0},
    {"reused/by-medium-large", reused_by_smaller, kLarge, 5000, 0},
    SMALL_AND_MEDIUM("reused/by-another-thread", reused_by_another_thread, 0, 0),
};
PROGRAM(kCases)
