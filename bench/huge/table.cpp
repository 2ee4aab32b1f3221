// A hash table of small objects that takes most of the memory. It is filled, looked up at random,
// thinned out and filled again a few times, with rests in between in which memory goes back to the
// system. Then its objects are replaced at random. Called by: run.py.
// Usage: table MIB REST_SECONDS. Prints CPU time per operation, in nanoseconds, and memory in MiB.
// thin_mib: after 3 seconds without the removed objects; rested_mib: REST_SECONDS later.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <new>
#include <thread>
#include <vector>

#include "../measure.h"

namespace {

struct Node {
  Node* next;
  uint64_t key;
};

uint64_t random_state = 88172645463325252;
uint64_t random_number() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

constexpr size_t kMean = 128;  // bytes of an object

class Table {
 public:
  explicit Table(size_t objects) : objects_(objects) {
    size_t buckets = 1;
    while (buckets < objects) buckets *= 2;
    buckets_.resize(buckets);
  }
  size_t objects() const { return objects_; }

  void put(uint64_t key, size_t least) {
    const size_t size = least + random_number() % (2 * (kMean - least) + 1);
    Node*& first = bucket(key);
    void* memory = malloc(size);
    if (memory == nullptr) abort();
    memset(memory, 1, size);
    first = new (memory) Node{first, key};
  }
  bool has(uint64_t key) {
    const Node* node = bucket(key);
    while (node != nullptr && node->key != key) node = node->next;
    return node != nullptr;
  }
  bool remove(uint64_t key) {
    Node** link = &bucket(key);
    while (*link != nullptr && (*link)->key != key) link = &(*link)->next;
    Node* node = *link;
    if (node == nullptr) return false;
    *link = node->next;
    free(node);
    return true;
  }

 private:
  Node*& bucket(uint64_t key) {
    return buckets_[(key * 0x9E3779B97F4A7C15 >> 20) & (buckets_.size() - 1)];
  }

  size_t objects_;
  std::vector<Node*> buckets_;
};

template <class Operation>
double nanoseconds(size_t operations, Operation operation) {
  const uint64_t begin = process_cpu_ns();
  for (size_t i = 0; i < operations; ++i) operation(i);
  return static_cast<double>(process_cpu_ns() - begin) / static_cast<double>(operations);
}

double look(Table& table) {
  size_t found = 0;
  const double ns = nanoseconds(
      10'000'000, [&](size_t) { found += table.has(random_number() % table.objects()); });
  if (found != 10'000'000) abort();
  return ns;
}

void rest(long seconds) {
  const struct timespec time = {seconds, 0};
  nanosleep(&time, nullptr);
}

unsigned long mib(const char* name) { return proc_kib("/proc/self/smaps_rollup", name) >> 10; }

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return fprintf(stderr, "usage: table MIB REST_SECONDS\n"), 2;
  // With a second thread, the process has the means that return memory while it rests
  std::thread([] { pause(); }).detach();
  Table table((strtoul(arguments[1], nullptr, 10) << 20) / (kMean + 16));
  const double fill = nanoseconds(table.objects(), [&](size_t i) { table.put(i, 32); });
  const double first = look(table);
  printf("fill_ns=%.1f look_ns=%.1f rss_mib=%lu huge_mib=%lu ", fill, first, mib("Rss:"),
         mib("AnonHugePages:"));
  unsigned long thin = 0, rested = 0;
  for (uint64_t round = 1; round <= 3; ++round) {
    // 32,768 neighbours go together, so whole slabs are freed, and pieces of memory that are worth
    // a system call.
    for (uint64_t key = 0; key < table.objects(); ++key)
      if (((key >> 15) + round) * 0x9E3779B97F4A7C15 >> 60 < 9) table.remove(key);
    rest(3);
    if (round == 1) {
      thin = mib("Rss:");
      rest(strtol(arguments[2], nullptr, 10));
      rested = mib("Rss:");
    }
    for (uint64_t key = 0; key < table.objects(); ++key)
      if (!table.has(key)) table.put(key, 32 + 16 * round);
  }
  const double later = look(table);
  const unsigned long huge = mib("AnonHugePages:");
  const double replace = nanoseconds(5'000'000, [&](size_t) {
    const uint64_t key = random_number() % table.objects();
    if (table.remove(key)) table.put(key, 32);
  });
  printf("thin_mib=%lu rested_mib=%lu look_later_ns=%.1f huge_later_mib=%lu replace_ns=%.1f\n",
         thin, rested, later, huge, replace);
}
