// Percpu: a lane a CPU, entered by restartable sequences (rseq): short pieces of code that begin anew if the thread is
// preempted or interrupted by a signal, or if membarrier(RSEQ) reaches it, before their one last store.
//
//   a lane's word    the CPU's number: free      taken: a thread is inside      revoked: the revoker has it
//
//   hit of malloc                enter: hit of free, slow path        revoker
//   -------------                -----------------------------        -------
//   [ the word is my CPU's?      [ the word is my CPU's?              lock the lane
//     head, its next               word = taken ]                     the word: number -> revoked (locked), or give up
//     head = next ]              work                                 membarrier(RSEQ)
//                                word = number   (from any CPU)       the word is still revoked? else give up
//                                                                     work, word = number, unlock
//
// Why nobody meets. Two threads: sections of one CPU follow each other, and a section that looked at the word before
// another thread ran on this CPU begins anew. A thread and the revoker: whoever looked at the word before it was revoked
// has either stored before the barrier reaches it, and then the revoker sees the taken word (or the number, if the thread
// has left since), or begins anew and sees the revoked word.
//
// Fork. The child gives every CPU whose lane is not free, or is locked, a fresh lane. A frame of the child's own thread that was
// inside the old one finishes and leaves; its thread may go on to use it, since the word admits one at a time.
//
// Called by: run.py, which defines which parts take part:
//   kVisits0, kVisits1  operations of threads 0 and 1
//   kRounds             revocations by thread 2
//   kHandlers           whether a handler interrupts thread 0, once
//   kSwitches           how often threads are taken off their CPU; with a fork: in the child
//   kForks              the frame that may fork; kNoThread for none
//   kSlowPath           whether the operations include those that take the depot's lock

#define kTaken 8
#define kRevoked 9
#define number(lane) (lane % kCpus)

#define kCpus 2
#define kLanes 4  // two of which are for a child
#define kWord(lane) (lane)
#define kHead(lane) (kLanes + lane)  // the lane's free list: which object is next
#define kHalf 64                     // added to it: somebody is in the middle of changing the lane
#define kLock(lane) (2 * kLanes + lane)
#define kDepot (3 * kLanes)  // a lock which the slow path takes inside
#define kWords (3 * kLanes + 1)
#define kBufferLength 3
#define barrier_reaches(thread) restart(thread)
#include "machine.pml"

// A frame is what runs in a thread: thread t's code is frame t and process t + 1; the signal handler of thread 0 is frame 3.
#define kFrames 4
#define kHandler 3
#define kRevoker 2
#define thread_of(frame) (frame == kHandler -> 0 : frame)
#define frame_bit(frame) (1 << (frame))
#define kNowhere 7
#define kNoThread 9

byte cpu[kThreads];  // where each thread runs
byte switches;       // threads taken off their CPU so far
byte lane_of[kCpus];        // the table that the slow path looks into
byte last_lane[kThreads];  // which a hit tries: in the thread's slot
bool in_section[kFrames], restarted[kFrames];
bool interrupted;         // frame 0 waits for the handler's return
bool holds_up[kThreads];  // the thread's own mark: it is in its slow path and may hold locks
bool gone[kThreads];      // in a child: the thread does not exist
bool forked, sorted_out;  // this is a child; its lanes have been sorted out

byte inside[kLanes];  // frame bits
byte popped[kLanes];  // objects taken off the list so far
bool two_inside, popped_twice, half_done;

#define RUNS(frame) (gone[thread_of(frame)] || (cpu[thread_of(frame)] != kNowhere && !(frame == 0 && interrupted)))

inline restart_frame(frame) {
  restarted[frame] = restarted[frame] || in_section[frame];
  in_section[frame] = false
}

inline restart(thread) {
  restart_frame(thread);
  if
  :: thread == 0 -> restart_frame(kHandler)
  :: else
  fi
}

// What must hold whenever a frame comes into a lane.
inline comes_in(frame, thread, lane) {
  two_inside = (inside[lane] != 0);
  assert(!two_inside);
  half_done = (LOAD(thread, kHead(lane)) >= kHalf);
  assert(!half_done);
  popped_twice = (LOAD(thread, kHead(lane)) != popped[lane]);
  assert(!popped_twice)
}

