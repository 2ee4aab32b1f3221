// A small slow stand-in for the library, over glibc's malloc and a table of all objects. It keeps
// every rule that the tests ask for; REFERENCE_MUTANT=NAME in the environment makes it break one.
// Used by selftest.sh only.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

extern "C" __attribute__((weak)) const char* lanemalloc_options;
extern "C" char** environ;

namespace {

struct Entry {
  uintptr_t address;
  size_t size : 62;
  size_t live : 1;
  int owner;
};

void* (*real_memalign)(size_t, size_t);
void* (*real_calloc)(size_t, size_t);
void (*real_free)(void*);
int (*real_trim)(size_t);
Entry* table;
size_t table_size, table_used;
bool lock_word;
bool started;
const char* mutant_name = "";
long decay_ms = 1000;
bool checked, stats_at_exit, strict;
enum { kAbort, kReport, kIgnore } bad_pointer;
long allocations, frees, live_bytes, remote_frees;
__thread int thread_id __attribute__((tls_model("initial-exec")));
int thread_count;

bool mutant(const char* name) { return strcmp(mutant_name, name) == 0; }

void lock() {
  while (__atomic_test_and_set(&lock_word, __ATOMIC_ACQUIRE)) usleep(1);
}
void unlock() { __atomic_clear(&lock_word, __ATOMIC_RELEASE); }
struct Guard {
  Guard() { lock(); }
  ~Guard() { unlock(); }
};

void line(const char* format, const char* a = "", const char* b = "", const char* c = "",
          const char* d = "") {
  char text[1000];
  int n = snprintf(text, sizeof text, format, a, b, c, d);
  ssize_t written = write(2, text, std::min<size_t>(static_cast<size_t>(n), sizeof text - 1));
  (void)written;
}

// ---- Options.

const char* const kKeys[] = {"decay_ms", "checked", "bad_pointer", "stats", "strict"};
const char* const kValues[] = {"", "0 1", "abort report ignore", "none exit", "0 1"};

size_t distance(const char* a, const char* b) {
  size_t row[80], n = std::min<size_t>(strlen(a), 79);
  for (size_t i = 0; i <= n; i++) row[i] = i;
  for (; *b; b++) {
    size_t diagonal = row[0]++;
    for (size_t i = 1; i <= n; i++) {
      size_t next = std::min({row[i] + 1, row[i - 1] + 1, diagonal + (a[i - 1] != *b)});
      diagonal = row[i];
      row[i] = next;
    }
  }
  return row[n];
}

bool complaints;
void read_option(const char* source, char* key) {
  char* value = strchr(key, '=');
  if (value) *value++ = 0;
  if (!value) value = key + strlen(key);
  int k = 0;
  while (k < 5 && strcmp(key, kKeys[k]) != 0) k++;
  if (k == 5) {
    if (mutant("unknown_key_is_silent")) return;
    k = 0;
    for (int i = 1; i < 5; i++)
      if (distance(key, kKeys[i]) < distance(key, kKeys[k])) k = i;
    if (distance(key, kKeys[k]) < strlen(key))
      line("lanemalloc: %s: unknown option '%s' (did you mean '%s'?), ignored\n", source, key,
           kKeys[k]);
    else
      line("lanemalloc: %s: unknown option '%s', ignored\n", source, key);
    complaints = true;
    return;
  }
  int index = -1;
  if (k == 0) {
    char* end;
    long number = strtol(value, &end, 10);
    if (*value && !*end && number >= -1 && number < 1L << 40) decay_ms = number, index = 0;
  } else {
    const char* word = kValues[k];
    for (int i = 0; word; i++) {
      size_t n = strcspn(word, " ");
      if (strlen(value) == n && memcmp(value, word, n) == 0) index = i;
      word = word[n] ? word + n + 1 : nullptr;
    }
  }
  if (index < 0) {
    const char* used = k == 0 ? "1000" : k == 2 ? "abort" : k == 3 ? "none" : "0";
    line("lanemalloc: %s: bad value '%s' for '%s' (see the documentation), using %s\n", source,
         value, key, used);
    complaints = true;
  } else if (k == 1) {
    checked = index;
  } else if (k == 2) {
    bad_pointer = static_cast<decltype(bad_pointer)>(index);
  } else if (k == 3) {
    stats_at_exit = index;
  } else if (k == 4) {
    strict = index;
  }
}

void read_options(const char* source, const char* text) {
  char entry[80];
  if (text && mutant("long_string_overflows") && strlen(text) > 1000) abort();
  while (text && *text) {
    size_t n = strcspn(text, ",");
    snprintf(entry, sizeof entry, "%.*s", static_cast<int>(std::min<size_t>(n, 79)), text);
    if (n) read_option(source, entry);
    text += n + (text[n] == ',');
  }
}

// ---- Start.

bool make_table(size_t size) {
  void* memory = mmap(nullptr, size * sizeof(Entry), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  table = static_cast<Entry*>(memory);
  table_size = size;
  table_used = 0;
  return true;
}

template <class F>
void resolve(F& function, const char* name) {
  function = reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

void start() {
  started = true;
  for (char** variable = environ; variable && *variable; variable++)
    if (strncmp(*variable, "REFERENCE_MUTANT=", 17) == 0) mutant_name = *variable + 17;
  resolve(real_memalign, "__libc_memalign");
  resolve(real_calloc, "__libc_calloc");
  resolve(real_free, "__libc_free");
  resolve(real_trim, "malloc_trim");
  make_table(size_t{1} << 14);
  if (!mutant("fork_takes_no_lock")) pthread_atfork(lock, unlock, unlock);
  if (!getauxval(AT_SECURE)) {
    const char* compiled_in = &lanemalloc_options ? lanemalloc_options : nullptr;
    if (!mutant("compiled_in_wins")) read_options("lanemalloc_options", compiled_in);
    read_options("LANEMALLOC_OPTIONS", getenv("LANEMALLOC_OPTIONS"));
    if (mutant("compiled_in_wins")) read_options("lanemalloc_options", compiled_in);
    if (strict && complaints && !mutant("strict_is_not_fatal")) abort();
  }
}
__attribute__((constructor)) void start_early() {
  if (!started) start();
}

__attribute__((destructor)) void print_stats() {
  if (!stats_at_exit) return;
  const struct {
    const char* name;
    long value;
  } lines[] = {{"allocations", allocations},
               {"frees", frees},
               {"live objects", allocations - frees},
               {"live bytes", live_bytes},
               {"remote frees", mutant("remote_frees_not_counted") ? 0 : remote_frees},
               {"remote batches", 0},
               {"inbox drains", 0},
               {"failed lane entries", 0},
               {"overflow entries", 0},
               {"rescue entries", 0},
               {"revocations", 0},
               {"depot lock waits", 0},
               {"region lock waits", 0},
               {"bytes committed", live_bytes},
               {"bytes purged", 0}};
  for (auto& stat : lines) {
    char value[32];
    snprintf(value, sizeof value, "%ld", stat.value);
    line("lanemalloc: %s: %s\n", stat.name, value);
  }
}

// ---- The table. Callers hold the lock.

Entry* find(uintptr_t address, bool make);

// Makes the table twice as large. If most entries are freed, it keeps the size and drops those.
bool grow_table() {
  Entry* old_table = table;
  size_t old_size = table_size, live = static_cast<size_t>(allocations - frees);
  if (!make_table(live * 4 > old_size ? old_size * 2 : old_size)) return false;
  for (size_t i = 0; i < old_size; i++)
    if (old_table[i].live || live * 4 > old_size) {
      if (old_table[i].address) *find(old_table[i].address, true) = old_table[i];
    }
  munmap(old_table, old_size * sizeof(Entry));
  return true;
}

Entry* find(uintptr_t address, bool make) {
  for (size_t i = address / 16 * 0x9E3779B97F4A7C15u % table_size, n = 0; n < table_size;
       i = (i + 1) % table_size, n++) {
    if (table[i].address == address) return &table[i];
    if (table[i].address == 0) {
      if (make) table[i].address = address, table_used++;
      return make ? &table[i] : nullptr;
    }
  }
  abort();
}

const char* fault_of(uintptr_t address) {
  Entry* entry = find(address, false);
  if (entry && entry->live) return nullptr;
  if (entry) return mutant("double_free_is_not_seen") ? nullptr : "freed already";
  for (size_t i = 0; i < table_size; i++)
    if (table[i].live && address > table[i].address && address < table[i].address + table[i].size)
      return mutant("interior_is_foreign") ? "not a pointer of this allocator"
                                           : "not the start of an object";
  return mutant("wrong_reason") ? "freed already" : "not a pointer of this allocator";
}

// True if the pointer is a live object; otherwise prints what is wrong with it.
bool good(void* pointer, const char* function) {
  const char* fault = fault_of(reinterpret_cast<uintptr_t>(pointer));
  if (!fault) return true;
  char value[32];
  snprintf(value, sizeof value, "%p", pointer);
  if (bad_pointer != kIgnore || mutant("ignore_talks"))
    line("lanemalloc: %s(%s): %s\n", function, value, fault);
  if (bad_pointer == kAbort || mutant("report_aborts")) abort();
  return false;
}

bool memory_is_out;

void* allocate(size_t size, size_t alignment, bool zero) {
  if (!started) start();
  int saved = errno;
  Guard guard;
  if (!thread_id) {
    thread_id = ++thread_count;
    if (mutant("threads_leak")) memset(real_memalign(16, 20000), 1, 20000);
  }
  if (size == 0 && mutant("size_zero_is_null")) return nullptr;
  size_t rounded = std::max<size_t>((size + 15) & ~size_t{15}, 16);
  if (mutant("rounds_to_powers_of_two") && size > 16 && size < size_t{1} << 40)
    rounded = size_t{1} << (64 - __builtin_clzl(size - 1));
  if (alignment > 4096 && mutant("alignment_stops_at_pages")) alignment = 4096;
  void* object = nullptr;
  bool room = table_used * 2 < table_size || grow_table();
  if (room && size <= PTRDIFF_MAX && alignment <= PTRDIFF_MAX && !memory_is_out)
    object =
        zero ? real_calloc(1, rounded) : real_memalign(std::max<size_t>(alignment, 16), rounded);
  if (!object) {
    errno = mutant("failure_sets_no_errno") ? saved : ENOMEM;
    if (mutant("out_of_memory_for_ever") && size < size_t{1} << 34) memory_is_out = true;
    return nullptr;
  }
  if (zero && size > 8 && mutant("calloc_leaves_dirt"))
    memset(static_cast<char*>(object) + size - 1, 0x7F, 1);
  if (zero && size > 100000 && mutant("large_calloc_leaves_dirt"))
    memset(static_cast<char*>(object) + 99999, 0x7F, 1);
  Entry* entry = find(reinterpret_cast<uintptr_t>(object), true);
  entry->size = rounded;
  entry->live = 1;
  entry->owner = thread_id;
  allocations++;
  live_bytes += static_cast<long>(rounded);
  errno = mutant("success_clears_errno") ? 0 : saved;
  return object;
}

// The object is known to be good. The caller holds the lock.
void release(void* object) {
  Entry* entry = find(reinterpret_cast<uintptr_t>(object), false);
  frees++;
  live_bytes -= static_cast<long>(entry->size);
  remote_frees += entry->owner != thread_id;
  entry->live = 0;
  real_free(object);
}

void free_named(void* object, const char* name) {
  int saved = errno;
  Guard guard;
  if (!object && mutant("null_is_counted")) allocations++, frees++;
  if (object && good(object, name)) release(object);
  errno = mutant("free_writes_errno") ? 0 : saved;
}

}  // namespace

extern "C" {

void* malloc(size_t size) { return allocate(size, 16, false); }
void* calloc(size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes) && !mutant("calloc_overflows")) bytes = SIZE_MAX;
  return allocate(bytes, 16, true);
}
void free(void* object) { free_named(object, "free"); }
size_t malloc_usable_size(void* object) {
  if (!object) return 0;
  Guard guard;
  if (!good(object, "malloc_usable_size")) return 0;
  return find(reinterpret_cast<uintptr_t>(object), false)->size +
         (mutant("usable_size_is_too_large") ? 16 : 0);
}
void* realloc(void* object, size_t size) {
  if (!object) return malloc(size);
  size_t old_size;
  {
    Guard guard;
    if (!good(object, "realloc")) return nullptr;
    old_size = find(reinterpret_cast<uintptr_t>(object), false)->size;
  }
  if (size == 0) {
    if (mutant("realloc_to_zero_gives_an_object")) return object;
    if (!mutant("realloc_to_zero_leaks")) free(object);
    return nullptr;
  }
  void* other = malloc(size);
  if (!other) {
    if (mutant("failed_realloc_frees")) free(object);
    return nullptr;
  }
  size_t kept = std::min(size, old_size);
  memcpy(other, object, mutant("realloc_copies_too_little") && kept > 1000 ? kept - 20 : kept);
  free(object);
  return other;
}
void* reallocarray(void* object, size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) bytes = SIZE_MAX;
  return realloc(object, bytes);
}
void* memalign(size_t alignment, size_t size) {
  if (alignment > (SIZE_MAX >> 1) + 1) {
    errno = EINVAL;
    return nullptr;
  }
  size_t power = 16;
  while (power < alignment) power *= 2;
  return allocate(size, power, false);
}
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void** result, size_t alignment, size_t size) {
  if (mutant("posix_memalign_writes_the_result")) *result = nullptr;
  if (alignment % 8 || alignment == 0 ||
      (!mutant("posix_memalign_takes_any_alignment") && (alignment & (alignment - 1))))
    return EINVAL;
  int saved = errno;
  void* object = memalign(alignment, size);
  errno = saved;
  if (!object) return ENOMEM;
  *result = object;
  return 0;
}
void* valloc(size_t size) { return memalign(4096, size); }
void* pvalloc(size_t size) {
  if (size > PTRDIFF_MAX || mutant("pvalloc_does_not_round")) return memalign(4096, size);
  return memalign(4096, (size + 4095) & ~size_t{4095});
}
void free_sized(void* object, size_t) { free(object); }
void free_aligned_sized(void* object, size_t, size_t) { free(object); }
void cfree(void* object) { free(object); }
int malloc_trim(size_t pad) {
  Guard guard;
  return mutant("trim_does_nothing") ? 0 : real_trim(pad);
}
int mallopt(int, int) { return mutant("mallopt_refuses") ? 0 : 1; }
int malloc_info(int options, FILE* file) {
  if (options) return EINVAL;
  fprintf(file, "<malloc version=\"1\"><live bytes=\"%ld\"%s</malloc>\n", live_bytes,
          mutant("xml_is_broken") ? "" : "/>");
  return 0;
}
void malloc_stats() {
  dprintf(mutant("stats_go_to_stdout") ? 1 : 2, "live bytes %ld\n", live_bytes);
}

