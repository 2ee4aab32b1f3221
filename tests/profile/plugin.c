/* A library whose function has a frame of FRAME bytes, and otherwise the same code at the same
 * place. Built by run.sh. */
void call(void (*back)(void)) {
  volatile char room[FRAME];
  room[0] = 1;
  back();
  room[FRAME - 1] = 1;
}