// A restartable section: the steps between these two are done if this CPU's lane is free; if it is not, lane becomes kLanes.
// The last of them sets in_section to false.
#define BEGIN_SECTION(frame, thread, lane)            \
  if                                                  \
  :: lane = last_lane[thread]                         \
  :: lane = lane_of[cpu[thread]]                      \
  fi;                                                 \
  do                                                  \
  :: {                                                \
       in_section[frame] = true;                      \
       if                                             \
       :: LOAD(thread, kWord(lane)) == cpu[thread] ->
#define END_SECTION(frame, lane)                      \
       :: else ->                                     \
          d_step {                                    \
            in_section[frame] = false;                \
            lane = kLanes                             \
          }                                           \
       fi;                                            \
       break                                          \
     } unless {                                       \
       restarted[frame] -> restarted[frame] = false   \
     }                                                \
  od

inline enter(frame, thread, lane) {
  BEGIN_SECTION(frame, thread, lane)
    atomic {
      nfull(buffer[thread]) -> in_section[frame] = false;
      comes_in(frame, thread, lane);
      last_lane[thread] = lane;
      inside[lane] = inside[lane] | frame_bit(frame);
      store(thread, kWord(lane), kTaken)
    }
  END_SECTION(frame, lane)
}

inline leave(frame, thread, lane) {
  atomic {
    nfull(buffer[thread]) -> inside[lane] = inside[lane] & ~frame_bit(frame);
    store(thread, kWord(lane), number(lane))
  }
}

inline hit_of_malloc(frame, thread, lane, head) {
  BEGIN_SECTION(frame, thread, lane)
    head = LOAD(thread, kHead(lane));
    atomic {
      nfull(buffer[thread]) -> in_section[frame] = false;
      comes_in(frame, thread, lane);
      last_lane[thread] = lane;
      popped_twice = (head != popped[lane]);
      assert(!popped_twice);
      popped[lane]++;
      store(thread, kHead(lane), head + 1)
    }
  END_SECTION(frame, lane)
}

// Inside a lane.
inline work(thread, lane, head) {
  head = LOAD(thread, kHead(lane));
  store(thread, kHead(lane), head + kHalf);
  atomic {
    nfull(buffer[thread]) -> popped[lane]++;
    store(thread, kHead(lane), head + 1);
    head = 0
  }
}

inline visit_depot(frame, thread, nested, got) {
  atomic {
    DRAINED(thread) && (memory[kDepot] == 0 || nested) -> got = (memory[kDepot] == 0);
    memory[kDepot] = 1
  };
  if
  :: got -> atomic { DRAINED(thread) -> memory[kDepot] = 0 }
  :: else
  fi;
  got = false
}

inline allocate_or_free(frame, thread, lane, head, nested, got) {
  if
  :: hit_of_malloc(frame, thread, lane, head)
  :: enter(frame, thread, lane);  // hit of free
     if
     :: lane != kLanes -> work(thread, lane, head); leave(frame, thread, lane)
     :: else
     fi
  :: kSlowPath ->
     nested = holds_up[thread];  // slow path
     holds_up[thread] = true;
     enter(frame, thread, lane);
     visit_depot(frame, thread, nested, got);
     if
     :: lane != kLanes -> leave(frame, thread, lane)
     :: else
     fi;
     holds_up[thread] = nested;
     nested = false
  fi;
  lane = 0;
  head = 0
}

inline vanish(thread) {
  gone[thread] = true;
  cpu[thread] = kNowhere;
  do
  :: buffer[thread]?_, _
  :: empty(buffer[thread]) -> break
  od;
  word = 0;
  do
  :: word < kWords -> youngest[thread].holds[word] = 0; word++
  :: else -> break
  od;
  word = 0
}

// What fork does, and what the child does in its handler. The model goes on with the child only.
inline fork(frame, thread, c, lane) {
  atomic {
    DRAINED(thread) -> forked = true;
    lane = 0;
    do
    :: lane < kThreads ->
       if
       :: lane != thread -> vanish(lane)
       :: else
       fi;
       lane++
    :: else -> break
    od;
    lane = 0;
    do
    :: lane < kLanes ->
       inside[lane] = inside[lane] & (thread == 0 -> frame_bit(0) | frame_bit(kHandler) : frame_bit(thread));
       popped[lane] = memory[kHead(lane)] % kHalf;
       lane++
    :: else -> break
    od;
    lane = 0
  };
  atomic {
    do
    :: c < kCpus ->
       if
       :: LOAD(thread, kWord(c)) != c || LOAD(thread, kLock(c)) != 0 ->
          lane_of[c] = c + kCpus
       :: else
       fi;
       c++
    :: else -> break
    od;
    c = 0;
    sorted_out = true
  }
}