struct mallinfo2_result {
  size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
};
mallinfo2_result mallinfo2() {
  size_t live = mutant("mallinfo_is_zero") ? 0 : static_cast<size_t>(live_bytes);
  return {live, 0, 0, 0, 0, 0, 0, live, 0, 0};
}
struct mallinfo_result {
  int arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
};
mallinfo_result mallinfo() {
  int live = static_cast<int>(live_bytes);
  return {live, 0, 0, 0, 0, 0, 0, live, 0, 0};
}

#define ALIAS(name) __attribute__((alias(#name)))
void* __libc_malloc(size_t) ALIAS(malloc);
void* __libc_calloc(size_t, size_t) ALIAS(calloc);
void* __libc_realloc(void*, size_t) ALIAS(realloc);
void* __libc_reallocarray(void*, size_t, size_t) ALIAS(reallocarray);
void __libc_free(void*) ALIAS(free);
void* __libc_memalign(size_t, size_t) ALIAS(memalign);
void* __libc_valloc(size_t) ALIAS(valloc);
void* __libc_pvalloc(size_t) ALIAS(pvalloc);
mallinfo_result __libc_mallinfo() ALIAS(mallinfo);
int __libc_mallopt(int, int) ALIAS(mallopt);
}

// ---- operator new and delete.

