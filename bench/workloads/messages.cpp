// Workloads in which one thread allocates and another frees. Queues lie in books; live data is what waits in them.
//
// xmalloc     Lever and Boreham, "malloc() performance in a multithreaded Linux environment" (USENIX 2000), in the form of
//             SuperMalloc's tests: half of the threads allocate batches of objects of 8 bytes to 2 KiB, and the other half
//             frees them. The batches' own arrays are of malloc too.
// ring        pairs of a producer and a consumer, each with a queue between them.
// fan-in      many producers, one consumer: its frees go to the lanes (or heaps) of all the others.
// fan-out     one producer, many consumers: what all the others free comes back to it.
// asymmetric  after the message passing of snmalloc's paper (Liétar et al., ISMM 2019), with uneven roles: thread i sends to
//             the threads above it, of n threads the first allocates n - 1 shares and frees none, the last allocates none
//             and frees the most. Sizes from 16 bytes to 8 KiB.
// A message is written by its producer at both ends and read by its consumer. A thread alone plays both roles in turns.
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

// `count` messages in portions to a queue, which it then closes.
void produce(Queue& queue, size_t count, Random& random, Tally& tally) {
  void* portion[kPortion];
  while (count > 0) {
    size_t n = std::min(count, kPortion);
    for (size_t i = 0; i < n; i++) portion[i] = compose(small_bytes(random), tally);
    queue.push(portion, n);
    count -= n;
  }
  queue.close();
}

void consume(Queue& queue, Tally& tally) {
  void* portion[kPortion];
  while (size_t n = queue.pop(portion, kPortion)) {
    for (size_t i = 0; i < n; i++) receive(portion[i], tally);
  }
}

// Both roles in one thread: as many messages as would wait in the queue, then all of them out again.
template <class Bytes>
void alone(size_t count, size_t waiting, Random& random, Tally& tally, Bytes bytes) {
  Book<void*> queue(std::min(count, waiting));
  while (count > 0) {
    size_t n = std::min(count, queue.size());
    for (size_t i = 0; i < n; i++) queue[i] = compose(bytes(random), tally);
    for (size_t i = 0; i < n; i++) receive(queue[i], tally);
    count -= n;
  }
}

}  // namespace

void xmalloc(Run& run) {
  constexpr size_t kBatch = 512, kBatches = 32;
  constexpr size_t kSizes[] = {8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048};
  struct Batch {
    void* objects[kBatch];
  };
  auto fill = [&](Random& random, Tally& tally) {
    Batch* batch = static_cast<Batch*>(std::malloc(sizeof(Batch)));
    if (batch == nullptr) broken("malloc returned null");
    for (void*& object : batch->objects) object = compose(kSizes[random.below(std::size(kSizes))], tally);
    tally.operations++;
    return batch;
  };
  auto drain = [](void* item, Tally& tally) {
    Batch* batch = static_cast<Batch*>(item);
    for (void* object : batch->objects) receive(object, tally);
    std::free(batch);
  };
  int producers = std::max(1, run.threads / 2);
  size_t batches = run.share(4.4e6 / kBatch, producers);
  Queue queue(kBatches, producers);
  run.in_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    Tally tally;
    if (run.threads == 1) {
      void* waiting[kBatches];
      for (size_t done = 0; done < batches; done += kBatches) {
        size_t n = std::min(kBatches, batches - done);
        for (size_t i = 0; i < n; i++) waiting[i] = fill(random, tally);
        for (size_t i = 0; i < n; i++) drain(waiting[i], tally);
      }
    } else if (me < producers) {
      for (size_t i = 0; i < batches; i++) queue.push(fill(random, tally));
      queue.close();
    } else {
      void* item;
      while (queue.pop(&item, 1) != 0) drain(item, tally);
    }
    run.add(tally);
  });
}

void ring(Run& run) {
  int pairs = run.threads / 2;
  size_t waiting = kWaiting / static_cast<size_t>(std::max(1, pairs));
  size_t share = run.share(4e6);
  std::array<std::optional<Queue>, kMaxThreads / 2> queues;
  for (int i = 0; i < pairs; i++) queues[static_cast<size_t>(i)].emplace(waiting, 1);
  run.in_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    Tally tally;
    if (me == 2 * pairs) {  // the odd one
      alone(share, waiting, random, tally, small_bytes);
    } else if (Queue& queue = *queues[static_cast<size_t>(me) / 2]; me % 2 == 0) {
      produce(queue, 2 * share, random, tally);
    } else {
      consume(queue, tally);
    }
    run.add(tally);
  });
}

namespace {

// The first `producers` threads send, the others receive, all through one queue.
void through_one_queue(Run& run, double total, int producers) {
  Queue queue(kWaiting, producers);
  run.in_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    Tally tally;
    if (run.threads == 1) {
      alone(run.units(total), kWaiting, random, tally, small_bytes);
    } else if (me < producers) {
      produce(queue, run.share(total, producers), random, tally);
    } else {
      consume(queue, tally);
    }
    run.add(tally);
  });
}

}  // namespace

void fan_in(Run& run) { through_one_queue(run, 3.3e6, std::max(1, run.threads - 1)); }

void fan_out(Run& run) { through_one_queue(run, 3e6, 1); }

namespace {

size_t mixed_bytes(Random& random) { return random.by_powers(4, 13); }

// Thread `me` of asymmetric: sends `messages` to the threads above it, and frees what those below send. Queues lead
// upwards only, so a thread that waits for room waits for one that does not wait for it.
void send_and_receive(size_t me, size_t threads, size_t messages, std::optional<Queue>* inboxes,
                      Tally& tally) {
  Random random(me);
  void* portion[kPortion];
  while (messages > 0) {
    size_t n = std::min(messages, random.between(1, kPortion / 2));
    for (size_t i = 0; i < n; i++) portion[i] = compose(mixed_bytes(random), tally);
    inboxes[me + 1 + random.below(threads - me - 1)]->push(portion, n);
    messages -= n;
    n = inboxes[me]->try_pop(portion, kPortion);
    for (size_t i = 0; i < n; i++) receive(portion[i], tally);
  }
  for (size_t above = me + 1; above < threads; above++) inboxes[above]->close();
  consume(*inboxes[me], tally);
}

}  // namespace

void asymmetric(Run& run) {
  constexpr double kMessages = 2.6e6;
  constexpr size_t kMixedWaiting = kWaiting / 4;  // of 1.4 KiB
  size_t threads = static_cast<size_t>(run.threads);
  std::array<std::optional<Queue>, kMaxThreads> inboxes;
  for (size_t i = 0; i < threads; i++)
    inboxes[i].emplace(std::max<size_t>(512, kMixedWaiting / threads), static_cast<int>(i));
  size_t all_shares = std::max<size_t>(1, threads * (threads - 1) / 2);
  run.in_threads([&](int number) {
    size_t me = static_cast<size_t>(number);
    Tally tally;
    if (threads == 1) {
      Random random(0);
      alone(run.units(kMessages), kMixedWaiting, random, tally, mixed_bytes);
    } else {
      size_t shares = threads - 1 - me;
      size_t messages =
          shares == 0 ? 0
                      : run.units(kMessages * static_cast<double>(shares) / static_cast<double>(all_shares));
      send_and_receive(me, threads, messages, inboxes.data(), tally);
    }
    run.add(tally);
  });
}

}  // namespace workloads
