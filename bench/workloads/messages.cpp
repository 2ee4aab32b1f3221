// Workloads in which one thread allocates and another frees. Queues lie in books; the live data is
// the objects that wait in them.
//
// xmalloc     Lever and Boreham, "malloc() performance in a multithreaded Linux environment"
//             (USENIX 2000), in the form of SuperMalloc's tests (xmalloc-test -s 64): half of the
//             threads allocate batches of 4,096 objects of 64 bytes, which they write, and the
//             other half frees them; at most 100 batches wait, and the last one is taken first. The
//             batches' own arrays come from malloc, too. W workers of the original are 2 W threads
//             here.
// ring        pairs of a producer and a consumer, each pair with a queue of its own.
// fan-in      many producers, one consumer: its frees go to the lanes (or heaps) of all producers.
// fan-out     one producer, many consumers: all that the consumers free comes back to the producer.
// asymmetric  after the message passing of snmalloc's paper (Liétar et al., ISMM 2019), with uneven
//             roles: thread i sends to the threads above it, so the first thread frees nothing and
//             the last allocates nothing; if the amount of work is fixed, the first of n threads
//             allocates n - 1 shares of it. Sizes from 16 bytes to 8 KiB.
// A message is written by its producer at both ends and read by its consumer. A single thread plays
// both roles in turn.
#include <optional>

#include "queue.h"
#include "workloads.h"

namespace workloads {

namespace {

constexpr size_t kPortion = 64;      // messages that go through a queue at once
constexpr size_t kWaiting = 32'768;  // messages in all queues when they are full: about 8 MB

struct Message {
  uint32_t bytes;
};

Message* compose(size_t bytes, Tally& tally) {
  Message* message = static_cast<Message*>(std::malloc(bytes));
  if (message == nullptr) broken("malloc returned null");
  reinterpret_cast<char*>(message)[bytes - 1] = static_cast<char>(bytes);
  message->bytes = static_cast<uint32_t>(bytes);
  tally.operations++;
  return message;
}

void receive(void* object, Tally& tally) {
  Message* message = static_cast<Message*>(object);
  char last = reinterpret_cast<char*>(message)[message->bytes - 1];
  if (last != static_cast<char>(message->bytes)) broken("a message was overwritten");
  tally.checksum += message->bytes;
  std::free(message);
}

size_t small_bytes(Random& random) { return random.by_powers(4, 10); }

// Sends messages to a queue in portions, then closes the queue.
void produce(Queue& queue, Random& random, Worker& worker) {
  void* portion[kPortion];
  do {
    for (void*& message : portion) message = compose(small_bytes(random), worker.tally);
    queue.push(portion, kPortion);
  } while (worker.goes_on());
  queue.close();
}

void consume(Queue& queue, Tally& tally) {
  void* portion[kPortion];
  while (size_t n = queue.pop(portion, kPortion)) {
    for (size_t i = 0; i < n; i++) receive(portion[i], tally);
  }
}

// Plays both roles in one thread: makes as many messages as would wait in the queue, then takes all
// of them out again.
template <class Bytes>
void alone(size_t waiting, Random& random, Worker& worker, Bytes bytes) {
  Book<void*> queue(waiting);
  do {
    size_t n = 0;
    do {
      queue[n++] = compose(bytes(random), worker.tally);
    } while (n < waiting && (n % kPortion != 0 || worker.goes_on()));
    for (size_t i = 0; i < n; i++) receive(queue[i], worker.tally);
  } while (worker.goes_on());
}

constexpr size_t kBatchObjects = 4096, kBatchesWaiting = 100, kObjectBytes = 64;

struct Batch {
  Batch* next;
  void* objects[kBatchObjects];
};

// The list of xmalloc's batches, as in the original.
class Batches {
 public:
  explicit Batches(int producers) : producers_(producers) {}

  void push(Batch* batch) {
    std::unique_lock lock(mutex_);
    has_room_.wait(lock, [&] { return waiting_ < kBatchesWaiting; });
    batch->next = first_;
    first_ = batch;
    waiting_++;
    has_items_.notify_one();
  }

  // Returns null if the producers are done and nothing is left.
  Batch* pop() {
    std::unique_lock lock(mutex_);
    has_items_.wait(lock, [&] { return first_ != nullptr || producers_ == 0; });
    Batch* batch = first_;
    if (batch != nullptr) {
      first_ = batch->next;
      waiting_--;
      has_room_.notify_one();
    }
    return batch;
  }

