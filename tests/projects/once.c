// Prints "ok" if this process has the allocator once: in one library. Linked with the library, and
// run with the library preloaded or not.
#include <dlfcn.h>
#include <lanemalloc/pool.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

static int is_the_allocator(const char* name) {
  void* library = *name != '\0' ? dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  void* function = library != NULL ? dlsym(library, "lane_stats") : NULL;
  // dlsym also finds what is in a library that this one needs.
  Dl_info info;
  return function != NULL && dladdr(function, &info) != 0 && strcmp(info.dli_fname, name) == 0;
}

int main(void) {
  const struct lane_pool_options options = {.object_size = 48};
  lane_pool* pool = lane_pool_create(&options);
  if (pool == NULL || lane_pool_alloc(pool) == NULL) return 1;
  int count = 0;
  for (const struct link_map* map = _r_debug.r_map; map != NULL; map = map->l_next)
    count += is_the_allocator(map->l_name);
  if (count != 1) return printf("%d libraries\n", count), 1;
  puts("ok");
  return 0;
}
