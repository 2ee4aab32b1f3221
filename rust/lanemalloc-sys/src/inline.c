/* The functions that are inline in the headers, for Rust: under these names the linker finds them. */
#include <lanemalloc/heap.h>
#include <lanemalloc/pool.h>
#include <lanemalloc/safepoint.h>

void lane_inline_reader_enter(struct lane_reader* reader) { lane_reader_enter(reader); }
void lane_inline_reader_exit(struct lane_reader* reader) { lane_reader_exit(reader); }
void lane_inline_reader_online(struct lane_reader* reader) { lane_reader_online(reader); }
void lane_inline_reader_offline(struct lane_reader* reader) { lane_reader_offline(reader); }
void lane_inline_reader_quiescent(struct lane_reader* reader) { lane_reader_quiescent(reader); }

void* lane_inline_pool_alloc(lane_pool* pool) { return lane_pool_alloc(pool); }
void lane_inline_pool_free(lane_pool* pool, void* object) { lane_pool_free(pool, object); }

void* lane_inline_heap_alloc(lane_heap* heap, size_t size) { return lane_heap_alloc(heap, size); }
void lane_inline_heap_free_sized(lane_heap* heap, void* object, size_t size) { lane_heap_free_sized(heap, object, size); }
