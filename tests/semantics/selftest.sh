#!/usr/bin/env bash
# Shows that the cases of tests/semantics and tests/death can fail: the reference allocator of
# mutants/reference.cc passes them, and each of its mutants fails the case named beside it. Called
# by hand and by make verify.
# Usage: tests/semantics/selftest.sh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/part.sh
source "$here/../part.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
library=$work/libreference.so
"${CXX:-g++}" -std=c++20 -O2 -Wall -Wextra -Werror -Wno-missing-attributes -fno-builtin -shared \
  -fPIC -pthread -o "$library" "$here/mutants/reference.cc"

# tell STATUS TEXT
tell() { if (($1 == 0)); then ok "$2"; else fail "$2"; fi; }

"$here/run.sh" --lib "$library" --keep "$work" >"$work/reference.log" || true
grep -a '^FAILED' "$work/reference.log" | sed 's/^/reference: /' || true
export CHECK_LIBRARY=$library CHECK_PLUGINS=$work

while read -r mutant case; do
  [[ -n $mutant ]] || continue
  status=0
  grep -qx "ok $case" "$work/reference.log" || status=1
  tell "$status" "the reference passes $case"
  # The shell's own word about a signal goes to nobody.
  {
    timeout -s KILL 100 env LD_PRELOAD="$library" REFERENCE_MUTANT="$mutant" "$work/${case%/*}" \
      "${case#*/}" >"$work/out" 2>&1 </dev/null && status=1 || status=0
  } 2>/dev/null
  ! grep -aq '^skipped' "$work/out" || status=1
  tell "$status" "$mutant fails $case"
done <<'MUTANTS'
size_zero_is_null sizes/size_zero_gives_unique_pointers
failure_sets_no_errno sizes/sizes_past_ptrdiff_max_give_enomem
calloc_overflows sizes/products_that_overflow_give_enomem
usable_size_is_too_large sizes/usable_size_is_writable_to_the_last_byte
rounds_to_powers_of_two sizes/lanemalloc_inner_waste_is_bounded
success_clears_errno sizes/success_and_free_keep_errno
free_writes_errno sizes/success_and_free_keep_errno
free_writes_errno sizes/free_in_another_thread_keeps_errno
realloc_to_zero_gives_an_object realloc/realloc_to_zero_frees
realloc_to_zero_leaks realloc/realloc_to_zero_does_not_leak
failed_realloc_frees realloc/failed_realloc_keeps_the_object
realloc_copies_too_little realloc/content_is_kept_from_every_size_to_every_size
realloc_copies_too_little realloc/content_of_aligned_objects_is_kept
realloc_copies_too_little realloc/grows_byte_by_byte_and_back
calloc_leaves_dirt calloc/small_objects_after_dirty_reuse
large_calloc_leaves_dirt calloc/large_objects_after_dirty_reuse
posix_memalign_takes_any_alignment aligned/posix_memalign_refuses_bad_alignment
posix_memalign_writes_the_result aligned/posix_memalign_out_of_memory
alignment_stops_at_pages aligned/every_alignment_with_every_kind_of_size
alignment_stops_at_pages aligned/alignment_up_to_one_gib
pvalloc_does_not_round aligned/valloc_and_pvalloc_give_pages
xml_is_broken control/malloc_info_prints_xml
stats_go_to_stdout control/malloc_stats_prints_to_stderr
trim_does_nothing control/malloc_trim_gives_memory_back
mallopt_refuses control/mallopt_answers
mallinfo_is_zero control/mallinfo2_follows_live_memory
new_gives_null operators/throwing_forms_throw_bad_alloc
new_ignores_the_handler operators/new_handler_is_called_until_it_throws
handler_is_called_once operators/new_handler_is_called_until_it_throws
handler_is_called_once operators/new_succeeds_when_the_handler_frees_memory
nothrow_ignores_the_handler operators/nothrow_forms_call_the_handler_too
array_new_is_not_aligned operators/every_form_pairs_with_every_delete
new_gives_null dlopen_others/plugin_catches_bad_alloc
threads_leak exits/memory_of_ended_threads_is_used_again
fork_takes_no_lock processes/fork_while_other_threads_allocate
out_of_memory_for_ever limits/data_of_600_mib_with_threads
unknown_key_is_silent options/lanemalloc_unknown_key_is_named_with_the_nearest
unknown_key_is_silent options/lanemalloc_every_bad_entry_gets_its_line
long_string_overflows options/very_long_strings_do_no_harm
strict_is_not_fatal options/lanemalloc_strict_makes_errors_fatal
null_is_counted options/lanemalloc_failures_and_null_do_not_count
remote_frees_not_counted options/lanemalloc_remote_frees_count_exactly
compiled_in_wins compiled_options/lanemalloc_environment_wins
wrong_reason death/lanemalloc_pointers_that_are_not_ours
report_aborts death/lanemalloc_pointers_that_are_not_ours
ignore_talks death/lanemalloc_pointers_that_are_not_ours
interior_is_foreign death/lanemalloc_pointers_into_objects
double_free_is_not_seen death/lanemalloc_checked_twice
double_free_is_not_seen death/lanemalloc_large_object_twice
MUTANTS

finish
