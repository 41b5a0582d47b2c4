/*
 * test_debug.c - broken invariants end debug builds, and cost others nothing.
 */
#include "core/debug.h"

#include "unit.h"

#include <signal.h>

static int n_evaluated;

static bool is_true(bool value)
{
    n_evaluated++;
    return value;
}

static bool assert_what_is_false(void)
{
    PTAC_ASSERT(is_true(false));
    return n_evaluated == 0;
}

UNIT(assertions_hold_in_debug_builds)
{
    n_evaluated = 0;
    PTAC_ASSERT(is_true(true));
#ifdef PTAC_DEBUG
    EXPECT(n_evaluated == 1);
    EXPECT(unit_child_dies(assert_what_is_false, SIGABRT));
#else
    EXPECT(unit_in_child(assert_what_is_false));
#endif
}
