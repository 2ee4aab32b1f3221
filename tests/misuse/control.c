// Cases whose outcome is known, whatever the allocator: they show that the runner tells the classes
// apart.
#include "misuse.h"

static char target[64];
static volatile int* volatile nowhere;

static void nothing(const struct Case* c) {
  if (mistake("none")) probe(c->size);
}
static void chosen(const struct Case* c) {
  (void)c;
  aim(target, sizeof target, "a global");
  if (mistake("the harness sees the address of a global")) keep(target, sizeof target);
}
static void twice(const struct Case* c) {
  char* object = take(c->size);
  if (mistake("the harness sees an object twice")) keep(object, c->size);
}
static void overlapping(const struct Case* c) {
  char* object = take(c->size);
  if (mistake("the harness sees the middle of an object")) keep(object + 32, 16);
}
static void changed(const struct Case* c) {
  unsigned char* object = take(c->size);
  if (mistake("a byte of an object in use changes")) ((unsigned char*)hide(object))[8] ^= 1;
}
static void changed_end(const struct Case* c) {
  unsigned char* object = take(kLarge);
  (void)c;
  if (mistake("the last byte changes")) ((unsigned char*)hide(object))[kLarge - 1] ^= 1;
}
static void aborts(const struct Case* c) {
  (void)c;
  if (mistake("abort")) abort();
}
static void crashes(const struct Case* c) {
  (void)c;
  if (mistake("a null pointer is followed, not by an access that was announced")) *nowhere = 1;
}
static void guarded(const struct Case* c) {
  (void)c;
  if (access_mistake("a write that the system stops")) *nowhere = 1;
  made();
}
static void crashes_later(const struct Case* c) {
  (void)c;
  const int makes = access_mistake("a write that goes well");
  made();
  if (makes) *nowhere = 1;
}
static void crashes_before(const struct Case* c) {
  (void)c;
  *nowhere = 1;
}
static void says(const struct Case* c) {
  (void)c;
  if (mistake("a line on standard error")) fprintf(stderr, "a report\n");
}
static void refuses(const struct Case* c) {
  (void)c;
  if (mistake("a call that is refused")) result("refused");
}
static void in_child(const struct Case* c) {
  (void)c;
  go_on_in_child();
  if (mistake("a child aborts")) abort();
}

static const struct Case kCases[] = {
    {"control/silent", nothing, 64, 0, 0},
    {"control/harm-chosen", chosen, 64, 0, 0},
    {"control/harm-twice", twice, 64, 0, 0},
    {"control/harm-twice-part", overlapping, 64, 0, 0},
    {"control/harm-changed", changed, 64, 0, 0},
    {"control/harm-changed-end", changed_end, 64, 0, 0},
    {"control/caught-abort", aborts, 64, 0, 0},
    {"control/caught-guard", guarded, 64, 0, 0},
    {"control/caught-report", says, 64, 0, 0},
    {"control/caught-refused", refuses, 64, 0, 0},
    {"control/caught-in-child", in_child, 64, 0, 0},
    {"control/crashed", crashes, 64, 0, 0},
    {"control/crashed-later", crashes_later, 64, 0, 0},
    {"control/fault-before", crashes_before, 64, 0, 0},
};
PROGRAM(kCases)
