// Wrong sizes, and wrong functions, to free with.
#include <dlfcn.h>

#include <new>

#include "misuse.h"

namespace {

enum : long { kTooSmall, kTooLarge, kByOne, kOtherClass, kZero, kHuge };

size_t wrong(size_t size, long how) {
  switch (how) {
    case kTooSmall:
      return size / 4;
    case kTooLarge:
      return size * 4;
    case kByOne:
      return size - 1;
    case kOtherClass:
      return size + 16;
    case kZero:
      return 0;
    default:
      return SIZE_MAX;
  }
}
void probe_both(const struct Case* c) {
  probe(c->size);
  probe(c->size * 4);
  if (c->size / 4 >= 16) probe(c->size / 4);
}

// --- By new and delete.

void sized_delete(const struct Case* c) {
  void* object = ::operator new(c->size);
  void* other = ::operator new(c->size);
  if (mistake("delete with a wrong size")) {
    ::operator delete(hide(object), hide_size(wrong(c->size, c->a)));
  } else {
    ::operator delete(hide(object), c->size);
  }
  ::operator delete(hide(other), c->size);
  probe_both(c);
}
void sized_delete_array(const struct Case* c) {
  void* object = ::operator new[](c->size);
  if (mistake("delete[] with a wrong size")) {
    ::operator delete[](hide(object), hide_size(wrong(c->size, c->a)));
  } else {
    ::operator delete[](hide(object), c->size);
  }
  probe_both(c);
}
constexpr auto kLine = static_cast<std::align_val_t>(256);
void aligned_delete_of_plain(const struct Case* c) {
  void* object = ::operator new(c->size);
  if (mistake("an aligned delete of an object of the plain new")) {
    ::operator delete(hide(object), kLine);
  } else {
    ::operator delete(hide(object));
  }
  probe_both(c);
}
void plain_delete_of_aligned(const struct Case* c) {
  void* object = ::operator new(c->size, kLine);
  if (mistake("a plain delete of an object of the aligned new")) {
    ::operator delete(hide(object));
  } else {
    ::operator delete(hide(object), kLine);
  }
  probe_both(c);
}
void wrong_alignment(const struct Case* c) {
  void* object = ::operator new(c->size, kLine);
  if (mistake("an aligned delete with a wrong alignment")) {
    ::operator delete(hide(object), static_cast<std::align_val_t>(4096));
  } else {
    ::operator delete(hide(object), kLine);
  }
  probe_both(c);
}
void free_of_new(const struct Case* c) {
  void* object = ::operator new(c->size);
  if (mistake("free of an object of new")) {
    free(hide(object));
  } else {
    ::operator delete(hide(object));
  }
  probe_both(c);
}
void free_of_new_array(const struct Case* c) {
  void* object = ::operator new[](c->size);
  if (mistake("free of an array of new[]")) {
    free(hide(object));
  } else {
    ::operator delete[](hide(object));
  }
  probe_both(c);
}
void delete_of_malloc(const struct Case* c) {
  void* object = malloc(c->size);
  if (mistake("delete of an object of malloc")) {
    ::operator delete(hide(object));
  } else {
    free(hide(object));
  }
  probe_both(c);
}
void delete_of_array(const struct Case* c) {
  void* object = ::operator new[](c->size);
  if (mistake("delete of an array of new[]")) {
    ::operator delete(hide(object));
  } else {
    ::operator delete[](hide(object));
  }
  probe_both(c);
}
// An array of objects with destructors has its length before it, so the pointer is no start.
struct WithDestructor {
  // NOLINTNEXTLINE(modernize-use-equals-default): a trivial one would need no length
  ~WithDestructor() { value = 0; }
  long value = 1;
};
void delete_of_counted_array(const struct Case* c) {
  auto* array = new WithDestructor[c->size / sizeof(WithDestructor) - 1];
  if (mistake("delete of the first object of an array with a length")) {
    ::operator delete(hide(array));
  } else {
    delete[] array;
  }
  probe_both(c);
}
void delete_twice(const struct Case* c) {
  void* object = ::operator new(c->size);
  void* other = ::operator new(c->size);
  ::operator delete(hide(object), c->size);
  if (mistake("an object is deleted twice")) ::operator delete(hide(object), c->size);
  probe_both(c);
  ::operator delete(hide(other));
}

// --- By C23's functions.

void free_with_size(const struct Case* c) {
  using Function = void(void*, size_t);
  auto* free_sized = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, "free_sized"));
  if (free_sized == nullptr) absent("free_sized");
  void* object = malloc(c->size);
  free_sized(hide(object),
             mistake("free_sized with a wrong size") ? wrong(c->size, c->a) : c->size);
  probe_both(c);
}
void free_aligned_with_size(const struct Case* c) {
  using Function = void(void*, size_t, size_t);
  auto* free_aligned_sized = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, "free_aligned_sized"));
  if (free_aligned_sized == nullptr) absent("free_aligned_sized");
  void* object = aligned_alloc(256, c->size);
  const bool is_wrong = mistake("free_aligned_sized with a wrong alignment and size") != 0;
  free_aligned_sized(hide(object), is_wrong ? 4096 : 256,
                     is_wrong ? wrong(c->size, c->a) : c->size);
  probe_both(c);
}

const struct Case kCases[] = {
    EACH_SIZE("mix/delete-too-small", sized_delete, kTooSmall, 0),
    EACH_SIZE("mix/delete-too-large", sized_delete, kTooLarge, 0),
    SMALL_AND_MEDIUM("mix/delete-less-by-1", sized_delete, kByOne, 0),
    SMALL_AND_MEDIUM("mix/delete-more-by-16", sized_delete, kOtherClass, 0),
    SMALL_AND_MEDIUM("mix/delete-of-0", sized_delete, kZero, 0),
    SMALL_AND_MEDIUM("mix/delete-huge", sized_delete, kHuge, 0),
    SMALL_AND_MEDIUM("mix/delete-array-too-small", sized_delete_array, kTooSmall, 0),
    SMALL_AND_MEDIUM("mix/delete-array-too-large", sized_delete_array, kTooLarge, 0),
    SMALL_AND_MEDIUM("mix/aligned-delete-of-plain", aligned_delete_of_plain, 0, 0),
    SMALL_AND_MEDIUM("mix/plain-delete-of-aligned", plain_delete_of_aligned, 0, 0),
    SMALL_AND_MEDIUM("mix/wrong-alignment", wrong_alignment, 0, 0),
    SMALL_AND_MEDIUM("mix/free-of-new", free_of_new, 0, 0),
    SMALL_AND_MEDIUM("mix/free-of-new-array", free_of_new_array, 0, 0),
    SMALL_AND_MEDIUM("mix/delete-of-malloc", delete_of_malloc, 0, 0),
    SMALL_AND_MEDIUM("mix/delete-of-array", delete_of_array, 0, 0),
    SMALL_AND_MEDIUM("mix/delete-of-counted-array", delete_of_counted_array, 0, 0),
    SMALL_AND_MEDIUM("mix/delete-twice", delete_twice, 0, 0),
    EACH_SIZE("mix/free-sized-too-small", free_with_size, kTooSmall, 0),
    EACH_SIZE("mix/free-sized-too-large", free_with_size, kTooLarge, 0),
    SMALL_AND_MEDIUM("mix/free-sized-less-by-1", free_with_size, kByOne, 0),
    SMALL_AND_MEDIUM("mix/free-aligned-sized-wrong", free_aligned_with_size, kTooLarge, 0),
};

}  // namespace

PROGRAM(kCases)