namespace {
void* new_object(size_t size, size_t alignment) {
  for (;;) {
    if (void* object = memalign(alignment, size)) return object;
    if (mutant("new_gives_null")) return nullptr;
    std::new_handler handler = std::get_new_handler();
    if (!handler || mutant("new_ignores_the_handler")) throw std::bad_alloc();
    handler();
    if (mutant("handler_is_called_once")) throw std::bad_alloc();
  }
}
void* new_or_null(size_t size, size_t alignment) noexcept {
  if (mutant("nothrow_ignores_the_handler")) return memalign(alignment, size);
  try {
    return new_object(size, alignment);
  } catch (...) {
    return nullptr;
  }
}
}  // namespace

using Align = std::align_val_t;
using Nothrow = const std::nothrow_t&;
void* operator new(size_t n) { return new_object(n, 16); }
void* operator new[](size_t n) { return new_object(n, 16); }
void* operator new(size_t n, Nothrow) noexcept { return new_or_null(n, 16); }
void* operator new[](size_t n, Nothrow) noexcept { return new_or_null(n, 16); }
void* operator new(size_t n, Align a) { return new_object(n, static_cast<size_t>(a)); }
void* operator new[](size_t n, Align a) {
  return new_object(n, mutant("array_new_is_not_aligned") ? 16 : static_cast<size_t>(a));
}
void* operator new(size_t n, Align a, Nothrow) noexcept {
  return new_or_null(n, static_cast<size_t>(a));
}
void* operator new[](size_t n, Align a, Nothrow) noexcept {
  return new_or_null(n, static_cast<size_t>(a));
}
void operator delete(void* p) noexcept { free(p); }
void operator delete[](void* p) noexcept { free(p); }
void operator delete(void* p, Nothrow) noexcept { free(p); }
void operator delete[](void* p, Nothrow) noexcept { free(p); }
void operator delete(void* p, size_t) noexcept { free(p); }
void operator delete[](void* p, size_t) noexcept { free(p); }
void operator delete(void* p, Align) noexcept { free(p); }
void operator delete[](void* p, Align) noexcept { free(p); }
void operator delete(void* p, size_t, Align) noexcept { free(p); }
void operator delete[](void* p, size_t, Align) noexcept { free(p); }
void operator delete(void* p, Align, Nothrow) noexcept { free(p); }
void operator delete[](void* p, Align, Nothrow) noexcept { free(p); }
