#!/bin/busybox sh
# Of busybox; names are ours, variables come from the kernel:
# shellcheck shell=dash disable=SC2012,SC2013,SC2153,SC2231
# The first process of an emulated machine: takes CPUs away and brings them back, moves threads, and
# runs the stress programs meanwhile. Lines that begin with @ are for run.sh, which started the
# machine.
# From the kernel's command line: WANT_CPUS, WANT_NODES, WANT_MM_CID (yes|no), LANES, SCALE.
/bin/busybox mkdir -p /proc /sys /dev /tmp /sys/fs/cgroup
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs none /tmp
mount -t cgroup2 none /sys/fs/cgroup
cd /tests || exit 1

group=/sys/fs/cgroup/tests
cpus=/sys/devices/system/cpu
echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control
mkdir $group

ok() { echo "@ok $*"; }
failed() { echo "@FAILED $*"; }
equal() {  # WHAT GOT WANTED
  if [ "$2" = "$3" ]; then ok "$1: $2"; else failed "$1: $2, should be $3"; fi
}

random_below() { echo $(($(od -An -N2 -tu2 /dev/urandom) % $1)); }

random_mask() { od -An -v -tx1 -N$((WANT_CPUS / 8)) /dev/urandom | tr -d ' '; }
random_cpuset() { echo "$(random_below "$WANT_CPUS")-$((WANT_CPUS - 1))"; }

# Each loop counts in a file what the kernel has accepted.
take_cpus_away() {
  while :; do
    cpu=$((1 + $(random_below $((WANT_CPUS - 1)))))
    if echo 0 >$cpus/cpu$cpu/online; then echo >>/tmp/offline; fi
    usleep 30000
    echo 1 >$cpus/cpu$cpu/online
  done 2>/dev/null
}
change_cpusets() {
  while :; do
    if random_cpuset >$group/cpuset.cpus && random_below "$WANT_NODES" >$group/cpuset.mems; then
      echo >>/tmp/cpusets
    fi
    usleep 50000
  done 2>/dev/null
}
change_affinity() {
  while :; do
    for thread in $(cat $group/cgroup.threads); do
      if taskset -p "$(random_mask)" "$thread"; then echo >>/tmp/affinity; fi
    done >/dev/null
    usleep 20000
  done 2>/dev/null
}
lines_of() { if [ -e "$1" ]; then wc -l <"$1"; else echo 0; fi; }

disturb() {
  rm -f /tmp/offline /tmp/cpusets /tmp/affinity
  take_cpus_away &
  away=$!
  change_cpusets &
  sets=$!
  change_affinity &
  affinity=$!
}
leave_alone() {  # says whether anything was disturbed
  kill $away $sets $affinity
  wait $away $sets $affinity 2>/dev/null
  for file in $cpus/cpu*/online; do echo 1 >"$file"; done 2>/dev/null
  echo "0-$((WANT_CPUS - 1))" >$group/cpuset.cpus
  for what in offline cpusets affinity; do
    if [ "$(lines_of /tmp/$what)" -gt 0 ]; then
      ok "disturbance: $what changed $(lines_of /tmp/$what) times"
    else
      failed "disturbance: $what never changed"
    fi
  done
}

show_facts() {
  ./cpu_facts "$WANT_CPUS" >/tmp/facts
  cat /tmp/facts
  equal 'CPUs' "$(grep -c '^processor' /proc/cpuinfo)" "$WANT_CPUS"
  equal 'nodes' "$(ls -d /sys/devices/system/node/node* | wc -l)" "$WANT_NODES"
  equal 'rseq' "$(awk '$1 == "rseq" { print $2 }' /tmp/facts)" yes
  equal 'membarrier that restarts sequences' \
    "$(awk '$1 == "membarrier_rseq" { print $2 }' /tmp/facts)" yes
  equal 'mm_cid' \
    "$(awk '$1 == "rseq_feature_size" { print ($2 >= 28 ? "yes" : "no") }' /tmp/facts)" \
    "$WANT_MM_CID"
  equal 'threads bound to CPU n that see cpu_id n' \
    "$(awk '$1 == "thread" && $3 == "bound" && $2 == $5 && $2 == $9' /tmp/facts | wc -l)" \
    "$WANT_CPUS"
  if [ "$WANT_MM_CID" = yes ]; then
    equal 'different mm_cids below the number of CPUs' "$(awk -v most="$WANT_CPUS" \
      '$1 == "thread" && $11 < most { print $11 }' /tmp/facts | sort -u | wc -l)" "$WANT_CPUS"
  fi
}

run() {  # LIBRARY LANES PROGRAM CASE; its output is in /tmp/output
  sh -c 'echo $$ >/sys/fs/cgroup/tests/cgroup.procs
    export LD_PRELOAD=$1 LANEMALLOC_OPTIONS=lanes=$2,stats=exit LANEMALLOC_TEST_LIBRARY=$1 \
      LANEMALLOC_TEST_SCALE=$SCALE LANEMALLOC_TEST_WATCHDOG=300
    exec "./$3" "$4"' run "$@" >/tmp/output 2>&1
}
# The process that was started tells its entry last; children that it forked have told theirs.
entries() { sed -n 's/^lanemalloc: entry: //p' /tmp/output | sort -u | tr '\n' ' ' | sed 's/ $//'; }

stress() {  # LANES PROGRAM CASE
  start=$(cut -d. -f1 /proc/uptime)
  run /tests/liblanemalloc.so "$@"
  status=$?
  seconds=$(($(cut -d. -f1 /proc/uptime) - start))
  if [ $status = 0 ] && grep -q '^ok' /tmp/output; then
    ok "[lanes=$1, $seconds s] $(sed -n 's/^ok //p' /tmp/output)"
  elif grep -q '^skipped' /tmp/output; then
    echo "@SKIP [lanes=$1] $(sed -n 's/^skipped //p' /tmp/output)"
  else
    failed "[lanes=$1, $seconds s] $2 $3: status $status"
    head -n 40 /tmp/output
    dmesg | grep -A 1 segfault | tail -n 6
  fi
  equal "[lanes=$1] $2 $3: entry" "$(entries)" "$1"
}

expect_failure() {  # MUTANT LANES PROGRAM CASE
  mutant=$1
  shift
  if run "/tests/$mutant.so" "$@" ||
    ! grep -q -E 'damaged|twice|not handed out|Segmentation|broken invariant' /tmp/output; then
    failed "mutant $mutant should fail $2 $3: $(head -n 1 /tmp/output)"
  else
    ok "mutant $mutant fails $2 $3: $(head -n 1 /tmp/output)"
  fi
}

show_facts
for lanes in $LANES; do
  disturb
  stress "$lanes" storm 8-threads
  stress "$lanes" storm 32-threads
  stress "$lanes" thread_exit born-and-die
  stress "$lanes" fork_load from-threads
  stress "$lanes" signals thread-timers
  stress "$lanes" signals nested
  leave_alone
done
disturb
for mutant in $MUTANTS; do expect_failure "${mutant%%:*}" "${mutant#*:}" storm 32-threads; done
leave_alone >/dev/null
echo '@done'
poweroff -f
