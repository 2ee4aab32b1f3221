// lanemalloc-collect DIRECTORY CHUNKS: makes the session DIRECTORY/ring, reads the events that
// traced processes write into it (trace_ring.h), puts them in the order of time, numbers the
// objects, and writes columns to its standard output.
// Called by: `lanemalloc trace`, which makes Parquet of the columns. Ends when its standard input
// ends.
//
// Order: a sweep reads the events that all threads have written. `T` is a time taken before it,
// less a millisecond. No event from before T can come any more, unless the sweep sees a thread in
// the middle of writing one: then the T of the sweep before counts. The events older than T are
// merged and go out; the others wait for the next sweep. So memory is bounded by the ring, not by
// the trace.
//
// Output: frames, each {uint32 kind, uint32 rows, uint64 bytes}, then the bytes. kHello: none.
// kRows: the columns in the order of struct Columns, each padded to 8 bytes. kEnd: a JSON object.
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ticks.h"
#include "trace_ring.h"

using namespace lanemalloc::trace;

namespace {

enum Frame : uint32_t { kHello = 1, kRows = 2, kEnd = 3 };

[[noreturn]] void fail(const char* what) {
  fprintf(stderr, "lanemalloc-collect: %s: %s\n", what, strerror(errno));
  exit(1);
}

std::string session_directory;

// No process reads any more: the one that would have removed the session is gone. The traced
// programs find that the heart has stopped.
[[noreturn]] void leave_alone() {
  std::error_code ignored;
  std::filesystem::remove_all(session_directory, ignored);
  _exit(1);
}

void write_all(const void* data, size_t n) {
  auto* at = static_cast<const char*>(data);
  while (n > 0) {
    const ssize_t done = write(STDOUT_FILENO, at, n);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) leave_alone();
    at += done;
    n -= static_cast<size_t>(done);
  }
}

void write_frame(Frame kind, uint32_t rows, uint64_t bytes) {
  struct {
    uint32_t kind, rows;
    uint64_t bytes;
  } const head = {kind, rows, bytes};
  write_all(&head, sizeof head);
}

// --- Columns.

constexpr size_t kRowsAFrame = 1 << 17;

template <class T>
struct Column {
  std::vector<T> values = std::vector<T>(kRowsAFrame);
  void set(size_t row, T value) { values[row] = value; }
  void write_out(size_t rows) const { write_all(values.data(), bytes(rows)); }
  static uint64_t bytes(size_t rows) { return (rows * sizeof(T) + 7) / 8 * 8; }
};

// Values that may be absent, and a bit for each value that is there.
struct Nullable {
  Column<int64_t> values;
  Column<uint64_t> there;  // 64 rows each
  void set(size_t row, int64_t value, bool is_there) {
    values.set(row, value);
    if (row % 64 == 0) there.values[row / 64] = 0;
    there.values[row / 64] |= static_cast<uint64_t>(is_there) << row % 64;
  }
  void write_out(size_t rows) const {
    there.write_out((rows + 63) / 64);
    values.write_out(rows);
  }
  static uint64_t bytes(size_t rows) { return (rows + 63) / 64 * 8 + rows * 8; }
};

struct Columns {
  size_t rows = 0;
  Column<int64_t> time;
  Column<int32_t> process, thread, tid;
  Column<int8_t> op;
  Nullable size, alignment, object, old_object;
  Column<uint64_t> site;

  void write_out() {
    if (rows == 0) return;
    write_frame(kRows, static_cast<uint32_t>(rows),
                Column<int64_t>::bytes(rows) * 2 + Column<int32_t>::bytes(rows) * 3 +
                    Column<int8_t>::bytes(rows) + Nullable::bytes(rows) * 4);
    time.write_out(rows);
    process.write_out(rows);
    thread.write_out(rows);
    tid.write_out(rows);
    op.write_out(rows);
    size.write_out(rows);
    alignment.write_out(rows);
    object.write_out(rows);
    old_object.write_out(rows);
    site.write_out(rows);
    rows = 0;
  }
};

