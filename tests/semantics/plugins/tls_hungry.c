// Eats static TLS: opened many times as copies, until the loader has none left. TLS_BYTES is set by
// run.sh.
static __thread char eaten[TLS_BYTES] __attribute__((tls_model("initial-exec"), aligned(8)));
char* tls_hungry(void) { return eaten; }
