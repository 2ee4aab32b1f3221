"""The live view: model (what is known of processes), tables (what panels show), view (lines for a
size of screen), screen (curses)."""
