#!/usr/bin/env bash
# checks: perl: hashes, sorting, regular expressions, threads with queues, forks: same output as
# under glibc's malloc
# lanes: percpu
# needs: /usr/share/perl/*/Thread/Queue.pm=perl
# shellcheck source=tests/preload/lib.sh
source "$PRELOAD_LIB"

cat >work.pl <<'END'
use strict; use warnings;
use threads; use threads::shared; use Thread::Queue;
use Digest::MD5 qw(md5_hex); use Storable qw(freeze thaw);
my $scale = shift;
my $x = 4711;
sub random { $x = ($x * 1103515245 + 12345) % 2147483648; return $x }
my (%words, @lists);
for my $i (1 .. 60000 * $scale) {
  my $word = 'w' . random() % 20000;
  $words{$word} .= "$i,";
  push @{$lists[random() % 500]}, $word x (1 + $i % 4);
  delete $words{'w' . random() % 20000} if $i % 3 == 0;
}
print md5_hex(join ';', map { "$_=$words{$_}" } sort keys %words), ' ', scalar(keys %words), "\n";
print md5_hex(join ';', map { join ',', sort { $b cmp $a } @{$_ // []} } @lists), "\n";
my $sorted = [map { [sort @{$_ // []}] } @lists];
my $frozen = md5_hex(freeze($sorted));
print md5_hex(freeze(thaw(freeze($sorted)))) eq $frozen ? "storable\n" : "STORABLE\n";
my $text = join ' ', map { "$_:" . length $words{$_} } sort keys %words;
my $changed = ($text =~ s/(\d+)(\d)/$2$1/g);
print $changed, ' ', md5_hex($text), "\n";

# Threads: each works on its clone of all data; pieces go through queues.
my ($todo, $done) = (Thread::Queue->new, Thread::Queue->new);
my @workers = map {
  threads->create(sub {
    while (defined(my $job = $todo->dequeue)) {
      my %mine = map { ($_ => md5_hex("$job $_")) } 1 .. 400;
      $done->enqueue("$job " . md5_hex(join '', map { $mine{$_} } sort keys %mine));
    }
    return scalar(keys %words);
  })
} 1 .. 4;
$todo->enqueue($_) for 1 .. 200 * $scale;
$todo->end;
print join(',', map { $_->join } @workers), "\n";
$done->end;
my @results;
while (defined(my $result = $done->dequeue)) { push @results, $result }
print scalar(@results), ' ', md5_hex(join "\n", sort @results), "\n";

# Forks: every child changes the data that it inherited and answers through a pipe.
for my $child (1 .. 20) {
  my $pid = open(my $pipe, '-|') // die "fork: $!";
  if (!$pid) {
    $words{$_} .= "child$child" for keys %words;
    delete @words{grep { /$child/ } keys %words};
    print md5_hex(join ';', map { "$_=$words{$_}" } sort keys %words), "\n";
    exit 0;
  }
  print "$child: ", <$pipe>;
  close $pipe or die "child $child: status $?";
}
END
plain perl work.pl "$SCALE" >out.plain
under perl work.pl "$SCALE" >out.under 2>perl.log
same 'the output of perl' out.plain out.under
grep -q '^storable$' out.under || fail 'a Storable round trip changed the data'
mapped perl
ok "hashes, sorts, 4 threads and 20 forks give the same $(wc -l <out.under) lines"