// --- Which object lies at an address.

struct Live {
  uint64_t object;  // 0: none, though an ancestor has one
  uint64_t size;
};

// Open addressing; a hole is closed by moving up the slots that follow it.
class AddressMap {
 public:
  Live* find(uint64_t address) {
    if (slots_.empty()) return nullptr;
    for (size_t i = home(address);; i = (i + 1) & mask_) {
      if (slots_[i].address == address) return &slots_[i].live;
      if (slots_[i].address == 0) return nullptr;
    }
  }
  void set(uint64_t address, Live live) {
    if (used_ * 2 >= slots_.size()) grow();
    size_t i = home(address);
    while (slots_[i].address != 0 && slots_[i].address != address) i = (i + 1) & mask_;
    used_ += slots_[i].address == 0;
    slots_[i] = {address, live};
  }
  void erase(uint64_t address) {
    if (slots_.empty()) return;
    size_t i = home(address);
    while (slots_[i].address != address) {
      if (slots_[i].address == 0) return;
      i = (i + 1) & mask_;
    }
    --used_;
    for (size_t j = i;;) {
      j = (j + 1) & mask_;
      if (slots_[j].address == 0) break;
      const size_t wanted = home(slots_[j].address);
      if (((j - wanted) & mask_) < ((j - i) & mask_)) continue;
      slots_[i] = slots_[j];
      i = j;
    }
    slots_[i].address = 0;
  }

 private:
  struct Slot {
    uint64_t address;
    Live live;
  };
  size_t home(uint64_t address) const { return (address >> 4) * 0x9e3779b97f4a7c15U >> shift_; }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? 1024 : slots_.size() * 2);
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    shift_ = static_cast<unsigned>(__builtin_clzll(mask_));
    used_ = 0;
    for (const Slot& slot : old)
      if (slot.address != 0) set(slot.address, slot.live);
  }
  std::vector<Slot> slots_;
  size_t used_ = 0, mask_ = 0;
  unsigned shift_ = 0;
};

// The objects that a process sees at its addresses. A forked process sees the objects that its
// parent had at the fork: it looks in its own map first, then in its parent's, there for objects
// below `limit` only. Before an ancestor changes an address, its children copy what they see there
// into their own maps.
//
//   parent: own  <--- child: own, limit     parent frees a: child.own[a] = what was there
class View {
 public:
  explicit View(View* parent, uint64_t limit) : parent_(parent), limit_(limit) {
    if (parent != nullptr) parent->children_.push_back(this);
  }
  ~View() {
    if (parent_ != nullptr) std::erase(parent_->children_, this);
    for (View* child : children_) child->parent_ = nullptr;
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  bool inherits(uint64_t object) const { return object < limit_; }
  bool has_children() const { return !children_.empty(); }

  Live look(uint64_t address) {
    uint64_t limit = ~uint64_t{0};
    for (View* view = this; view != nullptr; view = view->parent_) {
      if (const Live* found = view->own_.find(address))
        return found->object < limit ? *found : Live{0, 0};
      limit = std::min(limit, view->limit_);
    }
    return {0, 0};
  }
  void put(uint64_t address, Live live) {
    if (!children_.empty()) hand_down(address);
    own_.set(address, live);
  }
  Live take(uint64_t address) {
    if (!children_.empty()) hand_down(address);
    const Live live = look(address);
    if (parent_ != nullptr) {
      own_.set(address, {0, 0});
    } else {
      own_.erase(address);
    }
    return live;
  }

 private:
  void hand_down(uint64_t address) {
    const Live live = look(address);
    for (View* child : children_)
      if (live.object != 0 && live.object < child->limit_ && child->own_.find(address) == nullptr)
        child->own_.set(address, live);
  }
  AddressMap own_;
  View* parent_;
  uint64_t limit_;
  std::vector<View*> children_;
};

// --- Processes and threads.

struct Moved {
  uint64_t address, size, site;
  Live live;
};

struct ThreadState {
  uint32_t tid = 0;
  uint64_t events = 0;
  int64_t first = 0, last = 0;
  std::vector<Moved> moving;  // reallocs under way
};

struct Process {
  ProcessSlot* slot;
  View* view = nullptr;
  std::map<uint32_t, View*> forks;  // made, but their children are not seen yet
  std::deque<ThreadState> threads;
  bool replaced = false;  // by exec
  bool gone = false, dropped = false;
  uint64_t gone_ms = 0;
  uint64_t maps_ms = 0, maps_wait = 50;
  uint64_t events = 0, allocations = 0, frees = 0, unknown = 0, torn = 0, overlaps = 0,
           unfinished = 0;
  uint64_t live = 0, live_bytes = 0, most = 0, most_bytes = 0;
  int64_t first = 0, last = 0;
};

// Events of one thread, in their order.
struct Slice {
  std::vector<Event> events;
  size_t at = 0;
  uint32_t process, thread, tid;
  uint64_t tick() const { return events[at].head >> kTickShift; }
};
struct Later {
  bool operator()(const Slice* a, const Slice* b) const { return a->tick() > b->tick(); }
};

class Collector {
 public:
  Collector(const std::string& directory, uint32_t chunks) : directory_(directory), seen_(chunks) {
    make_session(chunks);
    calibrate();
    beat_ = std::thread([this] {
      while (!over_.load(std::memory_order_relaxed)) {
        session_->heartbeat.fetch_add(1, std::memory_order_relaxed);
        usleep(50000);
      }
    });
  }

