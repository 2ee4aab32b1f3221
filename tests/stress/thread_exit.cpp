// Threads start and end all the time and leave objects behind, which other threads free after the
// owner's exit. Destructors of thread-specific data free and allocate. Checked: contents, and that
// memory stays bounded.
// Run by: tests/stress/run.sh; also against the prefixed library under sanitizers.
#include "stress.h"

namespace {
using namespace stress;

constexpr int kAlive = 8;  // threads at a time
constexpr size_t kMayGrow = 16 * kMiB;
constexpr size_t kMost = 128 * kMiB;  // while less than 12 MiB are live

SharedSlot g_left[1024];  // what threads leave behind
pthread_key_t g_keys[2];

void leave_behind(Owned& o, Random& random, const char* where) {
  while (!g_left[random.below(std::size(g_left))].swap(o)) sched_yield();
  // The object that was left there earlier, mostly by a thread that is gone
  if (o.address != nullptr) give(o, where);
}

// What a thread keeps until its destructors run. It lies in pages of its own, so that the test
// itself frees nothing.
struct Kept {
  Random random;
  Tags tags;
  Owned objects[24];
  int rounds = 0;
};

void destroy_kept(void* p) {
  auto* kept = static_cast<Kept*>(p);
  kept->rounds++;
  for (int i = 0; i < 40; i++) {
    Owned& o = kept->objects[kept->random.below(std::size(kept->objects))];
    if (o.address == nullptr)
      o = take(random_size(kept->random, 64 << 10), kept->tags.next());
    else if (kept->random.percent(50))
      give(o, "destructor");
    else
      leave_behind(o, kept->random, "destructor, left behind");
  }
  // Come back in later rounds, after the allocator's own destructor.
  if (kept->rounds < 3) {
    pthread_setspecific(g_keys[kept->rounds % 2], kept);
    return;
  }
  for (Owned& o : kept->objects)
    if (o.address != nullptr) give(o, "last destructor");
}

struct Churn {
  bool with_destructors;   // objects are held in thread-specific data until the thread dies
  bool allocate_in_body;   // otherwise the first allocation of the thread is in its destructor
  bool keep_nothing_back;  // the thread leaves all that it allocated to other threads
};

void thread_body(const Churn& churn, int index, uint64_t serial, Kept* kept) {
  Random random(serial * 64 + static_cast<uint64_t>(index));
  Tags tags;
  if (churn.with_destructors) {
    *kept = Kept{random, tags, {}, 0};
    pthread_setspecific(g_keys[0], kept);
  }
  if (!churn.allocate_in_body) return;
  Owned objects[64];
  for (int i = 0; i < 400; i++) {
    Owned& o = objects[random.below(std::size(objects))];
    if (o.address == nullptr)
      o = take(random_size(random, 128 << 10), tags.next());
    else if (random.percent(60))
      give(o, "thread");
    else
      leave_behind(o, random, "thread, left behind");
  }
  for (Owned& o : objects)
    if (o.address != nullptr) {
      if (churn.keep_nothing_back)
        leave_behind(o, random, "end of thread, left behind");
      else
        give(o, "end of thread");
    }
}

void churn_threads(const Churn& churn) {
  pthread_key_create(&g_keys[0], destroy_kept);
  pthread_key_create(&g_keys[1], destroy_kept);
  auto* kept = static_cast<Kept*>(map_pages(sizeof(Kept) * kAlive));
  memset(static_cast<void*>(kept), 0, sizeof(Kept) * kAlive);
  uint64_t waves = scaled(500) + 30;
  size_t early = 0, late = 0;  // the most in each half
  for (uint64_t wave = 0; wave < waves; wave++) {
    stage("waves", wave);
    run_threads(kAlive, [&](int index) { thread_body(churn, index, wave, &kept[index]); });
    if (wave % 4 != 3 && wave + 1 < waves) continue;
    size_t& most = wave < waves / 2 ? early : late;
    if (size_t here = resident(); here > most) most = here;
  }
  EXPECT(!kJudgeResident || (late < early + early / 4 + kMayGrow && late < kMost),
         "memory grows with dead threads: at most %zu KiB in the first half, %zu KiB in the second "
         "(limit "
         "%zu KiB)",
         early / kKiB, late / kKiB, kMost / kKiB);
  for (SharedSlot& slot : g_left)
    if (slot.object.address != nullptr) give(slot.object, "freed at the end");
  NOTE("%llu threads; resident at most %zu KiB in the first half, %zu KiB in the second",
       llu(waves * kAlive), early / kKiB, late / kKiB);
}

// An owner ends, and then one other thread frees all of its objects, again and again: the slabs
// come back.
void freed_after_exit() {
  constexpr size_t kObjects = 40000;
  auto* objects = static_cast<Owned*>(map_pages(sizeof(Owned) * kObjects));
  uint64_t rounds = scaled(40) + 10;
  size_t early = 0;
  for (uint64_t round = 0; round < rounds; round++) {
    stage("rounds", round);
    run_threads(1, [&](int) {
      Random random(round);
      Tags tags;
      for (size_t i = 0; i < kObjects; i++)
        objects[i] = take(random.log_uniform(16, 1024), tags.next());
    });
    run_threads(1, [&](int) {
      for (size_t i = 0; i < kObjects; i++) give(objects[i], "freed after the owner's exit");
    });
    if (round == rounds / 5) early = resident();
  }
  size_t late = resident();
  EXPECT(late < early + early / 4 + kMayGrow,
         "%zu KiB resident after a fifth of the rounds, %zu KiB at the end", early / kKiB,
         late / kKiB);
  NOTE("%llu rounds; resident %zu KiB, then %zu KiB", llu(rounds), early / kKiB, late / kKiB);
}
}  // namespace

int main(int argc, char** argv) {
  static const Case cases[] = {
      {"born-and-die", [] { churn_threads({false, true, false}); }},
      {"left-behind", [] { churn_threads({false, true, true}); }},
      {"destructors", [] { churn_threads({true, true, true}); }},
      {"first-in-destructor", [] { churn_threads({true, false, false}); }},
      {"freed-after-exit", freed_after_exit},
  };
  return run_cases("thread_exit", argc, argv, cases);
}
