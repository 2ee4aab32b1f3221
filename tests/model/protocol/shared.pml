// Shared: a lane that any thread enters by a lock which it gives back by a plain store.
//
//   holder                                waiter
//   ------                                ------
//   state = free           [give]         waiters + 1                          (locked)
//   look at waiters        [look]         membarrier
//     none: done                          free: take it (locked), waiters - 1
//     some: wake one                      held: sleep while it is, and again
//
// Why no wake-up is lost: the barrier falls somewhere in the holder's program order. Before [look]: the holder sees the
// waiter. After [give]: the waiter sees the lane free and does not sleep. Since [give] comes first, one of them holds. Who
// takes the lane later takes it by a locked instruction after the waiter has counted itself, and so sees it.
//
// The count must be a word of its own: a holder that looks at a state "held and awaited", and only then stores "free", can
// lose a waiter who comes between the two, and no barrier on his side helps.

// Called by: run.py, which defines how many visits each thread makes (kVisits0, 1, 2), and whether a handler interrupts
// thread 0 (kHandlers). Fork is in owned.pml.

#define kFree 0
#define kHeld 1

#define kState 0
#define kWaiters 1
#define kHead 2  // the lane's free list: which object is next
#define kWords 3
#define kBufferLength 4
#define barrier_reaches(thread) skip
#include "machine.pml"

#define kMain 4  // the process of thread 0
bool stopped[9];  // processes whose thread is in a signal handler

byte inside;
byte popped;  // objects taken off the list so far
bool two_inside, popped_twice;

inline try_acquire(thread, got) {
  atomic {
    DRAINED(thread) ->
      got = (memory[kState] == kFree);
      if
      :: got -> memory[kState] = kHeld
      :: else
      fi
  }
}

inline wait(thread, got) {
  atomic { DRAINED(thread) -> memory[kWaiters]++ };
  membarrier(thread);
  do
  :: try_acquire(thread, got);
     if
     :: got -> break
     :: else -> futex_wait(thread, kState, kHeld)
     fi
  od;
  atomic { DRAINED(thread) -> memory[kWaiters]-- }
}

inline release(thread) {
  store(thread, kState, kFree);
  if
  :: LOAD(thread, kWaiters) != 0 -> futex_wake_one(thread)
  :: else
  fi
}

inline work(thread, head) {
  d_step {
    two_inside = (inside > 0);
    assert(!two_inside);
    inside++;
    head = LOAD(thread, kHead);
    popped_twice = (head != popped);
    assert(!popped_twice)
  };
  atomic {
    store(thread, kHead, head + 1);
    popped++;
    inside--
  }
}

proctype Thread(byte me, visits) provided (!stopped[_pid]) {
  bool got;
  byte visit, head;
  do
  :: visit < visits ->
     try_acquire(me, got);
     if
     :: got
     :: else -> wait(me, got)
     fi;
     work(me, head);
     release(me);
     got = false;
     head = 0;
     visit++
  :: else -> break
  od
}

// Between any two steps of thread 0. Never waits: it goes elsewhere.
proctype Handler() {
  bool got;
  byte head;
  stopped[kMain] = true;
  try_acquire(0, got);
  if
  :: got -> work(0, head); release(0)
  :: else
  fi;
  stopped[kMain] = false
}

init {
  atomic {
    run StoreBuffer(0); run StoreBuffer(1); run StoreBuffer(2);
    run Thread(0, kVisits0); run Thread(1, kVisits1); run Thread(2, kVisits2);
    if
    :: kHandlers -> run Handler()
    :: else
    fi
  }
}
