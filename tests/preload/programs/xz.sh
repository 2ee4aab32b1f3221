#!/usr/bin/env bash
# checks: xz -T2 round trip: same checksum, same compressed file as under glibc's malloc
# lanes: percpu
# needs: xz=xz-utils
# shellcheck source=tests/preload/lib.sh
source "$PRELOAD_LIB"

numbers $((1000000 * SCALE)) >data
md5sum <data >sum.plain
plain xz -T2 -2 --block-size=1MiB -c data >plain.xz
under xz -T2 -2 --block-size=1MiB -c data >under.xz 2>xz.log
same 'the compressed file' plain.xz under.xz
under xz -T2 -dc under.xz 2>>xz.log | md5sum >sum.under
same 'the checksum after the round trip' sum.plain sum.under
under xz -t plain.xz 2>>xz.log
mapped xz
ok 'threaded round trip keeps the checksum; the compressed file is the same'
