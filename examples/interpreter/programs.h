// The programs. One counts the ways to place n queens, with lists and a closure. The other fills a
// dictionary, a tree that each insertion makes anew along its path, and sums it by a function that
// it passes in.
#pragma once

inline const char kPrograms[] = R"(
function queens 1 4            # n
  local 0 0
  integer 0
  nil
  loop place 3

function place 3 6             # n, row, columns of the rows before
  local 0 1
  local 0 0
  equal
  unless some
  integer 1
  give
some:
  integer 0
  local 0 0
  local 0 1
  local 0 2
  integer 0
  loop columns 5

function columns 5 8           # sum, n, row, placed, column
  local 0 4
  local 0 1
  equal
  unless more
  local 0 0
  give
more:
  local 0 3
  closure peaceful
  integer 1
  invoke all 3
  unless taken
  local 0 1
  local 0 2
  integer 1
  add
  local 0 4
  local 0 3
  pair
  invoke place 3
  local 0 0
  add
  jump next
taken:
  local 0 0
next:
  local 0 1
  local 0 2
  local 0 3
  local 0 4
  integer 1
  add
  loop columns 5

function peaceful 2 6          # a placed queen, rows between; around it: of columns
  local 0 0
  local 1 4
  equal
  unless left
  integer 0
  give
left:
  local 0 0
  local 1 4
  local 0 1
  subtract
  equal
  unless right
  integer 0
  give
right:
  local 0 0
  local 1 4
  local 0 1
  add
  equal
  unless well
  integer 0
  give
well:
  integer 1
  give

function all 3 6               # list, predicate, distance
  local 0 0
  is_nil
  unless look
  integer 1
  give
look:
  local 0 1
  local 0 0
  head
  local 0 2
  call 2
  unless no
  local 0 0
  tail
  local 0 1
  local 0 2
  integer 1
  add
  loop all 3
no:
  integer 0
  give

function dictionary 1 6        # how many keys
  local 0 0
  integer 1
  nil
  invoke fill 3
  closure value_of
  invoke fold 2
  give

function fill 3 6              # how many, key, tree
  local 0 0
  integer 0
  equal
  unless more
  local 0 2
  give
more:
  local 0 0
  integer 1
  subtract
  local 0 1
  integer 137
  multiply
  integer 71
  add
  integer 1009
  modulo
  local 0 2
  local 0 1
  invoke insert 2
  loop fill 3

function insert 2 8            # tree: (key left . right), key
  local 0 0
  is_nil
  unless some
  local 0 1
  nil
  nil
  pair
  pair
  give
some:
  local 0 1
  local 0 0
  head
  equal
  unless other
  local 0 0
  give
other:
  local 0 1
  local 0 0
  head
  less
  unless larger
  local 0 0
  head
  local 0 0
  tail
  head
  local 0 1
  invoke insert 2
  local 0 0
  tail
  tail
  pair
  pair
  give
larger:
  local 0 0
  head
  local 0 0
  tail
  head
  local 0 0
  tail
  tail
  local 0 1
  invoke insert 2
  pair
  pair
  give

function fold 2 6              # tree, function of a key
  local 0 0
  is_nil
  unless some
  integer 0
  give
some:
  local 0 0
  tail
  head
  local 0 1
  invoke fold 2
  local 0 0
  tail
  tail
  local 0 1
  invoke fold 2
  add
  local 0 1
  local 0 0
  head
  call 1
  add
  give

function value_of 1 4          # key
  local 0 0
  integer 3
  multiply
  give
)";
