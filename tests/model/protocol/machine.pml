// The machine: what x86 threads see of each other's stores, the barrier that one thread runs on all, and the futex.
// Included by owned.pml and percpu.pml, which define the words (kWords) and the length of a store buffer.
//
// A store goes into its thread's buffer and reaches memory later, in order; a thread sees its own stores at once. A locked
// instruction and a system call wait until the thread's buffer is empty. membarrier() returns once every thread's buffer
// has been empty at some moment since the call; the moments come in any order.

#define kThreads 3

byte memory[kWords];
chan buffer[kThreads] = [kBufferLength] of { byte, byte };  // word, value
typedef Words {
  byte holds[kWords]
};
Words youngest[kThreads];  // what the youngest store to a word holds, while it is in the thread's buffer

#define LOAD(thread, word) (buffer[thread]??[eval(word), _] -> youngest[thread].holds[word] : memory[word])
#define DRAINED(thread) (empty(buffer[thread]))

inline store(thread, word, value) {
  atomic {
    buffer[thread]!word, value;
    youngest[thread].holds[word] = value
  }
}

proctype StoreBuffer(byte thread) {
  byte word, value;
end:
  do
  :: atomic {
       buffer[thread]?word, value;
       memory[word] = value;
       if
       :: buffer[thread]??[eval(word), _]
       :: else -> youngest[thread].holds[word] = 0
       fi;
       word = 0;
       value = 0
     }
  od
}

byte unreached[kThreads];  // by each thread's call of membarrier: a bit a thread

inline reach(caller, thread) {
  d_step {
    (unreached[caller] & (1 << thread)) && DRAINED(thread) ->
      unreached[caller] = unreached[caller] & ~(1 << thread);
      barrier_reaches(thread)
  }
}

inline membarrier(caller) {
  atomic { DRAINED(caller) -> unreached[caller] = (1 << kThreads) - 1 };
  do
  :: reach(caller, 0)
  :: reach(caller, 1)
  :: reach(caller, 2)
  :: unreached[caller] == 0 -> break
  od
}

bool asleep[kThreads];

inline futex_wait(thread, word, value) {
  atomic {
    DRAINED(thread) -> asleep[thread] = (memory[word] == value)
  };
  !asleep[thread]
}

// One futex is enough: in each model only one word is slept on.
inline futex_wake_one(thread) {
  atomic {
    DRAINED(thread);
    if
    :: asleep[0] -> asleep[0] = false
    :: asleep[1] -> asleep[1] = false
    :: asleep[2] -> asleep[2] = false
    :: else
    fi
  }
}
