// Under RLIMIT_AS and RLIMIT_DATA a program starts, gets null with ENOMEM, frees, and goes on,
// again and again.
#include <pthread.h>

#include <new>
#include <vector>

#include "child.h"

namespace {

constexpr size_t kMib = 1 << 20;

// Objects linked through their first word, so that the test needs no memory for itself.
struct Link {
  Link* next;
};

// Allocates objects of one size until no memory is left; returns the bytes reached.
size_t allocate_all(Link** list, size_t size) {
  size_t reached = 0;
  for (;;) {
    errno = 0;
    Link* object = static_cast<Link*>(malloc(size));
    if (!object) break;
    object->next = *list;
    *list = object;
    reached += size;
    REQUIRE(reached < 8192 * kMib);
  }
  CHECK_MSG(errno == ENOMEM, "size %zu", size);
  return reached;
}

void free_all(Link** list) {
  while (*list) {
    Link* next = (*list)->next;
    free(*list);
    *list = next;
  }
}

void check_failures(size_t size) {
  void* object = nullptr;
  errno = 0;
  CHECK(malloc(size) == nullptr && errno == ENOMEM);
  errno = 0;
  CHECK(calloc(1, size) == nullptr && errno == ENOMEM);
  errno = 0;
  CHECK(memalign(4096, size) == nullptr && errno == ENOMEM);
  CHECK(posix_memalign(&object, 64, size) == ENOMEM && object == nullptr);
  CHECK(::operator new(size, std::nothrow) == nullptr);
  bool thrown = false;
  try {
    hide(::operator new(size));
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  CHECK(thrown);
  char* kept = static_cast<char*>(malloc(100));
  if (!kept) return;
  fill(kept, 100, 4);
  errno = 0;
  CHECK(realloc(kept, size) == nullptr && errno == ENOMEM && filled(kept, 100, 4));
  free(kept);
}

size_t limit_bytes() { return strtoull(test_argument, nullptr, 10); }

}  // namespace

// Every round reaches about as many bytes as the first did, with small and large objects by turns.
CHILD(rounds) {
  const size_t sizes[] = {1 * kMib, 100, 5 * kMib, 3000, 40000, 200000, 16};
  for (size_t size : sizes) {
    size_t first = 0;
    for (int round = 0; round < 4; round++) {
      Link* list = nullptr;
      size_t reached = allocate_all(&list, size);
      check_failures(limit_bytes());
      free_all(&list);
      if (round == 0) {
        first = reached;
        // 16-byte objects cost glibc 32 bytes each.
        CHECK_MSG(reached >= limit_bytes() / 4, "size %zu: %zu KiB", size, reached / 1024);
      }
      CHECK_MSG(reached >= first - first / 4, "size %zu: %zu KiB, then %zu KiB", size, first / 1024,
                reached / 1024);
    }
  }
  std::vector<std::vector<char>> works(100, std::vector<char>(1000, 'v'));
  CHECK(works[99][999] == 'v');
}

static pthread_barrier_t barrier;
static void* thread_rounds(void*) {
  pthread_barrier_wait(&barrier);  // all have got their stacks
  for (int round = 0; round < 6; round++) {
    Link* list = nullptr;
    allocate_all(&list, round % 2 ? 3000 : 300000);
    pthread_barrier_wait(&barrier);
    free_all(&list);
    pthread_barrier_wait(&barrier);
    void* object = malloc(kMib);  // all have freed
    CHECK_MSG(object != nullptr, "round %d", round);
    pthread_barrier_wait(&barrier);
    free(object);
  }
  return nullptr;
}

CHILD(rounds_in_threads) {
  pthread_t threads[4];
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 * 1024);
  pthread_barrier_init(&barrier, nullptr, 4);
  for (pthread_t& thread : threads)
    REQUIRE(pthread_create(&thread, &attributes, thread_rounds, nullptr) == 0);
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
}

CHILD(just_start) {
  void* object = malloc(100);
  REQUIRE(object);
  free(object);
}

static void run_limited(const char* name, int resource, size_t mib) {
  char argument[32];
  snprintf(argument, sizeof argument, "%zu", mib * kMib);
  memset(&child, 0, offsetof(Child, out));
  child.resource = resource;
  child.limit = mib * kMib;
  child.argument = argument;
  run_child(name);
  CHECK_CHILD(child_succeeded());
}

CASE(address_space_of_64_mib) { run_limited("rounds", RLIMIT_AS, 64); }
CASE(address_space_of_600_mib) { run_limited("rounds", RLIMIT_AS, 600); }
CASE(address_space_of_64_mib_with_threads) { run_limited("rounds_in_threads", RLIMIT_AS, 64); }
CASE(address_space_of_600_mib_with_threads) { run_limited("rounds_in_threads", RLIMIT_AS, 600); }
CASE(data_of_64_mib) { run_limited("rounds", RLIMIT_DATA, 64); }
CASE(data_of_600_mib) { run_limited("rounds", RLIMIT_DATA, 600); }
CASE(data_of_64_mib_with_threads) { run_limited("rounds_in_threads", RLIMIT_DATA, 64); }
CASE(data_of_600_mib_with_threads) { run_limited("rounds_in_threads", RLIMIT_DATA, 600); }

// Sizes around those at which a reservation of 2^n just fits or just fails.
CASE(starts_in_many_address_spaces) {
  for (size_t mib = 24; mib <= 300000; mib += mib / 3) run_limited("just_start", RLIMIT_AS, mib);
}
