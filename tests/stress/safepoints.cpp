// Readers follow pointers that writers replace. The free of an object that is taken out is
// deferred, for half of them through a function that poisons the object first. Objects of the same
// size are allocated and overwritten all the time. In one case the objects come from a pool, whose
// dtor poisons them. Checked: no reader sees poison or another object in a section, or between
// quiescent states; and everything is freed in the end.
// Run by: tests/stress/run.sh; also against the prefixed library under sanitizers. With
// LANEMALLOC_TEST_NO_GRACE=1 writers free at once: then the program must fail.
#include "../../include/lanemalloc/pool.h"
#include "../../include/lanemalloc/safepoint.h"
#include "stress.h"

namespace {
using namespace stress;

#ifdef LANEMALLOC_TEST_PREFIXED
#define LANE(name) name
#else
template <class F>
F* function(F*, const char* name) {
  void* address = dlsym(RTLD_DEFAULT, name);
  if (address == nullptr) SKIP("no %s in this library", name);
  return reinterpret_cast<F*>(address);
}
#define LANE(name) (*function<decltype(name)>(nullptr, #name))
#endif

constexpr int kCells = 64;
constexpr int kWriters = 4, kReaders = 3;
constexpr size_t kWords = 12;
constexpr uint64_t kPoison = 0xDDDDDDDDDDDDDDDD;

// Every word is the first word plus its index.
struct Node {
  std::atomic<uint64_t> words[kWords];
};
std::atomic<Node*> g_cells[kCells];
std::atomic<int> g_writing{0};
std::atomic<uint64_t> g_poisoned{0}, g_sections{0};

int (*g_free)(void*);
int (*g_call)(void (*)(void*), void*);
size_t (*g_poll)();
bool g_no_grace;
// If it is null, nodes come from malloc.
lane_pool* g_pool;
void* (*g_pool_alloc)(lane_pool*);
void (*g_pool_free)(lane_pool*, void*);
int (*g_pool_free_later)(lane_pool*, void*);

void look_up() {
  g_free = &LANE(lane_safepoint_free);
  g_call = &LANE(lane_safepoint_call);
  g_poll = &LANE(lane_safepoint_poll);
  g_no_grace = getenv("LANEMALLOC_TEST_NO_GRACE") != nullptr;
}

Node* make(uint64_t tag) {
  Node* node =
      static_cast<Node*>(g_pool != nullptr ? g_pool_alloc(g_pool) : api::malloc(sizeof(Node)));
  EXPECT(node != nullptr, "no memory");
  for (size_t i = 0; i < kWords; i++) node->words[i].store(mix(tag) + i, std::memory_order_relaxed);
  return node;
}

uint64_t check_node(Node* node, const char* where) {
  const uint64_t first = node->words[0].load(std::memory_order_relaxed);
  for (size_t i = 1; i < kWords; i++) {
    const uint64_t word = node->words[i].load(std::memory_order_relaxed);
    EXPECT(word == first + i && first != kPoison, "%s: word %zu of %p is %#llx, the first %#llx",
           where, i, static_cast<void*>(node), llu(word), llu(first));
  }
  return first;
}

void poison(void* object, size_t, void*) {
  for (auto& word : static_cast<Node*>(object)->words)
    word.store(kPoison, std::memory_order_relaxed);
  g_poisoned.fetch_add(1, std::memory_order_relaxed);
}
void free_node(void* object) {
  g_pool != nullptr ? g_pool_free(g_pool, object) : api::free(object);
}
void poison_and_free(void* object) {
  poison(object, 0, nullptr);
  free_node(object);
}

void take_out(Node* node, bool poison) {
  if (g_no_grace) return poison_and_free(node);
  if (g_pool != nullptr) {
    const int result = g_pool_free_later(g_pool, node);
    EXPECT(result == 0, "a pool's deferred free: %s", strerror(result));
    return;
  }
  // EBUSY comes only in a program without readers, if the lane's share is full; see stops().
  const int result = poison ? g_call(poison_and_free, node) : g_free(node);
  EXPECT(result == 0, "a deferred free: %s", strerror(result));
}

void write(int index, uint64_t rounds) {
  Random random(static_cast<uint64_t>(index));
  for (uint64_t i = 0; i < rounds; i++) {
    if (i % 1000 == 0) stage("writing", i);
    Node* old = g_cells[random.below(kCells)].exchange(make(i * 64 + static_cast<uint64_t>(index)),
                                                       std::memory_order_acq_rel);
    if (old != nullptr) take_out(old, random.percent(50));
    if (i % 4 == 0) free_node(make(i));  // reuses what has been freed
  }
  g_writing.fetch_sub(1);
}

// What a section finds stays the same until the section ends.
void read_cells(Random& random) {
  Node* nodes[4];
  uint64_t seen[4];
  for (int i = 0; i < 4; i++) {
    nodes[i] = g_cells[random.below(kCells)].load(std::memory_order_acquire);
    if (nodes[i] != nullptr) seen[i] = check_node(nodes[i], "found");
  }
  if (random.percent(1)) sched_yield();
  for (int i = 0; i < 4; i++)
    if (nodes[i] != nullptr)
      EXPECT(check_node(nodes[i], "again") == seen[i], "it is another object");
}

void read(int index, bool online) {
  Random random(1000 + static_cast<uint64_t>(index));
  lane_reader reader;
  EXPECT(LANE(lane_reader_register)(&reader, "stress") == 0, "a reader is not registered");
  if (online) lane_reader_online(&reader);
  for (uint64_t i = 0; g_writing.load(std::memory_order_relaxed) > 0; i++) {
    if (i % 1000 == 0) stage("reading", i);
    if (online && i % 8 == 0) lane_reader_quiescent(&reader);
    if (!online || random.percent(10)) {
      lane_reader_enter(&reader);
      read_cells(random);
      lane_reader_exit(&reader);
    } else {
      read_cells(random);
    }
    if (random.percent(1)) {
      if (online) lane_reader_offline(&reader);
      g_poll();
      if (online) lane_reader_online(&reader);
    }
    g_sections.fetch_add(1, std::memory_order_relaxed);
  }
  if (online) lane_reader_offline(&reader);
  EXPECT(LANE(lane_reader_unregister)(&reader) == 0, "a reader is not unregistered");
}

void free_the_rest() {
  for (auto& cell : g_cells)
    if (Node* node = cell.exchange(nullptr); node != nullptr) {
      check_node(node, "left");
      free_node(node);
    }
  EXPECT(LANE(lane_safepoint_wait)() == 0, "waiting is refused");
  lane_safepoint_statistics s;
  LANE(lane_safepoint_get_statistics_into)(&s, sizeof s);
  EXPECT(s.deferred == s.freed, "%llu of %llu deferred frees are not done",
         llu(s.deferred - s.freed), llu(s.deferred));
  NOTE("%llu deferred, %llu batches, %llu of them helped; %llu sections, %llu poisoned",
       llu(s.deferred), llu(s.batches), llu(s.helped), llu(g_sections), llu(g_poisoned));
}

void read_and_write(bool online) {
  look_up();
  // This reader is there from the first deferred free on.
  static lane_reader first;
  EXPECT(LANE(lane_reader_register)(&first, "first") == 0, "the first reader is not registered");
  g_writing = kWriters;
  const uint64_t rounds = scaled(600000);
  run_threads(kWriters + kReaders, [&](int index) {
    if (index < kWriters) {
      write(index, rounds);
    } else {
      read(index, online);
    }
  });
  free_the_rest();
}

// The nodes come from a pool whose dtor poisons them. The pool is destroyed while frees of its
// objects wait.
void pool() {
  g_pool_alloc = &LANE(lane_pool_alloc_out_of_line);
  g_pool_free = &LANE(lane_pool_free_out_of_line);
  g_pool_free_later = &LANE(lane_safepoint_pool_free);
  lane_pool_options options{};
  options.name = "nodes";
  options.object_size = sizeof(Node);
  options.dtor = poison;
  g_pool = LANE(lane_pool_create_from)(&options, sizeof options);
  EXPECT(g_pool != nullptr, "no pool");
  read_and_write(false);
  const uint64_t before = g_poisoned.load();
  constexpr uint64_t kLeft = 1000;
  for (uint64_t i = 0; i < kLeft; i++) take_out(make(i), false);
  const size_t used = LANE(lane_pool_destroy)(g_pool);
  g_pool = nullptr;
  const uint64_t poisoned = g_poisoned.load() - before;
  EXPECT(used == 0 && poisoned == kLeft, "%zu are in use, %llu were destroyed", used,
         llu(poisoned));
}

// Writers come and go all the time; other threads free what they have deferred.
void writers_that_exit() {
  look_up();
  static lane_reader first;
  EXPECT(LANE(lane_reader_register)(&first, "first") == 0, "the first reader is not registered");
  const uint64_t waves = scaled(100) + 5;
  for (uint64_t wave = 0; wave < waves; wave++) {
    g_writing = kWriters;
    run_threads(kWriters + 1, [&](int index) {
      if (index < kWriters) {
        write(index + static_cast<int>(wave) * kWriters, 3000);
      } else {
        read(index, false);
      }
    });
  }
  free_the_rest();
}

// No reader is registered: all threads stop, and one of them does the deferred frees.
void stops() {
  look_up();
  const uint64_t rounds = scaled(100) + 5;
  static pthread_barrier_t barrier;
  static size_t freed;
  freed = 0;
  pthread_barrier_init(&barrier, nullptr, kWriters);
  run_threads(kWriters, [&](int index) {
    Random random(static_cast<uint64_t>(index));
    for (uint64_t round = 0; round < rounds; round++) {
      stage("rounds", round);
      for (uint64_t i = 0; i < 900; i++) {
        read_cells(random);
        Node* node = make(round * 1000 + i);
        if (Node* old = g_cells[random.below(kCells)].exchange(node, std::memory_order_acq_rel);
            old != nullptr)
          take_out(old, random.percent(50));
      }
      pthread_barrier_wait(&barrier);
      if (index == 0) freed += LANE(lane_safepoint)();
      pthread_barrier_wait(&barrier);
    }
  });
  const uint64_t wanted = rounds * 900 * kWriters - kCells;
  EXPECT(freed == wanted, "%zu of %llu deferred frees were done at the stops", freed, llu(wanted));
  for (auto& cell : g_cells) api::free(cell.load());
  NOTE("%zu freed at %llu stops", freed, llu(rounds));
}
}  // namespace

int main(int argc, char** argv) {
  static const Case cases[] = {
      {"sections", [] { read_and_write(false); }},
      {"online", [] { read_and_write(true); }},
      {"pool", pool},
      {"writers-exit", writers_that_exit},
      {"stops", stops},
  };
  return run_cases("safepoints", argc, argv, cases);
}