  void run() {
    write_frame(kHello, 0, 0);
    unsigned idle_us = 500;
    while (!told_to_end(idle_us)) {
      const size_t got = sweep(false);
      // 16 KiB or less at a time: not worth more frequent looks
      idle_us = got > kEventsAChunk ? 500 : std::min(idle_us * 2, 10000U);
      look_after_processes();
    }
    session_->closed.store(1, std::memory_order_seq_cst);
    wake();
    find_ended();
    sweep(true);
    over_.store(true, std::memory_order_relaxed);
    beat_.join();
    columns_.write_out();
    write_end();
  }

 private:
  // --- Session and time.

  void make_session(uint32_t chunks) {
    const std::string path = directory_ + "/ring";
    const size_t bytes = kSessionBytes + size_t{chunks} * kChunkBytes;
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) fail(path.c_str());
    // Allocates all of it now: a page that is not available later would kill the program.
    errno = posix_fallocate(file, 0, static_cast<off_t>(bytes));
    if (errno != 0) fail("no memory for the buffer");
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (p == MAP_FAILED) fail("mmap");
    close(file);
    session_ = static_cast<Session*>(p);
    session_->version = kVersion;
    session_->chunks = chunks;
    session_->counter = counter_is_good();
    use_counter_ = session_->counter != 0;
    struct stat about;
    if (stat("/proc/self/ns/pid", &about) == 0) session_->pid_namespace = about.st_ino;
    session_->start_tick = start_tick_ = use_counter_ ? counter() : clock_ns();
    session_->magic.store(kMagic, std::memory_order_release);
  }

  static bool counter_is_good() {
#if defined(__x86_64__)
    char line[32] = {};
    FILE* file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
    if (file == nullptr) return false;
    const bool good = fgets(line, sizeof line, file) != nullptr && strcmp(line, "tsc\n") == 0;
    fclose(file);
    return good;
#else
    return kHasCounter;
#endif
  }

  uint64_t ticks() const { return (use_counter_ ? counter() : clock_ns()) - start_tick_; }

