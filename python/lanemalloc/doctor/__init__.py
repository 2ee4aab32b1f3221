"""What on this machine, or in a program, gets in the way of the allocator: host checks, program
checks, and the ELF files they read."""