byte visits_of[2];

proctype Thread(byte me) provided (RUNS(_pid - 1)) {
  byte visits, lane, head, word;
  bool nested, got;
  {
    do
    :: visits < visits_of[me] -> allocate_or_free(me, me, lane, head, nested, got); visits++
    :: kForks == me && !forked -> fork(me, me, head, lane)
    :: visits == visits_of[me] -> break
    od
  } unless {
    gone[me]
  }
}

// Between any two steps of thread 0, once.
proctype Handler() provided (RUNS(_pid - 1)) {
  byte lane, head, word;
  bool nested, got;
  {
    atomic {
      interrupted = true;
      restart_frame(0)
    };
    if
    :: kForks == kHandler && !forked -> fork(kHandler, 0, head, lane)
    :: kForks != kHandler || forked
    fi;
    allocate_or_free(kHandler, 0, lane, head, nested, got);
    interrupted = false
  } unless {
    gone[0]
  }
}

inline revoke_locked(lane, head) {
  atomic {
    DRAINED(kRevoker) -> free = (memory[kWord(lane)] == number(lane));
    if
    :: free -> memory[kWord(lane)] = kRevoked
    :: else
    fi
  };
  if
  :: free ->
     membarrier(kRevoker);
     if
     :: LOAD(kRevoker, kWord(lane)) == kRevoked ->
        d_step {
          comes_in(kRevoker, kRevoker, lane);
          inside[lane] = inside[lane] | frame_bit(kRevoker)
        };
        work(kRevoker, lane, head);
        leave(kRevoker, kRevoker, lane)
     :: else
     fi
  :: else
  fi;
  atomic { DRAINED(kRevoker) -> memory[kLock(lane)] = 0 };
  head = 0
}

inline revoke(lane, head) {
  atomic {
    DRAINED(kRevoker) -> free = (memory[kLock(lane)] == 0);
    memory[kLock(lane)] = 1
  };
  if
  :: free -> revoke_locked(lane, head)
  :: else
  fi;
  free = false
}
proctype Revoker() {
  byte lane, head, rounds;
  bool free;
  do
  :: {
       do
       :: rounds < kRounds ->
          rounds++;
          lane = 0;
          if
          :: lane = 0
          :: forked -> lane = lane_of[0]
          fi;
          revoke(lane, head)
       :: else -> break
       od;
       break
     } unless {
       gone[kRevoker] ->
       unreached[kRevoker] = 0;
       free = false;
       head = 0;
       rounds = 0;
       sorted_out -> gone[kRevoker] = false
     }
  od
}

inline take_off(thread) {
  atomic {
    switches < kSwitches && (forked || kForks == kNoThread) && cpu[thread] != kNowhere && DRAINED(thread) -> switches++;
    restart(thread);
    cpu[thread] = kNowhere
  }
}

inline put_on(thread, where) {
  atomic {
    cpu[thread] == kNowhere && cpu[1 - thread] != where && !gone[thread] -> cpu[thread] = where
  }
}

proctype Scheduler() {
end:
  do
  :: take_off(0)
  :: take_off(1)
  :: put_on(0, 0)
  :: put_on(0, 1)
  :: put_on(1, 0)
  :: put_on(1, 1)
  od
}

init {
  atomic {
    visits_of[0] = kVisits0; visits_of[1] = kVisits1;
    cpu[0] = 0; cpu[1] = kNowhere; cpu[kRevoker] = kCpus;
    lane_of[1] = 1; last_lane[1] = 1;
    memory[kWord(1)] = 1; memory[kWord(3)] = 1;
    run Thread(0); run Thread(1); run Revoker();
    if
    :: kHandlers -> run Handler()
    :: else
    fi;
    run StoreBuffer(0); run StoreBuffer(1); run StoreBuffer(2);
    run Scheduler()
  }
}
