// Owned: a lane that belongs to one thread, which enters by a plain store and a plain look. See src/core/lane/entry/owned.h for the
// protocol and why it holds; here are all its parts together: the owner, a signal handler at any of its steps, a revoker, the
// thread's exit, adoption by another thread, and fork by any of them at any step (src/core/engine/fork.h).
//
// Two steps matter when a handler forks: a lane that is set aside in the child tells those who wait for its lock to give up
// (kForsaken; src/ frees the lock and has every waiter look whether the lane was set aside), and who has just taken a lane's lock
// looks the same way (kSetAside). Each has a mutant that shows what happens without it.
//
// Called by: run.py, which defines which parts take part:
//   kVisits       operations of the owner
//   kExits        whether it then exits
//   kRevocations  by thread 1
//   kAdoptions    by thread 2, of the lane once it is idle
//   kInterrupted  the thread that a handler may interrupt once; kNoThread for none
//   kForks        the frame that may fork: a thread's code or the handler; kNoThread for none

#define kNoThread 9
#define kHandler 3  // a frame beside the three threads' own

// What a slot says.
#define kLane 0
#define kNoLane 1
#define kExited 2
#define kBusy 3

#define kNobody 7  // in kOwner and kHolder

#define kFree 0
#define kHeld 1
#define kForsaken 2

#define kSlot(thread) (thread)
#define kBins 3       // the gate: 1 is open; malloc looks here
#define kFreeOwner 4  // the same; free looks here
#define kRevoking 5
#define kOwner 6   // whose slot
#define kLock 7    // kFree, kHeld, or in a child kForsaken: the lane is set aside, wait no longer
#define kHolder 8  // by which thread
#define kIdle 9    // 1: the lane is on the stack of idle lanes
#define kHead 10   // the lane's free list: which object is next
#define kDepot 11  // a lock that is taken inside: 1 + its holder
#define kSetAside 12
#define kWords 13
#define kBufferLength 3

#define kHalf 64  // added to the head: somebody is in the middle of changing the lane
#define barrier_reaches(thread) skip
#include "machine.pml"

#define thread_of(frame) (frame == kHandler -> kInterrupted : frame)
#define frame_bit(frame) (1 << (frame))

bool interrupted;            // the thread's own code waits for the handler's return
bool gone[kThreads];         // in a child: the thread does not exist
bool forked, sorted_out;     // this is a child; its lanes have been sorted out
bool slot_is_gone[kThreads];

byte inside;  // frames, a bit each
byte popped;  // objects taken off the list so far
bool two_inside, half_done, popped_twice, looked_at_dead_slot;

#define RUNS(frame) (!(interrupted && frame == kInterrupted))

inline comes_in(frame, thread) {
  atomic {
    two_inside = (inside != 0);
    assert(!two_inside);
    half_done = (LOAD(thread, kHead) >= kHalf);
    assert(!half_done);
    popped_twice = (LOAD(thread, kHead) != popped);
    assert(!popped_twice);
    inside = inside | frame_bit(frame)
  }
}

// Inside the lane.
inline work(frame, thread, head) {
  comes_in(frame, thread);
  atomic {
    nfull(buffer[thread]) -> head = LOAD(thread, kHead);
    store(thread, kHead, head + kHalf)
  };
  atomic {
    nfull(buffer[thread]) -> popped++;
    store(thread, kHead, head + 1);
    head = 0;
    inside = inside & ~frame_bit(frame)
  }
}

// --- The lane's lock. The explorer has how a waiter sleeps; here he waits for a free lock.

inline try_acquire(thread, got) {
  atomic {
    DRAINED(thread) -> got = (memory[kLock] == kFree);
    memory[kLock] = (got -> kHeld : memory[kLock])
  };
  if
  :: got -> store(thread, kHolder, thread)
  :: else
  fi
}

inline acquire(thread, got) {
  atomic {
    DRAINED(thread) && memory[kLock] != kHeld -> got = (memory[kLock] == kFree);
    memory[kLock] = (got -> kHeld : memory[kLock])
  };
  if
  :: got -> store(thread, kHolder, thread)
  :: else
  fi
}

inline release(thread) {
  store(thread, kHolder, kNobody);
  store(thread, kLock, kFree)
}

// --- The owner's side.

inline open_gate(thread) {
  store(thread, kBins, 1);
  store(thread, kFreeOwner, 1)
}

inline close_gate(thread) {
  store(thread, kBins, 0);
  store(thread, kFreeOwner, 0)
}

