// A program whose stacks and numbers run.sh knows: known tables|frames HEAP CONTENTION. Called by:
// run.sh.
#include <string.h>

#include "recorder.h"

#define APART [[gnu::noipa]]
#define NO_TAIL_CALL __asm__ volatile("")

// 1,000,000 bytes in 100 objects, of which 40 are freed again: 600,000 bytes in 60 objects.
APART void keep_some() {
  record_allocations(100, 10000, 40);
  NO_TAIL_CALL;
}

APART void allocate_for(unsigned count, size_t size) {
  record_allocations(count, size, 0);
  NO_TAIL_CALL;
}
// 7 objects of 3,000 bytes for one caller, 2 of 5,000 for another.
APART void first_caller() {
  allocate_for(7, 3000);
  NO_TAIL_CALL;
}
APART void second_caller() {
  allocate_for(2, 5000);
  NO_TAIL_CALL;
}
APART void free_all() {
  record_allocations(3, 70000, 3);
  NO_TAIL_CALL;
}
// 5 waits of 2 ms.
APART void wait_for_lock() {
  record_waits(5, 2000000);
  NO_TAIL_CALL;
}

int main(int, char** arguments) {
  start_recording(strcmp(arguments[1], "tables") == 0);
  keep_some();
  first_caller();
  second_caller();
  free_all();
  wait_for_lock();
  return write_records(arguments[2], arguments[3]) ? 0 : 1;
}
