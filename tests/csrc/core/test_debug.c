/*
 * test_debug.c - broken invariants end debug builds, and cost others nothing.
 */
#include "core/counters.h"
#include "core/debug.h"
#include "core/kernel.h"

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

static bool leave_without_entering(void)
{
    ptac_call_leave();
    return true;
}

static bool add_a_row_that_cannot_run(void)
{
    static const ptac_kernel row = {.op = PTAC_OP_ZERO_GRAD, .name = "still"};

    ptac_registry_add(&row);
    return true;
}

UNIT(core_ends_where_its_invariants_are_broken)
{
#ifdef PTAC_DEBUG
    EXPECT(unit_child_dies(leave_without_entering, SIGABRT));
    EXPECT(unit_child_dies(add_a_row_that_cannot_run, SIGABRT));
#else
    EXPECT(unit_in_child(leave_without_entering));
    EXPECT(unit_in_child(add_a_row_that_cannot_run));
#endif
}