  struct Moment {
    uint64_t tick, ns;
  };
  // Takes several pairs of readings and returns the closest.
  Moment moment() const {
    Moment best = {};
    uint64_t closest = ~uint64_t{0};
    for (int i = 0; i < 8; ++i) {
      const uint64_t before = ticks(), ns = clock_ns(), after = ticks();
      if (after - before < closest)
        closest = after - before, best = {before + (after - before) / 2, ns};
    }
    return best;
  }
  void calibrate() {
    first_ = moment();
    usleep(use_counter_ ? 20000 : 1000);
    // Time 0 is when the session began.
    update_clock();
    start_ns_ = first_.ns - static_cast<uint64_t>(static_cast<double>(first_.tick) * ns_a_tick_);
    guard_ = static_cast<uint64_t>(1e6 / ns_a_tick_);
  }
  void update_clock() {
    anchor_ = moment();
    if (anchor_.tick > first_.tick)
      ns_a_tick_ = static_cast<double>(anchor_.ns - first_.ns) /
                   static_cast<double>(anchor_.tick - first_.tick);
  }
  // Never goes back, even if the scale was found to be a little different.
  int64_t time_of(uint64_t tick) {
    const double after =
        static_cast<double>(static_cast<int64_t>(tick - anchor_.tick)) * ns_a_tick_;
    const auto ns = static_cast<int64_t>(anchor_.ns - start_ns_) + static_cast<int64_t>(after);
    return last_ns_ = std::max(last_ns_, ns);
  }

  bool told_to_end(unsigned wait_us) {
    pollfd in = {STDIN_FILENO, POLLIN, 0};
    const timespec wait = {0, static_cast<long>(wait_us) * 1000};
    char byte;
    return ppoll(&in, 1, &wait, nullptr) > 0 && read(STDIN_FILENO, &byte, 1) <= 0;
  }

  // --- Sweeps.

  struct Seen {
    uint32_t events = 0;
    uint32_t writing = 0;  // the state in which a thread was seen writing
    uint64_t since = 0;    // no event of the thread is earlier
    uint64_t at_ms = 0;
  };

  uint64_t now_ms() const { return clock_ns() / 1000000; }

  // Returns the number of events.
  size_t sweep(bool last) {
    update_clock();
    const uint64_t now = ticks();
    const uint64_t before = now > guard_ ? now - guard_ : 0;
    const uint64_t ms = now_ms();
    const bool look_for_dead =
        ms >= next_look_ms_ || session_->waiting.load(std::memory_order_relaxed) != 0;
    if (look_for_dead) next_look_ms_ = ms + 50;
    find_processes();
    uint64_t sure = before;
    size_t got = 0;
    bool gave = false;
    const uint32_t chunks =
        std::min(session_->fresh.load(std::memory_order_acquire), session_->chunks);
    for (uint32_t i = 0; i < chunks; ++i) {
      Chunk* chunk = chunk_at(session_, i);
      // Pairs with [hold.release]
      const uint32_t owner = chunk->owner.load(std::memory_order_acquire);
      if (owner == kFreeChunk) continue;
      const bool dead = owner == kHeldChunk && look_for_dead && is_dead(*chunk);
      // Pairs with [event.release]
      const uint32_t state = chunk->state.load(std::memory_order_acquire);
      got += take_events(*chunk, seen_[i], state >> 1);
      if ((owner == kRetiredChunk && state >= kFullState) || dead) {
        if (dead && (state & 1) != 0) ++process_of(chunk->process).torn;
        give_back(i);
        gave = true;
      } else if ((state & 1) != 0) {
        Seen& seen = seen_[i];
        if (seen.writing != state) seen.writing = state, seen.since = last_before_, seen.at_ms = ms;
        // A thread that has stopped in the middle for long is not waited for. Its event goes in
        // where it comes.
        if (ms - seen.at_ms < 1000) sure = std::min(sure, seen.since);
      }
    }
    if (gave) wake();
    last_before_ = before;
    merge(last ? ~uint64_t{0} : sure);
    return got;
  }

