// Checks for the programs of tests/cpp: the first that fails ends the program. Works without
// exceptions.
#ifndef TESTS_CPP_CHECK_H_
#define TESTS_CPP_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define CHECK(expression)                                                 \
  do {                                                                    \
    if (!(expression)) {                                                  \
      std::printf("FAILED %s:%d: %s\n", __FILE__, __LINE__, #expression); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (false)

#define CHECK_THROWS(exception, expression) \
  do {                                      \
    bool thrown = false;                    \
    try {                                   \
      expression;                           \
    } catch (const exception&) {            \
      thrown = true;                        \
    }                                       \
    CHECK(thrown&& #expression);            \
  } while (false)

#endif  // TESTS_CPP_CHECK_H_