  // Each producer calls it when it is done.
  void close() {
    std::lock_guard lock(mutex_);
    if (--producers_ == 0) has_items_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable has_items_, has_room_;
  Batch* first_ = nullptr;
  size_t waiting_ = 0;
  int producers_;
};

Batch* fill_batch(Tally& tally) {
  Batch* batch = static_cast<Batch*>(std::malloc(sizeof(Batch)));
  if (batch == nullptr) broken("malloc returned null");
  for (void*& object : batch->objects) {
    object = std::malloc(kObjectBytes);
    if (object == nullptr) broken("malloc returned null");
    std::memset(object, 1, kObjectBytes);
  }
  tally.operations += kBatchObjects + 1;
  return batch;
}

void free_batch(Batch* batch, Tally& tally) {
  for (void* object : batch->objects) {
    tally.checksum += static_cast<uint64_t>(static_cast<char*>(object)[kObjectBytes - 1]);
    std::free(object);
  }
  std::free(batch);
}

}  // namespace

void xmalloc(Run& run) {
  int producers = std::max(1, run.threads / 2);
  Batches batches(producers);
  run.in_threads([&](int me) {
    if (run.threads == 1) {
      Worker worker(run, me);
      do {
        free_batch(fill_batch(worker.tally), worker.tally);
      } while (worker.goes_on());
    } else if (me < producers) {
      Worker worker(run, me, run.share(1, producers));
      do {
        batches.push(fill_batch(worker.tally));
      } while (worker.goes_on());
      batches.close();
    } else {
      Worker worker(run, me);
      while (Batch* batch = batches.pop()) free_batch(batch, worker.tally);
    }
  });
}

void ring(Run& run) {
  int pairs = run.threads / 2;
  size_t waiting = kWaiting / static_cast<size_t>(std::max(1, pairs));
  std::array<std::optional<Queue>, kMaxThreads / 2> queues;
  for (int i = 0; i < pairs; i++) queues[static_cast<size_t>(i)].emplace(waiting, 1);
  run.in_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    if (me == 2 * pairs) {  // the odd thread
      Worker worker(run, me);
      alone(waiting, random, worker, small_bytes);
    } else if (Queue& queue = *queues[static_cast<size_t>(me) / 2]; me % 2 == 0) {
      Worker worker(run, me, run.share(2, run.threads));
      produce(queue, random, worker);
    } else {
      Worker worker(run, me);
      consume(queue, worker.tally);
    }
  });
}

namespace {

// The first `producers` threads send, the others receive, all through one queue.
void through_one_queue(Run& run, int producers) {
  Queue queue(kWaiting, producers);
  run.in_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    Worker worker(run, me, run.share(1, producers));
    if (run.threads == 1) {
      alone(kWaiting, random, worker, small_bytes);
    } else if (me < producers) {
      produce(queue, random, worker);
    } else {
      consume(queue, worker.tally);
    }
  });
}

}  // namespace

void fan_in(Run& run) { through_one_queue(run, std::max(1, run.threads - 1)); }

void fan_out(Run& run) { through_one_queue(run, 1); }

namespace {

size_t mixed_bytes(Random& random) { return random.by_powers(4, 13); }

// Thread `me` of asymmetric: sends to the threads above it, and frees the messages from the threads
// below. Queues lead upwards only, so a thread that waits for room waits for a thread that does not
// wait for it.
void send_and_receive(size_t me, size_t threads, std::optional<Queue>* inboxes, Worker& worker) {
  Random random(me);
  void* portion[kPortion];
  if (me + 1 < threads) {
    do {
      size_t n = random.between(1, kPortion / 2);
      for (size_t i = 0; i < n; i++) portion[i] = compose(mixed_bytes(random), worker.tally);
      inboxes[me + 1 + random.below(threads - me - 1)]->push(portion, n);
      n = inboxes[me]->try_pop(portion, kPortion);
      for (size_t i = 0; i < n; i++) receive(portion[i], worker.tally);
    } while (worker.goes_on());
  }
  for (size_t above = me + 1; above < threads; above++) inboxes[above]->close();
  consume(*inboxes[me], worker.tally);
}

}  // namespace

void asymmetric(Run& run) {
  constexpr size_t kMixedWaiting = kWaiting / 4;  // messages of 1.4 KiB
  size_t threads = static_cast<size_t>(run.threads);
  std::array<std::optional<Queue>, kMaxThreads> inboxes;
  for (size_t i = 0; i < threads; i++)
    inboxes[i].emplace(std::max<size_t>(512, kMixedWaiting / threads), static_cast<int>(i));
  size_t all_shares = std::max<size_t>(1, threads * (threads - 1) / 2);
  run.in_threads([&](int number) {
    size_t me = static_cast<size_t>(number);
    if (threads == 1) {
      Random random(0);
      Worker worker(run, number);
      alone(kMixedWaiting, random, worker, mixed_bytes);
    } else {
      Worker worker(run, number, run.share(threads - 1 - me, all_shares));
      send_and_receive(me, threads, inboxes.data(), worker);
    }
  });
}

}  // namespace workloads