// Elsewhere, the thread still needs the depot. A nested visit never waits for it.
inline visit_depot(thread, nested, got) {
  atomic {
    DRAINED(thread) && (nested || memory[kDepot] == 0) -> got = (memory[kDepot] == 0);
    if
    :: got -> memory[kDepot] = 1 + thread
    :: else
    fi
  };
  if
  :: got -> atomic { DRAINED(thread) -> memory[kDepot] = 0 }
  :: else
  fi;
  got = false
}

inline adopt(frame, thread, gate, got, head) {
  atomic {
    DRAINED(thread) -> got = (memory[kIdle] == 1);
    memory[kIdle] = 0
  };
  if
  :: got ->
     acquire(thread, got);
     if
     :: got ->
        store(thread, kOwner, thread);
        open_gate(thread);
        release(thread);
        gate = kLane;
        work(frame, thread, head)
     :: else
     fi
  :: else
  fi;
  got = false
}

inline visit(frame, thread, gate, got, head) {
  gate = LOAD(thread, kSlot(thread));
  store(thread, kSlot(thread), kBusy);  // [enter]
  if
  :: gate == kLane ->
     if
     :: got = LOAD(thread, kBins)  // [look]
     :: got = LOAD(thread, kFreeOwner)
     fi;
     if
     :: got -> work(frame, thread, head)
     :: else ->
        if
        :: LOAD(thread, kRevoking) -> visit_depot(thread, false, got)
        :: else ->
           open_gate(thread);
           work(frame, thread, head)
        fi
     fi
  :: gate == kNoLane -> adopt(frame, thread, gate, got, head)
  :: gate == kBusy -> visit_depot(thread, true, got)
  :: gate == kExited -> visit_depot(thread, false, got)
  fi;
  got = false;
  store(thread, kSlot(thread), gate);  // [leave]
  gate = 0
}

inline disown(thread, got) {
  acquire(thread, got);
  if
  :: got ->
     store(thread, kOwner, kNobody);
     close_gate(thread);
     release(thread)
  :: else
  fi
}

inline exit(frame, thread, gate, got, head) {
  gate = LOAD(thread, kSlot(thread));
  store(thread, kSlot(thread), kBusy);
  if
  :: gate == kLane ->
     disown(thread, got);
     if
     :: got && !LOAD(thread, kSetAside) ->
        acquire(thread, got);
        if
        :: got ->
           work(frame, thread, head);
           release(thread);
           atomic { DRAINED(thread) -> memory[kIdle] = 1 }
        :: else
        fi
     :: else
     fi
  :: else
  fi;
  got = false;
  gate = 0;
  store(thread, kSlot(thread), kExited);
  atomic { DRAINED(thread) -> slot_is_gone[thread] = true }
}

// --- The other side.

inline look_at_slot(thread, owner, got) {
  d_step {
    looked_at_dead_slot = slot_is_gone[owner];
    assert(!looked_at_dead_slot);
    got = (LOAD(thread, kSlot(owner)) == kLane)
  }
}

inline let_go(thread) {
  store(thread, kRevoking, 0);
  release(thread)
}

inline revoke_locked(frame, thread, owner, got, head) {
  owner = LOAD(thread, kOwner);
  if
  :: owner == kNobody
  :: else ->
     store(thread, kRevoking, 1);
     close_gate(thread);  // [close]
     membarrier(thread);
     look_at_slot(thread, owner, got);  // [peek]
     if
     :: got && (LOAD(thread, kBins) || LOAD(thread, kFreeOwner)) ->
        close_gate(thread);
        membarrier(thread);
        look_at_slot(thread, owner, got);
        got = got && !LOAD(thread, kBins) && !LOAD(thread, kFreeOwner)
     :: else
     fi
  fi;
  if
  :: got -> work(frame, thread, head)
  :: else
  fi
}

inline revoke(frame, thread, owner, got, head) {
  try_acquire(thread, got);
  if
  :: got ->
     if
     :: LOAD(thread, kSetAside) -> release(thread)  // a handler has forked before it could see who holds the lock
     :: else -> revoke_locked(frame, thread, owner, got, head); let_go(thread)
     fi
  :: else
  fi;
  got = false;
  owner = 0
}

// --- Fork. The model goes on with the child only: other threads are gone, with what lies in their store buffers.

inline vanish(thread) {
  do
  :: buffer[thread]?_, _
  :: empty(buffer[thread]) -> break
  od;
  word = 0;
  do
  :: word < kWords -> youngest[thread].holds[word] = 0; word++
  :: else -> break
  od;
  word = 0;
  unreached[thread] = 0;
  gone[thread] = true
}

