#!/usr/bin/python3
from lanemalloc.cli import main

main(prog_name="lanemalloc")