  size_t take_events(Chunk& chunk, Seen& seen, uint32_t count) {
    if (count <= seen.events) return 0;
    auto slice = spare_.empty() ? std::make_unique<Slice>() : std::move(spare_.back());
    if (!spare_.empty()) spare_.pop_back();
    slice->events.assign(chunk.events + seen.events, chunk.events + count);
    slice->at = 0;
    slice->process = chunk.process;
    slice->thread = chunk.thread;
    slice->tid = chunk.tid;
    // Two readings of the counter may be in the wrong order by some cycles.
    uint64_t low = 0;
    for (Event& event : slice->events) {
      const uint64_t tick = event.head >> kTickShift;
      if (tick < low) event.head = low << kTickShift | (event.head & ((1U << kTickShift) - 1));
      low = std::max(low, tick);
    }
    const size_t got = count - seen.events;
    seen.events = count;
    slices_.push_back(std::move(slice));
    return got;
  }

  void give_back(uint32_t index) {
    seen_[index] = {};
    Chunk* chunk = chunk_at(session_, index);
    chunk->owner.store(kFreeChunk, std::memory_order_relaxed);
    give_chunk(session_, chunk);
  }
  void wake() {
    session_->given_back.fetch_add(1, std::memory_order_seq_cst);
    if (session_->waiting.load(std::memory_order_seq_cst) != 0)
      syscall(SYS_futex, &session_->given_back, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
  }

  bool is_dead(const Chunk& chunk) {
    Process& p = process_of(chunk.process);
    if (p.replaced) return true;
    if (p.slot->foreign != 0) return false;
    return syscall(SYS_tgkill, p.slot->pid, chunk.tid, 0) != 0 && errno == ESRCH;
  }

  // Puts out the events that are older than `sure`, in the order of time.
  void merge(uint64_t sure) {
    std::vector<Slice*> heap;
    heap.reserve(slices_.size());
    for (auto& slice : slices_) heap.push_back(slice.get());
    std::make_heap(heap.begin(), heap.end(), Later());
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), Later());
      Slice* slice = heap.back();
      if (slice->tick() >= sure) break;
      const uint64_t until = std::min(sure, heap.size() > 1 ? heap.front()->tick() : ~uint64_t{0});
      Process& process = process_of(slice->process);
      do emit(process, *slice, slice->events[slice->at++]);
      while (slice->at < slice->events.size() && slice->tick() < until);
      if (slice->at == slice->events.size()) {
        heap.pop_back();
      } else {
        std::push_heap(heap.begin(), heap.end(), Later());
      }
    }
    std::erase_if(slices_, [this](std::unique_ptr<Slice>& slice) {
      if (slice->at < slice->events.size()) return false;
      if (spare_.size() < 4096) spare_.push_back(std::move(slice));
      return true;
    });
  }

  // --- Rows.

  void row(Process& process, const Slice& slice, int64_t time, Op op, const Event& event,
           bool has_object, uint64_t object, bool has_old, uint64_t old) {
    const auto code = static_cast<unsigned>(event.head >> kOpBits) & 63U;
    const size_t r = columns_.rows++;
    columns_.time.set(r, time);
    columns_.process.set(r, static_cast<int32_t>(slice.process));
    columns_.thread.set(r, static_cast<int32_t>(slice.thread));
    columns_.tid.set(r, static_cast<int32_t>(slice.tid));
    columns_.op.set(r, static_cast<int8_t>(op));
    columns_.size.set(r, static_cast<int64_t>(event.size), has_size(op));
    columns_.alignment.set(r, code == 0 ? 0 : int64_t{1} << (code - 1), code != 0);
    columns_.object.set(r, static_cast<int64_t>(object), has_object);
    columns_.old_object.set(r, static_cast<int64_t>(old), has_old);
    columns_.site.set(r, event.site);
    if (columns_.rows == kRowsAFrame) columns_.write_out();
    ThreadState& thread = thread_of(process, slice);
    if (thread.events++ == 0) thread.first = time;
    if (process.events++ == 0) process.first = time;
    thread.last = process.last = time;
  }

  static constexpr size_t kMostForksUnseen = 64;
  static void drop_oldest_fork(Process& process) {
    delete process.forks.begin()->second;
    process.forks.erase(process.forks.begin());
  }

  static ThreadState& thread_of(Process& process, const Slice& slice) {
    if (slice.thread >= process.threads.size()) process.threads.resize(slice.thread + 1);
    ThreadState& thread = process.threads[slice.thread];
    thread.tid = slice.tid;
    return thread;
  }

  uint64_t allocate(Process& process, const Event& event) {
    View& view = view_of(process);
    ++process.allocations;
    if (const Live there = view.look(event.pointer); there.object != 0) {
      ++process.overlaps;
      forget(process, there);
    }
    const uint64_t object = ++objects_;
    view.put(event.pointer, {object, event.size});
    if (++process.live > process.most) process.most = process.live;
    if ((process.live_bytes += event.size) > process.most_bytes)
      process.most_bytes = process.live_bytes;
    return object;
  }
  Live release(Process& process, uint64_t address) {
    const Live live = view_of(process).take(address);
    if (live.object == 0) {
      ++process.unknown;
    } else {
      forget(process, live);
    }
    return live;
  }
  // Inherited objects were not counted.
  static void forget(Process& process, Live live) {
    if (process.view->inherits(live.object)) return;
    --process.live;
    process.live_bytes -= live.size;
  }

  void emit(Process& process, const Slice& slice, const Event& event) {
    const auto op = static_cast<Op>(event.head & ((1U << kOpBits) - 1));
    const uint64_t tick = event.head >> kTickShift;
    if (op == Op::kFork) {
      process.forks[static_cast<uint32_t>(event.size)] = new View(&view_of(process), objects_ + 1);
      // Forks that failed, or whose child has never written anything.
      if (process.forks.size() > kMostForksUnseen) drop_oldest_fork(process);
      return;
    }
    if (op == Op::kReallocFrom) {
      const Live live = release(process, event.pointer);
      thread_of(process, slice).moving.push_back({event.pointer, event.size, event.site, live});
      return;
    }
    const int64_t time = time_of(tick);
    if (frees(op)) {
      uint64_t object = 0;
      if (event.pointer != 0) {
        object = release(process, event.pointer).object;
        ++process.frees;
      }
      return row(process, slice, time, op, event, event.pointer != 0, object, false, 0);
    }
    const bool is_realloc = op == Op::kRealloc || op == Op::kReallocarray;
    Moved from = {};
    if (is_realloc) from = moved_from(process, slice, event);
    if (event.pointer == 0) {
      // Nothing was moved: the old object lives on, unless it was freed by asking for no bytes.
      if (from.address != 0 && event.size != 0 && from.live.object != 0) {
        view_of(process).put(from.address, from.live);
        if (!process.view->inherits(from.live.object))
          ++process.live, process.live_bytes += from.live.size;
        from.address = 0;
      }
      return row(process, slice, time, op, event, false, 0, from.address != 0, from.live.object);
    }
    const uint64_t object = allocate(process, event);
    row(process, slice, time, op, event, true, object, from.address != 0, from.live.object);
  }

  // Finds the realloc that this event ends: the last one that began with the same site and size.
  // Handlers that left by a jump leave their reallocs unfinished.
  static Moved moved_from(Process& process, const Slice& slice, const Event& event) {
    auto& moving = thread_of(process, slice).moving;
    for (size_t i = moving.size(); i-- > 0;) {
      if (moving[i].site != event.site || moving[i].size != event.size) continue;
      const Moved moved = moving[i];
      process.unfinished += moving.size() - i - 1;
      moving.resize(i);
      return moved;
    }
    return {};
  }

  // --- Processes.

  Process& process_of(uint32_t slot) {
    find_processes_up_to(slot + 1);
    return *processes_[slot];
  }
  void find_processes() {
    find_processes_up_to(
        std::min(session_->processes.load(std::memory_order_acquire), kMostProcesses));
  }
  void find_processes_up_to(uint32_t n) {
    while (processes_.size() < n) {
      ProcessSlot* slot = &session_->process[processes_.size()];
      auto process = std::make_unique<Process>();
      process->slot = slot;
      processes_.push_back(std::move(process));
      waiting_.push_back(static_cast<uint32_t>(processes_.size() - 1));
    }
    std::erase_if(waiting_, [this](uint32_t i) {
      if (session_->process[i].ready.load(std::memory_order_acquire) == 0) return false;
      admit(i);
      return true;
    });
  }
  // The process that had the same process id before is over: by exec, or because it ended and the
  // id was used again.
  void admit(uint32_t index) {
    const uint32_t pid = session_->process[index].pid;
    if (auto old = by_pid_.find(pid); old != by_pid_.end())
      processes_[old->second]->replaced = true;
    by_pid_[pid] = index;
    processes_[index]->maps_ms = now_ms();
  }

  View& view_of(Process& process) {
    if (process.view != nullptr) return *process.view;
    View* view = nullptr;
    if (process.slot->parent >= 0) {
      Process& parent = process_of(static_cast<uint32_t>(process.slot->parent));
      if (auto made = parent.forks.find(process.slot->fork); made != parent.forks.end()) {
        view = made->second;
        parent.forks.erase(made);
      } else {
        view = new View(&view_of(parent), objects_ + 1);
      }
    }
    process.view = view != nullptr ? view : new View(nullptr, 0);
    return *process.view;
  }

  // Copies the maps of living processes from time to time, for processes that are killed before
  // they copy their maps themselves.
  void look_after_processes() {
    const uint64_t ms = now_ms();
    if (ms < next_care_ms_) return;
    next_care_ms_ = ms + 50;
    find_ended();
    for (size_t i = 0; i < processes_.size(); ++i) {
      Process& p = *processes_[i];
      if (p.gone || p.replaced || p.slot->foreign != 0 || p.maps_ms == 0 ||
          ms < p.maps_ms + p.maps_wait)
        continue;
      p.maps_ms = ms;
      p.maps_wait = std::min<uint64_t>(p.maps_wait * 2, 2000);
      copy_maps(p.slot->pid, i);
    }
  }
  void copy_maps(uint32_t pid, size_t index) const {
    FILE* in = fopen(("/proc/" + std::to_string(pid) + "/maps").c_str(), "re");
    if (in == nullptr) return;
    std::string text;
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, in)) > 0;) text.append(buffer, n);
    fclose(in);
    FILE* out =
        text.empty()
            ? nullptr
            : fopen((directory_ + "/" + std::to_string(index) + ".maps-seen").c_str(), "we");
    if (out == nullptr) return;
    fwrite(text.data(), 1, text.size(), out);
    fclose(out);
  }

  void find_ended() {
    find_processes();
    const uint64_t ms = now_ms();
    for (auto& process : processes_) {
      Process& p = *process;
      if (p.gone && !p.dropped && ms > p.gone_ms + 300) p.dropped = drop_view(p);
      if (p.gone || p.slot->ready.load(std::memory_order_acquire) == 0) continue;
      if (p.replaced ||
          (p.slot->foreign == 0 && kill(static_cast<pid_t>(p.slot->pid), 0) != 0 &&
           errno == ESRCH) ||
          is_zombie(p))
        p.gone = true, p.gone_ms = ms;
    }
  }
  // The last events of the process have come long ago. A view that other views look through stays
  // until those are gone, too.
  bool drop_view(Process& process) {
    while (!process.forks.empty()) drop_oldest_fork(process);
    if (process.view == nullptr) {
      if (process.slot->parent < 0) return true;
      view_of(process);  // takes the view of a child that made no call
    }
    if (process.view->has_children()) return false;
    delete process.view;
    process.view = nullptr;
    return true;
  }
  static bool is_zombie(const Process& p) {
    if (p.slot->foreign != 0) return false;
    FILE* file = fopen(("/proc/" + std::to_string(p.slot->pid) + "/stat").c_str(), "re");
    if (file == nullptr) return true;
    char line[512] = {};
    const size_t n = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    const char* name_end = n > 0 ? strrchr(line, ')') : nullptr;
    // A main thread that has ended leaves a zombie while other threads run: then there is more than
    // one thread.
    if (name_end == nullptr || name_end[1] == '\0' || (name_end[2] != 'Z' && name_end[2] != 'X'))
      return false;
    int threads = 0;
    const char* at = name_end;
    for (int field = 2; at != nullptr && field < 20; ++field) at = strchr(at + 1, ' ');
    if (at != nullptr) threads = atoi(at);
    return threads <= 1;
  }

  const char* end_of(const Process& p) const {
    if (p.slot->end.load(std::memory_order_acquire) == kExited) return "exit";
    if (p.replaced) return "exec";
    return p.gone ? "gone" : "running";
  }

  void write_end() {
    std::string text = "{\"objects\": " + std::to_string(objects_) + ", \"clock\": \"" +
                       (use_counter_ ? "counter" : "CLOCK_MONOTONIC") + "\", \"unregistered\": " +
                       std::to_string(session_->processes.load() > kMostProcesses
                                          ? session_->processes.load() - kMostProcesses
                                          : 0) +
                       ", \"processes\": [";
    auto field = [&text](const char* name, uint64_t value) {
      text += std::string(", \"") + name + "\": " + std::to_string(value);
    };
    for (size_t i = 0; i < processes_.size(); ++i) {
      Process& p = *processes_[i];
      if (p.slot->ready.load(std::memory_order_acquire) == 0) continue;
      for (const ThreadState& thread : p.threads) p.unfinished += thread.moving.size();
      text += std::string(text.back() == '[' ? "" : ",\n") + "{\"process\": " + std::to_string(i);
      field("pid", p.slot->pid);
      text += ", \"parent\": " +
              (p.slot->parent < 0 ? std::string("null") : std::to_string(p.slot->parent));
      text += std::string(", \"end\": \"") + end_of(p) + "\"";
      field("events", p.events);
      field("allocations", p.allocations);
      field("frees", p.frees);
      field("unknown_frees", p.unknown);
      field("overlaps", p.overlaps);
      field("lost", p.slot->lost.load());
      field("torn", p.torn + p.unfinished);
      field("live_objects", p.live);
      field("live_bytes", p.live_bytes);
      field("peak_live_objects", p.most);
      field("peak_live_bytes", p.most_bytes);
      field("first", static_cast<uint64_t>(p.first));
      field("last", static_cast<uint64_t>(p.last));
      text += ", \"threads\": [";
      for (size_t t = 0; t < p.threads.size(); ++t) {
        const ThreadState& thread = p.threads[t];
        if (thread.events == 0) continue;
        text += std::string(text.back() == '[' ? "" : ", ") + "[" + std::to_string(t) + ", " +
                std::to_string(thread.tid) + ", " + std::to_string(thread.events) + ", " +
                std::to_string(thread.first) + ", " + std::to_string(thread.last) + "]";
      }
      text += "]}";
    }
    text += "]}";
    write_frame(kEnd, 0, text.size());
    write_all(text.data(), text.size());
  }

  std::string directory_;
  Session* session_ = nullptr;
  bool use_counter_ = false;
  uint64_t start_tick_ = 0, start_ns_ = 0, guard_ = 0;
  Moment first_ = {}, anchor_ = {};
  double ns_a_tick_ = 1;
  int64_t last_ns_ = 0;
  std::atomic<bool> over_{false};
  std::thread beat_;

  std::vector<Seen> seen_;
  std::vector<std::unique_ptr<Slice>> slices_, spare_;
  uint64_t last_before_ = 0, next_look_ms_ = 0, next_care_ms_ = 0;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<uint32_t> waiting_;  // slots that are not written in full yet
  std::map<uint32_t, uint32_t> by_pid_;
  uint64_t objects_ = 0;
  Columns columns_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: lanemalloc-collect DIRECTORY CHUNKS\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  session_directory = argv[1];
  // A large pipe makes fewer switches between processes; if it is refused, all only takes longer
  fcntl(STDOUT_FILENO, F_SETPIPE_SZ, 1 << 20);
  Collector(argv[1], static_cast<uint32_t>(strtoul(argv[2], nullptr, 10))).run();
  return 0;
}