inline fork(frame, thread, gate, got) {
  gate = LOAD(thread, kSlot(thread));
  store(thread, kSlot(thread), kBusy);
  atomic {
    DRAINED(thread) && (gate == kBusy || memory[kDepot] == 0) -> got = (memory[kDepot] == 0);
    if
    :: got -> memory[kDepot] = 1 + thread
    :: else
    fi
  };
  atomic {  // the fork itself
    DRAINED(thread) -> forked = true;
    if
    :: thread != 0 -> vanish(0)
    :: else
    fi;
    if
    :: thread != 1 -> vanish(1)
    :: else
    fi;
    if
    :: thread != 2 -> vanish(2)
    :: else
    fi;
    inside = inside & (frame_bit(thread) | (thread == kInterrupted -> frame_bit(kHandler) : 0));
    popped = memory[kHead] % kHalf
  };
  atomic {  // in the child's one thread
    if
    :: got || memory[kDepot] != 1 + thread -> memory[kDepot] = 0
    :: else
    fi;
    sort_out_lane(thread, gate);
    memory[kSlot(thread)] = gate;
    gate = 0;
    got = false;
    sorted_out = true
  }
}

inline set_aside() {
  memory[kLock] = kForsaken;
  memory[kSetAside] = 1;
  memory[kRevoking] = 1;
  memory[kBins] = 0;
  memory[kFreeOwner] = 0;
  memory[kOwner] = kNobody
}

inline sort_out_lane(thread, gate) {
  if
  :: memory[kLock] != kFree && memory[kHolder] != thread ->
     gate = (gate == kLane -> kNoLane : gate);
     set_aside()
  :: else ->
     if
     :: memory[kOwner] == kNobody || memory[kOwner] == thread || memory[kLock] != kFree
     :: else ->
        if
        :: memory[kSlot(memory[kOwner])] != kLane -> set_aside()
        :: else ->
           memory[kBins] = 0;
           memory[kFreeOwner] = 0;
           memory[kOwner] = kNobody;
           memory[kIdle] = 1
        fi
     fi
  fi
}

// A new thread of the child, which may get the memory of one that is gone.
inline start_anew(thread) {
  got = false;
  head = 0;
  sorted_out -> memory[kSlot(thread)] = kNoLane;
  gone[thread] = false
}

// --- Who takes part. A thread that is gone begins again, as a thread of the child.

proctype Owner() provided (RUNS(_pid - 1)) {
  byte gate, head, visits, word;
  bool got;
  {
    do
    :: visits < kVisits -> visit(0, 0, gate, got, head); visits++
    :: visits == kVisits -> break
    od;
    if
    :: kExits -> exit(0, 0, gate, got, head)
    :: else
    fi
  } unless {
    gone[0]
  }
}

proctype Revoker() provided (RUNS(_pid - 1)) {
  byte owner, head, revocations;
  bool got;
  do
  :: {
       do
       :: revocations < kRevocations -> revoke(1, 1, owner, got, head); revocations++
       :: revocations == kRevocations -> break
       od;
       break
     } unless {
       gone[1] -> owner = 0; revocations = 0; start_anew(1)
     }
  od
}

proctype Adopter() provided (RUNS(_pid - 1)) {
  byte gate, head, adoptions, word;
  bool got;
  do
  :: {
       do
       :: adoptions < kAdoptions -> visit(2, 2, gate, got, head); adoptions++
       :: kForks == 2 && !forked -> fork(2, 2, gate, got)
       :: adoptions == kAdoptions -> break
       od;
       break
     } unless {
       gone[2] -> gate = 0; adoptions = 0; start_anew(2)
     }
  od
}

// Between any two steps of its thread, once.
proctype Handler() {
  byte gate, head, word;
  bool got;
  {
    interrupted = true;
    if
    :: kForks == kHandler && !forked -> fork(kHandler, kInterrupted, gate, got)
    :: kForks != kHandler -> visit(kHandler, kInterrupted, gate, got, head)
    fi;
    interrupted = false
  } unless {
    gone[kInterrupted]
  }
}

init {
  atomic {
    memory[kSlot(1)] = kNoLane;
    memory[kSlot(2)] = kNoLane;
    memory[kBins] = 1;
    memory[kFreeOwner] = 1;
    memory[kHolder] = kNobody;
    run Owner(); run Revoker(); run Adopter();
    if
    :: kInterrupted != kNoThread -> run Handler()
    :: else
    fi;
    run StoreBuffer(0); run StoreBuffer(1); run StoreBuffer(2)
  }
}
