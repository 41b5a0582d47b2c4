/*
 * unit.h - unit tests of the core: a list of functions and a way to say no.
 */
#ifndef PTAC_TESTS_UNIT_H
#define PTAC_TESTS_UNIT_H

#include "core/base.h"

/* Defines a test that the program finds by itself. */
#define UNIT(name)                                                                     \
    static void name(void);                                                            \
    __attribute__((constructor)) static void add_##name(void)                          \
    {                                                                                  \
        unit_add(#name, name);                                                         \
    }                                                                                  \
    static void name(void)

/* Says what does not hold, and where; the test goes on. Any thread may. */
#define EXPECT(condition)                                                              \
    ((condition) ? (void)0 : unit_fail(__FILE__, __LINE__, #condition))
#define EXPECT_TEXT(text, expected)                                                    \
    (strcmp(text, expected) == 0 ? (void)0 : unit_fail(__FILE__, __LINE__, text))

void unit_add(const char *name, void (*test)(void));
void unit_fail(const char *file, int line, const char *what);

/* Say why a test cannot be run in this build; it then returns. */
void unit_skip(const char *reason);

/* How much to do: in full with PTAC_TEST_FULL=1, as in make check. */
uint64_t unit_amount(uint64_t usual, uint64_t full);

/* Call check in a child process: true when it returned true there. */
bool unit_in_child(bool (*check)(void));

/* Whether the child that called it was ended by this signal. */
bool unit_child_dies(bool (*act)(void), int signal_number);

#endif
